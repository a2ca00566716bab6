"""A model of a family that says random things, in the form that its chat template shows them.

A reply is rendered by the template itself, with marks in place of its words, and then written with
all that a model may do otherwise: white space that the template trims, JSON without spaces, text
beside calls that the template does not show, an end in the middle of a word.
"""

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import habits
import words
from tokens import HOME, Spelling

sys.path.append(str(Path(__file__).resolve().parents[1] / "oracle"))

from templates import expected  # noqa: E402

TEXT, THOUGHT = "@@TEXT@@", "@@THOUGHT@@"
ODD_CHANCE = 0.25
CUT_CHANCE = 0.25


@dataclass
class Said:
    """One choice of a reply: what was sampled, and what a server's parsers make of it."""

    ids: list[int]
    content: str | None
    reasoning: str | None
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    """Ids, names and arguments as JSON."""
    finish: str = "stop"
    stop: str | None = None
    """The text of the request that ended it."""


@dataclass
class Draft:
    """What a model means to say."""

    content: str
    thought: str
    calls: list[tuple[str, str, dict]]


class Model:
    """One family: it renders, encodes, and speaks."""

    def __init__(self, family):
        self.family = family
        self.spelling = Spelling(family)
        self._template = (HOME / "templates" / f"{family.template}.jinja").read_text()

    def rendered(self, body, more=(), opens=None):
        """The text of a conversation, as `transformers` and vLLM make it."""
        named = {"bos_token": self.family.bos, "eos_token": self.family.end}
        opens = body.get("add_generation_prompt", True) if opens is None else opens
        case = {
            "messages": [*body["messages"], *more],
            "tools": body.get("tools"),
            "documents": None,
            "add_generation_prompt": opens,
            "open": body.get("continue_final_message", False) and not more,
            "variables": named | (body.get("chat_template_kwargs") or {}),
        }
        return expected(self._template, case)

    def say(self, body, prompt, chance):
        """One choice."""
        habit = habits.habit((body.get("seed") or 0) // habits.CALLS)
        if body.get("continue_final_message"):
            return self._resumed(chance)
        draft = self._draft(body, habit, chance)
        shown = self._shown(body, prompt, draft)
        text = self._written(shown, draft, habit, chance)
        ids = self.spelling.sampled(text, chance)
        if body.get("stop") and draft.content and not draft.calls:
            return self._stopped(ids, draft, body["stop"])
        if not habit.is_clean and chance.random() < CUT_CHANCE:
            ids = ids[: chance.randint(1, max(1, len(ids) - 1))]
            return self._cut(ids, prompt.rstrip().endswith("<think>"))
        finish = "tool_calls" if draft.calls else "stop"
        calls = [(i, name, self._arguments(text, given)) for i, name, given in draft.calls]
        content = self._content(shown, draft, chance)
        return Said(ids, content, draft.thought or None, calls, finish)

    def _draft(self, body, habit, chance):
        family = self.family
        counts = {"loop": (1, 1, 2, 3), "talk": (0,)}.get(habit.kind, (0, 1, 1, 2, 3))
        count = chance.choice(counts) if body.get("tools") else 0
        calls = [words.call(chance) for _ in range(min(count, family.calls_max))]
        calls = [(self._call_id(chance), *call) for call in calls]
        content = words.text(chance)
        is_odd = not habit.is_clean and chance.random() < ODD_CHANCE
        if calls and (chance.random() < 0.6 or family.is_call_alone and not is_odd):
            content = ""
        if is_odd:
            content = odd(content, chance)
        thinks = family.thinks and habit.is_thinking is not False
        thought = words.text(chance) if thinks else ""
        if thinks and not habit.is_clean and chance.random() < ODD_CHANCE:
            thought = odd(thought, chance)
        return Draft(content, thought, calls)

    def _call_id(self, chance):
        chars = self.family.call_id_chars
        if chars is None:
            return f"chatcmpl-tool-{chance.getrandbits(64):016x}"
        return "".join(chance.choices("abcdefghijklmnopqrstuvwxyzABC0123456789", k=chars))

    def _shown(self, body, prompt, draft):
        """What the template shows of a reply, with marks for its words."""
        message = {"role": "assistant", "content": TEXT if draft.content else ""}
        if draft.thought:
            message["reasoning"] = THOUGHT
        if draft.calls:
            message["tool_calls"] = [wire_call(i, n, json.dumps(a)) for i, n, a in draft.calls]
        text = self.rendered(body, [message], opens=False)
        # Hermes writes the last result of a tool otherwise than those before.
        opening = prompt[len(self.rendered(body, opens=False)) :] or prompt
        start = prompt if text.startswith(prompt) else opening
        shown = text[text.rindex(start) + len(start) :]
        end = self.family.end
        if self.family.call_end is None:
            return shown[: shown.index(end) + len(end)]
        return shown + (self.family.call_end if draft.calls else end)

    def _written(self, shown, draft, habit, chance):
        """The text that is sampled."""
        if draft.thought and THOUGHT not in shown:
            close = self.family.close
            if close not in shown:
                draft.thought = ""
            shown = shown.replace(close, THOUGHT + close, 1)
        if draft.content and TEXT not in shown:
            shown = f"{TEXT}\n{shown}"
        if not habit.is_clean and chance.random() < ODD_CHANCE:
            for _, _, given in draft.calls:
                tight = json.dumps(given, ensure_ascii=False, separators=(",", ":"))
                shown = shown.replace(json.dumps(given, ensure_ascii=False), tight, 1)
        return shown.replace(THOUGHT, draft.thought).replace(TEXT, draft.content)

    def _arguments(self, text, given):
        """Arguments as they are passed on: as they were sampled where that is JSON."""
        forms = (
            json.dumps(given, ensure_ascii=False, separators=(",", ":")),
            json.dumps(given, ensure_ascii=False),
        )
        return next((form for form in forms if form in text), forms[1])

    def _content(self, shown, draft, chance):
        """A parser may leave the white space between thoughts and text."""
        if not draft.content:
            return None if draft.calls else ""
        gap = re.search(re.escape(self.family.close) + r"(\s*)" + TEXT, shown)
        kept = gap[1] if gap and chance.random() < 0.5 else ""
        return kept + draft.content

    def _resumed(self, chance):
        """More of a message that was cut."""
        content = words.text(chance, 6)
        ids = self.spelling.sampled(content + self.family.end, chance)
        return Said(ids, content, None)

    def _stopped(self, ids, draft, stop):
        """A reply that ends at a text, whose tokens were sampled and are not passed on."""
        content, found, _ = draft.content.partition(stop)
        start = self.spelling.bytes(ids).rindex(draft.content.encode()) if found else 0
        end = start + len((content + found).encode())
        kept, said = 0, 0
        while found and said < end:
            said += len(self.spelling.bytes_of_token(ids[kept]))
            kept += 1
        ids = ids[:kept] if found else ids
        return Said(ids, content, draft.thought or None, stop=found or None)

    def _cut(self, ids, is_open):
        """What is made of a reply that was cut by its length."""
        text = self.spelling.bytes(ids).decode(errors="replace")
        if not self.family.thinks or not (is_open or "<think>" in text):
            return Said(ids, text, None, finish="length")
        thought, close, rest = text.partition(self.family.close)
        thought = thought if is_open else thought.partition("<think>")[2]
        return Said(ids, rest if close else None, thought.strip("\n") or None, finish="length")


def wire_call(name_id, name, arguments):
    """A tool call of a message."""
    function = {"name": name, "arguments": arguments}
    return {"id": name_id, "type": "function", "function": function}


def odd(text, chance):
    """A text that templates or tokenizers change."""
    kind = chance.randrange(4)
    if kind == 0:
        return text + chance.choice(words.TRAILS)
    if kind == 1:
        return chance.choice(words.TRAILS) + text
    if kind == 2:
        return text + " " + chance.choice(words.COMBINING) + " end"
    return ""
