"""Replies of the Messages route in the byte forms of vLLM 0.33."""

import json

from scripted_forms import data


def _signature(call):
    return f"{call.number:032x}"


def _stop_reason(call):
    return "tool_use" if call.reply.calls else "end_turn"


def _searched(call):
    """The blocks of a search that the server made by itself."""
    if not call.reply.search:
        return []
    name = call.name("srvtoolu_")
    asked = {"query": call.reply.search["query"]}
    page = {"type": "web_search_result", "encrypted_content": "c2VhbGVk", "page_age": None}
    found = [page | result for result in call.reply.search["results"]]
    return [
        {"type": "server_tool_use", "id": name, "name": "web_search", "input": asked},
        {"type": "web_search_tool_result", "tool_use_id": name, "content": found},
    ]


def message(call):
    """A whole reply of the Messages route."""
    content = _searched(call)
    if call.reply.reasoning:
        thought = {"type": "thinking", "thinking": call.reply.reasoning}
        content.append(thought | {"signature": _signature(call)})
    if call.reply.text:
        content.append({"type": "text", "text": call.reply.text})
    for index, (name, said) in enumerate(call.reply.calls):
        use = {"type": "tool_use", "id": call.name("chatcmpl-tool-", index), "name": name}
        content.append(use | {"input": json.loads(said)})
    return {
        "id": call.name("chatcmpl-"),
        "type": "message",
        "role": "assistant",
        "content": content or [{"type": "text", "text": ""}],
        "model": call.model,
        "stop_reason": _stop_reason(call),
        "usage": {"input_tokens": len(call.prompt), "output_tokens": len(call.sampled)},
    }


def message_stream(call):
    """The events of a streamed reply of the Messages route."""
    start = {
        "id": call.name("chatcmpl-"),
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": call.model,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": len(call.prompt), "output_tokens": 0},
    }
    yield _event({"type": "message_start", "message": start})
    yield from _blocks(call)
    delta = {"stop_reason": _stop_reason(call), "stop_sequence": None}
    usage = {"input_tokens": len(call.prompt), "output_tokens": len(call.sampled)}
    yield _event({"type": "message_delta", "delta": delta, "usage": usage})
    yield _event({"type": "message_stop"})


def _event(value):
    return data(value, value["type"])


def _blocks(call):
    """The content blocks of a streamed message, each opened, filled and closed."""
    at, open_kind, uses = -1, None, 0
    for block in _searched(call):
        at += 1
        asked = block.get("input")
        start = block | ({} if asked is None else {"input": {}})
        yield _event({"type": "content_block_start", "content_block": start, "index": at})
        if asked:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(asked)}
            yield _event({"type": "content_block_delta", "delta": delta, "index": at})
        yield _event({"type": "content_block_stop", "index": at})

    def close():
        if open_kind == "reasoning":
            delta = {"type": "signature_delta", "signature": _signature(call)}
            yield _event({"type": "content_block_delta", "delta": delta, "index": at})
        if open_kind:
            yield _event({"type": "content_block_stop", "index": at})

    for piece in call.reply.pieces():
        if not piece.kind:
            continue
        if piece.kind == "call" or piece.kind not in (open_kind, "arguments"):
            yield from close()
            at, open_kind = at + 1, piece.kind
            block = {"type": "text", "text": ""}
            if piece.kind == "reasoning":
                block = {"type": "thinking", "thinking": ""}
            elif piece.kind == "call":
                use = {"type": "tool_use", "id": call.name("chatcmpl-tool-", uses)}
                block = use | {"name": piece.text, "input": {}}
                uses += 1
            yield _event({"type": "content_block_start", "content_block": block, "index": at})
        delta = {
            "reasoning": {"type": "thinking_delta", "thinking": piece.text},
            "content": {"type": "text_delta", "text": piece.text},
            "arguments": {"type": "input_json_delta", "partial_json": piece.text},
        }.get(piece.kind)
        if delta:
            yield _event({"type": "content_block_delta", "delta": delta, "index": at})
    yield from close()
