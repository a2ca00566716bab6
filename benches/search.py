"""A search with and without an index: `search.py [--episodes 3000] [--calls 5] [--words 2000]`.

Agents that answer from a list of words are recorded: each episode says so many words of its own,
and every call sends all that was said before. One line: the seconds of a whole search, all parts of
it, for a word that no episode has and for one that a single episode has, before and after `rolltape
index`; the seconds that the index takes, and its bytes beside those of the store.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import control  # noqa: E402
import harness  # noqa: E402
from one_answer import answering  # noqa: E402

AT_ONCE = 8
NONE, ONE = "quetzalcoatlus", "archaeopteryx"
REPLY = json.dumps(
    {
        "object": "chat.completion",
        "model": "words",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Understood."},
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }
).encode()


def play(proxy, number, calls, words):
    """One episode, with words of its own."""
    rng = random.Random(number)
    connection = HTTPConnection(*proxy.data)
    messages = []
    for call in range(calls):
        said = (rng.choice(VOCABULARY) + str(rng.randrange(100)) for _ in range(words // calls))
        text = " ".join(said) + (f" {ONE}" if (number, call) == (7, 1) else "")
        messages.append({"role": "user", "content": text})
        body = json.dumps({"model": "words", "messages": messages})
        path = f"/e/episode-{number}/v1/chat/completions"
        connection.request("POST", path, body, {"content-type": "application/json"})
        reply = json.load(connection.getresponse())
        messages.append(reply["choices"][0]["message"])
    connection.close()


def searched(proxy, word):
    """The seconds of all parts of a search, and the number of its hits."""
    started, hits, cursor = time.monotonic(), 0, ""
    while cursor is not None:
        url = f"http://{harness.text(proxy.control)}/search?q={word}{cursor}"
        request = urllib.request.Request(url, headers=control.headers_for(proxy.control))
        with urllib.request.urlopen(request, timeout=60) as reply:
            part = json.load(reply)
        hits += len(part["hits"])
        cursor = part["next"] and f"&cursor={part['next']}"
    return round(time.monotonic() - started, 3), hits


def size(path):
    """The bytes of a database, with what waits beside it."""
    files = (path, f"{path}-wal")
    return sum(os.path.getsize(file) for file in files if os.path.exists(file))


def measured(proxy, options):
    with ThreadPoolExecutor(AT_ONCE) as pool:
        work = range(options.episodes)
        list(pool.map(lambda n: play(proxy, n, options.calls, options.words), work))
    found = {}
    found["none_s"], none = searched(proxy, NONE)
    found["one_s"], one = searched(proxy, ONE)

    started = time.monotonic()
    made = harness.command("index", "--store", proxy.store, folder=proxy.store.parent)
    assert made.returncode == 0, made.stderr
    found["index_s"] = round(time.monotonic() - started, 1)
    found["none_indexed_s"], again = searched(proxy, NONE)
    found["one_indexed_s"], one_again = searched(proxy, ONE)
    assert (none, again, one, one_again) == (0, 0, 1, 1)
    found["index_bytes"] = size(f"{proxy.store}-text")
    found["store_bytes"] = size(str(proxy.store))
    return found


VOCABULARY = [
    "".join(random.Random(seed).choices("abcdefghijklmnoprstuvw", k=3 + seed % 6))
    for seed in range(5000)
]

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=3000)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--words", type=int, default=2000)
    options = parser.parse_args()
    server = answering(REPLY)
    with tempfile.TemporaryDirectory() as folder:
        upstream = f"http://127.0.0.1:{server.server_address[1]}"
        words = ("--upstream", upstream, "--durability", "process", "-q")
        with harness.serve(Path(folder), *words) as proxy:
            print(json.dumps(vars(options) | measured(proxy, options)))
