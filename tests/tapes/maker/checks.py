"""The checks that a pair must pass, worked on parsed JSON and not on bytes."""

import json

from maker.ask import ask


def events(text):
    """(name, payload) of each event that has data; a payload is parsed unless it is [DONE]."""
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        lines = [line.split(":", 1) for line in block.split("\n") if line and line[0] != ":"]
        fields = {key: value.removeprefix(" ") for key, value in lines}
        if "data" in fields:
            payload = fields["data"]
            found.append(
                (fields.get("event"), payload if payload == "[DONE]" else json.loads(payload))
            )
    return found


def documents(kind, text):
    if kind == "sse":
        return events(text)
    try:
        return [(None, json.loads(text))]
    except json.JSONDecodeError:
        return [(None, text)]


def hide(case, asked, kind):
    """`asked` less what the agent did not ask for, worked on parsed JSON and not on bytes."""
    kept = []
    _, headers, added = ask(case)
    for name, doc in documents(kind, asked):
        if not isinstance(doc, dict):
            kept.append((name, doc))
            continue
        if headers and name == "sglext_ids":
            continue
        if case.wire == "responses":
            hide_response(doc, added)
            kept.append((name, doc))
            continue
        choices = doc.get("choices") or []
        one = choices[0] if len(choices) == 1 else {}
        swallowed = one.get("finish_reason") is None and (
            one.get("logprobs") or one.get("token_ids") is not None
        )
        if case.upstream == "vllm" and case.wire == "chat" and one.get("delta") == {} and swallowed:
            if "logprobs" in added and "return_token_ids" in added:
                continue
        if (
            case.upstream == "sglang"
            and one.get("delta") == {"reasoning_content": None}
            and swallowed
        ):
            if "logprobs" in added:
                continue
        gone = {"vllm": (), "openai": ()}.get(
            case.upstream, ("token_ids", "prompt_token_ids", "meta_info")
        )
        for part in [doc, *choices]:
            if {"logprobs", "n_probs"} & set(added) and "logprobs" in part:
                part["logprobs"] = None
                if case.upstream == "llamacpp" and case.wire == "chat":
                    del part["logprobs"]
            for key in ("token_ids", "prompt_token_ids", "response_token_ids"):
                if "return_token_ids" in added and key in part:
                    part[key] = None
                    if gone:
                        del part[key]
            if "return_meta_info" in added:
                part.pop("meta_info", None)
            if "return_weight_versions" in added and "weight_versions" in part:
                part["weight_versions"] = None
        if "verbose" in added:
            doc.pop("__verbose", None)
        kept.append((name, doc))
    return kept


def hide_response(doc, added):
    root = doc.get("response", doc)
    if "enable_response_messages" in added and "output" in root:
        root["input_messages"] = root["output_messages"] = None
    if "include" in added:
        if "output" in root:
            root["top_logprobs"] = None
        parts = [doc.get("part") or {}]
        for item in [doc.get("item") or {}, *root.get("output", [])]:
            parts += item.get("content") or []
        for part in parts:
            if part.get("type") == "output_text" and part["logprobs"]:
                part["logprobs"] = None
        if doc.get("type") == "response.output_text.delta":
            doc["logprobs"] = []


def check(case, made):
    """Fails unless the pair is one: same but for the ask, and facts that the asked reply shows."""
    text = {
        name.rsplit(".", 2)[1]: body
        for name, body in made.items()
        if not name.endswith(".facts.json")
    }
    kinds = {name.rsplit(".", 2)[1]: name.rsplit(".", 1)[1] for name in made}
    facts = json.loads(made[f"{case.name}.facts.json"])
    json.loads(text["sent"])
    for choice in facts["choices"]:
        ids, logprobs = choice["token_ids"], choice["logprobs"]
        assert ids is None or len(ids) == len(logprobs), (case.name, "ids and logprobs")
        spans = choice["versions"]
        assert not spans or (spans[0][1], spans[-1][2]) == (0, len(ids)), (case.name, "versions")
    whole = all("complete" not in c for c in facts["choices"])
    if whole and facts["choices"] and facts["choices"][0]["token_ids"] is not None:
        sampled = sum(len(c["token_ids"]) for c in facts["choices"])
        assert facts["usage"]["completion"] == sampled, (case.name, "usage")
    if case.refused:
        return
    hidden = hide(case, text["asked"], kinds["asked"])
    plain = documents(kinds["plain"], text["plain"])
    assert json.dumps(hidden) == json.dumps(plain), (
        f"{case.name}\n{json.dumps(hidden)}\n{json.dumps(plain)}"
    )
    if text["asked"] != text["plain"]:
        assert text["sent"] != text["request"] or "headers" in text, (
            case.name,
            "nothing was asked",
        )
    if case.raw or case.script.fault:
        return
    seen = reported(documents(kinds["asked"], text["asked"]))
    for choice in facts["choices"]:
        ids, logprobs = seen.get(choice["index"], ([], []))
        if choice["token_ids"] is not None:
            assert ids == choice["token_ids"], (case.name, "ids", ids, choice["token_ids"])
        wanted = choice.get("entries", choice["logprobs"])
        assert logprobs == wanted, (case.name, "logprobs", logprobs, wanted)


def reported(docs):
    """Ids and logprobs of each choice, wherever a server puts them."""
    ids, logprobs, named, listed = {}, {}, {}, {}
    for _, doc in docs:
        if not isinstance(doc, dict):
            continue
        for at, some in enumerate((doc.get("sglext") or {}).get("output_ids", [])):
            listed[at] = some
        root = doc.get("response", doc)
        for message in root.get("output_messages") or []:
            ids.setdefault(0, []).extend(message["tokens"])
        if doc.get("type") == "response.output_text.delta":
            logprobs.setdefault(0, []).extend(e["logprob"] for e in doc["logprobs"])
        for part in [p for i in doc.get("output") or [] for p in i.get("content") or []]:
            logprobs.setdefault(0, []).extend(e["logprob"] for e in part.get("logprobs") or [])
        for choice in doc.get("choices") or []:
            at, found = choice["index"], choice.get("logprobs") or {}
            ids.setdefault(at, []).extend(
                choice.get("token_ids") or choice.get("response_token_ids") or []
            )
            entries = (found.get("content") or []) + (found.get("refusal") or [])
            named.setdefault(at, []).extend(e["id"] for e in entries if "id" in e)
            got = [e.get("logprob") for e in entries] + found.get("token_logprobs", [])
            logprobs.setdefault(at, []).extend(got)
            if (verbose := doc.get("__verbose")) and verbose["tokens"]:
                listed[at] = verbose["tokens"]
    ids |= listed
    return {
        at: (ids.get(at) or named.get(at) or [], logprobs.get(at, []))
        for at in {*ids, *named, *logprobs}
    }
