"""Takes a step with TRL on exports, on a CPU: `train.py MODEL OUT TRAINER=FILE...`.

Prints one JSON object: for each trainer what it logged.
"""

import json
import os
import sys
import warnings

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "CUDA_VISIBLE_DEVICES": ""}
warnings.simplefilter("ignore")

import torch  # noqa: E402
import trl  # noqa: E402
from datasets import Dataset, load_dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

torch.set_num_threads(1)
COMMON = {
    "max_steps": 1,
    "logging_steps": 1,
    "learning_rate": 1e-4,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "save_strategy": "no",
}


def load(model):
    """The model as it is."""
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def sft(model, file, out):
    """SFTTrainer on the conversations as they are."""
    from trl import SFTConfig, SFTTrainer

    rows = load_dataset("parquet", data_files=file, split="train", cache_dir=f"{out}/cache")
    config = SFTConfig(output_dir=out, assistant_only_loss=True, packing=False, **COMMON)
    trainer = SFTTrainer(
        model=load(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=rows,
        args=config,
    )
    return trainer


def sft_tokens(model, file, out):
    """SFTTrainer on the tokens as they are, all rows in one batch."""
    from trl import SFTConfig, SFTTrainer

    rows = load_dataset("parquet", data_files=file, split="train", cache_dir=f"{out}/cache")
    size = {"max_length": None, "per_device_train_batch_size": len(rows)}
    trainer = SFTTrainer(
        model=load(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=rows,
        args=SFTConfig(output_dir=out, packing=False, **size, **COMMON),
    )
    (batch,) = trainer.get_train_dataloader()
    trainer.told = {"rows": len(rows), "labels": int((batch["labels"] != -100).sum())}
    return trainer


def grpo(model, file, out):
    """GRPOTrainer whose rollouts are the recorded ones, whole groups of them in turn."""
    from trl import GRPOConfig, GRPOTrainer

    rows = load_dataset("parquet", data_files=file, split="train", cache_dir=f"{out}/cache")
    groups = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row)
    groups = [group for name, group in groups.items() if name and len(group) > 1]
    size = min(map(len, groups))
    recorded = [row for group in groups for row in group[:size]]
    keys = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")

    def rollout(prompts, trainer):
        assert len(prompts) == len(recorded)
        return {("recorded" if k == "reward" else k): [r[k] for r in recorded] for k in keys}

    def score(recorded, **_):
        return recorded

    prompts = Dataset.from_list([{"prompt": group[0]["prompt"]} for group in groups])
    config = GRPOConfig(
        output_dir=out,
        per_device_train_batch_size=len(recorded),
        num_generations=size,
        max_completion_length=512,
        beta=0.0,
        **COMMON,
    )
    trainer = GRPOTrainer(
        model=load(model),
        reward_funcs=score,
        args=config,
        train_dataset=prompts,
        processing_class=AutoTokenizer.from_pretrained(model),
        rollout_func=rollout,
    )
    # As with rollouts of a server: the trainer compares the recorded logprobs with its own.
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, Server(), -1
    return trainer


class Server:
    """Stands where TRL keeps its inference server, which has the weights already."""

    def sync_weights(self):
        """Called once a step."""


def dpo(model, file, out):
    """DPOTrainer on pairs."""
    from trl import DPOConfig, DPOTrainer

    rows = load_dataset("parquet", data_files=file, split="train", cache_dir=f"{out}/cache")
    return DPOTrainer(
        model=load(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=rows,
        args=DPOConfig(output_dir=out, **COMMON),
    )


def distillation(model, file, out):
    """DistillationTrainer on the prompts of conversations, with a teacher that says otherwise."""
    from trl import DistillationConfig, DistillationTrainer

    rows = load_dataset("parquet", data_files=file, split="train", cache_dir=f"{out}/cache")
    return DistillationTrainer(
        model=load(model),
        teacher_model=teacher(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=rows,
        args=DistillationConfig(output_dir=out, max_completion_length=8, **COMMON),
    )


def kto(model, file, out):
    """KTOTrainer on conversations that are good and such that are not."""
    from trl import KTOConfig, KTOTrainer

    rows = load_dataset("parquet", data_files=file, split="train", cache_dir=f"{out}/cache")
    return KTOTrainer(
        model=load(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=rows,
        args=KTOConfig(output_dir=out, **COMMON),
    )


def gkd(model, file, out):
    """GKDTrainer on the last answers of conversations, none of them sampled anew."""
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    rows = load_dataset("parquet", data_files=file, split="train", cache_dir=f"{out}/cache")
    return GKDTrainer(
        model=load(model),
        teacher_model=teacher(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=rows.select_columns("messages"),
        args=GKDConfig(output_dir=out, lmbda=0.0, **COMMON),
    )


def teacher(model):
    """The model with weights that are moved a little."""
    torch.manual_seed(0)
    moved = load(model)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return moved


def step(trainer):
    """One step; what was logged, and how far a weight moved at most."""
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    after = trainer.model.parameters()
    moved = max(float((a.detach() - b).abs().max()) for a, b in zip(after, before))
    logged = {k: v for entry in trainer.state.log_history for k, v in entry.items()}
    told = getattr(trainer, "told", {})
    package = type(trainer).__module__.rpartition(".")[0]
    by = {"loader": f"{package}.{type(trainer).__name__}", "version": f"trl {trl.__version__}", "moved": moved}
    return {**by, **told, **{k: v for k, v in logged.items() if v == v}}


TRAINERS = {
    "distillation": distillation,
    "dpo": dpo,
    "gkd": gkd,
    "grpo": grpo,
    "kto": kto,
    "sft": sft,
    "sft_tokens": sft_tokens,
}

if __name__ == "__main__":
    model, out, *arguments = sys.argv[1:]
    found = {}
    for argument in arguments:
        name, file = argument.split("=", 1)
        found[name] = step(TRAINERS[name](model, file, f"{out}/{name}"))
    print(json.dumps(found))
