"""The same game with GRPOTrainer and a `rollout_func`: play, train, send the weights, play again.

    python examples/guess/train_sync.py [--seed N] [--steps N] [--out DIR]

The trainer asks for a batch of episodes, waits for all of them, and takes a step; simpler than
`train.py`, and slower, because nobody plays while it trains. Ends when nearly all games of the last
steps were won, or after --steps. The last line on stdout is a JSON object with what came of it.
"""

import argparse
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python")]
os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "CUDA_VISIBLE_DEVICES": ""}

import openai  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

import game  # noqa: E402
import rolltape  # noqa: E402
from rolltape.trl import WeightTransfer, recorded_reward, rollout_func, sync_weights  # noqa: E402

MODEL = HERE.parents[1] / "engine" / "models" / "tiny"
GROUP_SIZE = 28
"""Every secret four times: an agent is asked the same whatever the secret is."""
GROUPS = 8
"""Of a step."""
PLAYERS = 16
LEARNING_RATE = 1e-3
EVALUATED = 64 * game.HIGHEST
ENOUGH = 0.975
"""Games won, of those of the last steps, at which training ends."""
ENOUGH_STEPS = 4


def player(client):
    """Plays a game as an episode; the secret follows from the number at the end of its id."""
    agent = openai.OpenAI(base_url=client.base_url(), api_key="none", timeout=120)

    def play(episode, _prompt=None):
        number = int(episode.id.rpartition("-")[2])
        played = game.Game(number % game.HIGHEST + 1)
        game.play(agent.with_options(base_url=episode.base_url), played)
        return played.reward

    return play


def won(client, play, name):
    """The share of games that is won under the weights as they are, all secrets equally often."""

    def one(number):
        with rolltape.episode(client, f"{name}-{number}", task_id=name) as episode:
            reward = play(episode)
            episode.reward(reward)
        return reward == 1.0

    with ThreadPoolExecutor(PLAYERS) as pool:
        return sum(pool.map(one, range(EVALUATED))) / EVALUATED


def reward_and_success(prompts, completions, reward, log_metric, **options):
    """The recorded rewards; the log also gets the share of games that was won."""
    log_metric("success", sum(r == 1.0 for r in reward) / len(reward))
    return recorded_reward(prompts, completions, reward, **options)


class Enough(TrainerCallback):
    """Ends the training when nearly all games of the last steps were won."""

    def on_log(self, args, state, control, **_):
        last = [entry["success"] for entry in state.log_history if "success" in entry]
        last = last[-ENOUGH_STEPS:]
        if len(last) == ENOUGH_STEPS and sum(last) / ENOUGH_STEPS >= ENOUGH:
            control.should_training_stop = True


def trainer(client, play, transfer, options):
    """GRPOTrainer whose batches are games, of which each prompt asks for a group."""
    prompts = [{"prompt": game.QUESTION} for _ in range(GROUPS)]
    made = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        reward_funcs=reward_and_success,
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
        train_dataset=Dataset.from_list(prompts),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        callbacks=[Enough()],
        rollout_func=rollout_func(client, play, players=PLAYERS, task_id="guess"),
    )
    sync_weights(made, transfer)
    return made


def train(client, options):
    """Plays, trains, plays again under the last weights."""
    play = player(client)
    transfer = WeightTransfer(client, options.out / "weights")
    made = trainer(client, play, transfer, options)
    before = won(client, play, "before")
    with open(options.out / "trainer.log", "w") as log:
        stdout, sys.stdout = sys.stdout, log
        try:
            made.train()
        finally:
            sys.stdout = stdout
    # The trainer sends its weights before it plays, so those of the last step are not there yet.
    made.vllm_generation.sync_weights()
    steps = [entry for entry in made.state.log_history if "reward" in entry]
    gap = "sampling/sampling_logp_difference/max"
    return {
        "success_before": round(before, 4),
        "success_after": round(won(client, play, "after"), 4),
        "seconds": None,
        "logprob_max_abs_diff": max(entry[gap] for entry in steps),
        "steps": len(steps),
        "seed": options.seed,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=120, help="at most")
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
        report = train(server.client, options)
    report["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
