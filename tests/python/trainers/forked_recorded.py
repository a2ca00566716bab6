"""What `forked.py` computes, played through rolltape: agents, recorded rows, forks, pushed weights.

    forked_recorded.py OUT [--seeds N ...] [--updates N]

Run by hand on a machine that does nothing else: an update is 224 games.
"""

import random
import statistics
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

warnings.simplefilter("ignore")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[2] / "python")]

import forked  # noqa: E402, it sets the environment
import httpx  # noqa: E402
import make  # noqa: E402
import openai  # noqa: E402
import rolltape  # noqa: E402
import torch  # noqa: E402
from forked import GROUP, GROUPS, MODEL, NUMBERS, Policy, win_rate  # noqa: E402
from game import Agent, Game  # noqa: E402
from rolltape.weights import save_folder  # noqa: E402

AT_ONCE = 16


@dataclass
class Run:
    """One training: its server's client, the model, and how groups are made."""

    client: object
    policy: Policy
    way: str
    rng: random.Random
    pool: ThreadPoolExecutor
    http: object


def play(run, name, attempt, secret, turn=0):
    """Plays one attempt, from a turn of the group's first one on; gives its number of guesses."""
    replay = rolltape.Replay(name, until=turn) if turn else None
    run.client.announce(name, attempt, group_id=name, task_id=name.split("-")[0], replay=replay)
    url = run.client.base_url(name, attempt)
    agent = Agent(openai.OpenAI(base_url=url, api_key="none", http_client=run.http))
    game = Game(secret)
    agent.play(game)
    run.client.reward(name, game.reward, attempt)
    run.client.close(name, "completed", attempt)
    return len(game.guesses)


def rolled_out(run, update):
    """The rows of an update, group by group, and what was sampled for them."""
    secrets = {f"u{update}-s{n}-{copy}": n for n in NUMBERS for copy in range(GROUPS)}
    guesses = run.pool.map(lambda name: play(run, name, 0, secrets[name]), secrets)
    forks = run.way == "forks"
    turns = {
        name: run.rng.randrange(max(1, made)) if forks else 0
        for name, made in zip(secrets, guesses)
    }
    others = [(name, attempt) for name in secrets for attempt in range(1, GROUP)]
    list(run.pool.map(lambda one: play(run, *one, secrets[one[0]], turns[one[0]]), others))

    rows = rolltape.rows_of(run.client, task=f"u{update}")
    sampled = sum(sum(row["loss_mask"]) for row in rows)
    for row in rows:
        if row["attempt"] == 0:
            # Its own end is a branch like the others.
            shared = row["turns"][: turns[row["episode_id"]]]
            end = shared[-1]["end"] if shared else 0
            row["loss_mask"][:end] = [0] * end
    return [[row for row in rows if row["group_id"] == name] for name in secrets], sampled


def loss_of(policy, groups):
    """GRPO's loss: what was sampled, weighed by how it did beside its group."""
    rows, advantages = [], []
    for group in groups:
        # A game that the model spoilt may be several rows.
        rewards = {row["attempt"]: row["reward"] for row in group}
        assert len(rewards) == GROUP
        mean, spread = statistics.mean(rewards.values()), statistics.pstdev(rewards.values())
        if spread:
            rows += group
            advantages += [(row["reward"] - mean) / spread for row in group]
    if not rows:
        return None
    ids = make.padded([row["input_ids"] for row in rows], policy.tok.pad_token_id)
    mask = make.padded([row["loss_mask"] for row in rows], 0)[:, 1:]
    logprobs = policy.model(input_ids=ids).logits[:, :-1].log_softmax(-1)
    said = logprobs.gather(-1, ids[:, 1:, None])[..., 0]
    return -(said * mask * torch.tensor(advantages)[:, None]).sum() / mask.sum()


def trained(way, seed, updates, folder):
    """The curve of one training."""
    folder.mkdir(parents=True)
    policy, tokens, curve = Policy(), 0, []
    with (
        rolltape.Server(model=MODEL, store=folder / "recorded.db") as server,
        ThreadPoolExecutor(AT_ONCE) as pool,
        httpx.Client(timeout=60) as http,
    ):
        run = Run(server.client, policy, way, random.Random(seed), pool, http)
        for update in range(1, updates + 1):
            with torch.no_grad():
                curve.append((tokens, win_rate(policy, policy.logprobs().exp().tolist())))
            print(way, seed, *curve[-1], file=sys.stderr, flush=True)
            groups, sampled = rolled_out(run, update)
            tokens += sampled
            loss = loss_of(policy, groups)
            if loss is not None:
                policy.learn(loss)
            weights = save_folder(policy.model.named_parameters(), folder / "weights")
            run.client.update_weights(weights, update)
    return curve


def main():
    options = forked.arguments(updates=60)
    forked.report(
        {
            f"{way}-{seed}": trained(way, seed, options.updates, options.out / f"{way}-{seed}")
            for seed in options.seeds
            for way in options.ways
        },
        options.out,
    )


if __name__ == "__main__":
    main()
