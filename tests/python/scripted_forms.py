"""Replies in the byte forms of vLLM 0.33: chat and text completions.

`research/upstreams-vllm.md` says where each form was read. Keys stand in the order in which vLLM
declares them; what was not asked for is null, absent, or a chunk that is not sent, as there.
"""

import json
from dataclasses import dataclass, field

from scripted_template import END, SPECIAL, SPELLED, Reply

CREATED = 1_790_000_000
FINGERPRINT = "vllm-0.33.0-5c71p7ed"
VERSION = "7"


def dumps(value):
    """JSON as both writers of vLLM write it; no number here is one on which they differ."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def data(value, event=None):
    """One event of a stream."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {dumps(value)}\n\n".encode()


@dataclass(frozen=True)
class Call:
    """One request, understood, and what will be said to it."""

    body: dict
    prompt: list[int]
    reply: Reply
    number: int
    """Which request of this process it is, from 0; ids are made of it."""
    sampled: list[int] = field(default_factory=list)

    @property
    def model(self):
        """The model that was asked for."""
        return self.body.get("model") or "scripted"

    def asks(self, key):
        """Whether the client asked for something."""
        return self.body.get(key) is True

    def name(self, kind, index=0):
        """An id as vLLM makes them, but the same in each run."""
        return f"{kind}{self.number:024x}{index:08x}"

    @property
    def finish(self):
        """Why the model stopped."""
        return "tool_calls" if self.reply.calls else "stop"

    @property
    def reasoning_tokens(self):
        """Sampled tokens between the tags of reasoning."""
        return len(self.reply.reasoning.encode())

    def entries(self, top=0):
        """A chat logprob entry for each sampled token."""
        return entries(self.sampled, top)

    def versions(self):
        """Which weights sampled what."""
        return [{"version": VERSION, "start": 0, "end": len(self.sampled)}]


def logprob(position, token):
    """A logprob that is the same number as float32 and in every writer of JSON."""
    return -((7 * position + token) % 61 + 1) / 64


def entries(ids, top=0):
    """Logprob entries; the token that ends a character carries all of it, as in vLLM."""
    found, held = [], b""
    for position, token in enumerate(ids):
        held += SPELLED[token] if token < SPECIAL else bytes([token - SPECIAL])
        whole = held.decode(errors="ignore")
        held = b"" if whole else held
        entry = {
            "token": whole,
            "logprob": logprob(position, token),
            "bytes": list(whole.encode()),
        }
        others = [{"token": f"<{k}>", "logprob": -9.5 - k, "bytes": [60, 48 + k, 62]}
                  for k in range(1, top)]  # fmt: skip
        found.append({**entry, "top_logprobs": [dict(entry), *others] if top else []})
    return found


def chat(call):
    """A whole chat completion."""
    body = call.body
    asked = {"content": call.entries(body.get("top_logprobs") or 0)}
    ids = call.asks("return_token_ids")
    made = _tool_calls(call)
    message = {
        "role": "assistant",
        "content": call.reply.text or (None if made else ""),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        **({"tool_calls": made} if made else {}),
        "reasoning": call.reply.reasoning or None,
    }
    choices = [
        {
            "index": index,
            "message": message,
            "logprobs": asked if call.asks("logprobs") else None,
            "finish_reason": call.finish,
            "stop_reason": None,
            "token_ids": call.sampled if ids else None,
            "routed_experts": None,
            "weight_versions": call.versions() if call.asks("return_weight_versions") else None,
        }
        for index in range(body.get("n") or 1)
    ]
    return {
        "id": call.name("chatcmpl-"),
        "object": "chat.completion",
        "created": CREATED,
        "model": call.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": _usage(call, {"prompt_tokens_details": None} | _details(call)),
        "prompt_logprobs": None,
        "prompt_token_ids": call.prompt if ids else None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _tool_calls(call):
    return [
        {
            "id": call.name("chatcmpl-tool-", index),
            "type": "function",
            "function": {"name": name, "arguments": said},
        }
        for index, (name, said) in enumerate(call.reply.calls)
    ]


def _usage(call, details):
    prompt, sampled = len(call.prompt), len(call.sampled) * (call.body.get("n") or 1)
    counts = {"prompt_tokens": prompt, "total_tokens": prompt + sampled}
    return counts | {"completion_tokens": sampled} | details


def _details(call):
    return {"completion_tokens_details": {"reasoning_tokens": call.reasoning_tokens}}


def chat_stream(call):
    """The events of a streamed chat completion."""
    head = {
        "id": call.name("chatcmpl-"),
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": call.model,
    }
    ids = call.asks("return_token_ids")
    wants = ids or call.asks("logprobs")
    with_usage = (call.body.get("stream_options") or {}).get("include_usage")
    count = call.body.get("n") or 1
    for index in range(count):
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        tail = {"prompt_token_ids": call.prompt if ids else None, "prompt_text": None}
        yield data({**head, "choices": [choice], **tail})
    for delta, piece, logprobs in _deltas(call):
        if piece.ids == [END]:
            break
        if not delta and not wants:
            continue  # nothing came out of these tokens, and nobody asked for them
        for index in range(count):
            choice = {
                "index": index,
                "delta": delta,
                "logprobs": {"content": logprobs} if call.asks("logprobs") else None,
                "finish_reason": None,
                "token_ids": piece.ids if ids else None,
            }
            yield data({**head, "choices": [choice], "kv_transfer_params": None})
    for index in range(count):
        choice = {
            "index": index,
            "delta": {},
            "logprobs": {"content": logprobs} if call.asks("logprobs") else None,
            "finish_reason": call.finish,
            "stop_reason": None,
            "token_ids": piece.ids if ids else None,
            "weight_versions": call.versions() if call.asks("return_weight_versions") else None,
        }
        tail = {} if with_usage else {"system_fingerprint": FINGERPRINT}
        yield data({**head, "choices": [choice], **tail, "kv_transfer_params": None})
    if with_usage:
        usage = {"usage": _usage(call, _details(call)), "system_fingerprint": FINGERPRINT}
        yield data({**head, "choices": [], **usage})
    yield b"data: [DONE]\n\n"


def _deltas(call):
    """What the parser makes of each output: a delta, the output, its logprobs."""
    entries_of = iter(call.entries(call.body.get("top_logprobs") or 0))
    number = -1
    for piece in call.reply.pieces():
        delta = {}
        if piece.kind in ("reasoning", "content"):
            delta = {piece.kind: piece.text}
        elif piece.kind == "call":
            number += 1
            names = {"id": call.name("chatcmpl-tool-", number), "type": "function"}
            function = {"name": piece.text, "arguments": ""}
            delta = {"tool_calls": [{**names, "index": number, "function": function}]}
        elif piece.kind == "arguments":
            part = {"index": number, "function": {"arguments": piece.text}}
            delta = {"tool_calls": [part]}
        yield delta, piece, [next(entries_of) for _ in piece.ids]


def completion(call):
    """A whole text completion."""
    ids = call.asks("return_token_ids")
    choices = [
        {
            "index": index,
            "text": call.reply.text,
            "logprobs": _text_logprobs(call, 0, call.sampled),
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": call.sampled if ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": call.prompt if ids else None,
            "routed_experts": None,
            "weight_versions": call.versions() if call.asks("return_weight_versions") else None,
        }
        for index in range(call.body.get("n") or 1)
    ]
    return {
        "id": call.name("cmpl-"),
        "object": "text_completion",
        "created": CREATED,
        "model": call.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": _usage(call, {"prompt_tokens_details": None}),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _text_logprobs(call, at, ids):
    if call.body.get("logprobs") is None:
        return None
    said = entries(call.sampled)[at : at + len(ids)]
    tokens = [entry["token"] for entry in said]
    numbers = [entry["logprob"] for entry in said]
    offsets = [sum(map(len, tokens[:index])) for index in range(len(tokens))]
    return {
        "text_offset": offsets,
        "token_logprobs": numbers,
        "tokens": tokens,
        "top_logprobs": [{token: number} for token, number in zip(tokens, numbers)],
    }


def completion_stream(call):
    """The events of a streamed text completion of one choice."""
    head = {
        "id": call.name("cmpl-"),
        "object": "text_completion",
        "created": CREATED,
        "model": call.model,
    }
    ids, at = call.asks("return_token_ids"), 0
    with_usage = (call.body.get("stream_options") or {}).get("include_usage")
    for piece in call.reply.pieces():
        ends = piece.ids == [END]
        choice = {
            "index": 0,
            "text": piece.text,
            "logprobs": _text_logprobs(call, at, piece.ids),
            "finish_reason": "stop" if ends else None,
            "stop_reason": None,
            "prompt_token_ids": call.prompt if ids and at == 0 else None,
            "token_ids": piece.ids if ids else None,
            "weight_versions": call.versions()
            if ends and call.asks("return_weight_versions")
            else None,
        }
        tail = {"system_fingerprint": FINGERPRINT} if ends and not with_usage else {}
        yield data({**head, "choices": [choice], **tail, "kv_transfer_params": None})
        at += len(piece.ids)
    if with_usage:
        usage = {"usage": _usage(call, {}), "system_fingerprint": FINGERPRINT}
        yield data({**head, "choices": [], **usage})
    yield b"data: [DONE]\n\n"
