"""The same server in the words of SGLang 0.5.23: `/tokenize` tells ids alone, `/detokenize` the texts
of several lists, and a chat takes its prompt in `input_ids`.

`serving_tokenize.py`, `serving_chat.py` and `protocol.py` of its package are what it follows.
"""

import forms
import server
from forms import CREATED, dumps, pieces
from model import wire_call
from server import Refused

SKIPPED = ("add_generation_prompt", "add_special_tokens")
"""Fields that the chat route ignores."""


class Reply(forms.Reply):
    """What is said to one request."""

    def whole(self):
        """The document."""
        choices = [self._whole(index) for index in range(len(self.choices))]
        head = self._head | {"object": "chat.completion", "choices": choices}
        return head | {"usage": self._usage(), "metadata": {"weight_version": "default"}}

    def _whole(self, index):
        said, entries = self.choices[index], self._logprobs[index]
        message = {"role": "assistant", "content": said.content, "tool_calls": None}
        message["reasoning_content"] = said.reasoning
        if said.calls:
            message["tool_calls"] = [wire_call(*call) for call in said.calls]
        choice = {"index": index, "message": message, "finish_reason": said.finish}
        choice["logprobs"] = {"content": entries} if entries is not None else None
        choice["matched_stop"] = matched(said)
        if self._asks_ids:
            choice |= {"prompt_token_ids": self.prompt, "response_token_ids": said.ids}
        return choice

    def frames(self):
        """The bytes of a stream, with the ids in an event of their own."""
        for event in self.events():
            yield b"data: " + dumps(event) + b"\n\n"
        told = {}
        if self.headers.get("x-sglext-return-input-ids") == "1":
            told["input_ids"] = self.prompt
        if self.headers.get("x-sglext-return-output-ids") == "1":
            told["output_ids"] = [said.ids for said in self.choices]
        if told:
            name = b"event: sglext_ids\n" if self.headers.get("x-sglext-ids-framed") == "1" else b""
            event = self._chunk([], usage=None, sglext=told)
            yield name + b"data: " + dumps(event) + b"\n\n"
        if (self.body.get("stream_options") or {}).get("include_usage"):
            yield b"data: " + dumps(self._chunk([], usage=self._usage())) + b"\n\n"
        yield b"data: [DONE]\n\n"

    def events(self):
        """The chunks of a stream."""
        for index, said in enumerate(self.choices):
            entries, spoken = self._logprobs[index], list(deltas(said))
            yield self._part(index, {"role": "assistant", "content": ""})
            for at, delta in enumerate(spoken):
                start, end = (len(said.ids) * edge // len(spoken) for edge in (at, at + 1))
                part = entries and {"content": entries[start:end]}
                yield self._part(index, delta, logprobs=part)
            yield self._part(index, {}, finish_reason=said.finish, matched_stop=matched(said))

    def _part(self, index, delta, **more):
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._chunk([choice | {"matched_stop": None} | more])

    def _chunk(self, choices, **more):
        head = {"object": "chat.completion.chunk", "created": CREATED, "choices": choices}
        return self._head | head | more


def deltas(said):
    """The pieces of a message."""
    for piece in pieces(said.reasoning):
        yield {"reasoning_content": piece}
    for piece in pieces(said.content):
        yield {"content": piece}
    for index, call in enumerate(said.calls):
        yield {"tool_calls": [{"index": index} | wire_call(*call)]}
    yield {}


def matched(said):
    """What ended a choice: a text of the request, or a token; None where it was cut."""
    if said.finish == "length":
        return None
    return said.ids[-1] if said.stop is None else said.stop


def is_said(message):
    """Whether a message is an answer in words."""
    return message["role"] == "assistant" and isinstance(message["content"], str)


class Server(server.Server):
    """One family, and the log."""

    form = Reply
    owner = "sglang"
    version = "/server_info", {"version": "0.5.23", "tool_call_parser": "x"}

    def tokenize(self, body):
        """Ids of a conversation, of a text or of several."""
        if "messages" in body:
            if "add_generation_prompt" in body and body.get("continue_final_message"):
                if not body["add_generation_prompt"]:
                    raise Refused("continue_final_message needs add_generation_prompt")
            ids = self.encoded(self.shown(body))[1]
        elif isinstance(body["prompt"], list):
            ids = [self.model.spelling.canonical(text) for text in body["prompt"]]
        else:
            ids = self.model.spelling.canonical(body["prompt"])
        return {"tokens": ids, "count": len(ids), "max_model_len": server.CONTEXT}

    def detokenize(self, body):
        """The text of ids, or the texts of lists of them."""
        if body.get("skip_special_tokens", True):
            raise Refused("this server keeps special tokens")
        told, spelling = body["tokens"], self.model.spelling
        if told and isinstance(told[0], list):
            return {"text": [spelling.bytes(ids).decode(errors="replace") for ids in told]}
        return {"text": spelling.bytes(told).decode(errors="replace")}

    def shown(self, body):
        """A chat as the template is given it: a last answer that is not to be continued is a
        user's."""
        body = {key: value for key, value in body.items() if key not in SKIPPED}
        *before, last = body["messages"]
        if not is_said(last) or body.get("continue_final_message"):
            return body
        return body | {"messages": [*before, {"role": "user", "content": last["content"]}]}

    def encoded(self, body):
        """The text and the ids of a chat. An answer that is to be continued is encoded apart."""
        *before, last = body["messages"]
        if not is_said(last):
            return super().encoded(body)
        text, ids = super().encoded(body | {"messages": before, "continue_final_message": False})
        return text + last["content"], ids + self.model.spelling.canonical(last["content"])

    def given(self, body):
        """The prompt of a chat as ids, if it has one."""
        return body.get("input_ids")
