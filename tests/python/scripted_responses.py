"""Replies of the Responses route in the byte forms of vLLM 0.33."""

from scripted_forms import CREATED, data
from scripted_template import FOLD, functions_of, text_of

WANTED = "message.output_text.logprobs"


def _wants_logprobs(call):
    return WANTED in (call.body.get("include") or [])


def _logprobs(call):
    """The entries on a whole part; of all sampled tokens, as vLLM puts them there."""
    order = ("token", "bytes", "logprob", "top_logprobs")
    return [{key: entry[key] for key in order} for entry in call.entries()]


def _reasoning(call, text=None):
    done = text is not None
    return {
        "id": call.name("rs_"),
        "summary": [],
        "type": "reasoning",
        "content": [{"text": text, "type": "reasoning_text"}] if done else None,
        "encrypted_content": None,
        "status": "completed" if done else "in_progress",
    }


def _part(text, logprobs):
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def _message(call, text=None, logprobs=None):
    done = text is not None
    return {
        "id": call.name("msg_"),
        "content": [_part(text, logprobs)] if done else [],
        "role": "assistant",
        "status": "completed" if done else "in_progress",
        "type": "message",
        "phase": None,
    }


def _function_call(call, index, said=None):
    name = call.reply.calls[index][0]
    space, tool = functions_of(call.body).get(name, (None, {"name": name}))
    return {
        "arguments": said or "",
        "call_id": call.name("call_", index),
        "name": tool["name"],
        "type": "function_call",
        "id": call.name("fc_", index),
        "async": None,
        "caller": None,
        "namespace": space,
        "status": "in_progress" if said is None else "completed",
    }


def _folds(call):
    """Whether the reply is the folded history, an item that only the server can read."""
    given = call.body.get("input")
    return isinstance(given, list) and given[-1].get("type") == FOLD


def _folded(call):
    return {
        "type": "compaction",
        "id": call.name("cmp_"),
        "encrypted_content": call.reply.text,
    }


def _search(call, status="completed"):
    action = {"type": "search", "query": call.reply.search["query"]}
    found = {"id": call.name("ws_"), "type": "web_search_call", "status": status}
    return found | ({"action": action} if status == "completed" else {})


def _output(call, logprobs):
    """The items of a whole reply."""
    reply = call.reply
    if _folds(call):
        return [_folded(call)]
    items = [_search(call)] if reply.search else []
    if reply.reasoning:
        items.append(_reasoning(call, reply.reasoning))
    if reply.text or not reply.calls:
        items.append(_message(call, reply.text, logprobs))
    return items + [_function_call(call, i, said) for i, (_, said) in enumerate(reply.calls)]


def response(call, output=None, status="completed"):
    """A whole response object; with no output yet while it is in progress."""
    body, done = call.body, status == "completed"
    if done and output is None:
        output = _output(call, _logprobs(call) if _wants_logprobs(call) else None)
    shown = done and call.asks("enable_response_messages")
    raw = [
        [{"message": text_of(ids), "tokens": ids, "type": "raw_message_tokens"}] if shown else None
        for ids in (call.prompt, call.sampled)
    ]
    return {
        "id": call.name("resp_"),
        "created_at": CREATED,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata"),
        "model": call.model,
        "object": "response",
        "output": output or [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "temperature": body.get("temperature", 1.0),
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0),
        "background": False,
        "max_output_tokens": body.get("max_output_tokens") or 4096,
        "max_tool_calls": None,
        "previous_response_id": None,
        "prompt": None,
        "prompt_cache_options": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "reasoning": body.get("reasoning"),
        "safety_identifier": None,
        "service_tier": "auto",
        "status": status,
        "text": body.get("text"),
        "top_logprobs": (body.get("top_logprobs") or 0) if _wants_logprobs(call) else None,
        "truncation": "disabled",
        "usage": _usage(call) if done else None,
        "user": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": raw[0],
        "output_messages": raw[1],
    }


def _usage(call):
    prompt, sampled = len(call.prompt), len(call.sampled)
    none = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
    told = {"tool_output_tokens": 0, "output_tokens_per_turn": []}
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, **none},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": call.reasoning_tokens, **told},
        "total_tokens": prompt + sampled,
    }


def stream(call):
    """The events of a streamed response, numbered."""
    for number, event in enumerate(_events(call)):
        kind, fields = event["type"], {**event, "sequence_number": number}
        # Keys are sorted because vLLM's event classes declare them so, but for the nested object.
        first = [key for key in ("response", "item") if key in fields]
        last = ["name"] if kind == "response.function_call_arguments.done" else []
        rest = sorted(key for key in fields if key not in (*first, *last))
        yield data({key: fields[key] for key in [*first, *rest, *last]}, kind)


def _events(call):
    begun = response(call, status="in_progress")
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    items = []
    said = (_search_events, _reasoning_events, _text_events, _call_events)
    for steps in (_fold_events,) if _folds(call) else said:
        yield from steps(call, items)
    yield {"type": "response.completed", "response": response(call, items)}


def _item(which, item, at):
    return {"type": f"response.output_item.{which}", "item": item, "output_index": at}


def _fold_events(call, items):
    items.append(_folded(call))
    yield _item("added", items[-1], 0)
    yield _item("done", items[-1], 0)


def _search_events(call, items):
    if not call.reply.search:
        return
    where = {"item_id": call.name("ws_"), "output_index": len(items)}
    yield _item("added", _search(call, "in_progress"), len(items))
    for step in ("in_progress", "searching", "completed"):
        yield {"type": f"response.web_search_call.{step}", **where}
    items.append(_search(call))
    yield _item("done", items[-1], len(items) - 1)


def _reasoning_events(call, items):
    text, at = call.reply.reasoning, len(items)
    if not text:
        return
    where = {"item_id": call.name("rs_"), "output_index": at, "content_index": 0}
    yield _item("added", _reasoning(call), at)
    part = {"text": "", "type": "reasoning_text"}
    yield {"type": "response.reasoning_part.added", **where, "part": part}
    for piece in call.reply.pieces():
        if piece.kind == "reasoning":
            yield {"type": "response.reasoning_text.delta", **where, "delta": piece.text}
    yield {"type": "response.reasoning_text.done", **where, "text": text}
    yield {"type": "response.reasoning_part.done", **where, "part": {**part, "text": text}}
    items.append(_reasoning(call, text))
    yield _item("done", items[-1], at)


def _text_events(call, items):
    text, at = call.reply.text, len(items)
    if not text and call.reply.calls:
        return
    where = {"item_id": call.name("msg_"), "output_index": at, "content_index": 0}
    yield _item("added", _message(call), at)
    yield {"type": "response.content_part.added", **where, "part": _part("", [])}
    entries, met = call.entries(), 0
    found = []
    for piece in call.reply.pieces():
        own, met = entries[met : met + len(piece.ids)], met + len(piece.ids)
        if piece.kind == "content":
            keys = ("token", "logprob", "top_logprobs")
            told = [{key: entry[key] for key in keys} for entry in own]
            found += own
            logprobs = told if _wants_logprobs(call) else []
            delta = {"delta": piece.text, "logprobs": logprobs}
            yield {"type": "response.output_text.delta", **where, **delta}
    yield {"type": "response.output_text.done", **where, "text": text, "logprobs": []}
    order = ("token", "bytes", "logprob", "top_logprobs")
    told = [{key: entry[key] for key in order} for entry in found]
    logprobs = told if _wants_logprobs(call) else None
    yield {"type": "response.content_part.done", **where, "part": _part(text, logprobs)}
    items.append(_message(call, text, logprobs))
    yield _item("done", items[-1], at)


def _call_events(call, items):
    pieces = [piece for piece in call.reply.pieces() if piece.kind in ("call", "arguments")]
    index = -1
    for position, piece in enumerate(pieces):
        if piece.kind == "call":
            index, at = index + 1, len(items)
            where = {"item_id": call.name("fc_", index), "output_index": at}
            yield _item("added", _function_call(call, index), at)
            continue
        kind = "response.function_call_arguments"
        yield {"type": f"{kind}.delta", **where, "delta": piece.text}
        if position + 1 == len(pieces) or pieces[position + 1].kind == "call":
            name, said = call.reply.calls[index]
            yield {"type": f"{kind}.done", **where, "arguments": said, "name": name}
            items.append(_function_call(call, index, said))
            yield _item("done", items[-1], at)
