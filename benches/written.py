"""Bytes that a recorder writes: `written.py [--agents 8 64] [--calls 1200] [--pages BYTES]`.

So many agents play episodes of 24 turns against a server that answers as vLLM does, half of them
with streams: a prompt that grows by a tool result a turn, and 60 to 240 sampled tokens with ids and
logprobs. One line for each number of agents: the calls; by the kernel's count the bytes that the
recorder wrote to the disk (`/proc/PID/io`, with the last checkpoint), and by how many the store
grew, each a call; the factor between them. `--pages` gives the store pages of another size.
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import harness  # noqa: E402

TURNS = 24
FIRST_TOKENS, TURN_TOKENS = 3000, 800
TOKENS_AN_EVENT = 12
WORDS = [f"word{number}" for number in range(4000)]


class Upstream(BaseHTTPRequestHandler):
    """A server that samples at random, after a while."""

    protocol_version = "HTTP/1.1"
    first_s = token_s = 0.0

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        rng = random.Random(len(asked["messages"]) + int(asked["user"]))
        prompt = FIRST_TOKENS + TURN_TOKENS * len(asked["messages"])
        ids = [number * 7919 % 150_000 for number in range(prompt)]
        sampled = [rng.randrange(150_000) for _ in range(rng.randrange(60, 240))]
        time.sleep(self.first_s)
        if asked.get("stream"):
            self.stream(rng, ids, sampled)
        else:
            time.sleep(self.token_s * len(sampled))
            reply = self.document(rng, "chat.completion", "message", sampled)
            self.send("application/json", json.dumps(reply | {"prompt_token_ids": ids}).encode())

    def document(self, rng, kind, part, sampled, finish="stop"):
        tokens = [WORDS[token % len(WORDS)] + " " for token in sampled]
        content = [{"token": token, "logprob": -5 * rng.random() ** 3} for token in tokens]
        choice = {
            "index": 0,
            part: {"role": "assistant", "content": "".join(tokens)},
            "logprobs": {"content": content},
            "token_ids": sampled,
            "finish_reason": finish,
        }
        usage = {"prompt_tokens": 1000, "completion_tokens": len(sampled)}
        return {"id": "a", "object": kind, "model": "m", "choices": [choice], "usage": usage}

    def stream(self, rng, ids, sampled):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        kind = "chat.completion.chunk"
        for at in range(0, len(sampled), TOKENS_AN_EVENT):
            some = sampled[at : at + TOKENS_AN_EVENT]
            finish = "stop" if at + TOKENS_AN_EVENT >= len(sampled) else None
            event = self.document(rng, kind, "delta", some, finish)
            if at == 0:
                event["prompt_token_ids"] = ids
            self.chunk(f"data: {json.dumps(event)}\n\n".encode())
            time.sleep(self.token_s * len(some))
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def send(self, kind, data):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


def play(proxy, number, calls):
    """One episode of at most TURNS calls."""
    rng = random.Random(number)
    connection = HTTPConnection(*proxy.data, timeout=120)
    system = " ".join(rng.choices(WORDS, k=1200))
    messages = [{"role": "system", "content": system}]
    for _ in range(min(calls, TURNS)):
        result = " ".join(rng.choices(WORDS, k=400))
        messages.append({"role": "user", "content": result})
        body = {"model": "m", "user": str(number), "messages": messages}
        body |= {"stream": True} if number % 2 else {}
        path = f"/e/episode-{number}/v1/chat/completions"
        kind = {"content-type": "application/json"}
        connection.request("POST", path, json.dumps(body), kind)
        reply = connection.getresponse()
        content = reply.read()
        assert reply.status == 200, content
        messages.append({"role": "assistant", "content": said(content, number % 2)})
    connection.close()


def said(content, is_stream):
    """The text of a reply."""
    if not is_stream:
        return json.loads(content)["choices"][0]["message"]["content"]
    events = [line[6:] for line in content.split(b"\n") if line.startswith(b"data: {")]
    return "".join(json.loads(event)["choices"][0]["delta"]["content"] for event in events)


def written(pid):
    """The bytes that a process wrote to the disk; None once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def stopped(process):
    """Stops a process, and returns all that it wrote."""
    process.child.send_signal(signal.SIGTERM)
    last = 0
    while process.child.poll() is None:
        last = written(process.child.pid) or last
        time.sleep(0.002)
    return last


def set_pages(store, size):
    """Gives an empty store pages of another size."""
    connection = sqlite3.connect(store, isolation_level=None)
    for pragma in ("journal_mode = DELETE", f"page_size = {size}"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("VACUUM")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


def measured(upstream, agents, options):
    """The numbers of one load."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        arguments = ("--upstream", upstream, "--dialect", "vllm", "-q")
        with harness.serve(Path(folder), *arguments) as proxy:
            store = proxy.store
            stopped(proxy.process)
        if options.pages:
            set_pages(store, options.pages)
        empty = os.path.getsize(store)
        with harness.serve(Path(folder), *arguments) as proxy:
            episodes = max(agents, options.calls // TURNS)
            calls = max(1, min(TURNS, options.calls // episodes))
            started = time.monotonic()
            with ThreadPoolExecutor(agents) as pool:
                list(pool.map(lambda number: play(proxy, number, calls), range(episodes)))
            seconds = time.monotonic() - started
            wrote = stopped(proxy.process)
        count = episodes * calls
        grew = os.path.getsize(store) - empty
        return {
            "agents": agents,
            "calls": count,
            "calls_s": round(count / seconds, 1),
            "page_bytes": options.pages or "default",
            "written_a_call": round(wrote / count),
            "grown_a_call": round(grew / count),
            "factor": round(wrote / grew, 1),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--calls", type=int, default=1200)
    parser.add_argument("--pages", type=int, help="bytes of a page of the store")
    parser.add_argument("--first-ms", type=float, default=50, help="wait for the first token")
    parser.add_argument("--token-ms", type=float, default=1, help="time of a token")
    parser.add_argument("--folder", help="a folder on a disk [default: that of temporary files]")
    options = parser.parse_args()
    Upstream.first_s, Upstream.token_s = options.first_ms / 1000, options.token_ms / 1000
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    for agents in options.agents:
        print(json.dumps(measured(url, agents, options)), flush=True)
