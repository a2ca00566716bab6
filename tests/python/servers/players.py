"""Agents that play the guessing game, one for each wire, with the clients that agents use."""

import json
import re

import anthropic
import openai

from game import GUESSES, QUESTION, TOKENS_MAX, guess_in

from .cases import MESSAGES_TOOL, RESPONSES_TOOL, TOOL
from .running import NAME

TURNS_MAX = GUESSES + 2
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
TURN = "<|im_start|>{}\n{}<|im_end|>\n"
SAMPLED = {"temperature": 1.0}


def can_go_on(arguments):
    """Whether there are calls that a server takes back: vLLM's Rust frontend answers 500 to a
    history in which the model's own arguments are no JSON."""
    try:
        return bool([json.loads(text) for text in arguments])
    except ValueError:
        return False


class Player:
    """An agent with a client of its own; `stream` asks for streams."""

    def __init__(self, base_url, stream):
        self.url = base_url
        self.stream = stream
        self.turns = 0

    def play(self, game):
        """Plays until the model calls nothing more."""
        while self.turns < TURNS_MAX and self.turn(game):
            pass

    def turn(self, game):
        """One call of the model; whether it called the tool."""
        self.turns += 1
        return self.answer(game, self.ask())

    def openai(self):
        """A client of the openai package."""
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=60)


class Chat(Player):
    """Chat, the whole history in every request."""

    def __init__(self, base_url, stream):
        super().__init__(base_url, stream)
        self.client = self.openai()
        self.messages = [{"role": "user", "content": QUESTION}]

    def ask(self):
        """The assistant's message, as a dict."""
        asked = {"model": NAME, "messages": self.messages, "tools": [TOOL], **SAMPLED}
        if self.stream:
            with self.client.chat.completions.stream(**asked, max_tokens=TOKENS_MAX) as events:
                reply = events.until_done().get_final_completion()
        else:
            reply = self.client.chat.completions.create(**asked, max_tokens=TOKENS_MAX)
        return reply.choices[0].message.model_dump(exclude_none=True)

    def answer(self, game, message):
        """Puts the message and the tool's answers behind the history."""
        kept = {key: message[key] for key in ("role", "content", "tool_calls") if key in message}
        for call in kept.get("tool_calls", []):
            call["function"].pop("parsed_arguments", None)
            call.pop("index", None)
        self.messages.append({"content": "", **kept})
        calls = message.get("tool_calls") or []
        for call in calls:
            told = game.guess(guess_in(call["function"]["arguments"]))
            said = {"role": "tool", "tool_call_id": call["id"], "content": told}
            self.messages.append(said)
        return can_go_on(call["function"]["arguments"] for call in calls)


class Completions(Player):
    """Text completions: the agent writes the model's own page, and goes on from what it said."""

    def __init__(self, base_url, stream):
        super().__init__(base_url, stream)
        self.client = self.openai()
        self.page = TURN.format("system", "tools: guess(n)") + TURN.format("user", QUESTION)

    def ask(self):
        """The text of the next turn."""
        self.page += "<|im_start|>assistant\n"
        asked = {"model": NAME, "prompt": self.page, "max_tokens": TOKENS_MAX, **SAMPLED}
        if self.stream:
            chunks = self.client.completions.create(**asked, stream=True)
            return "".join(choice.text for chunk in chunks for choice in chunk.choices)
        return self.client.completions.create(**asked).choices[0].text

    def answer(self, game, text):
        """Puts the text and the tool's answers behind the page."""
        self.page += text + "<|im_end|>\n"
        calls = [called(call) for call in CALL.findall(text)]
        for n in calls:
            self.page += TURN.format("tool", game.guess(n))
        return bool(calls)


def called(text):
    """The number of a call that stands in a text; one that is never right where there is none."""
    try:
        n = json.loads(text)["arguments"]["n"]
    except (ValueError, KeyError, TypeError):
        return 0
    return n if type(n) is int else 0


class Responses(Player):
    """Responses, every item again in each request."""

    def __init__(self, base_url, stream):
        super().__init__(base_url, stream)
        self.client = self.openai()
        self.items = [{"role": "user", "content": QUESTION}]

    def ask(self):
        """The items of the reply, as dicts."""
        asked = {"model": NAME, "input": self.items, "tools": [RESPONSES_TOOL], **SAMPLED}
        asked["max_output_tokens"] = TOKENS_MAX
        if self.stream:
            with self.client.responses.stream(**asked) as events:
                reply = events.until_done().get_final_response()
        else:
            reply = self.client.responses.create(**asked)
        return [item.model_dump(exclude_none=True) for item in reply.output]

    def answer(self, game, items):
        """Puts the items and the tool's answers behind the history."""
        calls = [item for item in items if item["type"] == "function_call"]
        for item in items:
            item.pop("parsed_arguments", None)
            item.pop("async_", None)
        self.items += items
        for call in calls:
            told = game.guess(guess_in(call["arguments"]))
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": told}
            self.items.append(output)
        return can_go_on(call["arguments"] for call in calls)


class Messages(Player):
    """Messages, with the anthropic package."""

    def __init__(self, base_url, stream):
        super().__init__(base_url, stream)
        url = base_url.removesuffix("/v1")
        self.client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
        self.messages = [{"role": "user", "content": QUESTION}]

    def ask(self):
        """The reply, as the client's own object."""
        asked = {"model": NAME, "messages": self.messages, "tools": [MESSAGES_TOOL]}
        asked["extra_body"] = SAMPLED  # newer clients have no such argument
        if self.stream:
            return folded(self.client.messages.create(**asked, max_tokens=TOKENS_MAX, stream=True))
        reply = self.client.messages.create(**asked, max_tokens=TOKENS_MAX)
        return [block.model_dump(exclude_none=True) for block in reply.content]

    def answer(self, game, blocks):
        """Puts the reply and the tool's answers behind the history."""
        uses = [block for block in blocks if block["type"] == "tool_use"]
        if any(use["input"] is None for use in uses):
            return False
        self.messages.append({"role": "assistant", "content": blocks})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": use["id"],
                "content": game.guess(guess_in(json.dumps(use["input"]))),
            }
            for use in uses
        ]
        if results:
            self.messages.append({"role": "user", "content": results})
        return bool(uses)


def folded(events):
    """The blocks of a streamed message, as dicts. The client's own accumulator raises where a
    model's arguments are no JSON; here the `input` of such a block is None."""
    blocks, spelled = [], {}
    for event in events:
        if event.type == "content_block_start":
            blocks.append(event.content_block.model_dump(exclude_none=True))
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            blocks[event.index]["text"] += event.delta.text
        elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            spelled[event.index] = spelled.get(event.index, "") + event.delta.partial_json
    for index, text in spelled.items():
        blocks[index]["input"] = decoded(text)
    return blocks


def decoded(text):
    """The arguments of a call, None where they are no JSON."""
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return None


PLAYERS = {
    "chat": Chat,
    "completions": Completions,
    "responses": Responses,
    "messages": Messages,
}
