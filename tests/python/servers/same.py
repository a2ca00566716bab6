"""Whether two replies to one request say the same: by bytes, or by what a client makes of them."""

import json
import re

ID = re.compile(
    rb'"(id|call_id|item_id|response_id)":"'
    rb"((?:chatcmpl-tool-|chatcmpl-|cmpl-|resp_|msg_|fc_|rs_|call_|toolu_)?)"
    rb'([0-9A-Za-z-]{8,})"'
)
TIME = re.compile(rb'"(created|created_at|completed_at)":[0-9.]+')
NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
TIMINGS = re.compile(rb'"timings":\{[^}]*\}')
# The second of two equal calls finds its prompt in the server's cache.
CACHED = re.compile(
    rb'"(cached_tokens|cache_read_input_tokens|tokens_cached)":[0-9]+'
    rb'|"cached_tokens_details":(null|\{[^}]*\})'
)
GROWING = ("content", "text", "reasoning", "reasoning_content", "arguments")
OF_THE_HOP = {"connection", "content-length", "date", "keep-alive", "transfer-encoding"}


def masked(body):
    """A reply's bytes without ids and times; the same id gets the same number throughout."""
    seen = {}

    def numbered(found):
        number = seen.setdefault(found[3], len(seen))
        return b'"%s":"%s#%d"' % (found[1], found[2], number)

    body = ID.sub(numbered, body)
    body = TIME.sub(rb'"\1":0', body)
    body = TIMINGS.sub(lambda found: NUMBER.sub(b"0", found[0]), body)
    return CACHED.sub(lambda found: found[0].split(b":")[0] + b":0", body)


def headers(message):
    """A reply's headers that do not belong to one connection or moment."""
    return [pair for pair in message.headers if pair[0] not in OF_THE_HOP]


def is_stream(message):
    """Whether a reply is a stream of events."""
    return (message.header("content-type") or "").startswith("text/event-stream")


def documents(message):
    """The JSON documents of a reply: its body, or the data of each event but the closing word."""
    if not is_stream(message):
        return [json.loads(message.body)]
    lines = message.body.decode().splitlines()
    data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    return [json.loads(one) for one in data if one not in ("[DONE]", "null")]


def joined(message):
    """A stream, put together choice by choice.

    Which of several choices is told of first, and how many tokens an event has, hangs on the
    moment.
    """
    choices, others = {}, []
    for document in documents(message):
        parts = document.get("choices") or []
        for part in parts:
            add(choices.setdefault(part["index"], {}), part)
        if not parts:
            others.append(masked(json.dumps(document, separators=(",", ":")).encode()))
    return choices, others


def add(whole, part):
    """Puts a part behind what is there: texts and lists grow, else what is not null replaces."""
    for key, value in part.items():
        there = whole.get(key)
        if key == "tool_calls" and value:
            calls = whole[key] = there or {}
            for call in value:
                add(calls.setdefault(call["index"], {}), call)
        elif isinstance(value, dict):
            whole[key] = there if isinstance(there, dict) else {}
            add(whole[key], value)
        elif isinstance(value, str) and isinstance(there, str) and key in GROWING:
            whole[key] = there + value
        elif isinstance(value, list) and isinstance(there, list):
            whole[key] = there + value
        elif key in ("id", "tool_call_id"):
            whole[key] = "given"
        elif value is not None or key not in whole:
            whole[key] = value


def equal(direct, through):
    """Whether an agent gets the same bytes, ids and times aside."""
    return (
        direct.status == through.status
        and headers(direct) == headers(through)
        and masked(direct.body) == masked(through.body)
    )


def equal_but_for_order(direct, through):
    """Whether two documents with maps of logprobs are equal: in some servers maps have no order."""
    if b'"top_logprobs"' not in direct.body or is_stream(direct):
        return False
    both = (json.loads(masked(message.body)) for message in (direct, through))
    return direct.status == through.status and next(both) == next(both)


def equal_joined(direct, through):
    """Whether two streams say the same of each choice, wherever they are cut."""
    if not (is_stream(direct) and is_stream(through) and direct.status == through.status):
        return False
    return headers(direct) == headers(through) and joined(direct) == joined(through)


def told(message, wire):
    """What a client of the Messages or Responses wire is told, of a reply that was translated."""
    if message.status != 200:
        return {"status": message.status}  # each route words its refusals
    parts = documents(message)
    if wire == "messages":
        return told_of_messages(parts) if is_stream(message) else told_of_message(parts[0])
    if not is_stream(message):
        return told_of_response(parts[0])
    last = told_of_response(parts[-1]["response"])
    kinds = [part["type"] for part in parts]
    order = [kind for at, kind in enumerate(kinds) if not at or kinds[at - 1] != kind]
    text = "".join(p["delta"] for p in parts if p["type"] == "response.output_text.delta")
    return {**last, "events": order, "text": text}


def told_of_message(message):
    """A whole reply of the Messages wire."""
    return {
        "content": [block_of(block) for block in message["content"]],
        "stop_reason": message.get("stop_reason"),
        "stop_sequence": message.get("stop_sequence"),
        "role": message["role"],
        "input_tokens": prompt_tokens(message["usage"]),
        "output_tokens": message["usage"]["output_tokens"],
    }


def prompt_tokens(usage):
    """All tokens of a prompt, those from the cache included where they are counted apart."""
    return usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0)


def block_of(block):
    """A block of content, without its id."""
    return {key: block.get(key) for key in ("type", "text", "name", "input")}


def told_of_messages(events):
    """A streamed reply of the Messages wire, put together as its SDK does."""
    message, texts = {}, {}
    for event in events:
        kind = event["type"]
        if kind == "message_start":
            message = json.loads(json.dumps(event["message"]))
            began = prompt_tokens(message["usage"])
        elif kind == "content_block_start":
            message["content"].append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            delta = event["delta"]
            piece = delta.get("text") or delta.get("partial_json") or ""
            texts[event["index"]] = texts.get(event["index"], "") + piece
        elif kind == "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]
    for at, text in texts.items():
        block = message["content"][at]
        block |= {"text": text} if block["type"] == "text" else {"input": json.loads(text or "{}")}
    return {**told_of_message(message), "began with": began}


def told_of_response(response):
    """A whole reply of the Responses wire, or the last event of a streamed one."""
    output = [
        {
            "type": item["type"],
            "name": item.get("name"),
            "arguments": item.get("arguments"),
            "content": [
                {key: part.get(key) for key in ("type", "text")}
                for part in item.get("content") or []
            ],
        }
        for item in response["output"]
    ]
    usage = response.get("usage") or {}
    return {
        "output": output,
        "status": response["status"],
        "incomplete": (response.get("incomplete_details") or {}).get("reason"),
        "usage": [usage.get(key) for key in ("input_tokens", "output_tokens", "total_tokens")],
    }
