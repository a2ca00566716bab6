"""How long a chat waits behind a long prompt: `waiting.py --model DIR [--tokens 4000] [OPTION...]`.
With `--clients N`: how long N clients take for CALLS calls each, with prompts and replies alike.

An engine on the CPU computes a prompt of so many tokens. A moment later a chat with a short prompt
comes, and gets a reply of REPLY tokens. One line: the seconds until the chat's first token and its
last one, and those of the long prompt. Every further option goes to `rolltape engine`.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import harness  # noqa: E402

SHORT, REPLY = 35, 16
LATER_S = 1.0
# Of each of several clients: its calls, and the tokens of a prompt and of a reply.
CALLS, PROMPT, ANSWER = 3, 500, 48


def post(url, body):
    """A streamed completion."""
    data = json.dumps({"model": "model", "stream": True, "ignore_eos": True, **body}).encode()
    kind = {"content-type": "application/json"}
    return urllib.request.Request(f"{url}/v1/completions", data, kind)


def timed(url, first, tokens, reply):
    """The seconds until the first token and the last one."""
    started, at = time.monotonic(), []
    prompt = [first + place * 7 % 300 for place in range(tokens)]
    with urllib.request.urlopen(post(url, {"prompt": prompt, "max_tokens": reply})) as stream:
        for line in stream:
            if line.startswith(b"data: {"):
                at.append(time.monotonic() - started)
    return at[0], at[-1]


def measured(url, tokens):
    """The times of both."""
    long = []
    thread = threading.Thread(target=lambda: long.append(timed(url, 40, tokens, 1)))
    thread.start()
    time.sleep(LATER_S)
    first, last = timed(url, 20, SHORT, REPLY)
    thread.join()
    return {"chat_first_s": first, "chat_last_s": last, "long_s": long[0][1]}


def mixed(url, clients):
    """The seconds in which all calls of so many clients end."""

    def calls(client):
        for call in range(CALLS):
            timed(url, 40 + client * CALLS + call, PROMPT, ANSWER)

    started = time.monotonic()
    threads = [threading.Thread(target=calls, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"mixed_s": time.monotonic() - started}


def main():
    """Measures once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=harness.MODEL)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--clients", type=int, help="measure clients that are all alike")
    arguments, options = parser.parse_known_args()
    (address,) = harness.free_addresses(1)
    url = f"http://{harness.text(address)}"
    where = ("--model", arguments.model.resolve(), "--listen", harness.text(address))
    with tempfile.TemporaryDirectory() as folder:
        named = ("--served-model-name", "model", "--device", "cpu")
        process = harness.Process("engine", *where, *named, *options, folder=Path(folder))
        try:
            process.await_answer(f"{url}/health")
            clients = arguments.clients
            found = mixed(url, clients) if clients else measured(url, arguments.tokens)
        finally:
            process.kill()
    print(json.dumps({name: round(value, 2) for name, value in found.items()}))


if __name__ == "__main__":
    main()
