"""Processor time of `--continue exact` for a call: `continued.py [--tokens 99000] [--calls 40]`.

One conversation whose history has so many tokens, whose last answer was sampled in other tokens
than its text has. The same call comes again and again, through a rolltape without the option and
through one with it, in front of the same made-up vLLM, whose answers are made before. A line for
each: milliseconds of processor time of the recorder for a call, in user and kernel mode.
"""

import argparse
import http.client
import http.server
import json
import os
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import harness  # noqa: E402

WORDS = 1000
TURN, END = 1, 2
FIRST = 10
SAID = 100
"""Tokens of the last answer."""


class MadeUp(http.server.BaseHTTPRequestHandler):
    """A vLLM that has two prompts: the first, and the one with the answer in it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer({"data": [{"id": "m", "owned_by": "vllm"}]})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        is_long = b'"assistant"' in body
        if self.path == "/tokenize":
            self.raw(self.server.encoded[is_long])
        elif self.path == "/detokenize":
            ids = json.loads(body)["tokens"]
            self.answer({"prompt": "".join(string_of(i).replace("Ġ", " ") for i in ids)})
        else:
            given = b"kv_transfer_params" in body
            self.raw(self.server.replies[is_long, given])

    def answer(self, document):
        self.raw(json.dumps(document).encode())

    def raw(self, body):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def string_of(token):
    """The string of a token: a word, or a half of one."""
    if token in (TURN, END):
        return ("<|turn|>", "<|end|>")[token - 1]
    word, half = divmod(token - FIRST, 3)
    return (f"Ġword{word}", f"Ġwo", f"rd{word}")[half]


def serve(tokens):
    """The made-up vLLM, and the messages of its long prompt."""
    history = [FIRST + 3 * (i % WORDS) for i in range(tokens)]
    torn = [t for i in range(SAID // 2) for t in (FIRST + 1, FIRST + 2 + 3 * i)]
    said = [FIRST + 3 * i for i in range(SAID // 2)]
    first = [TURN, *history, END, TURN]
    prompts = {False: first, True: [*first, *said, END, TURN, FIRST, END, TURN]}
    sent = [*first, *torn, END, TURN, FIRST, END, TURN]

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), MadeUp)
    server.encoded = {
        is_long: json.dumps(
            {"tokens": ids, "token_strs": [string_of(i) for i in ids]}, ensure_ascii=False
        ).encode()
        for is_long, ids in prompts.items()
    }
    server.replies = {
        (is_long, given): reply(sent if given else prompts[is_long], [*torn, END])
        for is_long in prompts
        for given in (False, True)
    }
    threading.Thread(target=server.serve_forever, daemon=True).start()
    text = "".join(string_of(i).replace("Ġ", " ") for i in history)
    answer = "".join(string_of(i).replace("Ġ", " ") for i in said)
    messages = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": " word0"},
    ]
    return server, messages


def reply(prompt, ids):
    """A reply that was sampled as `ids` after `prompt`."""
    plain = {"logprob": -0.5, "bytes": [], "top_logprobs": []}
    entries = [{"token": string_of(i), **plain} for i in ids]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "said"},
        "finish_reason": "stop",
        "token_ids": ids,
        "logprobs": {"content": entries},
    }
    return json.dumps({"model": "m", "prompt_token_ids": prompt, "choices": [choice]}).encode()


def spent(process):
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(folder, upstream, messages, calls, *options):
    """Milliseconds of processor time for a call."""
    with harness.serve(folder, "--upstream", upstream, "--dialect", "vllm", *options) as proxy:
        connection = http.client.HTTPConnection(*proxy.data, timeout=300)

        def call(said):
            connection.request("POST", "/e/a/v1/chat/completions", json.dumps({"messages": said}))
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()

        call(messages[:1])
        call(messages)
        before = spent(proxy.process.child.pid)
        for _ in range(calls):
            call(messages)
        return 1000 * (spent(proxy.process.child.pid) - before) / calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=99_000)
    parser.add_argument("--calls", type=int, default=40)
    options = parser.parse_args()
    server, messages = serve(options.tokens)
    upstream = "http://{}:{}".format(*server.server_address)
    for words in ((), ("--continue", "exact"), (), ("--continue", "exact")):
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), upstream, messages, options.calls, *words)
        print(json.dumps({"options": " ".join(words), "ms_per_call": round(found, 1)}), flush=True)


if __name__ == "__main__":
    main()
