"""The table of servers by wire and mode: how it is counted, and where it stands in the docs."""

import os
import re

import harness

from . import cases

PAGE = harness.ROOT / "docs" / "servers.md"
HEAD = "| wire | hidden | exact | versions | route |\n| --- | --- | --- | --- | --- |\n"


def of(measured):
    """The rows of one server, with the release that was measured."""
    lines = [f"{measured.server.kind.name} {measured.version}\n\n{HEAD}"]
    for wire in cases.WIRES:
        for mode in cases.MODES:
            chosen = [
                outcome
                for outcome in measured.outcomes.values()
                if (outcome.case.wire, outcome.case.mode) == (wire, mode)
            ]
            lines.append(line(wire, mode, chosen))
    return "".join(lines)


def line(wire, mode, outcomes):
    """One line: of how many cases the agent saw no difference, of how many rows are exact."""
    comparable = [outcome for outcome in outcomes if outcome.hidden is not None]
    sampled = [outcome for outcome in outcomes if outcome.samples]
    cells = [
        share(sum(outcome.hidden for outcome in comparable), len(comparable)),
        share(sum(outcome.exact for outcome in sampled), len(sampled)),
        share(sum(outcome.versions for outcome in sampled), len(sampled)),
    ]
    route = "chat" if any(outcome.translated for outcome in outcomes) else "its own"
    return f"| {wire}, {mode} | {' | '.join(cells)} | {route} |\n"


def share(part, whole):
    """`part of whole`, or a dash where there is nothing to count."""
    return f"{part} of {whole}" if whole else "-"


def marks(name):
    """The comments that stand around what the page says of a server."""
    return f"<!-- measured: {name} -->\n", f"<!-- end: {name} -->\n"


def listed(name):
    """What the page says of a server."""
    begin, end = marks(name)
    found = re.search(re.escape(begin) + "(.*?)" + re.escape(end), PAGE.read_text(), re.DOTALL)
    return found[1]


def hold(measured):
    """Asserts that the page says what was measured; with UPDATE_DOCS=1 it is written instead."""
    name, made = measured.server.kind.name, of(measured)
    if not os.environ.get("UPDATE_DOCS"):
        assert listed(name) == made, "run again with UPDATE_DOCS=1"
        return
    begin, end = marks(name)
    PAGE.write_text(PAGE.read_text().replace(begin + listed(name) + end, begin + made + end))
