"""The same game with GRPOTrainer and a `rollout_func`: play, train, send the weights, play again.

    python examples/guess/train_sync.py [--seed N] [--steps N] [--out DIR]

The trainer asks for a batch of episodes, waits for all of them, and takes a step; simpler than
`train.py`, and slower, because nobody plays while it trains. The last line on stdout is JSON.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python")]
os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "CUDA_VISIBLE_DEVICES": ""}

import openai  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

import game  # noqa: E402
import rolltape  # noqa: E402
from rolltape.trl import WeightTransfer, recorded_reward, rollout_func, sync_weights  # noqa: E402

MODEL = HERE.parents[1] / "engine" / "models" / "tiny"
GROUP_SIZE = 16
GROUPS = 2 * game.HIGHEST
"""Of a step: every secret twice."""
PLAYERS = 16
LEARNING_RATE = 1e-3


def trainer(client, options):
    """GRPOTrainer whose batches are games; a prompt is the secret, which only the game is told."""
    agent = openai.OpenAI(base_url=client.base_url(), api_key="none", timeout=120)

    def play(episode, prompt):
        played = game.Game(int(prompt))
        game.play(agent.with_options(base_url=episode.base_url), played)
        return played.reward

    secrets = [{"prompt": str(n % game.HIGHEST + 1)} for n in range(GROUPS)]
    made = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        reward_funcs=recorded_reward,
        args=GRPOConfig(
            output_dir=str(options.out / "trainer"),
            seed=options.seed,
            max_steps=options.steps,
            per_device_train_batch_size=GROUPS * GROUP_SIZE,
            num_generations=GROUP_SIZE,
            max_completion_length=256,
            learning_rate=LEARNING_RATE,
            warmup_steps=10,
            adam_beta2=0.99,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(secrets),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        rollout_func=rollout_func(client, play, players=PLAYERS, task_id="guess"),
    )
    sync_weights(made, WeightTransfer(client, options.out / "weights"))
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("train-sync-demo"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "rolltape.db"
    if store.exists():
        sys.exit(f"{store} is there already: give another --out")
    torch.set_num_threads(1)
    began = time.monotonic()
    with rolltape.Server("--seed", str(options.seed), model=MODEL, store=store) as server:
        made = trainer(server.client, options)
        with open(options.out / "trainer.log", "w") as log:
            stdout, sys.stdout = sys.stdout, log
            try:
                made.train()
            finally:
                sys.stdout = stdout
    steps = [entry for entry in made.state.log_history if "reward" in entry]
    gap = "sampling/sampling_logp_difference/max"
    report = {
        "reward_before": steps[0]["reward"],
        "reward_after": sum(entry["reward"] for entry in steps[-5:]) / len(steps[-5:]),
        "seconds": round(time.monotonic() - began, 1),
        "logprob_max_abs_diff": max(entry[gap] for entry in steps),
        "steps": len(steps),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
