"""The guessing game that the tiny model knows a little of, and an agent that plays it.

The agent is written as agents are: the `openai` package as it comes, a tool, and the whole history
in every request. It knows nothing of rolltape and nothing of training.
"""

import json

HIGHEST = 7
GUESSES = 3
TOKENS_MAX = 24
CREDIT = 0.1
"""For each guess that agrees with what was said before, where the secret was not found."""

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


class Game:
    """A secret number, and what was guessed."""

    def __init__(self, secret):
        self.secret = secret
        self.guesses = 0
        self.open = range(1, HIGHEST + 1)
        self.sensible = 0
        self.found = False

    def guess(self, n):
        """Takes one guess and gives the tool's answer."""
        self.guesses += 1
        self.sensible += n in self.open
        if n == self.secret:
            self.found = True
            return "correct"
        if self.guesses >= GUESSES:
            return "no guesses left"
        if n < self.secret:
            self.open = range(max(self.open.start, n + 1), self.open.stop)
            return "higher"
        self.open = range(self.open.start, min(self.open.stop, n))
        return "lower"

    @property
    def over(self):
        """Whether nothing more can happen."""
        return self.found or self.guesses >= GUESSES

    @property
    def reward(self):
        """One if the secret was found, else a little for sensible guesses."""
        return 1.0 if self.found else CREDIT * self.sensible


def play(client, game, model="tiny"):
    """Plays a game until it is over or the model makes no call; gives the calls of the model."""
    messages = [{"role": "user", "content": QUESTION}]
    for calls in range(1, GUESSES + 1):
        reply = client.chat.completions.create(
            model=model, messages=messages, tools=[TOOL], temperature=1.0, max_tokens=TOKENS_MAX
        )
        message = reply.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            said = game.guess(guess_in(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
        if game.over or not message.tool_calls:
            return calls
    return GUESSES


def guess_in(arguments):
    """The number in a call's arguments; one that is never right where there is none."""
    try:
        n = json.loads(arguments)["n"]
    except (ValueError, KeyError, TypeError):
        return 0
    return n if type(n) is int else 0
