"""The guessing game that the tiny model was taught, and an agent that plays it.

The agent is written as agents are: the `openai` client, tools, and the whole history in every
request. It knows nothing of rolltape.
"""

import json
from dataclasses import dataclass, field

HIGHEST = 7
GUESSES = 3
TURNS_MAX = GUESSES + 2
TOKENS_MAX = 24

QUESTION = f"Find the secret number from 1 to {HIGHEST}. You have {GUESSES} guesses."
TOOL = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guess the secret number.",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
        },
    },
}


@dataclass
class Game:
    """A secret number, and what was guessed."""

    secret: int
    guesses: list[int] = field(default_factory=list)

    def guess(self, n):
        """Takes one guess and gives the tool's answer."""
        if len(self.guesses) == GUESSES:
            return "no guesses left"
        self.guesses.append(n)
        if n == self.secret:
            return "correct"
        if len(self.guesses) == GUESSES:
            return "no guesses left"
        return "higher" if n < self.secret else "lower"

    @property
    def reward(self):
        """1 when the secret was found, else 0."""
        return float(self.secret in self.guesses)


@dataclass
class Agent:
    """One agent: its client, its settings, its history, and every object it was handed."""

    client: object
    stream: bool = False
    seed: int | None = None
    messages: list = field(default_factory=lambda: [{"role": "user", "content": QUESTION}])
    reply_ids: list[str] = field(default_factory=list)
    seen: list[dict] = field(default_factory=list)

    def play(self, game):
        """Plays until the model has no more calls to make."""
        for turn in range(TURNS_MAX):
            message = self.ask(turn)[0]
            if not self.answer(message, game):
                return

    def ask(self, turn=0, **options):
        """One call of the model; gives the message of each choice."""
        seed = None if self.seed is None else self.seed + turn
        options = {"temperature": 1.0, "max_tokens": TOKENS_MAX, "seed": seed, **options}
        reply = self.client.chat.completions.create(
            model="tiny", messages=self.messages, tools=[TOOL], stream=self.stream, **options
        )
        return self._listen(reply) if self.stream else self._read(reply)

    def answer(self, message, game):
        """Appends a message of the model and what the tools say to it; whether there were any."""
        self.messages.append(message)
        calls = tool_calls(message)
        for call in calls:
            said = game.guess(guess_in(call["function"]["arguments"]))
            result = {"role": "tool", "tool_call_id": call["id"], "content": said}
            self.messages.append(result)
        return bool(calls)

    def _read(self, completion):
        self.reply_ids.append(completion.id)
        self.seen.append(completion.model_dump())
        # The client's own object goes back into the history, as its documentation shows.
        return [choice.message for choice in completion.choices]

    def _listen(self, chunks):
        messages = {}
        for chunk in chunks:
            if chunk.id not in self.reply_ids:
                self.reply_ids.append(chunk.id)
            self.seen.append(chunk.model_dump())
            for choice in chunk.choices:
                empty = {"role": "assistant", "content": ""}
                add_delta(messages.setdefault(choice.index, empty), choice.delta)
        return [messages[index] for index in sorted(messages)]


def add_delta(message, delta):
    """Adds a streamed delta to a message; the parts of a tool call are joined by their index."""
    message["content"] += delta.content or ""
    for part in delta.tool_calls or []:
        calls = message.setdefault("tool_calls", [])
        while len(calls) <= part.index:
            calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[part.index]
        if part.id:
            call["id"] = part.id
        call["function"]["name"] += part.function.name or ""
        call["function"]["arguments"] += part.function.arguments or ""


def tool_calls(message):
    """The tool calls of a message as dicts, whichever form the message has."""
    if not isinstance(message, dict):
        message = message.model_dump()
    return message.get("tool_calls") or []


def guess_in(arguments):
    """The number in a call's arguments; one that is never right where there is none."""
    try:
        n = json.loads(arguments)["n"]
    except (ValueError, KeyError, TypeError):
        return 0
    return n if type(n) is int else 0
