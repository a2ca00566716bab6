"""What a server answers to the cases, without texts: to see what a newer release changed.

    python -m servers.shapes record SERVER OUT.json
    python -m servers.shapes compare OLD.json NEW.json
"""

import json
import sys
import tempfile
from pathlib import Path

import harness

sys.path.insert(0, str(harness.ROOT / "tests" / "tapes"))

import held  # noqa: E402

from . import cases, running  # noqa: E402
from .measured import GREEDY, send  # noqa: E402


def record(kind, out):
    """Writes the status and the fields of each case's reply, directly from the server."""
    told = {}
    with tempfile.TemporaryDirectory() as folder:
        with running.running(running.KINDS[kind], Path(folder)) as server:
            for case in cases.every():
                reply = send(server.address, case.path, case.bytes(**GREEDY))
                told[case.name] = {"status": reply.status, "fields": fields(reply.body.decode())}
            version = server.version()
    out.write_text(json.dumps({"server": kind, "version": version, "cases": told}))


def fields(text):
    """Each path of a reply with what stands there, in words."""
    try:
        found = held.paths(held.shape(text))
    except ValueError:
        return {"": ["text"]}  # not JSON
    return {at: sorted(map(held.told, kinds)) for at, kinds in found.items()}


def changes(old, new):
    """What two recordings differ in: (what, the cases in which it does)."""
    found = {}
    for name, before in old["cases"].items():
        after = new["cases"].get(name)
        if after is None:
            continue
        if before["status"] != after["status"]:
            told = f"status {before['status']}, now {after['status']}"
            found.setdefault(told, []).append(name)
            continue
        for at in before["fields"].keys() | after["fields"].keys():
            told = change(at, before["fields"].get(at), after["fields"].get(at))
            if told:
                found.setdefault(told, []).append(name)
    return sorted(found.items())


def change(at, before, after):
    """What changed at one path; None where nothing did."""
    place = at or "(whole)"
    if before == after:
        return None
    if before is None:
        return f"{place}: new, {' or '.join(after)}"
    if after is None:
        return f"{place}: gone"
    return f"{place}: {' or '.join(before)}, now {' or '.join(after)}"


def compare(old, new):
    """Prints what changed, a line each."""
    old, new = (json.loads(path.read_text()) for path in (old, new))
    found = changes(old, new)
    print(f"{old['server']} {old['version']} -> {new['version']}: {len(found)} changes")
    for told, names in found:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        print(f"  {told} ({', '.join(names[:3])}{more})")


def main():
    """Runs what the command line names."""
    match sys.argv[1:]:
        case ["record", kind, out]:
            record(kind, Path(out))
        case ["compare", old, new]:
            compare(Path(old), Path(new))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
