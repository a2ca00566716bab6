"""The files of a case and its entry in the index."""

import json

from maker.ask import ask
from maker.facts import facts_of
from maker.servers import SERVERS
from maker.text import ryu, write

PATHS = {"chat": "/v1/chat/completions"}
FRAMES = {
    "crlf": lambda s: s.replace("\n", "\r\n"),
    "tight": lambda s: s.replace("data: ", "data:"),
}


def answer(case, body, headers):
    if case.raw:
        return case.raw
    if case.script.fault:
        return "json", case.script.fault[1]
    kind, text = SERVERS[case.upstream, case.wire](json.loads(body), case.script, headers)
    return kind, FRAMES.get(case.frame, str)(text)


def files(case):
    """The texts of a case's files by path, and its entry in the index."""
    sent, headers, added = ask(case)
    kind, plain = answer(case, case.body, {})
    asked = case.refused[1] if case.refused else answer(case, sent, headers)[1]
    facts = facts_of(case, bool(added or headers))
    spell = ryu if case.upstream == "sglang" or (case.upstream == "vllm" and case.stream) else repr
    asked_kind = "json" if case.refused else kind
    made = {
        "request.json": case.body, "sent.json": sent, f"asked.{asked_kind}": asked,
        f"plain.{kind}": plain, "facts.json": write(facts, spell) + "\n",
    }  # fmt: skip
    if headers:
        made["headers.json"] = write(headers)
    body = json.loads(case.body)
    status = case.refused[0] if case.refused else (case.script.fault or (200,))[0]
    entry = {
        "name": case.name, "upstream": case.upstream, "wire": case.wire,
        "path": PATHS.get(case.wire, f"/v1/{case.wire}"), "stream": case.stream,
        "n": body.get("n") or 1, "status": status, "added": added, "headers": bool(headers),
        "opted_in": case.opted_in, "retried": case.refused is not None,
        "asked": f"asked.{asked_kind}", "plain": f"plain.{kind}", "shows": case.shows,
    }  # fmt: skip
    return {f"{case.name}.{end}": text for end, text in made.items()}, entry
