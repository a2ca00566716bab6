"""Tokens a step with drafts and without: `drafts.py ROLLTAPE MODEL [--drafts 8] [--tokens 300]`.

Starts the engine on MODEL, a folder, without drafts and with them, and asks for the same replies:
an agent that writes a file anew, one that answers in a text of its own, and four siblings, that are
asked the same with seeds of their own, one after the other and all at once. Replies must be the
same. A line for each: tokens, tokens of a sequence in a step, guessed tokens that were right, and
tokens a second of the whole calls, prompts included.
"""

import argparse
import concurrent.futures
import json
import re
import subprocess
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = (ROOT / "engine" / "src" / "core" / "watch.rs").read_text().split("#[cfg(test)]")[0]
CASES = {
    "a file anew": [f"Rename `limit` to `bound`. Print the whole file.\n```rust\n{FILE}```"],
    "a text of its own": ["Write a story about a lighthouse."],
    "siblings": ["Plan how to find out why a test of a web server fails now and then."] * 4,
}


class Engine:
    """An engine of its own, stopped at the end."""

    def __init__(self, binary, model, *options):
        command = [binary, "engine", "--model", model, "--listen", "127.0.0.1:0", "--device", "cpu"]
        self.process = subprocess.Popen(
            [*command, *options], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.base = None
        while self.base is None:
            line = self.process.stderr.readline()
            assert line, "the engine did not start"
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            self.base = found and found[0]

    def fetch(self, path, body=None):
        data = body and json.dumps(body).encode()
        request = urllib.request.Request(
            self.base + path, data, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=3600) as reply:
            return reply.read().decode()

    def counts(self):
        """Guessed tokens, right ones, steps with guesses."""
        page = self.fetch("/metrics")
        names = ["draft_tokens", "accepted_tokens", "drafts"]
        return [
            float(re.search(rf"spec_decode_num_{name}_total{{[^}}]*}} (\S+)", page)[1])
            for name in names
        ]

    def say(self, case, tokens, at_once):
        """Replies to the prompts of a case, and a line of figures."""

        def ask(seed, prompt):
            body = {
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": tokens,
                "seed": seed + 10 * at_once,
                "temperature": 0.7 if len(CASES[case]) > 1 else 0.0,
                "logprobs": True,
                "cache_salt": case,
            }
            choice = json.loads(self.fetch("/v1/chat/completions", body))["choices"][0]
            return [(one["token"], one["logprob"]) for one in choice["logprobs"]["content"]]

        before, begun = self.counts(), time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(8 if at_once else 1) as pool:
            replies = list(pool.map(ask, range(len(CASES[case])), CASES[case]))
        seconds = time.perf_counter() - begun
        guessed, right, _ = (now - then for now, then in zip(self.counts(), before))
        count = sum(map(len, replies))
        share = f"{right / guessed:4.0%} of {guessed:.0f}" if guessed else "none"
        return replies, (
            f"{count:5} tokens, {count / (count - right):5.2f} a step, {count / seconds:6.1f} a s, "
            f"right: {share}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--drafts", default="8")
    parser.add_argument("--tokens", type=int, default=300)
    arguments = parser.parse_args()

    expected = {}
    for drafts in ["0", arguments.drafts]:
        engine = Engine(arguments.binary, arguments.model, "--drafts", drafts)
        try:
            for case, prompts in CASES.items():
                for at_once in [False, True][: len(prompts)]:
                    found, line = engine.say(case, arguments.tokens, at_once)
                    same = expected.setdefault((case, at_once), found) == found
                    name = f"{case}, at once" if at_once else case
                    print(f"--drafts {drafts:2} {name:20} {line}{'' if same else '  DIFFERS'}")
        finally:
            engine.process.terminate()
            engine.process.wait()


if __name__ == "__main__":
    main()
