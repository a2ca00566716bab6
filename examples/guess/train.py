"""A model that learns a game from what its agents said: AsyncGRPOTrainer on rolltape's feed.

    python examples/guess/train.py [--seed N] [--out DIR] [--server vllm [--upstream URL]]
                                   [--one-secret] [--no-signal]

Starts `rolltape serve` with the tiny model, or before a vLLM: the one at --upstream, else one that
`tests/python/servers/install.sh vllm` installed. Processes of agents, the `openai` package as it
comes, play through the proxy; rewards come from the game. TRL's AsyncGRPOTrainer trains on the
groups that the feed hands out, and its weights go back to what samples while the agents play on.
Ends when nearly all of the last games were won, or after --steps. Writes DIR/train.png, DIR/data
(the exported episodes) and DIR/weights; the last line on stdout is a JSON object with what came of
it.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python")]
os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "CUDA_VISIBLE_DEVICES": ""}

import game  # noqa: E402
import players  # noqa: E402
import rolltape  # noqa: E402
import rolltape.trl  # noqa: E402

MODEL = HERE.parents[1] / "engine" / "models" / "tiny"
PROCESSES = 2
STEP_GAMES = 224
GROUP_SIZE = 28
"""Every secret four times: an agent is asked the same whatever the secret is."""
ONE_SECRET_SIZE = 4
"""Of a group with one secret: the rewards of many are all equal."""
GAMES_AHEAD = 336
"""Games that are under way or wait for the trainer, at most."""
LEARNING_RATE = 5e-4
GRADIENT_MAX = 0.2
"""Of the norm, which is about 0.1: one rare batch must not undo what was learned."""
STALENESS_MAX = 4
EVALUATED = 64 * game.HIGHEST
ENOUGH = 0.975
"""Games won, of those of the last steps, at which training ends."""
ENOUGH_GAMES = 4 * STEP_GAMES
TASK = "guess"
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Season:
    """The games of one training: deals them out, and keeps what came of them."""

    def __init__(self, pool, one_secret=False):
        self.pool = pool
        self.one_secret = one_secret
        self.size = ONE_SECRET_SIZE if one_secret else GROUP_SIZE
        self.recent = deque(maxlen=ENOUGH_GAMES)
        self.calls = 0
        self.episodes = 0
        self.dropped_games = 0
        self.rows = []
        self._dealt = 0
        self._evaluated = {}
        self._lock = threading.Lock()
        self._error = None
        threading.Thread(target=self._listen, daemon=True).start()

    def deal(self, groups):
        """Has so many more groups played, of one secret each, or of all equally often."""
        with self._lock:
            first, self._dealt = self._dealt, self._dealt + groups
        for number in range(first, first + groups):
            for member in range(self.size):
                secret = (number if self.one_secret else member) % game.HIGHEST + 1
                self.pool.jobs.put(players.Job(f"g{number}-{member}", f"g{number}", TASK, secret))

    def handed_over(self, rows):
        """A group goes to the trainer: another one may be played."""
        self.rows.append(rows[0])
        self.deal(1)

    def dropped(self, episodes):
        """Groups were dropped: others may be played in their place."""
        self.dropped_games += episodes
        self.deal(episodes // self.size)

    def begin_evaluation(self, name):
        """Has games played under the weights as they are, every secret equally often."""
        for number in range(EVALUATED):
            job = players.Job(f"{name}-{number}", name, name, number % game.HIGHEST + 1)
            self.pool.jobs.put(job)

    def evaluated(self, name):
        """Waits for them, and gives the share that was won."""
        while len(self._evaluated.get(name, ())) < EVALUATED:
            self.check()
            time.sleep(0.02)
        return sum(self._evaluated[name]) / EVALUATED

    def success(self):
        """The share of the last games that were won; 0 while there are few."""
        full = len(self.recent) == self.recent.maxlen
        return sum(self.recent) / len(self.recent) if full else 0.0

    def check(self):
        """Raises if an agent failed."""
        self.pool.check()
        if self._error:
            raise RuntimeError(f"an agent failed: {self._error}")

    def _listen(self):
        while True:
            result = self.pool.results.get()
            self._error = self._error or result.error
            self.calls += result.calls
            self.episodes += 1
            if result.job.task == TASK:
                self.recent.append(result.found)
            else:
                self._evaluated.setdefault(result.job.task, []).append(result.found)


@contextmanager
def serving(options, out):
    """A recorder with something behind it that samples, until the block ends."""
    store = out / "rolltape.db"
    if options.server == "engine":
        with rolltape.Server("--seed", str(options.seed), model=MODEL, store=store) as server:
            yield server
        return
    with ExitStack() as held:
        upstream = options.upstream or held.enter_context(vllm(out)).url
        yield held.enter_context(rolltape.Server(upstream=upstream, store=store))


def vllm(out):
    """vLLM with the tiny model, as the tests start it."""
    sys.path.append(str(HERE.parents[1] / "tests" / "python"))
    from servers import running

    kind = running.KINDS["vllm"]
    if kind.why_not:
        sys.exit(f"{kind.why_not}; see tests/python/servers/install.sh")
    return running.running(kind, out, untied(out / "model"), ("--max-num-seqs", "64"))


def untied(folder):
    """The tiny model with a head of its own, in `folder`.

    On a CPU vLLM packs the head into a copy when it starts. A head that is tied to the embeddings
    keeps that copy when weights are reloaded (vLLM 0.33): the server then samples with new layers
    and an old head.
    """
    from safetensors.torch import load_file, save_file

    shutil.copytree(MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    weights = load_file(MODEL / "model.safetensors")
    head = {HEAD: weights[EMBEDDINGS].clone()}
    save_file(weights | head, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def with_head(weights):
    """Weights as they come, and the embeddings once more as the head."""
    for name, weight in weights:
        yield name, weight
        if name == EMBEDDINGS:
            yield HEAD, weight.clone()


def trainer(client, season, out, options):
    """TRL's trainer, with rolltape's worker and weight transfer."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    from rolltape.trl import RolloutWorker, WeightTransfer, use_cpu

    class Transfer(WeightTransfer):
        def send_weights(self, iterator):
            super().send_weights(with_head(iterator) if options.server == "vllm" else iterator)

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            season.check()
            if season.success() >= ENOUGH:
                control.should_training_stop = True

    torch.set_num_threads(1)
    use_cpu()
    worker = RolloutWorker(
        client,
        group_size=season.size,
        task=TASK,
        max_staleness=STALENESS_MAX,
        groups_per_lease=4 * GROUP_SIZE // season.size,
        buffer_rows=GROUP_SIZE,
        no_signal=options.no_signal,
        metrics=lambda row: {"success": float(row["reward"] == 1.0)},
        on_group=season.handed_over,
        on_dropped=season.dropped,
    )
    config = AsyncGRPOConfig(
        output_dir=str(out / "trainer"),
        seed=options.seed,
        max_steps=options.steps,
        per_device_train_batch_size=STEP_GAMES // 2,
        gradient_accumulation_steps=2,
        num_generations=season.size,
        learning_rate=LEARNING_RATE,
        warmup_steps=10,
        adam_beta2=0.99,
        max_grad_norm=GRADIENT_MAX,
        max_staleness=STALENESS_MAX,
        weight_sync_steps=1,
        token_budget=0,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        disable_tqdm=True,
    )
    return AsyncGRPOTrainer(
        model=str(MODEL),
        reward_funcs=[],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": game.QUESTION}]}]),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        callbacks=[Watch()],
        rollout_worker=worker,
        weight_transfer=Transfer(
            client, out / "weights", kept=None, reload=options.server == "vllm"
        ),
    )


def logprob_differences(rows, weights):
    """For each version the largest |trainer's logprob - recorded logprob| of the tokens it sampled.

    The trainer's model computes each row with the weights of the version that the row names; a
    token that carries a wrong version, id or logprob shows.
    """
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    found = {}
    for version in sorted({v for row in rows for v in row["versions"] if v > 0}):
        model.load_state_dict(
            load_file(weights / f"v{version}" / "model.safetensors"), strict=False
        )
        for row in rows:
            places = [at for at, v in enumerate(row["versions"]) if v == version]
            if not places:
                continue
            with torch.no_grad():
                logits = model(torch.tensor([row["input_ids"]])).logits[0].double()
            logprobs = logits.log_softmax(-1)
            for at in places:
                theirs = float(logprobs[at - 1, row["input_ids"][at]])
                difference = abs(theirs - row["logprobs"][at])
                found[version] = max(found.get(version, 0.0), difference)
    return found


def lags(client):
    """What the trainer said of the tokens that it trained on, by how many versions it was ahead.

    For each lag the number of tokens, the mean |trainer's logprob - recorded logprob|, and the mean
    distance of the factor in the loss from 1.
    """
    found = {}
    for row in rolltape.rows_of(client, task=TASK):
        said = {one["name"]: one for one in row["annotations"] or ()}
        if not {"trainer_logprobs", "loss_weights"} <= said.keys():
            continue
        version = int(said["trainer_logprobs"]["version"])
        columns = said["trainer_logprobs"]["values"], said["loss_weights"]["values"]
        for at, (logprob, weight) in enumerate(zip(*columns, strict=True)):
            if logprob is not None and row["versions"][at] >= 0:
                told = found.setdefault(version - row["versions"][at], [0, 0.0, 0.0])
                told[0] += 1
                told[1] += abs(logprob - row["logprobs"][at])
                told[2] += abs(weight - 1)
    return {
        lag: {"tokens": count, "logprob": round(far / count, 5), "weight": round(off / count, 5)}
        for lag, (count, far, off) in sorted(found.items())
    }


def arguments():
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=120, help="optimizer steps, at most")
    parser.add_argument("--out", type=Path, default=Path("train-demo"))
    parser.add_argument("--server", choices=("engine", "vllm"), default="engine", help="samples")
    parser.add_argument("--upstream", help="a vLLM that runs, in dev mode; with --server vllm")
    parser.add_argument(
        "--one-secret", action="store_true", help="a group has one secret, and 4 games"
    )
    parser.add_argument(
        "--no-signal", action="store_true", help="drop groups whose rewards are all equal"
    )
    parser.add_argument("--processes", type=int, default=PROCESSES, help="of agents")
    options = parser.parse_args()
    if options.upstream and options.server != "vllm":
        parser.error("--upstream is for --server vllm")
    return options


def say(text, began):
    print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    began = time.monotonic()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    store = out / "rolltape.db"
    if store.exists():
        sys.exit(f"{store} is there already: give another --out")
    with serving(options, out) as server:
        pool = players.Players(server.client, options.processes)
        try:
            report = train(server, Season(pool, options.one_secret), out, options, began)
        finally:
            pool.stop()
    report["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(report))


def train(server, season, out, options, began):
    """Plays, trains, plays again, checks, exports, draws."""
    season.begin_evaluation("before")
    made = trainer(server.client, season, out, options)
    rolltape.trl.annotate(made, server.client)
    before = season.evaluated("before")
    say(f"{before:.3f} of {EVALUATED} games won before", began)
    season.deal(GAMES_AHEAD // season.size)
    with open(out / "trainer.log", "w") as log:
        stdout, sys.stdout = sys.stdout, log
        try:
            made.train()
        finally:
            sys.stdout = stdout
    say(
        f"{made.state.global_step} steps on {season.episodes} episodes, {season.calls} calls", began
    )
    season.begin_evaluation("after")
    after = season.evaluated("after")
    say(f"{after:.3f} of {EVALUATED} games won after", began)
    differences = logprob_differences(season.rows, out / "weights")
    server.command("export", "--out", out / "data", "--task", TASK)
    say("exported", began)
    import plot

    plot.draw(made.state.log_history, differences, out / "train.png")
    return {
        "success_before": round(before, 4),
        "success_after": round(after, 4),
        "seconds": None,
        "logprob_max_abs_diff": max(differences.values()),
        "lags": lags(server.client),
        "steps": made.state.global_step,
        "episodes": season.episodes,
        "calls": season.calls,
        "dropped_games": season.dropped_games,
        "seed": options.seed,
        "server": options.server,
    }


if __name__ == "__main__":
    main()
