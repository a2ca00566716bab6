"""Forward pass of Qwen3.5, Qwen3, Qwen3-MoE, Qwen2 and Llama in float64 numpy, to compare an engine
with.

`Model(folder).logits(ids)` gives the logits at every position. Nothing is cached or batched:
one sequence, one full causal attention. The families differ by little: Qwen3 norms the heads of
q and k, Qwen2 adds biases to q, k and v; any may have scaled frequencies or a head of its own.
Qwen3.5 has a gated delta rule in most layers, and gates what attention gives in the others.
"""

import json
import math
from pathlib import Path

import numpy as np


def read_safetensors(path):
    """Tensors of one file as {name: float64 array}; F32, F16 and BF16 are widened exactly."""
    raw = Path(path).read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    header.pop("__metadata__", None)
    tensors = {}
    for name, info in header.items():
        begin, end = (start + offset for offset in info["data_offsets"])
        tensors[name] = widen(raw[begin:end], info["dtype"]).reshape(info["shape"])
    return tensors


def widen(raw, dtype):
    """Little-endian bytes of one tensor as a flat float64 array."""
    if dtype == "BF16":
        high = np.frombuffer(raw, "<u2").astype("<u4") << 16
        return high.view("<f4").astype(np.float64)
    return np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float64)


def read_weights(folder):
    """All tensors of a model folder, from one file or from the shards of its index."""
    index = Path(folder, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if index.exists():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    return {k: v for file in files for k, v in read_safetensors(Path(folder, file)).items()}


def rope(config):
    """The fields of rotary embedding; both config forms are read."""
    return config.get("rope_parameters") or {
        "rope_theta": config.get("rope_theta", 10000.0),
        **(config.get("rope_scaling") or {}),
    }


def frequencies(config):
    """Rotary frequencies in radians per position, [head_dim / 2]."""
    fields = rope(config)
    dim = int(head_dim(config) * fields.get("partial_rotary_factor", 1))
    plain = fields["rope_theta"] ** -(np.arange(0, dim, 2) / dim)
    kind = fields.get("rope_type") or fields.get("type") or "default"
    scaled = {"default": lambda: plain, "llama3": lambda: llama3(plain, fields)}
    scaled["yarn"] = lambda: yarn(plain, fields)
    return scaled[kind]()


def llama3(plain, fields):
    """Slow frequencies divided, fast ones kept, a ramp over the turns in between."""
    low, high = fields["low_freq_factor"], fields["high_freq_factor"]
    turns = fields["original_max_position_embeddings"] * plain / (2 * np.pi)
    keep = np.clip((turns - low) / (high - low), 0, 1)  # 1: fast, kept; 0: slow, divided
    return plain * (keep + (1 - keep) / fields["factor"])


def yarn(plain, fields):
    """The same idea with a ramp over whole dimensions (https://arxiv.org/abs/2309.00071)."""
    half, theta = len(plain), fields["rope_theta"]
    context = fields["original_max_position_embeddings"]

    def dimension(turns):
        """The frequency, as a real index, that makes so many turns over the context."""
        return half * math.log(context / (turns * 2 * math.pi)) / math.log(theta)

    low = max(math.floor(dimension(fields.get("beta_fast") or 32)), 0)
    high = min(math.ceil(dimension(fields.get("beta_slow") or 1)), 2 * half - 1)
    divide = np.clip((np.arange(half) - low) / max(high - low, 0.001), 0, 1)
    return plain * (1 - divide + divide / fields["factor"])


def amplitude(config):
    """What cosines and sines are multiplied by: more than one in YaRN only."""
    fields = rope(config)
    if (fields.get("rope_type") or fields.get("type")) != "yarn":
        return 1.0
    given = fields.get("attention_factor")
    return given if given is not None else 0.1 * math.log(fields["factor"]) + 1


def head_dim(config):
    """Width of one head."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def rotate(x, angles, scale):
    """Rotary embedding in half-split form of the first elements of each head: x [heads, n,
    head_dim], angles [n, half of the elements]."""
    half = angles.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = scale * np.cos(angles), scale * np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def sigmoid(x):
    """1 / (1 + e^-x)."""
    return 1 / (1 + np.exp(-x))


def unit(x):
    """Rows of x divided by their lengths."""
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)


def softmax(x):
    """Softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class Model:
    """A model folder in memory, its weights widened to float64."""

    def __init__(self, folder):
        self.config = json.loads(Path(folder, "config.json").read_text())
        self.weights = read_weights(folder)

        self.is_hybrid = self.config["model_type"] == "qwen3_5_text"

    def norm(self, x, name):
        """RMS norm over the last axis with the weight `name`, which Qwen3.5 stores less one."""
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        weight = self.weights[name] + (self.is_hybrid and ".linear_attn." not in name)
        return x / np.sqrt(mean_square + self.config["rms_norm_eps"]) * weight

    def heads(self, x, prefix, kind):
        """Project x [n, hidden] to q, k or v: [heads, n, head_dim]; q and k normed in Qwen3. In
        Qwen3.5 the gates of each head lie behind its queries: [heads, n, 2 * head_dim]."""
        y = x @ self.weights[f"{prefix}.{kind}_proj.weight"].T
        y = y + self.weights.get(f"{prefix}.{kind}_proj.bias", 0.0)
        width = head_dim(self.config) * (2 if kind == "q" and self.is_hybrid else 1)
        y = y.reshape(len(x), -1, width).transpose(1, 0, 2)
        if kind == "q" and self.is_hybrid:
            q, gate = np.split(y, 2, axis=-1)
            return np.concatenate([self.norm(q, f"{prefix}.q_norm.weight"), gate], axis=-1)
        if kind != "v" and self.config["model_type"] in ("qwen3", "qwen3_moe", "qwen3_5_text"):
            y = self.norm(y, f"{prefix}.{kind}_norm.weight")
        return y

    def attention(self, x, prefix):
        """Causal grouped-query attention, [n, hidden] to [n, hidden]."""
        n = len(x)
        angles = np.outer(np.arange(n), frequencies(self.config))
        scale = amplitude(self.config)
        q, gate = np.split(self.heads(x, prefix, "q"), [head_dim(self.config)], axis=-1)
        q = rotate(q, angles, scale)
        k = rotate(self.heads(x, prefix, "k"), angles, scale)
        v = self.heads(x, prefix, "v")
        group = len(q) // len(k)
        k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
        mixed = softmax(scores) @ v
        if self.is_hybrid:
            mixed = mixed * sigmoid(gate)
        mixed = mixed.transpose(1, 0, 2).reshape(n, -1)
        return mixed @ self.weights[f"{prefix}.o_proj.weight"].T

    def delta_rule(self, x, prefix):
        """Gated delta rule, [n, hidden] to [n, hidden], one position after the other."""
        config, n = self.config, len(x)
        weights = {name: self.weights[f"{prefix}.{name}"] for name in ("A_log", "dt_bias")}
        for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "conv1d", "out_proj"):
            weights[name] = self.weights[f"{prefix}.{name}.weight"]
        keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
        key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]

        # A causal convolution of each channel by itself.
        kernel = weights["conv1d"][:, 0, :]
        taps = kernel.shape[-1]
        mixed = np.pad(x @ weights["in_proj_qkv"].T, ((taps - 1, 0), (0, 0)))
        mixed = sum(mixed[tap : tap + n] * kernel[:, tap] for tap in range(taps))
        mixed = mixed * sigmoid(mixed)
        q, k, v = np.split(mixed, [keys * key_dim, 2 * keys * key_dim], axis=-1)
        group = values // keys
        q = np.repeat(unit(q.reshape(n, keys, key_dim)), group, axis=1) / np.sqrt(key_dim)
        k = np.repeat(unit(k.reshape(n, keys, key_dim)), group, axis=1)
        v = v.reshape(n, values, value_dim)

        strength = sigmoid(x @ weights["in_proj_b"].T)
        decay = x @ weights["in_proj_a"].T + weights["dt_bias"]
        decay = np.exp(-np.exp(weights["A_log"]) * np.logaddexp(0, decay))
        state, out = np.zeros((values, key_dim, value_dim)), np.empty_like(v)
        for row in range(n):
            state = state * decay[row][:, None, None]
            known = np.einsum("hk,hkv->hv", k[row], state)
            delta = (v[row] - known) * strength[row][:, None]
            state = state + k[row][:, :, None] * delta[:, None, :]
            out[row] = np.einsum("hk,hkv->hv", q[row], state)

        z = (x @ weights["in_proj_z"].T).reshape(n, values, value_dim)
        out = self.norm(out, f"{prefix}.norm.weight") * z * sigmoid(z)
        return out.reshape(n, -1) @ weights["out_proj"].T

    def mlp(self, x, prefix):
        """SwiGLU, or a mixture of it, [n, hidden] to [n, hidden]."""
        if f"{prefix}.gate.weight" in self.weights:
            return self.mixture(x, prefix)
        gate = x @ self.weights[f"{prefix}.gate_proj.weight"].T
        up = x @ self.weights[f"{prefix}.up_proj.weight"].T
        return (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"{prefix}.down_proj.weight"].T

    def mixture(self, x, prefix):
        """The experts that the router gives the highest probabilities, weighted by these."""
        chances = softmax(x @ self.weights[f"{prefix}.gate.weight"].T)
        chosen = np.argsort(-chances, axis=-1, kind="stable")
        chosen = chosen[:, : self.config["num_experts_per_tok"]]
        weights = np.take_along_axis(chances, chosen, axis=-1)
        if self.config["norm_topk_prob"]:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        out = np.zeros_like(x)
        for row, (experts, own) in enumerate(zip(chosen, weights)):
            for expert, weight in zip(experts, own):
                out[row] += weight * self.mlp(x[row : row + 1], f"{prefix}.experts.{expert}")[0]
        return out

    def logits(self, ids):
        """Logits after each token of `ids`, [len(ids), vocab]."""
        embedding = self.weights["model.embed_tokens.weight"]
        x = embedding[np.asarray(ids)]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            y = self.norm(x, f"{name}.input_layernorm.weight")
            if f"{name}.linear_attn.A_log" in self.weights:
                x = x + self.delta_rule(y, f"{name}.linear_attn")
            else:
                x = x + self.attention(y, f"{name}.self_attn")
            y = self.norm(x, f"{name}.post_attention_layernorm.weight")
            x = x + self.mlp(y, f"{name}.mlp")
        tied = self.config.get("tie_word_embeddings", False)
        head = embedding if tied else self.weights["lm_head.weight"]
        return self.norm(x, "model.norm.weight") @ head.T
