"""Replies in the forms of vLLM 0.33, with ids and logprobs where they are asked for."""

import json
from itertools import zip_longest

from model import wire_call

CREATED = 1_790_000_000


def logprobs(said, model, as_ids):
    """The logprob of each sampled token."""
    entries = []
    for at, token in enumerate(said.ids):
        data = model.spelling.bytes_of_token(token)
        name = f"token_id:{token}" if as_ids else data.decode(errors="replace")
        number = -((7 * at + token) % 61 + 1) / 64
        entries.append({"token": name, "logprob": number, "bytes": list(data), "top_logprobs": []})
    return entries


class Reply:
    """What is said to one request."""

    def __init__(self, number, body, model, prompt, choices, headers):
        self.headers = headers
        self.body, self.prompt, self.choices = body, prompt, choices
        self._asks_ids = body.get("return_token_ids") is True
        self._head = {"id": f"chatcmpl-{number:032x}", "created": CREATED}
        self._head["model"] = body.get("model") or model.family.name
        self._logprobs = [self._entries(said, model) for said in choices]

    def _entries(self, said, model):
        as_ids = self.body.get("return_tokens_as_token_ids") is True
        return logprobs(said, model, as_ids) if self.body.get("logprobs") is True else None

    def _usage(self):
        count = sum(len(said.ids) for said in self.choices)
        total = {"prompt_tokens": len(self.prompt), "total_tokens": len(self.prompt) + count}
        return total | {"completion_tokens": count}

    def whole(self):
        """The document."""
        return self._head | {
            "object": "chat.completion",
            "choices": [self._choice(index) for index in range(len(self.choices))],
            "usage": self._usage(),
            "prompt_token_ids": self.prompt if self._asks_ids else None,
            "kv_transfer_params": None,
        }

    def _choice(self, index):
        said, entries = self.choices[index], self._logprobs[index]
        message = {"role": "assistant", "content": said.content, "reasoning": said.reasoning}
        if said.calls:
            message["tool_calls"] = [wire_call(*call) for call in said.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": {"content": entries} if entries is not None else None,
            "finish_reason": said.finish,
            "stop_reason": said.stop,
            "token_ids": said.ids if self._asks_ids else None,
        }

    def frames(self):
        """The bytes of a stream."""
        for event in (*map(dumps, self.events()), b"[DONE]"):
            yield b"data: " + event + b"\n\n"

    def events(self):
        """The chunks of a stream."""
        for index in range(len(self.choices)):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            ids = self.prompt if self._asks_ids else None
            yield self._chunk(choice, prompt_token_ids=ids)
        streams = [list(self._parts(index)) for index in range(len(self.choices))]
        for parts in zip_longest(*streams):
            yield from (self._chunk(choice) for choice in parts if choice)
        if (self.body.get("stream_options") or {}).get("include_usage"):
            yield self._head | {
                "object": "chat.completion.chunk",
                "choices": [],
                "usage": self._usage(),
            }

    def _chunk(self, choice, **more):
        head = self._head | {"object": "chat.completion.chunk"}
        return head | {"choices": [choice]} | more

    def _parts(self, index):
        said, entries = self.choices[index], self._logprobs[index]
        spoken = list(deltas(said, max(1, len(said.ids) // 2)))
        for at in range(len(spoken)):
            start, end = (len(said.ids) * edge // len(spoken) for edge in (at, at + 1))
            part = entries and {"content": entries[start:end]}
            is_last = at + 1 == len(spoken)
            yield {
                "index": index,
                "delta": spoken[at],
                "logprobs": part,
                "finish_reason": said.finish if is_last else None,
                "stop_reason": said.stop if is_last else None,
                "token_ids": said.ids[start:end] if self._asks_ids else None,
            }


def deltas(said, most):
    """The pieces of a message, at most so many, and an empty one at its end."""
    spoken = [{"reasoning": piece} for piece in pieces(said.reasoning)]
    spoken += [{"content": piece} for piece in pieces(said.content)]
    for index, (name_id, name, arguments) in enumerate(said.calls):
        function = {"name": name, "arguments": ""}
        call = {"index": index, "id": name_id, "type": "function", "function": function}
        spoken.append({"tool_calls": [call]})
        for piece in pieces(arguments):
            spoken.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    if len(spoken) >= most:
        spoken = [joined(said)]
    return [*spoken, {}] if len(said.ids) > 1 else spoken or [{}]


def joined(said):
    """A whole message as one delta, which vLLM sends where a reply ends at once."""
    delta = {}
    if said.reasoning:
        delta["reasoning"] = said.reasoning
    if said.content:
        delta["content"] = said.content
    if said.calls:
        calls = [wire_call(*call) for call in said.calls]
        delta["tool_calls"] = [{"index": index} | call for index, call in enumerate(calls)]
    return delta


def pieces(text, chars=11):
    """A text in pieces."""
    return [text[at : at + chars] for at in range(0, len(text or ""), chars)]


def dumps(value):
    """JSON as vLLM writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
