"""Requests as agents send them, on four wires: what each holds, and which are refused.

A case says nothing of a server: the same bodies go to all, directly and through rolltape. What a
server refuses must come through as it is.
"""

import json
from dataclasses import dataclass

from game import QUESTION, TOOL

from .running import NAME

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
WIRES = {"chat": CHAT, "completions": COMPLETIONS, "responses": RESPONSES, "messages": MESSAGES}
MODES = ("whole", "streamed")

SAY = "Say something. " + QUESTION
UNICODE = 'Grüße, 🙂 and "quotes": {"logprobs":null,"token_ids":[1]}\n\tdone'
LONG = "word 1 2 3 " * 1500
"""More than any of the servers reads."""
SYSTEM = "You are helpful."
FUNCTION = TOOL["function"]
RESPONSES_TOOL = {"type": "function", **FUNCTION}
MESSAGES_TOOL = {
    "name": FUNCTION["name"],
    "description": FUNCTION["description"],
    "input_schema": FUNCTION["parameters"],
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
USER = {"role": "user", "content": QUESTION}
CALL = {"id": "call_1", "type": "function", "function": {"name": "guess", "arguments": '{"n": 4}'}}
TOLD = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "higher"},
]


@dataclass(frozen=True)
class Case:
    """One request, but for how it is sampled."""

    name: str
    wire: str
    body: dict | bytes
    path: str
    generates: bool = True
    """Whether it asks for tokens and nothing is wrong with it."""
    choices: int = 1

    @property
    def streams(self):
        """Whether a stream is asked for."""
        return isinstance(self.body, dict) and self.body.get("stream") is True

    @property
    def masked(self):
        """Whether a grammar forbids tokens, of which the model alone knows nothing."""
        words = ("schema", "required", "named", "any")
        return any(word in self.name.split("-") for word in words)

    @property
    def mode(self):
        """`whole` or `streamed`."""
        return "streamed" if self.streams else "whole"

    def bytes(self, **sampling):
        """The body as it is sent; what the case itself says of sampling stays."""
        if isinstance(self.body, bytes):
            return self.body
        fields = {**self.body, **{k: v for k, v in sampling.items() if k not in self.body}}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def chat(**fields):
    """A chat body."""
    return {"model": NAME, "messages": [USER], "max_tokens": 24, **fields}


def completion(**fields):
    """A body for text completions."""
    return {"model": NAME, "prompt": SAY, "max_tokens": 12, **fields}


def response(**fields):
    """A Responses body."""
    return {"model": NAME, "input": QUESTION, "max_output_tokens": 24, **fields}


def message(**fields):
    """A Messages body."""
    return {"model": NAME, "max_tokens": 24, "messages": [USER], **fields}


def said(*turns):
    """Messages by turns: the user first, then the assistant."""
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": turn} for at, turn in enumerate(turns)]


def items_told(answer):
    """A turn of the game as Responses items."""
    called = {"type": "function_call", "call_id": "call_1", "name": "guess"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": answer}
    return [USER, {**called, "arguments": '{"n": 4}'}, output]


def blocks_told(answer):
    """A turn of the game as blocks of the Messages wire."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "guess", "input": {"n": 4}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": answer}
    return [
        USER,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]


BODIES = {
    "chat": {
        "text": chat(messages=[{"role": "system", "content": SYSTEM}, *said(SAY)]),
        "question": chat(),
        "tools": chat(tools=[TOOL]),
        "tools-none": chat(tools=[TOOL], tool_choice="none"),
        "tools-required": chat(tools=[TOOL], tool_choice="required", max_tokens=40),
        "tools-named": chat(
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "guess"}},
            max_tokens=40,
        ),
        "tool-result": chat(messages=TOLD, tools=[TOOL]),
        "found": chat(messages=[*TOLD[:2], {**TOLD[2], "content": "correct"}], tools=[TOOL]),
        "history": chat(messages=said(SAY, "4", SAY)),
        "parts": chat(messages=said([{"type": "text", "text": QUESTION}])),
        "unicode": chat(messages=said(UNICODE), max_tokens=40),
        "stop": chat(stop="arg"),
        "stops": chat(stop=["zzz", "arg"], tools=[TOOL]),
        "stop-unmet": chat(stop=["zzz"]),
        "one-token": chat(max_tokens=1),
        "cut": chat(max_tokens=3, tools=[TOOL]),
        "completion-tokens": chat(max_completion_tokens=4),
        "two": chat(n=2),
        "two-tools": chat(n=2, tools=[TOOL]),
        "logprobs": chat(logprobs=True),
        "top-logprobs": chat(logprobs=True, top_logprobs=2, tools=[TOOL]),
        "nulls": chat(logprobs=None, top_logprobs=None, stop=None, n=1),
        "schema": chat(
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        ),
        "penalties": chat(presence_penalty=0.0, frequency_penalty=0.0, user="someone"),
    },
    "completions": {
        "text": completion(),
        "unicode": completion(prompt=UNICODE),
        "ids": completion(prompt=[389, 387, 16, 368, 22]),
        "batch": completion(prompt=[SAY, QUESTION]),
        "batch-ids": completion(prompt=[[389, 387, 16], [389, 387, 16, 368, 22]]),
        "two": completion(n=2),
        "stop": completion(stop=["e"]),
        "one-token": completion(max_tokens=1),
        "logprobs": completion(logprobs=0),
        "top-logprobs": completion(logprobs=2),
        "echo": completion(echo=True),
    },
    "responses": {
        "text": response(input=SAY, instructions=SYSTEM),
        "items": response(input=[{"role": "user", "content": SAY}]),
        "parts": response(
            input=[{"role": "user", "content": [{"type": "input_text", "text": SAY}]}]
        ),
        "tools": response(tools=[RESPONSES_TOOL]),
        "tools-required": response(
            tools=[RESPONSES_TOOL], tool_choice="required", max_output_tokens=40
        ),
        "tool-result": response(input=items_told("higher"), tools=[RESPONSES_TOOL]),
        "found": response(input=items_told("correct"), tools=[RESPONSES_TOOL]),
        "unicode": response(input=UNICODE, max_output_tokens=40),
        "cut": response(max_output_tokens=3),
        "schema": response(
            text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
        ),
        "metadata": response(metadata={"key": "value"}, user="someone"),
    },
    "messages": {
        "text": message(messages=said(SAY), system=SYSTEM),
        "system-parts": message(system=[{"type": "text", "text": SYSTEM}]),
        "tools": message(tools=[MESSAGES_TOOL]),
        "tools-any": message(tools=[MESSAGES_TOOL], tool_choice={"type": "any"}, max_tokens=40),
        "tools-named": message(
            tools=[MESSAGES_TOOL], tool_choice={"type": "tool", "name": "guess"}, max_tokens=40
        ),
        "tool-result": message(messages=blocks_told("higher"), tools=[MESSAGES_TOOL]),
        "found": message(messages=blocks_told("correct"), tools=[MESSAGES_TOOL]),
        "history": message(messages=said(SAY, "4", SAY)),
        "unicode": message(messages=said(UNICODE), max_tokens=40),
        "stop": message(stop_sequences=["arg"]),
        "one-token": message(max_tokens=1),
    },
}
"""By wire and name; each is sent whole and streamed."""

STREAM_ONLY = {
    "chat": {
        "usage": chat(stream_options={"include_usage": True}),
        "no-usage": chat(stream_options={"include_usage": False}, tools=[TOOL]),
    },
    "completions": {"usage": completion(stream_options={"include_usage": True})},
}
REFUSED = {
    "chat": {
        "bad-model": chat(model="nope"),
        "no-messages": {"model": NAME},
        "bad-temperature": chat(temperature="hot"),
        "negative-tokens": chat(max_tokens=-1),
        "unknown-role": chat(messages=[{"role": "nobody", "content": "x"}]),
        "too-long": chat(messages=said(LONG)),
    },
    "completions": {
        "bad-model": completion(model="nope"),
        "no-prompt": {"model": NAME, "max_tokens": 4},
        "too-long": completion(prompt=LONG),
    },
    "responses": {
        "bad-model": response(model="nope"),
        "no-input": {"model": NAME},
        "previous": response(previous_response_id="resp_nope"),
        "too-long": response(input=LONG),
    },
    "messages": {
        "bad-model": message(model="nope"),
        "no-tokens": {"model": NAME, "messages": [USER]},
        "too-long": message(messages=said(LONG)),
    },
}
"""What some server has something against, whole and streamed."""


def every():
    """All cases, in the order of the wires."""
    return [case for wire in WIRES for case in of_wire(wire)]


def of_wire(wire):
    """The cases of one wire."""
    for name, body in BODIES[wire].items():
        for mode in MODES:
            yield made(wire, name, body, mode)
    for name, body in STREAM_ONLY.get(wire, {}).items():
        yield made(wire, name, body, "streamed")
    for name, body in REFUSED[wire].items():
        for mode in MODES:
            yield made(wire, name, body, mode, generates=False)
    malformed = b'{"model": "tiny", "messages": ['
    yield Case(f"{wire}-malformed", wire, malformed, WIRES[wire], generates=False)
    if wire == "messages":
        path = MESSAGES + "/count_tokens"
        counted = {"model": NAME, "messages": [USER], "system": SYSTEM}
        yield Case("messages-count", wire, counted, path, generates=False)


def made(wire, name, body, mode, generates=True):
    """One case in one mode."""
    streams = mode == "streamed"
    named = f"{wire}-{name}" + ("-streamed" if streams else "")
    sent = {**body, "stream": True} if streams else body
    prompts = body.get("prompt")
    batch = isinstance(prompts, list) and not isinstance(prompts[0], int)
    choices = body.get("n", 1) * (len(prompts) if batch else 1)
    return Case(named, wire, sent, WIRES[wire], generates, choices)
