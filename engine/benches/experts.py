"""Bytes of the experts of one long episode: `experts.py [ROLLTAPE...] [--turns 31]`.

An agent that only adds to its history, through each rolltape, before one engine with random
weights, whose routing is as wide as that of Qwen3-30B-A3B: 48 layers, 8 of 128 experts. A tap
counts what the engine sends. A line for each: without experts, and with them. `wire` is what the
engine sent, `stored` the size of the store, both for each token of the last prompt and its answer.
"""

import argparse
import http.client
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import harness  # noqa: E402
from tap import Tap  # noqa: E402

MIXTURE = ROOT / "engine" / "models" / "tiny-moe"
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 48,
    "mlp_only_layers": [],
    "num_local_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 8,
    "max_position_embeddings": 32768,
}
SAMPLED = 40
RESULT = "The tool says: 1 2 3 4 5 6 7, too low, too high, guess again. " * 2


def model(folder):
    """A folder with the shape, and the tokenizer of the tiny mixture."""
    shutil.copytree(MIXTURE, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.py"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | SHAPE))
    return folder / "config.json"


def play(proxy, turns):
    """An episode of so many turns; gives the number of tokens of its path."""
    connection = http.client.HTTPConnection(*proxy.data, timeout=300)
    prompt, usage = "Find the secret number.", {}
    for turn in range(turns):
        body = {"prompt": prompt, "max_tokens": SAMPLED, "ignore_eos": True, "seed": turn}
        connection.request("POST", "/e/a/v1/completions", json.dumps(body))
        reply = json.loads(connection.getresponse().read())
        prompt += reply["choices"][0]["text"] + RESULT
        usage = reply["usage"]
    return usage["total_tokens"]


def measure(binary, config, turns, *options):
    """Bytes a token on the wire and stored, and seconds."""
    os.environ["ROLLTAPE_BIN"] = binary
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (address,) = harness.free_addresses(1)
        where = ("--random-weights", config, "--listen", harness.text(address))
        engine = harness.Process("engine", *where, folder=folder)
        try:
            engine.await_answer(f"http://{harness.text(address)}/health")
            tap = Tap(address)
            begun = time.monotonic()
            with harness.serve(folder, "--upstream", tap.url, *options) as proxy:
                tokens = play(proxy, turns)
                seconds = time.monotonic() - begun
            wire = sum(len(line.received) for line in tap._lines)
            stored = sum(file.stat().st_size for file in folder.glob("recorded.db*"))
            tap.stop()
        finally:
            engine.kill()
    return {"tokens": tokens, "wire": wire / tokens, "stored": stored / tokens, "s": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binaries", nargs="*", default=[str(ROOT / "target/release/rolltape")])
    parser.add_argument("--turns", type=int, default=31)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = model(Path(folder) / "model")
        for binary in arguments.binaries:
            for options in ([], ["--routed-experts"]):
                found = measure(str(Path(binary).resolve()), config, arguments.turns, *options)
                shown = "  ".join(f"{name} {value:10.1f}" for name, value in found.items())
                print(f"{binary} {' '.join(options):17} {shown}", flush=True)


if __name__ == "__main__":
    main()
