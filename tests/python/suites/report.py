"""The table of `docs/suites.md`, made of what a run found."""

from collections import Counter
from dataclasses import dataclass

import known
from engine import ROOT

PAGE = ROOT / "docs/suites.md"
START, END = "<!-- suites -->\n", "<!-- /suites -->"
COLUMNS = {
    "passed": "passed",
    "unknown": "defects",
    "absent": "absent",
    "model": "need a real model",
    "words": "other words or form",
    "closed": "closed to agents",
    "refused": "refused by both",
    "skipped": "skipped or not judged",
}
"""The kinds of outcomes, and their titles."""


@dataclass
class Row:
    """A suite, and its counts by kind."""

    title: str
    counts: Counter


def table(rows):
    """The counts of all suites."""
    shown = [kind for kind in COLUMNS if kind != "closed" or any(row.counts[kind] for row in rows)]
    titles = ["suite", "tests", *(COLUMNS[kind] for kind in shown)]
    lines = ["| " + " | ".join(titles) + " |", "| " + " | ".join("---" for _ in titles) + " |"]
    for row in rows:
        cells = [row.title, sum(row.counts.values()), *(row.counts[kind] for kind in shown)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def reasons(kind):
    """The reasons of a kind, with the number of entries that have each, most of them first."""
    texts = Counter()
    for entries in (*known.FAILURES.values(), *known.NOT_RUN.values()):
        texts.update(reason.text for reason in entries.values() if reason.kind == kind)
    return "".join(f"- {text}\n" for text, _ in texts.most_common())


def page(rows):
    """What the page has between its marks."""
    refused = "; ".join(f"{name} ({n})" for name, n in known.REFUSED_SCHEMAS.most_common())
    texts = [table(rows), "Absent, by name:\n", reasons("absent")]
    texts[2] += f"- keywords of JSON Schema, refused by name: {refused}\n"
    for kind in ("model", "words"):
        texts += [f"{COLUMNS[kind].capitalize()}:\n", reasons(kind)]
    return "\n".join(texts)


def compare(text, write):
    """Holds the page to what was found, or writes it there."""
    whole = PAGE.read_text()
    before, _, rest = whole.partition(START)
    old, _, after = rest.partition(END)
    if write:
        PAGE.write_text(before + START + text + END + after)
        return []
    return [] if old == text else [f"{PAGE.name} has another table; `just suite --write` writes it"]
