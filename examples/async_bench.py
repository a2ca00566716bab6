"""Agents that run on their own against agents that wait for each other, on one engine.

    python examples/async_bench.py [--sizes 8,32,128] [--rounds 3]

The work is drawn once and is the same for both: episodes of 1 to 6 turns, replies of 8 to 256
tokens with a long tail, tools that take 50 ms on average. *Together* is how trainers with batched
generation do it: a batch of episodes, and of each turn all wait for the slowest reply and the
slowest tool. *Asynchronous* is how agents run through rolltape: as many episodes at a time, each at
its own pace, a new one begun when one has ended; every call recorded, on disk before its reply
ends. Together talks to the engine directly, asynchronous through the proxy in front of it.

Prints a table; the last line on stdout is JSON.
"""

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import rolltape  # noqa: E402
from rolltape.http import Http, patiently  # noqa: E402

MODEL = HERE.parent / "engine" / "models" / "tiny"
TURNS_MAX = 6
TOKENS = (8, 256)
TOKENS_MEAN = 48
TOOL_S_MEAN = 0.05
TOOL_S_MAX = 1.0
QUESTION = "Find the secret number from 1 to 7. You have 3 guesses."
START_WAIT_S = 60


@dataclass(frozen=True)
class Turn:
    """Tokens that the model is to sample, and how long the tool takes that comes after."""

    tokens: int
    tool_s: float


def draw(count, seed):
    """So many episodes, each a list of turns."""
    chance = random.Random(seed)

    def turn():
        tokens = round(TOKENS[0] + chance.expovariate(1 / (TOKENS_MEAN - TOKENS[0])))
        tool_s = min(chance.expovariate(1 / TOOL_S_MEAN), TOOL_S_MAX)
        return Turn(min(tokens, TOKENS[1]), tool_s)

    return [[turn() for _ in range(chance.randint(1, TURNS_MAX))] for _ in range(count)]


class Agent:
    """One episode: its history, and its next turn."""

    def __init__(self, server, path, turns):
        self.server, self.path, self.turns = server, path, turns
        self.messages = [{"role": "user", "content": QUESTION}]
        self.tokens = 0

    def ask(self, turn):
        """One call of the model, of exactly so many tokens."""
        body = {"model": "tiny", "messages": self.messages, "ignore_eos": True}
        reply = self.server.post(self.path, body | {"max_tokens": turn.tokens, "temperature": 1.0})
        self.tokens += reply["usage"]["completion_tokens"]
        self.messages.append(reply["choices"][0]["message"])

    def tool(self, turn):
        """The tool that the agent calls then."""
        time.sleep(turn.tool_s)
        self.messages.append({"role": "user", "content": "higher"})

    def play(self):
        """All turns, one after the other."""
        for turn in self.turns:
            self.ask(turn)
            self.tool(turn)
        return self.tokens


def together(engine, work, size):
    """Batches of `size` episodes; all wait for all at every turn."""
    tokens = 0
    with ThreadPoolExecutor(size) as pool:
        for first in range(0, len(work), size):
            agents = [Agent(engine, "/v1/chat/completions", t) for t in work[first : first + size]]
            for number in range(TURNS_MAX):
                live = [agent for agent in agents if number < len(agent.turns)]
                list(pool.map(lambda agent: agent.ask(agent.turns[number]), live))
                list(pool.map(lambda agent: agent.tool(agent.turns[number]), live))
            tokens += sum(agent.tokens for agent in agents)
    return tokens


def asynchronous(client, work, size, run):
    """`size` episodes at a time, each at its own pace, recorded by rolltape."""
    proxy = Http(client.data, timeout_s=600)

    def one(number):
        with rolltape.episode(client, f"{run}-{number}", announce=False):
            path = f"/e/{run}-{number}/v1/chat/completions"
            return Agent(proxy, path, work[number]).play()

    with ThreadPoolExecutor(size) as pool:
        return sum(pool.map(one, range(len(work))))


def timed(play, *arguments):
    """Seconds and tokens of one way."""
    began = time.monotonic()
    tokens = play(*arguments)
    return time.monotonic() - began, tokens


def measure(engine, client, size, options):
    """Both ways on the same work, in turns, the better time of each."""
    work = draw(size * options.rounds, seed=size)
    best = {}
    for repeat in range(options.repeat):
        ways = {
            "together": (together, engine, work, size),
            "asynchronous": (asynchronous, client, work, size, f"n{size}-{repeat}"),
        }
        for name, (play, *arguments) in ways.items():
            found = timed(play, *arguments)
            best[name] = min(best.get(name, found), found)
    return {
        name: {"episodes_s": len(work) / seconds, "tokens_s": tokens / seconds}
        for name, (seconds, tokens) in best.items()
    }


def arguments():
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="8,32,128", help="episodes at a time")
    parser.add_argument("--rounds", type=int, default=3, help="episodes, in multiples of a size")
    parser.add_argument("--repeat", type=int, default=2, help="the best of so many runs counts")
    parser.add_argument("--model", default=str(MODEL))
    return parser.parse_args()


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        words = [
            rolltape.binary(),
            "engine",
            "--model",
            options.model,
            "--served-model-name",
            "tiny",
        ]
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = "127.0.0.1:%d" % free.getsockname()[1]
        process = subprocess.Popen([*words, "--listen", address], stderr=subprocess.DEVNULL)
        try:
            engine = Http(f"http://{address}", timeout_s=600)
            patiently(lambda: engine.get("/health"), until_s=START_WAIT_S)
            store = Path(folder, "bench.db")
            with rolltape.Server(upstream=engine.url, store=store) as server:
                sizes = map(int, options.sizes.split(","))
                found = {n: measure(engine, server.client, n, options) for n in sizes}
        finally:
            process.terminate()
            process.wait()
    print("| at a time | together, episodes/s | asynchronous, episodes/s | ratio | tokens/s |")
    print("| --- | --- | --- | --- | --- |")
    for size, ways in found.items():
        a, b = ways["together"], ways["asynchronous"]
        ways["ratio"] = b["episodes_s"] / a["episodes_s"]
        row = (size, f"{a['episodes_s']:.1f}", f"{b['episodes_s']:.1f}", f"{ways['ratio']:.2f}")
        print(f"| {' | '.join(map(str, row))} | {a['tokens_s']:.0f}, {b['tokens_s']:.0f} |")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
