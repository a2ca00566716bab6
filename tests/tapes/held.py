"""Hold the tapes against what real servers sent.

`real/SERVER.jsonl` has real replies of vLLM 0.33.0, SGLang 0.5.23 and llama.cpp 11549, a case a
line: `plain` is the answer to the agent's own body, `asked` the answer to what rolltape sent, where
something was asked. Texts, ids and lengths are of another model, so shapes are compared: the names
in every object with their order, and what kind of thing stands under each name.

A shape of a tape must be one that the real server sends somewhere on that wire in that mode, asked
or not as the tape is. Of a real case of the same name the tape must have every shape, too.

    python held.py            every difference, and the tapes that no real reply is held against
"""

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SERVERS = ("vllm", "sglang", "llamacpp")
UNHELD = (
    (r"stray|breaks_stream|ping_stream", "what a server or a router does wrong; none did here"),
    (r"chat/low_stream|completions/low_stream", "a logprob that is not known, which none had"),
    (r"chat/null_delta_stream", "a parser's explicit null, which Qwen's does not send"),
    (r"chat/stop_token_stream: .*stop_reason", "an id in the place of a stop string"),
    (r"completions/stop_string_stream: .*stop_reason", "a stop string on this route"),
    (r"reasoning_tokens|completion_tokens_details", "counts of thoughts, as a server is set up"),
    (r"messages/thinking|llamacpp/messages/tools: .*(thinking|signature)", "thoughts on this wire"),
    (r"(sglang|llamacpp)/chat/reasoning", "thoughts, without a parser for them here"),
    (r"description|instructions", "what the agent's own request holds"),
    (r"sglang/chat/own_sglext: ", "ids that an agent asks a whole reply for"),
    (r"meta_info: lacks .*storage_prefetch_wait", "times of a server that tells them"),
    (r"grammar_triggers|preserved_tokens", "the tokens of another model"),
    (r"error\.param", "what the server holds against a request"),
    (r"completions/(batch|usage)_stream: .*(usage|lacks)", "the agent's own usage, asked for"),
    (r"tools_stream: .*lacks .*timings", "the agent's own usage, asked for"),
)
"""Differences that are none of a tape's: a pattern of what is told, and why it is so."""
FREE = re.compile(r"\.(top_logprobs\[\]|parameters|input_schema|schema|input)$")
"""Objects whose names are the model's or the agent's own."""

def real():
    """Every real case: {`server/wire/case`: {`asked`, `plain`}}."""
    found = {}
    for server in SERVERS:
        for line in (HERE / "real" / f"{server}.jsonl").read_text().splitlines():
            case = json.loads(line)
            found[f"{server}/{case['name']}"] = case
    return found


def is_stream(text):
    """Whether a reply is a stream of events."""
    return text.startswith(("data:", "event:", ":"))


def documents(text):
    """The events of a stream as (event's name, data), or the one document of a body."""
    if not is_stream(text):
        return [("", text)]
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        lines = [line.partition(":") for line in block.split("\n")]
        data = "".join(value.removeprefix(" ") for key, _, value in lines if key == "data")
        names = [value.strip() for key, _, value in lines if key == "event"]
        if data:
            found.append(("".join(names), data))
    return found


class Keyed(list):
    """An object as its pairs, in order."""


def shape(text):
    """The shapes of a reply's documents, each once, in the order in which they first come."""
    shapes = []
    for name, data in documents(text):
        if data.strip() == "[DONE]":
            one = (name, "[DONE]")
        else:
            value = json.loads(data, object_pairs_hook=Keyed, parse_float=spelled)
            one = (name, spacing(data), of(value))
        if one not in shapes:
            shapes.append(one)
    return shapes


def spelled(text):
    """A float by the way in which it is written."""
    return float(text) if "e" not in text.lower() else complex(text)


def spacing(text):
    """What stands behind the first colon and comma that are no text's: the writer's habit."""
    head = text.lstrip()
    return "spaced" if head[: head.find(":") + 2].endswith(": ") else "compact"


def of(value):
    """A value's shape: the names in their order, and what kind of thing each holds."""
    if isinstance(value, Keyed):
        return tuple((key, of(item)) for key, item in value)
    if isinstance(value, list):
        kinds = []
        for item in value:
            if of(item) not in kinds:
                kinds.append(of(item))
        return ["list", *kinds]
    if value is None or isinstance(value, bool):
        return str(value)
    return {int: "int", float: "float", complex: "float"}.get(type(value), "text")


def paths(shapes):
    """Every path of names in the shapes with what is found there."""
    found = {}
    for one in shapes:
        name, *rest = one
        walk(rest[-1], name or "", found)
    return found


def walk(value, at, found):
    """Adds what stands at `at` and below."""
    if isinstance(value, tuple):
        names = tuple(key for key, _ in value)
        if FREE.search(at) and names[:1] != ("token",) and names[:1] != ("id",):
            found.setdefault(at, set()).add("free")
            return
        found.setdefault(at, set()).add(names)
        for key, item in value:
            walk(item, f"{at}.{key}", found)
    elif isinstance(value, list):
        for item in value[1:]:
            walk(item, f"{at}[]", found)
        found.setdefault(at, set()).add("list")
    else:
        found.setdefault(at, set()).add(value)


def wide(server, wire, streams, cases):
    """Every shape that a server sent on a wire, by path."""
    found = {}
    for name, case in cases.items():
        for which in ("asked", "plain"):
            text = case.get(which)
            if name.startswith(f"{server}/{wire}/") and text and is_stream(text) == streams:
                for at, kinds in paths(shape(text)).items():
                    found.setdefault(at, set()).update(kinds)
    return found


def differences(tape, everywhere, same):
    """What a tape has that the server never sent, and what it lacks of the case of its name."""
    mine = paths(shape(tape))
    found = []
    for at, kinds in mine.items():
        for kind in kinds - everywhere.get(at, set()):
            really = told_all(everywhere[at]) if at in everywhere else "nothing"
            found.append(f"{at or '(whole)'}: {told(kind)}, really {really}")
    for at, kinds in paths(shape(same)).items() if same else ():
        lacks = [kind for kind in kinds if isinstance(kind, tuple)]
        for kind in set(lacks) - mine.get(at, set()):
            found.append(f"{at or '(whole)'}: lacks {told(kind)}")
    return found


def told(kind):
    """A kind in words."""
    return f"{{{', '.join(kind)}}}" if isinstance(kind, tuple) else kind


def told_all(kinds):
    """Several kinds in words."""
    return " or ".join(sorted(map(told, kinds)))


def tape_of(entry, which):
    """The bytes of a tape as text."""
    return (HERE / f"{entry['name']}.{entry[which]}").read_text()


def told_of_all():
    """Every difference of every tape that a real server stands behind, exceptions too."""
    cases, known = real(), {}
    for entry in json.loads((HERE / "index.json").read_text()):
        server, wire = entry["upstream"], entry["wire"]
        if server not in SERVERS:
            continue
        for which in ("asked", "plain"):
            tape = tape_of(entry, which)
            key = (server, wire, is_stream(tape))
            if key not in known:
                known[key] = wide(*key, cases)
            same = cases.get(entry["name"], {}).get(which)
            for one in differences(tape, known[key], same):
                yield f"{entry['name']}: {which} {one}"


def reason(told):
    """Why a difference is none of the tape's; None where it is."""
    return next((why for pattern, why in UNHELD if re.search(pattern, told)), None)


def main():
    """Prints what differs."""
    found = [one for one in told_of_all() if reason(one) is None]
    print(*found, sep="\n")
    sys.exit(f"{len(found)} differences" if found else 0)


if __name__ == "__main__":
    main()
