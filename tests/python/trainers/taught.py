"""A student learns the game from a teacher's scores alone, by TRL's own collator and loss.

`taught.py teacher OUT` makes the teacher, which bisects, as `engine/models/tiny/make.py` makes the
tiny model. `taught.py student MODEL FILE` trains the model in a folder on a file of
`trl-distillation`: it reads no text and no reward. Prints one JSON object.
"""

import contextlib
import json
import random
import sys
import types
from collections import defaultdict
from pathlib import Path

import torch
import transformers

from read import distilled, rows_of

sys.path.insert(0, str(Path(__file__).parents[3] / "engine" / "models" / "tiny"))
import make  # noqa: E402

SEED = 0
STEPS = 80
BATCH = 16
RATE = 5e-4
EPISODES = 350


def teacher(out):
    make.BISECT = 1.0
    sys.argv = ["make.py", "--out", out]
    make.main()
    return {}


def loss_of(model, batch):
    """TRL's loss of a batch, computed by the method of its trainer."""
    from trl.experimental.async_distillation.async_distillation_trainer import (
        AsyncDistillationTrainer,
    )

    trainer = types.SimpleNamespace(
        args=types.SimpleNamespace(beta=0.0, teacher_temperature=1.0, add_tail_bucket=True),
        accelerator=types.SimpleNamespace(
            num_processes=1, autocast=contextlib.nullcontext, reduce=lambda sums, **_: sums
        ),
        current_gradient_accumulation_steps=1,
        _metrics={"train": defaultdict(list)},
        _teacher_ids=[],
        _last_forward_time_s=0.0,
        _step_forward_tokens=0.0,
        _step_trained_tokens=0.0,
        _step_seq_len_weighted=0.0,
        _step_samples=0.0,
        _step_forward_s=0.0,
    )
    return AsyncDistillationTrainer._compute_loss(trainer, model, batch)


def won(model, tok):
    torch.manual_seed(SEED)
    model.eval()
    return make.play(model, tok, EPISODES)[0] / EPISODES


def student(folder, file):
    torch.set_num_threads(2)
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    samples, collate = distilled(rows_of(file))
    found = {"rows": len(samples), "before": won(model, tok)}

    random.seed(SEED)
    adam = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    losses = []
    model.train()
    for _ in range(STEPS):
        loss = loss_of(model, collate(random.sample(samples, BATCH)))
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return {**found, "first": losses[0], "last": losses[-1], "after": won(model, tok)}


if __name__ == "__main__":
    work, *arguments = sys.argv[1:]
    print(json.dumps({"teacher": teacher, "student": student}[work](*arguments)))
