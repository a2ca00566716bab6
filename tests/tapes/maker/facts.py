"""What must be recorded of the asked reply."""

import copy
import json


def frame(case, prompts=(), choices=(), usage=(None, None)):
    script = case.script
    error = next((s.error for s in script.steps if s.error), None)
    if script.fault:
        error = json.loads(script.fault[1])
        error = error.get("error", error)["message"]
    return {
        "prompts": [list(p) for p in prompts], "choices": list(choices),
        "usage": {"prompt": usage[0], "completion": usage[1]}, "error": error,
    }  # fmt: skip


def choice(script, index, ids, logprobs, versions=(), entries=None):
    """`entries` are the reported logprobs in order, where some tokens have none."""
    last = script.end(index)
    one = {
        "index": index, "token_ids": ids, "logprobs": logprobs, "finish_reason": last.finish,
        "stop_reason": last.stop, "versions": [list(v.values()) for v in versions],
    }  # fmt: skip
    return one if entries is None else one | {"complete": False, "entries": entries}


def aligned(script, index, shows):
    """Ids, the logprobs beside them, null where the reply has none, and those that it has.

    `shows` says of a step, by its number, for which of its tokens the reply has a logprob.
    """
    flags = [flag for number, step in enumerate(script.of(index)) for flag in shows(number, step)]
    pairs = list(zip(script.tokens(index), flags, strict=True))
    logprobs = [t.logprob if flag else None for t, flag in pairs]
    return [t.id for t, _ in pairs], logprobs, [t.logprob for t, flag in pairs if flag]


def each(step, flag):
    return [bool(flag)] * len(step.tokens)


def spoken(step):
    return step.delta and "tools" not in step.delta


WORDS = {
    "messages": {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"},
    "responses": {"stop": "completed", "length": "max_output_tokens", "tool_calls": "completed"},
}  # fmt: skip


def own_word(case, facts):
    """The facts with the reply's own word for why a choice ended."""
    facts = copy.deepcopy(facts)
    for one in facts["choices"]:
        words = WORDS.get(case.wire, {})
        word = words.get(one["finish_reason"], one["finish_reason"])
        matched = case.wire == "messages" and one["stop_reason"]
        one["finish_reason"] = "stop_sequence" if matched else word
    return facts


def no_facts(case, asked=False):
    script = case.script
    if case.facts is not None:
        return frame(case) | case.facts
    if script.fault:
        return frame(case)
    choices = [choice(script, i, None, []) for i in script.indexes()]
    failed = any(s.error for s in script.steps)
    if failed and case.wire == "messages":
        usage = (script.counts()[0], 0)  # as message_start has it
    elif failed or (case.stream and case.wire not in ("messages", "responses")):
        usage = (None, None)
    else:
        usage = script.counts()
    return frame(case, (), choices, usage)


def vllm_facts(case, asked):
    script, body = case.script, json.loads(case.body)
    asked = asked or body.get("return_token_ids") or body.get("enable_response_messages")
    if case.facts is not None or script.fault or case.refused or not asked:
        facts = no_facts(case)
        return facts | ({"error": None} if case.refused else {})
    failed, choices = any(s.error for s in script.steps), []
    for i in script.indexes():
        tokens = script.tokens(i)
        versions = script.versions(i) if script.end(i).finish else ()
        if case.wire == "responses":
            texts = [
                number for number, s in enumerate(script.of(i)) if "content" in (s.delta or {})
            ]
            shows = lambda number, s: each(s, number in texts if case.stream else texts)
            ids, logprobs, entries = aligned(script, i, shows)
            if failed:
                ids, logprobs = None, entries
            lacks = None if len(entries) == len(tokens) and not failed else entries
            choices.append(choice(script, i, ids, logprobs, (), lacks))
            continue
        late = -9999.0 if case.wire == "chat" and not case.stream else None
        logprobs = [late if t.logprob is None else t.logprob for t in tokens]
        choices.append(choice(script, i, [t.id for t in tokens], logprobs, versions))
    if case.wire == "responses" and failed:
        return frame(case, (), choices) | {"error": None}
    return frame(case, script.prompts, choices, script.counts())


def sglang_facts(case, asked):
    script = case.script
    if script.fault or not asked:
        return no_facts(case)
    failed, choices = any(s.error for s in script.steps), []
    for i in script.indexes():
        versions = [] if case.stream else script.versions(i)
        all = script.parsers or not case.stream or case.wire == "completions"
        ids, logprobs, entries = aligned(script, i, lambda number, s: each(s, all or spoken(s)))
        lost = failed and case.wire == "chat"
        lacks = entries if lost or len(entries) < len(ids) else None
        if lost:
            ids, logprobs = None, entries
        choices.append(choice(script, i, ids, logprobs, versions, lacks))
    if failed and case.wire == "chat":
        return frame(case, (), choices)
    return frame(case, script.prompts, choices, script.counts())


def llama_facts(case, asked):
    script, choices = case.script, []
    if script.fault or case.facts is not None:
        return no_facts(case)
    failed = any(s.error for s in script.steps)
    for i in script.indexes():
        kept = len(script.of(i)) - script.notes.get("cut", 0)

        def shows(number, step):
            """A step's entry has the id and the logprob of its last token."""
            chunk = number == 0 or step.delta or case.wire == "completions"
            seen = chunk if case.stream else number < kept
            return [*[False] * (len(step.tokens) - 1), bool(seen)]

        ids, logprobs, entries = aligned(script, i, shows)
        lacks = entries if len(entries) < len(ids) or failed else None
        if case.stream:
            known = [
                flag for number, step in enumerate(script.of(i)) for flag in shows(number, step)
            ]
            ids, logprobs = [id for id, flag in zip(ids, known) if flag], entries
        choices.append(choice(script, i, ids, logprobs, (), lacks))
    return frame(case, (), choices, (None, None) if failed else script.counts())


def openai_facts(case, asked):
    script = case.script
    if case.facts is not None or case.wire != "chat" or script.fault:
        return no_facts(case)
    wants = (asked or json.loads(case.body).get("logprobs")) and not case.refused
    choices = []
    for i in script.indexes():
        _, _, entries = aligned(script, i, lambda number, s: each(s, spoken(s)))
        choices.append(choice(script, i, None, entries if wants else []))
    counted = not case.stream or (json.loads(case.body).get("stream_options") or {}).get(
        "include_usage"
    )
    return frame(case, (), choices, script.counts() if counted else (None, None))


FACTS = {
    "vllm": vllm_facts,
    "sglang": sglang_facts,
    "llamacpp": llama_facts,
    "openai": openai_facts,
}


def facts_of(case, asked):
    """The facts of a case; `asked` says whether rolltape asked for anything."""
    return own_word(case, FACTS[case.upstream](case, asked))
