"""OpenAI's hosted chat, as far as it is known from outside."""

from maker.text import CREATED, DONE, data, pretty, starlette


def openai_chat(body, script, headers):
    wants, top = body.get("logprobs"), body.get("top_logprobs") or 0
    said_in = lambda step: "refusal" if "refusal" in (step.delta or {}) else "content"

    def entry(t):
        entry = {"token": t.text, "logprob": t.logprob, "bytes": t.bytes if t.text else None}
        listed = [(t.text, t.logprob), *t.top][:top]
        tops = [{"token": a, "logprob": p, "bytes": list(a.encode())} for a, p in listed]
        return entry | {"top_logprobs": tops}

    def logprobs(steps):
        if not wants:
            return None
        found = {"content": [], "refusal": []}
        for step in steps:
            if step.delta and "tools" not in step.delta:
                found[said_in(step)] += [entry(t) for t in step.tokens]
        found["refusal"] = found["refusal"] or None
        found["content"] = None if found["refusal"] else found["content"]
        return found if any(found.values()) else None

    prompt, completion = script.counts()
    usage = {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0, "audio_tokens": 0,
            "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        },
    }  # fmt: skip
    head = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": "m-2026-01-01",
    }
    if not body.get("stream"):
        choices = []
        for i in script.indexes():
            said, calls = script.message(i)
            message = {"role": "assistant", "content": said.get("content")}
            if calls:
                message["tool_calls"] = [
                    {"id": id, "type": "function", "function": {"name": name, "arguments": text}}
                    for id, name, text in calls
                ]
            message |= {"refusal": said.get("refusal"), "annotations": []}
            choice = {"index": i, "message": message, "logprobs": logprobs(script.of(i))}
            choices.append(choice | {"finish_reason": script.end(i).finish})
        head["object"] = "chat.completion"
        tail = {
            "choices": choices,
            "usage": usage,
            "service_tier": "default",
            "system_fingerprint": "fp_1",
        }
        return "json", pretty(head | tail)
    head |= {"service_tier": "default", "system_fingerprint": "fp_1"}
    counts = (body.get("stream_options") or {}).get("include_usage")
    out, started = [], set()

    def chunk(i, delta, logprobs=None, finish=None):
        choice = {"index": i, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        usage = {"usage": None} if counts else {}
        out.append(data(starlette(head | {"choices": [choice]} | usage)))

    for step in script.steps:
        if step.raw is not None:
            out.append(step.raw)
            continue
        if step.error is not None:
            error = {"message": step.error, "type": "server_error", "param": None, "code": None}
            return "sse", "".join([*out, data(starlette({"error": error}))])
        i = step.index
        if i not in started:
            started.add(i)
            first = {
                "role": "assistant",
                "content": None if step.delta and "tools" in step.delta else "",
            }
            chunk(i, first | {"refusal": None})
        for key, value in (step.delta or {}).items():
            if key != "tools":
                chunk(i, {key: value}, logprobs([step]))
                continue
            for at, id, name, piece in value:
                call = {"index": at} | ({"id": id, "type": "function"} if id else {})
                call["function"] = ({"name": name} if name else {}) | {"arguments": piece}
                chunk(i, {"tool_calls": [call]})
        if step.finish:
            chunk(i, {}, None, step.finish)
    if counts:
        out.append(data(starlette(head | {"choices": [], "usage": usage})))
    return "sse", "".join([*out, DONE])
