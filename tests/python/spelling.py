"""What is said, whoever spells it: vLLM on its own routes, or rolltape where it asks vLLM's chat
route and answers for it, on the Messages and the Responses route."""

import json
import re

ID = r"(chatcmpl-(tool-)?|call_|msg_)?(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])(_\d+)?"
VOLATILE = (
    # Ids, by the order in which calls came, with the prefix of the chat route or of another.
    (re.compile(ID), "ID"),
    (re.compile(r"127\.0\.0\.1:\d+(/e/[\w:.-]+)?"), "SERVER"),
)
ECHOED = {
    *("frequency_penalty", "presence_penalty", "temperature", "top_logprobs", "top_p"),
    *("background", "max_output_tokens", "metadata", "reasoning", "store", "text"),
    *("truncation", "user"),
}
"""Fields of a response object that do not tell of the reply: vLLM says how it would sample, OpenAI
repeats its service's defaults, and the chat route knows neither."""
IDLE = {"service_tier": "auto", "cache_write_tokens": 0, "tool_output_tokens": 0}
IDLE |= {"metadata": {}, "cache_creation": 0}
"""What one of the two says of nothing and the other leaves out."""
THOUGHT = "response.reasoning_part."
"""How vLLM's events of the part of a thought begin; OpenAI's are those of any part."""


def masked(text):
    """Text without what differs between two runs."""
    for pattern, placeholder in VOLATILE:
        text = pattern.sub(placeholder, text)
    return text


def shown(path, body):
    """What a reply says: its bytes, or where rolltape answers, what its documents mean."""
    route, streamed = path.partition("?")[0], body.startswith("event: ")
    if route not in ("/v1/messages", "/v1/responses"):
        return masked(body)
    lines = body.splitlines() if streamed else [f"data: {body}"]
    said = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    return masked(json.dumps([meant(document) for document in said], sort_keys=True))


def meant(value):
    """A JSON value in one spelling: a field that is null, an empty list or an unsigned signature
    is as good as none."""
    if isinstance(value, dict):
        echoed = ECHOED if value.get("object") == "response" else set()
        fields = {key: meant(inner) for key, inner in value.items() if key not in echoed}
        return {key: inner for key, inner in fields.items() if _tells(key, inner)}
    if isinstance(value, list):
        return [meant(inner) for inner in value]
    if isinstance(value, str) and value.startswith(THOUGHT):
        return value.replace(THOUGHT, "response.content_part.")
    return value


def _tells(key, value):
    return key != "signature" and value not in (None, []) and IDLE.get(key, ...) != value
