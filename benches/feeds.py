"""The feed over several proxies on one PostgreSQL database:
`feeds.py [--items 600] [--readers 8] [--proxies 1,2,4]`.

For each number of proxies, so many episodes of one call are recorded and closed. Then the readers
of one consumer, spread over the proxies, take and ack them one by one without waiting. One line:
the items a second, the milliseconds of a poll (median and 99th of 100), the answers 204 while items
were left, the answers 503, and the connections to the server at the most.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("python", "attacks")]

import harness  # noqa: E402
import relay  # noqa: E402
from one_answer import answering  # noqa: E402

AT_ONCE = 8
REPLY = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "model": "m",
        "prompt_token_ids": [1, 2],
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "x"},
                "token_ids": [3],
                "logprobs": {
                    "content": [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}]
                },
            }
        ],
    }
).encode()


def asked(connection, path, token, body=None):
    """The status and the headers of a POST, and the milliseconds until all of it was there."""
    started = time.monotonic()
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    connection.request("POST", path, body, headers)
    reply = connection.getresponse()
    reply.read()
    return reply.status, reply.headers, (time.monotonic() - started) * 1000


def finish(proxy, token, numbers):
    """Records an episode of one call for each number, and closes it."""
    data, control = HTTPConnection(*proxy.data), HTTPConnection(*proxy.control)
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]})
    for number in numbers:
        assert asked(data, f"/e/item-{number}/v1/chat/completions", None, body)[0] == 200
        assert asked(control, f"/episodes/item-{number}/close", token)[0] == 200


def read(proxy, token, left):
    """Takes and acks items until none is left; gives the status and the time of each poll."""
    control, polls = HTTPConnection(*proxy.control), []
    while left["items"] > 0:
        before = left["items"]
        status, headers, took = asked(control, "/feed?consumer=bench&limit=1", token)
        # What was taken meanwhile may have been the last.
        polls.append((status, took, min(before, left["items"])))
        if status == 200:
            with left["lock"]:
                left["items"] -= 1
            lease = headers["x-rolltape-lease"]
            assert asked(control, f"/feed/leases/{lease}/ack", token)[0] == 200
    return polls


def connections(psql, url, stop, most):
    """Counts the connections to the database until it is told to stop."""
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'rolltape'"
    while not stop.wait(0.2):
        said = subprocess.check_output([psql, url, "-Atc", count], text=True)
        most.append(int(said))


def measured(address, count, options, upstream):
    """One line for so many proxies."""
    url, most, stop = relay.new_database(address), [0], threading.Event()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "token"
        more = ("--control-token-file", file, "-q")
        proxies = [
            stack.enter_context(relay.recording(folder, url, *more, upstream=upstream))
            for _ in range(count)
        ]
        token = file.read_text().strip()
        pool = stack.enter_context(ThreadPoolExecutor(max(AT_ONCE, options.readers)))
        parts = [range(at, options.items, AT_ONCE) for at in range(AT_ONCE)]
        list(pool.map(lambda part: finish(proxies[0], token, part), parts))

        psql = relay._programs() / "psql"
        counter = threading.Thread(target=connections, args=(psql, url, stop, most))
        counter.start()
        left = {"items": options.items, "lock": threading.Lock()}
        started = time.monotonic()
        readers = [proxies[at % count] for at in range(options.readers)]
        polls = sum(pool.map(lambda proxy: read(proxy, token, left), readers), [])
        took = time.monotonic() - started
        stop.set()
        counter.join()

    times = [ms for status, ms, _ in polls if status == 200]
    # Each of the other readers may hold one that is counted as left.
    empty = [left for status, _, left in polls if status == 204 and left > options.readers]
    return {
        "proxies": count,
        "items_s": round(len(times) / took, 1),
        "p50_ms": round(statistics.median(times), 1),
        "p99_ms": round(statistics.quantiles(times, n=100)[98], 1),
        "empty_204": len(empty),
        "busy_503": sum(status == 503 for status, _, _ in polls),
        "connections": max(most),
    }


class Upstream:
    """The model behind every proxy."""

    def __init__(self):
        self.server = answering(REPLY)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def stop(self):
        """It is there for the proxies that come after."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=600)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--proxies", default="1,2,4")
    options = parser.parse_args()
    with relay.postgres() as address:
        for count in map(int, options.proxies.split(",")):
            print(json.dumps(measured(address, count, options, Upstream())), flush=True)
