"""The loop with TRL's own trainers, on a CPU: `loop.py OUT [async] [sync] [harness]`.

Starts `rolltape serve` with the tiny model; agents with the `openai` package play through it while
a trainer trains and pushes its weights. Prints one JSON object: what each trainer logged, what the
feed counted, and how far the engine's logprobs are from the trainer's under the last weights.
"""

import functools
import json
import os
import sys
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "CUDA_VISIBLE_DEVICES": ""}
warnings.simplefilter("ignore")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[2] / "python")]

import rolltape  # noqa: E402
from game import Agent, Game  # noqa: E402

MODEL = HERE.parents[2] / "engine" / "models" / "tiny"
GROUP_SIZE = 8
STEPS = 3
SAMPLES = 12
COMMON = {
    "max_steps": STEPS,
    "learning_rate": 1e-4,
    "logging_steps": 1,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "save_strategy": "no",
    "disable_tqdm": True,
    "num_generations": GROUP_SIZE,
}


def play(episode, task):
    """One game by an unmodified client; the task is its secret number."""
    import openai

    client = openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key, timeout=60)
    game = Game(int(task))
    Agent(client).play(game)
    return game.reward


def play_group(client, number):
    """All games of a group, at once."""

    def one(member):
        name, group = f"async-{number}-{member}", f"async-{number}"
        with rolltape.episode(client, name, group_id=group, task_id="async") as episode:
            episode.reward(play(episode, number % 7 + 1))

    with ThreadPoolExecutor(GROUP_SIZE) as pool:
        list(pool.map(one, range(GROUP_SIZE)))


def difference(client, model):
    """The largest |engine's logprob - model's| of some sampled tokens, weights being the same."""
    import torch

    body = {"model": "tiny", "prompt": list(range(5, 45)), "max_tokens": 16, "temperature": 1.0}
    body |= {"logprobs": 0, "return_token_ids": True, "seed": 3, "ignore_eos": True}
    choice = rolltape.http.Http(client.data).post("/e/check/v1/completions", body)["choices"][0]
    ids = body["prompt"] + choice["token_ids"]
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    start = len(body["prompt"])
    theirs = [float(logprobs[at - 1, ids[at]]) for at in range(start, len(ids))]
    return apart(theirs, choice["logprobs"]["token_logprobs"])


def plain(trainer):
    """The trainer's weights in a model of their own, as transformers makes it."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(MODEL).float().eval()
    theirs = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    model.load_state_dict(theirs, strict=False)
    return model


def steps(trainer):
    return [entry for entry in trainer.state.log_history if "reward" in entry]


def trained_async(client, out):
    """AsyncGRPOTrainer on the feed."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    from rolltape.trl import RolloutWorker, WeightTransfer, annotate, use_cpu

    use_cpu()
    over = threading.Event()
    seen = []
    worker = RolloutWorker(
        client, group_size=GROUP_SIZE, task="async", buffer_rows=GROUP_SIZE, groups_per_lease=1,
        # A step of groups whose rewards are all equal would have no gradient.
        no_signal=True,
        on_group=lambda rows: seen.append([row["policy_version_min"] for row in rows]),
    )  # fmt: skip
    trainer = AsyncGRPOTrainer(
        model=str(MODEL),
        reward_funcs=[],
        args=AsyncGRPOConfig(
            output_dir=f"{out}/async",
            per_device_train_batch_size=2 * GROUP_SIZE,
            token_budget=0,
            max_staleness=10,
            **COMMON,
        ),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "-"}]}]),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        rollout_worker=worker,
        weight_transfer=WeightTransfer(client, f"{out}/weights"),
    )

    annotator = annotate(trainer, client)

    def agents():
        for number in range(50):
            if not over.is_set():
                play_group(client, number)

    thread = threading.Thread(target=agents)
    thread.start()
    try:
        trainer.train()
    finally:
        over.set()
        thread.join()
    return {
        "steps": steps(trainer),
        "versions": seen,
        "standing": worker.feed.standing(),
        "labels": [version["label"] for version in client.versions()],
        "weights": client.weight_info(),
        "kept": sorted(path.name for path in Path(out, "weights").iterdir()),
        "difference": difference(client, plain(trainer)),
        "annotated": annotated(client, annotator, "async", by_version=True),
    }


def trained_sync(client, out):
    """GRPOTrainer with a rollout_func."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from rolltape.trl import (
        WeightTransfer,
        annotate,
        recorded_reward,
        rollout_func,
        sync_weights,
    )

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        reward_funcs=recorded_reward,
        args=GRPOConfig(
            output_dir=f"{out}/sync",
            per_device_train_batch_size=2 * GROUP_SIZE,
            max_completion_length=128,
            **COMMON,
        ),
        train_dataset=Dataset.from_list([{"prompt": str(secret)} for secret in range(1, 8)]),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        rollout_func=rollout_func(client, play, task_id="sync"),
    )
    sync_weights(trainer, WeightTransfer(client, f"{out}/sync-weights"))
    annotator = annotate(trainer, client)
    trainer.train()
    told = annotated(client, annotator, "sync", by_version=False)
    return {"steps": steps(trainer), "annotated": told}


def harnessed(client):
    """Samples of TRL's own worker for OpenEnv's sessions, beside what rolltape recorded."""
    from accelerate import PartialState
    from client import name_vllm
    from datasets import Dataset
    from transformers import AutoTokenizer

    from rolltape.openenv import SessionFactory

    with tempfile.TemporaryDirectory() as folder:
        name_vllm(folder)
        from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker

        worker = HarnessRolloutWorker(
            harness_session_factory=functools.partial(SessionFactory, client, play),
            model_name="tiny",
            dataset=Dataset.from_list([{"prompt": str(secret)} for secret in range(1, 8)]),
            reward_funcs=[],
            processing_class=AutoTokenizer.from_pretrained(MODEL),
            eos_token_ids=[390],
            num_generations=4,
            max_inflight_tasks=4,
        )
        PartialState()  # as a trainer would have it
        worker.start()
        try:
            samples = [worker.rollout_buffer.get(timeout=120) for _ in range(SAMPLES)]
        finally:
            worker.stop()
    rows = rolltape.rows_of(client)
    rows = [row for row in rows if (row["group_id"] or "").startswith("openenv-")]
    known = {(tuple(r["input_ids"]), tuple(r["loss_mask"])): r["logprobs"] for r in rows}
    found = []
    for sample in samples:
        ids, mask = tuple(sample.input_ids.tolist()), tuple(sample.completion_mask.tolist())
        told = known.get((ids, mask))
        gap = apart(told, sample.old_log_probs.tolist()) if told else None
        found.append({"trained": sum(mask), "gap": gap, "reward": sample.metrics["reward"]})
    return {"samples": found, "rows": len(rows)}


def annotated(client, annotator, task, by_version):
    """What the rows say of the trainer's numbers, and how far its logprobs are from the recorded.

    With `by_version` those of tokens that were sampled by the weights that the trainer had.
    """
    found = {"sent": annotator.sent, "lost": annotator.lost, "names": [], "tokens": 0, "gap": 0.0}
    for row in rolltape.rows_of(client, task=task):
        streams = {one["name"]: one for one in row["annotations"] or ()}
        found["names"] = sorted({*found["names"], *streams})
        if "trainer_logprobs" not in streams:
            continue
        version, values = (streams["trainer_logprobs"][key] for key in ("version", "values"))
        for at, value in enumerate(values):
            is_theirs = not by_version or row["versions"][at] == int(version)
            if value is not None and is_theirs:
                assert row["loss_mask"][at] == 1
                found["tokens"] += 1
                found["gap"] = max(found["gap"], abs(value - row["logprobs"][at]))
    return found


def apart(these, those):
    """The largest difference of two lists of numbers."""
    return max(abs(a - b) for a, b in zip(these, those, strict=True))


def main():
    import torch

    torch.set_num_threads(1)
    out, names = sys.argv[1], sys.argv[2:]
    ways = {"async": lambda c: trained_async(c, out), "sync": lambda c: trained_sync(c, out)}
    ways["harness"] = harnessed
    store = Path(out, "loop.db")
    with rolltape.Server(model=MODEL, store=store) as server:
        found = {name: ways[name](server.client) for name in names}
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
