"""Processor time of `--continue exact` for a call: `continued.py [--tokens 99000] [--calls 40]`.

One conversation whose history has so many tokens, whose last answer was sampled in other tokens
than its text has. The same call comes again and again, through a rolltape without the option and
through one with it, in front of the same made-up vLLM, whose answers are made before, and then in
front of a made-up SGLang. A line for each: milliseconds of processor time of the recorder for a
call, in user and kernel mode. A run of which a call did not go on as it should is an error.
"""

import argparse
import http.client
import http.server
import json
import os
import re
import sqlite3
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
LETTERS = FIRST + 3 * WORDS
"""The id of the first character; any other text than words is made of characters."""


class MadeUp(http.server.BaseHTTPRequestHandler):
    """A vLLM that has two prompts: the first, and the one with the answer in it."""

    protocol_version = "HTTP/1.1"
    taken = b"kv_transfer_params"

    def do_GET(self):
        self.answer({"data": [{"id": "m", "owned_by": self.server.dialect}]})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        is_long = b'"assistant"' in body
        if self.path == "/tokenize":
            self.tokenize(body, is_long)
        elif self.path == "/detokenize":
            self.detokenize(json.loads(body)["tokens"])
        else:
            self.raw(self.server.replies[is_long, self.taken in body])

    def tokenize(self, body, is_long):
        self.raw(self.server.encoded[is_long])

    def detokenize(self, tokens):
        self.answer({"prompt": text_of(tokens)})

    def answer(self, document, status=200):
        self.raw(json.dumps(document).encode(), status)

    def raw(self, body, status=200):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class MadeUpSglang(MadeUp):
    """The same in SGLang's words: `/tokenize` tells no strings, `/detokenize` takes many lists."""

    taken = b'"input_ids"'

    def tokenize(self, body, is_long):
        asked = b"" if b'"messages"' in body else json.loads(body)["prompt"]
        if asked:
            self.answer({"tokens": ids_of(asked)})
        elif b'"add_generation_prompt":false' in body:
            self.answer({"error": {"message": "it needs add_generation_prompt"}}, 400)
        else:
            super().tokenize(body, is_long)

    def detokenize(self, tokens):
        if tokens and isinstance(tokens[0], list):
            self.answer({"text": [text_of(ids) for ids in tokens]})
        else:
            self.answer({"text": text_of(tokens)})


KINDS = {"vllm": MadeUp, "sglang": MadeUpSglang}


def string_of(token):
    """The string of a token: a word, or a half of one."""
    if token in (TURN, END):
        return ("<|turn|>", "<|end|>")[token - 1]
    if token >= LETTERS:
        return chr(token - LETTERS).replace(" ", "Ġ")
    word, half = divmod(token - FIRST, 3)
    return (f"Ġword{word}", "Ġwo", f"rd{word}")[half]


def text_of(ids):
    """The text of ids."""
    return "".join(map(string_of, ids)).replace("Ġ", " ")


def ids_of(text):
    """The ids that the tokenizer makes of a text."""
    special = {"<|turn|>": TURN, "<|end|>": END}
    found = re.findall(r"(?s)<\|turn\|>|<\|end\|>| word\d+|.", text)
    return [special.get(one) or id_of(one) for one in found]


def id_of(text):
    """The id of a word or a character."""
    return FIRST + 3 * int(text[5:]) if len(text) > 1 else LETTERS + ord(text)


def serve(dialect, tokens):
    """A made-up server, and the messages of its long prompt."""
    history = [FIRST + 3 * (i % WORDS) for i in range(tokens)]
    torn = [t for i in range(SAID // 2) for t in (FIRST + 1, FIRST + 2 + 3 * i)]
    said = [FIRST + 3 * i for i in range(SAID // 2)]
    first = [TURN, *history, END, TURN]
    prompts = {False: first, True: [*first, *said, END, TURN, FIRST, END, TURN]}
    sent = [*first, *torn, END, TURN, FIRST, END, TURN]

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), KINDS[dialect])
    server.dialect = dialect
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
    messages = [
        {"role": "user", "content": text_of(history)},
        {"role": "assistant", "content": text_of(said)},
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
        "logprobs": {"content": entries},
    }
    # vLLM's fields and SGLang's; each is read where it is the server's own.
    choice |= {"token_ids": ids, "response_token_ids": ids, "prompt_token_ids": prompt}
    return json.dumps({"model": "m", "prompt_token_ids": prompt, "choices": [choice]}).encode()


def spent(process):
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(folder, server, messages, calls, *options):
    """Milliseconds of processor time for a call."""
    upstream = "http://{}:{}".format(*server.server_address)
    told = ("--upstream", upstream, "--dialect", server.dialect, *options)
    with harness.serve(folder, *told) as proxy:
        connection = http.client.HTTPConnection(*proxy.data, timeout=300)

        def call(said):
            asked = json.dumps({"model": "m", "messages": said})
            connection.request("POST", "/e/a/v1/chat/completions", asked)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()

        call(messages[:1])
        call(messages)
        before = spent(proxy.process.child.pid)
        for _ in range(calls):
            call(messages)
        found = 1000 * (spent(proxy.process.child.pid) - before) / calls

    with sqlite3.connect(proxy.store) as store:
        rows = store.execute("SELECT continued FROM calls ORDER BY started_at").fetchall()
    reasons = {told and json.loads(told)["reason"] or "" for (told,) in rows[2:]}
    assert not options or reasons == {""}, reasons
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=99_000)
    parser.add_argument("--calls", type=int, default=40)
    options = parser.parse_args()
    for dialect in KINDS:
        server, messages = serve(dialect, options.tokens)
        for words in ((), ("--continue", "exact"), (), ("--continue", "exact")):
            with tempfile.TemporaryDirectory() as folder:
                found = measure(Path(folder), server, messages, options.calls, *words)
            row = {"server": dialect, "options": " ".join(words), "ms_per_call": round(found, 1)}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
