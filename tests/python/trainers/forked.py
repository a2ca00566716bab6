"""GRPO on the game with groups of whole attempts and with groups of forks, side by side.

    forked.py OUT [--seeds N ...] [--updates N]

Run by hand, with the environment of `install.sh`; nothing is served. Guesses are sampled from the
probabilities that the model gives them, which are computed for every history of the game at once;
`forked_recorded.py` plays the same through rolltape.

A group has eight members. In the one way all are whole attempts. In the other one is, and the
others are branches of it from a random turn on; its own end is the eighth. Both have the same
updates and the same loss. Writes OUT/curves.json and OUT/forks.svg, and prints the tokens that
each run sampled until it wins often enough: of all guesses and closing words, but for those that a
branch shares.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import sys
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
MODEL = Path(__file__).resolve().parents[3] / "engine" / "models" / "tiny"
sys.path.insert(0, str(MODEL))

import make  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

NUMBERS = range(1, make.HIGHEST + 1)
GROUP = 8
GROUPS = 4
"""Groups of each secret in an update."""
RATE = 5e-4
GOALS = (0.7, 0.8)
TOKENS_GUESS, TOKENS_CLOSE = 6, 2
WAYS = {"whole": ("whole attempts", "#777"), "forks": ("forks", "#c40")}


class Policy:
    """The model as a table: the logprob of each guess after each history of the game."""

    def __init__(self):
        self.tok = transformers.AutoTokenizer.from_pretrained(MODEL)
        self.model = transformers.Qwen3ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=RATE, weight_decay=0.0)
        self.histories = {history: at for at, history in enumerate(histories())}
        begun = f'{make.CALL_OPEN}{{"name": "guess", "arguments": {{"n": '
        self.begun = make.text_ids(self.tok, begun)
        self.numbers = [make.text_ids(self.tok, str(n))[0] for n in NUMBERS]
        asked = [
            make.render(self.tok, make.messages_of(history), add_generation_prompt=True)
            for history in self.histories
        ]
        self.ids = make.padded([ids + self.begun for ids in asked], self.tok.pad_token_id)
        self.starts = torch.tensor([len(ids) - 1 for ids in asked])

    def logprobs(self):
        """[histories, numbers]; what follows a number is taken for granted."""
        hidden = self.model.model(input_ids=self.ids).last_hidden_state
        rows = torch.arange(len(self.ids))

        def after(n):
            return self.model.lm_head(hidden[rows, self.starts + n]).log_softmax(-1)

        begun = sum(after(n)[:, token] for n, token in enumerate(self.begun))
        return after(len(self.begun))[:, self.numbers] + begun[:, None]

    def learn(self, loss):
        """One step."""
        self.adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()


def answer(n, secret):
    """What the tool says of a guess that is wrong."""
    return "higher" if n < secret else "lower"


def histories():
    """Every history after which a guess is asked for."""
    layer = {()}
    for _ in range(make.GUESSES):
        yield from sorted(layer)
        layer = {
            (*history, (n, answer(n, secret)))
            for history in layer
            for n, secret in itertools.permutations(NUMBERS, 2)
            if all(a == answer(m, secret) and m != secret for m, a in history)
        }


def win_rate(policy, chances):
    """The probability of a win, over all secrets."""
    won = 0.0
    for secret in NUMBERS:
        reach = {(): 1.0}
        for _ in range(make.GUESSES):
            then = {}
            for history, weight in reach.items():
                for n, chance in zip(NUMBERS, chances[policy.histories[history]]):
                    if n == secret:
                        won += weight * chance
                    else:
                        then[*history, (n, answer(n, secret))] = weight * chance
            reach = then
    return won / len(NUMBERS)


def play(policy, chances, secret, rng, history=()):
    """Plays on from a history; gives the guesses, each with its history, and the reward. A call
    that is none is a guess of 0, and ends the game."""
    guesses = []
    while len(history) < make.GUESSES:
        weights = chances[policy.histories[history]]
        (n,) = rng.choices([0, *NUMBERS], [max(0.0, 1 - sum(weights)), *weights])
        guesses.append((history, n))
        if n in (0, secret):
            return guesses, float(n == secret)
        history = (*history, (n, answer(n, secret)))
    return guesses, 0.0


def cost(guesses):
    """The tokens that a game sampled."""
    return TOKENS_GUESS * len(guesses) + TOKENS_CLOSE


def group_of(policy, chances, secret, rng, way):
    """The members of a group, each its own guesses and its reward, and what was sampled."""
    trunk, reward = play(policy, chances, secret, rng)
    turn = rng.randrange(len(trunk)) if way == "forks" else 0
    shared = trunk[turn][0]
    others = [play(policy, chances, secret, rng, shared) for _ in range(GROUP - 1)]
    tokens = cost(trunk) + sum(cost(guesses) for guesses, _ in others)
    return [(trunk[turn:], reward), *others], tokens


def loss_of(policy, logprobs, groups):
    """GRPO's loss: what was guessed, weighed by how it did beside its group."""
    chosen, advantages, tokens = [], [], 0
    for group in groups:
        rewards = [reward for _, reward in group]
        spread = statistics.pstdev(rewards)
        if not spread:
            continue
        tokens += sum(cost(guesses) for guesses, _ in group)
        for guesses, reward in group:
            made = [(policy.histories[history], n - 1) for history, n in guesses if n]
            chosen += made
            advantages += [(reward - statistics.mean(rewards)) / spread] * len(made)
    if not chosen:
        return None
    rows, columns = torch.tensor(chosen).T
    return -(torch.tensor(advantages) * logprobs[rows, columns]).sum() / tokens


def trained(way, seed, updates):
    """The curve of one training: sampled tokens and win rate before each update."""
    policy, rng, tokens, curve = Policy(), random.Random(seed), 0, []
    for _ in range(updates):
        logprobs = policy.logprobs()
        chances = logprobs.exp().tolist()
        curve.append((tokens, win_rate(policy, chances)))
        made = [
            group_of(policy, chances, secret, rng, way)
            for secret in NUMBERS
            for _ in range(GROUPS)
        ]
        tokens += sum(sampled for _, sampled in made)
        loss = loss_of(policy, logprobs, [group for group, _ in made])
        if loss is not None:
            policy.learn(loss)
        print(way, seed, *curve[-1], file=sys.stderr, flush=True)
    return curve


def reached(curve, goal):
    """Sampled tokens until the win rate is at a goal; None if it never is."""
    return next((tokens for tokens, rate in curve if rate >= goal), None)


def drawn(curves):
    """The curves as an SVG."""
    width, height, edge = 640, 360, 48
    most = max(tokens for curve in curves.values() for tokens, _ in curve)
    right, base = width - edge, height - edge

    def at(tokens, rate):
        return edge + tokens / most * (right - edge), base - rate * (base - edge)

    def text(x, y, words, more=""):
        return f'<text x="{x}" y="{y:.0f}" {more}>{words}</text>'

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">']
    parts.append("<style>text{font:12px sans-serif}</style>")
    parts.append('<rect width="100%" height="100%" fill="#fff"/>')
    for rate in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        y = at(0, rate)[1]
        parts.append(f'<path d="M{edge} {y:.0f}H{right}" stroke="#ddd"/>')
        parts.append(text(edge - 6, y + 4, f"{rate:.0%}", 'text-anchor="end"'))
    for name, curve in curves.items():
        points = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in curve)
        color = WAYS[name.split("-")[0]][1]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}"/>')
    for line, (words, color) in enumerate(WAYS.values()):
        parts.append(text(right, base - 12 - 18 * line, words, f'text-anchor="end" fill="{color}"'))
    parts.append(text(edge, 24, "games won"))
    parts.append(text(right, height - 20, f"{most:,} sampled tokens", 'text-anchor="end"'))
    return "\n".join([*parts, "</svg>"]) + "\n"


def report(curves, out):
    """Writes the curves and the plot, and prints what each run came to."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "curves.json").write_text(json.dumps(curves))
    (out / "forks.svg").write_text(drawn(curves))
    for name, curve in curves.items():
        goals = {f"{goal:.0%}": reached(curve, goal) for goal in GOALS}
        print(json.dumps({"run": name, "last": curve[-1], "tokens_to": goals}))


def arguments(updates):
    """The options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--updates", type=int, default=updates)
    torch.set_num_threads(1)
    return parser.parse_args()


def main():
    options = arguments(updates=60)
    report(
        {
            f"{way}-{seed}": trained(way, seed, options.updates)
            for seed in options.seeds
            for way in options.ways
        },
        options.out,
    )


if __name__ == "__main__":
    main()
