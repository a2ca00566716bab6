"""Compares the engine with transformers on the same weights: `families.py BINARY OUT`.

For each family a random model of its real structure is written by transformers, in f32 and in the
form of its own configuration; `rolltape engine` serves the folder, and both say their logits for
some ids and continue them greedily. Transformers computes in f64: in f32 it is itself off by
almost as much as the engine. Prints one JSON object: for each family the largest
|difference of logits| after each token of the reply, of logprobs in the prompt and the reply when
both are given as a prompt, how many greedy tokens were equal, and how far transformers in f32 is
from itself in f64.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

import torch  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.models.qwen3_5 import modeling_qwen3_5 as hybrids  # noqa: E402
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as mixed_hybrids  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[1]))
import ports  # noqa: E402

torch.set_num_threads(1)  # two would wait for each other on cores that have other work
MODEL = Path(__file__).resolve().parents[3] / "engine" / "models" / "tiny"
TRAINED = ("tiny-hybrid",)  # folders beside it that are compared as they are
VOCAB = 393  # of the tokenizer that all of them borrow
STEPS = 200
SCALE = 1.5  # of rows of about unit length: greedy replies do not fall into a circle
HYBRID_SCALE = 1.0  # a state that many tokens changed has larger errors in f32
PROMPT = [(7 * i * i + 3 * i + 5) % VOCAB for i in range(120)]
READY_WAIT_S = 60

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 96}
HYBRID = {
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 48,
}
MROPE = {
    "rope_type": "default",
    "rope_theta": 1000000.0,
    "partial_rotary_factor": 0.25,
    "mrope_section": [4, 2, 2],
    "mrope_interleaved": True,
}
EYES = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": COMMON["hidden_size"],
    "num_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}


def family(model, config, **changes):
    """A class of models and a configuration of it."""
    return model, config(**COMMON, max_position_embeddings=1024, **changes)


def seeing():
    """A hybrid with eyes, which the engine leaves out."""
    text = Qwen3_5TextConfig(
        **COMMON, **HYBRID, max_position_embeddings=1024, rope_parameters=MROPE
    )
    config = Qwen3_5Config(
        text_config=text.to_dict(), vision_config=EYES, tie_word_embeddings=True
    )
    return Qwen3_5ForConditionalGeneration, config


def families():
    """By name. Between them: both kinds of heads, biases, widths of heads, scalings, shards, both
    forms and layouts of experts, and hybrids with and without eyes."""
    plain = {"rope_type": "default", "rope_theta": 1000000.0}
    qwen2 = (Qwen2ForCausalLM, Qwen2Config)
    qwen3 = (Qwen3ForCausalLM, Qwen3Config)
    llama = (LlamaForCausalLM, LlamaConfig)
    moe = (Qwen3MoeForCausalLM, Qwen3MoeConfig)
    hybrid = (Qwen3_5ForCausalLM, Qwen3_5TextConfig)
    both = (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig)
    shared = {**HYBRID, **EXPERTS, "shared_expert_intermediate_size": 80}
    normed = {**EXPERTS, "norm_topk_prob": True, "tie_word_embeddings": False}
    mixed = {**EXPERTS, "decoder_sparse_step": 2, "mlp_only_layers": [1]}
    return {
        "qwen3": family(*qwen3, head_dim=64, rope_parameters=plain, tie_word_embeddings=True),
        "qwen3-yarn": family(*qwen3, head_dim=32, rope_parameters=YARN, tie_word_embeddings=False),
        "qwen2.5": family(*qwen2, rope_parameters=plain, tie_word_embeddings=True),
        "qwen2.5-yarn": family(*qwen2, rope_parameters=YARN, tie_word_embeddings=False),
        "llama3": family(*llama, rope_parameters=LLAMA3, tie_word_embeddings=False),
        "llama3.2": family(*llama, head_dim=64, rope_parameters=LLAMA3, tie_word_embeddings=True),
        "qwen3-moe": family(*moe, head_dim=64, rope_parameters=plain, **normed),
        "qwen3-moe-joined": family(*moe, rope_parameters=plain, tie_word_embeddings=True, **mixed),
        "qwen3.5": family(*hybrid, **HYBRID, rope_parameters=MROPE, tie_word_embeddings=False),
        "qwen3.5-seeing": seeing(),
        "qwen3.5-moe": family(*both, **shared, rope_parameters=MROPE, tie_word_embeddings=False),
        "llama-linear": family(*llama, rope_parameters=LINEAR, tie_word_embeddings=False),
    }


def build(name, out):
    """The model in memory and its folder; weights are scaled so that logits are not flat."""
    if name in TRAINED:
        folder = MODEL.with_name(name)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), folder
    kind, config = families()[name]
    torch.manual_seed(11)
    model = kind(config).float().eval()
    model.set_experts_implementation("eager")  # the other ones do not compute in f64
    is_hybrid = name.startswith("qwen3.5")
    scale = HYBRID_SCALE if is_hybrid else SCALE
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if key.endswith("norm.weight"):
                # The norms of a hybrid are stored less one, but for those within its delta rules.
                mean = 0 if is_hybrid and ".linear_attn." not in key else 1
                weight.copy_(mean + 0.1 * torch.randn_like(weight))
            elif key.endswith("A_log"):
                pass  # transformers draws it
            elif key.endswith("bias"):
                weight.copy_(0.3 * torch.randn_like(weight))
            else:
                weight.copy_(scale * torch.randn_like(weight) / weight.shape[-1] ** 0.5)
    folder = Path(out, name)
    model.save_pretrained(folder, max_shard_size="4MB" if "yarn" in name else "5GB")
    if "joined" in name:
        join_experts(model, folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(MODEL / file, folder)
    return model, folder


def join_experts(model, folder):
    """The layout of weights that transformers 5 has in memory, and the older form of the number."""
    tensors = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    assert any(k.endswith("experts.gate_up_proj") for k in tensors), list(tensors)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["num_experts"] = config.pop("num_local_experts")
    (folder / "config.json").write_text(json.dumps(config))


@contextmanager
def served(binary, folder):
    """A running engine; gives its address."""
    address = f"127.0.0.1:{ports.free()[0]}"
    words = ("engine", "--model", folder, "--listen", address, "--logprobs-mode", "raw_logits")
    process = subprocess.Popen([binary, *map(str, words), "--max-logprobs", "-1"])
    try:
        until = time.monotonic() + READY_WAIT_S
        while True:
            try:
                urllib.request.urlopen(f"http://{address}/health", timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.05)
        yield address
    finally:
        process.kill()
        process.wait()


def complete(address, **fields):
    """The first choice of a completion."""
    request = urllib.request.Request(
        f"http://{address}/v1/completions",
        json.dumps(fields).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)["choices"][0]


def prompt_logprobs(address, ids):
    """Of every position but the last, [len(ids) - 1, VOCAB]."""
    choice = complete(address, prompt=ids, max_tokens=1, prompt_logprobs=-1)
    rows = torch.empty(len(ids) - 1, VOCAB, dtype=torch.float64)
    for row, entries in zip(rows, choice["prompt_logprobs"][1:], strict=True):
        assert len(entries) == VOCAB, f"{len(entries)} logprobs of {VOCAB}"
        for token, entry in entries.items():
            row[int(token)] = entry["logprob"]
    return rows


def continued(address):
    """The greedy reply, and the logits of each of its positions, [STEPS, VOCAB]."""
    choice = complete(
        address,
        prompt=PROMPT,
        max_tokens=STEPS,
        temperature=0,
        ignore_eos=True,
        logprobs=VOCAB,
        return_token_ids=True,
        return_tokens_as_token_ids=True,
    )
    rows = torch.empty(STEPS, VOCAB, dtype=torch.float64)
    for row, entries in zip(rows, choice["logprobs"]["top_logprobs"], strict=True):
        assert len(entries) == VOCAB, f"{len(entries)} logits of {VOCAB}"
        for token, logit in entries.items():
            row[int(token.removeprefix("token_id:"))] = logit
    return choice["token_ids"], rows


class Wide:
    """The module torch, with f64 for f32."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextmanager
def widened():
    """Delta rules and norms of a hybrid in f64, which transformers computes in f32 always."""
    norms = (hybrids.Qwen3_5RMSNorm, mixed_hybrids.Qwen3_5MoeRMSNorm)
    before = [norm.forward for norm in norms]
    hybrids.torch = mixed_hybrids.torch = Wide()
    for norm in norms:
        norm.forward = lambda self, x: self._norm(x) * (1.0 + self.weight)
    try:
        yield
    finally:
        hybrids.torch = mixed_hybrids.torch = torch
        for norm, forward in zip(norms, before):
            norm.forward = forward


def greedy(model):
    """What transformers continues the prompt with."""
    ids = list(PROMPT)
    with torch.no_grad():
        past, new = None, torch.tensor([ids])
        for _ in range(STEPS):
            out = model(input_ids=new, past_key_values=past, use_cache=True)
            past = out.past_key_values
            ids.append(int(out.logits[0, -1].argmax()))
            new = torch.tensor([ids[-1:]])
    return ids[len(PROMPT) :]


def logits_of(model, ids):
    """After each token but the last, in f64."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0, :-1].double()


def compare(binary, name, out):
    """What the two say about one family."""
    model, folder = build(name, out)
    model.double()
    with widened():
        theirs = greedy(model)
        ids = PROMPT + theirs
        expected = logits_of(model, ids)
    in_f32 = logits_of(model.float(), ids)
    with served(binary, folder) as address:
        logprobs = prompt_logprobs(address, ids)
        ours, logits = continued(address)
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    prompted = (logprobs - expected.log_softmax(-1)).abs().max()
    return {
        "logits_difference_max": float((logits - expected[len(PROMPT) - 1 :]).abs().max()),
        "prompt_logprobs_difference_max": float(prompted),
        "f32_difference_max": float((in_f32 - expected).abs().max()),
        "logits_max": float(expected.abs().max()),
        "greedy_equal": equal,
        "greedy_distinct": len(set(theirs)),
        "shards": len(list(folder.glob("*.safetensors"))),
    }


def main():
    binary, out = sys.argv[1:3]
    print(json.dumps({name: compare(binary, name, out) for name in [*families(), *TRAINED]}))


if __name__ == "__main__":
    main()
