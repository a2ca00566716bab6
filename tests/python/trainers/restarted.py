"""A trainer that is killed, or one that goes on after it.

`restarted.py CONTROL DATA OUT STEPS killed|after`

AsyncGRPOTrainer on the feed, a group of four a step, for STEPS steps. `killed` then says
`{"handed": [groups]}` and holds what it leased until it is killed. `after` ends well, and a second
worker reads all of it again as another consumer, as if it had just begun, without what is more than
one version old; then it prints what each was handed.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "CUDA_VISIBLE_DEVICES": ""}
warnings.simplefilter("ignore")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / "python")]

import rolltape  # noqa: E402

MODEL = HERE.parents[2] / "engine" / "models" / "tiny"
GROUP_SIZE = 4
LEASE_S = 10
READ_WAIT_S = 60


def worker(client, handed, **options):
    """Tells of each group that it is handed in `handed`, with the versions that sampled it."""
    from rolltape.trl import RolloutWorker

    def note(rows):
        handed.append([rows[0]["group_id"], sorted({row["policy_version_min"] for row in rows})])

    return RolloutWorker(
        client, group_size=GROUP_SIZE, lease_s=LEASE_S, groups_per_lease=2, on_group=note, **options
    )


def trained(client, out, steps, handed, hold):
    """A trainer's life; with `hold` it stands still after its last step."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    from rolltape.trl import WeightTransfer, use_cpu

    class Hold(TrainerCallback):
        def on_step_end(self, args, state, *_, **__):
            if hold and state.global_step == steps:
                say({"handed": handed})
                time.sleep(3600)

    use_cpu()
    transfer = WeightTransfer(client, f"{out}/weights")
    before = transfer.version
    trainer = AsyncGRPOTrainer(
        model=str(MODEL),
        reward_funcs=[],
        args=AsyncGRPOConfig(
            output_dir=f"{out}/trainer",
            per_device_train_batch_size=GROUP_SIZE,
            num_generations=GROUP_SIZE,
            max_steps=steps + hold,
            max_staleness=1000,
            learning_rate=1e-4,
            token_budget=0,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "-"}]}]),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        callbacks=[Hold()],
        rollout_worker=worker(client, handed),
        weight_transfer=transfer,
    )
    trainer.train()
    return before, transfer.version


def read_again(client, version, handed):
    """All groups for another consumer, as at a version, without those that are older by two."""
    reader = worker(client, handed, consumer="another", max_staleness=1, before=0)
    reader.update_model_version(version)
    reader.start()
    until = time.monotonic() + READ_WAIT_S
    standing, samples = None, 0
    # There is no standing before the first lease; what is leased is handed on a moment later.
    while time.monotonic() < until and (
        standing is None or standing["depth"] > 0 or samples < standing["leased"]
    ):
        reader.check_health(READ_WAIT_S)
        time.sleep(0.1)
        standing, samples = reader.feed.standing(), reader.rollout_buffer.qsize()
    reader.stop()
    return standing, samples


def say(found):
    print(json.dumps(found), flush=True)


def main():
    import torch

    torch.set_num_threads(1)
    control, data, out, steps, way = sys.argv[1:]
    client, handed = rolltape.Client(control, data), []
    before, version = trained(client, out, int(steps), handed, way == "killed")
    again = []
    standing, samples = read_again(client, before + 1, again)
    found = {"handed": handed, "before": before, "version": version}
    say(found | {"again": again, "again_standing": standing, "again_samples": samples})


if __name__ == "__main__":
    main()
