"""Replays recorded experts in transformers: `replay.py MODEL ROWS`.

ROWS are exported rows as JSON lines, with the experts of the engine's passes. Transformers computes
in f64 with these experts forced on its routers, and then with others: those that the same weights
choose in bf16, and those that another version of the routers chooses. Prints one JSON object: for
each the largest |difference| of a sampled token's logprob from the recorded one, and how many
experts differ from the recorded ones.
"""

import json
import os
import sys
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter  # noqa: E402

torch.set_num_threads(1)
DRIFT = 0.5  # of a weight of the routers, from one version to the next


def load(folder, dtype):
    """The model on the CPU."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.set_experts_implementation("eager")  # the other ones do not compute in f64
    return model


def routers(model):
    """By the number of the layer."""
    named = [(name, m) for name, m in model.named_modules() if isinstance(m, Qwen3MoeTopKRouter)]
    return {int(name.split(".")[2]): module for name, module in named}


def forced(router, experts):
    """A hook that puts `experts`, [tokens, k], in place of the router's own choice."""

    def replace(_, __, output):
        logits = output[0]
        weights = logits.double().softmax(-1).gather(-1, experts)
        if router.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights.to(logits.dtype), experts

    return router.register_forward_hook(replace)


@torch.no_grad()
def logprobs(model, ids, experts=None):
    """Of every token but the first; with `experts`, [tokens, layers, k], in place of its own."""
    hooks = []
    if experts is not None:
        hooks = [forced(module, experts[:, layer]) for layer, module in routers(model).items()]
    try:
        scores = model(input_ids=torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)
    finally:
        for hook in hooks:
            hook.remove()
    return scores.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


@torch.no_grad()
def chosen(model, ids, like):
    """The experts that a model chooses by itself, in the form of `like`."""
    found = like.clone()

    def keep(layer):
        def hook(_, __, output):
            found[:, layer] = output[2]

        return hook

    hooks = [module.register_forward_hook(keep(n)) for n, module in routers(model).items()]
    model(input_ids=torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return found


def other_version(folder):
    """The model with routers that a few steps of training could have moved."""
    model = load(folder, torch.float64)
    torch.manual_seed(5)
    with torch.no_grad():
        for router in routers(model).values():
            spread = DRIFT * router.weight.std()
            router.weight.add_(spread * torch.randn_like(router.weight))
    return model


def main():
    folder, file = sys.argv[1:3]
    rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
    exact = load(folder, torch.float64)
    others = {"bf16": load(folder, torch.bfloat16), "version": other_version(folder)}
    names = ("replayed", "own", *others)
    worst, differing, tokens, experts = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0), 0, 0
    for row in rows:
        ids, recorded = row["input_ids"], torch.tensor(row["logprobs"], dtype=torch.float64)[1:]
        sampled = torch.tensor(row["loss_mask"])[1:] == 1
        routed = torch.tensor(row["routed_experts"]).reshape(row["routed_experts_shape"])
        assert row["routed_experts_mask"] == [1] * (len(ids) - 1) + [0], row["routed_experts_mask"]
        tokens += int(sampled.sum())
        experts += routed[:-1].numel()
        # Nothing is sampled after the last token, so any of its experts will do.
        routed[-1] = routed[-2]
        forced_on = {"replayed": routed, "own": chosen(exact, ids, routed)}
        forced_on |= {name: chosen(model, ids, routed) for name, model in others.items()}
        for name, choice in forced_on.items():
            found = logprobs(exact, ids, choice)
            worst[name] = max(worst[name], float((found - recorded)[sampled].abs().max()))
            differing[name] += int((choice[:-1] != routed[:-1]).sum())
    print(
        json.dumps(
            {
                "rows": len(rows),
                "tokens": tokens,
                "experts": experts,
                "worst": worst,
                "differing": differing,
            }
        )
    )


if __name__ == "__main__":
    main()
