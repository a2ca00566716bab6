"""How a conversation goes, by its number: agent and server need not tell each other."""

import random
from dataclasses import dataclass

CALLS = 1000
"""More than a conversation has calls: a seed is its number times this, and the call."""
KINDS = (
    "plain",
    "loop",
    "talk",
    "plain",
    "loop",
    "fork",
    "aside",
    "retry",
    "edited",
    "forgetful",
)


@dataclass(frozen=True)
class Habit:
    """What the two sides of a conversation do."""

    kind: str
    """plain: an agent that only appends, loop: the model calls tools in each reply, talk: in none,
    fork: the agent goes on from several choices, aside: it has another conversation between, retry:
    it asks twice, edited: it changes a message, forgetful: it leaves out thoughts."""
    is_clean: bool
    """Whether replies are as the template would write them, and none is cut by its length."""
    is_thinking: bool | None
    """None where the request does not say."""

    @property
    def appends(self):
        """Whether each call goes on from the one before."""
        return self.kind in ("plain", "loop", "talk")


def habit(number):
    """The habit of a conversation."""
    chance = chance_of("habit", number)
    kind = KINDS[number % len(KINDS)]
    return Habit(kind, chance.random() < 0.6, chance.choice((None, True, False)))


def chance_of(*names):
    """A source of random numbers for what is named."""
    return random.Random("/".join(map(str, names)))
