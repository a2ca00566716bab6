"""prime-rl's weights into rolltape's engine: watches the folder that its trainer broadcasts to.

    python examples/prime-rl/push_weights.py outputs/broadcasts [--control URL] [--once]

The control listener's token is found beside the store, rolltape.db in this folder, or in the file
that ROLLTAPE_CONTROL_TOKEN_FILE names.

prime-rl's trainer writes a checkpoint to `step_N/` and touches `STABLE` in it when it is whole. Its
own orchestrator then asks each inference server to take it; this does the same for rolltape, with
the same requests, where the orchestrator is not prime-rl's: pause and keep what runs, take the
folder, go on. Version N of a token is step N. Needs nothing but rolltape.
"""

import argparse
import re
import time
from pathlib import Path

import rolltape

POLL_S = 1.0
STEP = re.compile(r"step_(\d+)")


def newest(folder, after):
    """The newest whole step behind `after`, and its folder; None if there is none."""
    found = [
        (int(name[1]), path)
        for path in folder.glob("step_*")
        if (name := STEP.fullmatch(path.name))
    ]
    whole = [(step, path) for step, path in found if step > after and (path / "STABLE").exists()]
    return max(whole, default=None)


def push(client, step, path):
    """Has the engine take the weights of a step; replies under way go on with them."""
    client.pause("keep", clear_cache=False)
    try:
        client.http.post("/update_weights", {"weight_dir": str(path.resolve())})
        client.http.post("/update_weight_version", {"new_version": str(step)})
    finally:
        client.resume()


def main():
    """Pushes step after step."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--control", help="rolltape's control listener")
    parser.add_argument("--once", action="store_true", help="only what is there already")
    options = parser.parse_args()
    client, last = rolltape.Client(options.control), -1
    while True:
        found = newest(options.folder, last)
        if found:
            last = found[0]
            push(client, *found)
            print(f"step {last}: {client.weight_info()}", flush=True)
        elif options.once:
            return
        else:
            time.sleep(POLL_S)


if __name__ == "__main__":
    main()
