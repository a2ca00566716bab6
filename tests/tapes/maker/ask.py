"""What rolltape asks for: fields of the body and headers, by server and wire."""

import json

from maker.text import LOGPROBS

SGLEXT = ("x-sglext-return-input-ids", "x-sglext-return-output-ids", "x-sglext-ids-framed")


def members(text):
    """The members of the JSON object in `text`: key, start and end of the value."""
    decoder, at, found = json.JSONDecoder(), text.index("{") + 1, []
    skip = lambda at: at + len(text[at:]) - len(text[at:].lstrip())
    while text[at := skip(at)] != "}":
        key, at = decoder.raw_decode(text, at)
        start = skip(text.index(":", at) + 1)
        _, end = decoder.raw_decode(text, start)
        found.append((key, start, end))
        at = skip(end)
        at += text[at] == ","
    return found, at


def with_fields(text, fields):
    """`fields` replaced where they stand, else added at the end; every other byte stays."""
    for key, value in fields:
        found, close = members(text)
        spans = [(start, end) for name, start, end in found if name == key]
        for start, end in reversed(spans):
            text = text[:start] + value + text[end:]
        if not spans:
            comma = "," if found else ""
            text = f'{text[:close]}{comma}"{key}":{value}{text[close:]}'
    return text


def ask(case):
    """The body and headers that rolltape sends, and the names of what it added."""
    text, body = case.body, json.loads(case.body)
    true = lambda key: body.get(key) is True
    add, headers = [], {}
    want = lambda key, value="true": None if true(key) else add.append((key, value))
    match case.upstream, case.wire:
        case "vllm", "chat" if not true("use_beam_search") and (
            true("logprobs") or not body.get("top_logprobs")
        ):
            [want(key) for key in ("logprobs", "return_token_ids", "return_weight_versions")]
        case "vllm", "completions" if not true("echo") and not true("use_beam_search"):
            if body.get("logprobs") is None:
                add.append(("logprobs", "0"))
            [want(key) for key in ("return_token_ids", "return_weight_versions")]
        case "vllm", "responses":
            want("enable_response_messages")
            include = body.get("include")
            if include is None:
                add.append(("include", f'["{LOGPROBS}"]'))
            elif LOGPROBS not in include:
                start, end = next(m[1:] for m in members(text)[0] if m[0] == "include")
                comma = "," if include else ""
                add.append(("include", f'{text[start : end - 1]}{comma}"{LOGPROBS}"]'))
        case "sglang", "chat":
            want("logprobs")
            if not case.stream:
                want("return_token_ids")
                if not body.get("return_routed_experts"):
                    want("return_meta_info")
            elif not body.get("return_input_ids_in_sglext") and not body.get(
                "return_output_ids_in_sglext"
            ):
                headers = dict.fromkeys(SGLEXT, "1")
        case "sglang", "completions" if not true("echo"):
            if body.get("logprobs") is None:
                add.append(("logprobs", "0"))
            want("return_token_ids")
        case "llamacpp", "chat" | "completions":
            if not body.get("logprobs") and not body.get("n_probs"):
                add.append(("n_probs", "1"))
            if not case.stream:
                want("return_tokens")
            if not case.stream or case.wire == "chat":
                want("verbose")
        case "openai", "chat" if case.opted_in:
            want("logprobs")
    return with_fields(text, add), headers, [key for key, _ in add]
