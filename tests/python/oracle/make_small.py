"""Write two very small random models, for what the tiny Qwen3 does not show.

    llama  bf16, two shards, a head of its own, config in the form of transformers 4; `llama3` rope
           scaling by which, of the four frequencies of a head, one is kept, one lies between and two
           are divided
    qwen2  f16, one file, tied, biases on q, k and v, no `head_dim`, config in the form of
           transformers 5; YaRN by which one frequency is kept, two lie between, the rest is divided

The tokenizer is byte-level without merges and knows lower-case letters, digits, space, newline and
some marks. Needs numpy alone.

    python make_small.py [--out DIR]
"""

import argparse
import json
import string
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "tapes" / "engine"
SEED = 7
LAYERS, HEADS, KV_HEADS, VOCAB = 2, 4, 2, 64
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    },
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.56.0",
    "use_cache": True,
    "vocab_size": VOCAB,
}

QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "dtype": "float16",
    "eos_token_id": 1,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 1024,
    "max_window_layers": 2,
    "model_type": "qwen2",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "rope_theta": 1000.0,
        "rope_type": "yarn",
    },
    "sliding_window": None,
    "tie_word_embeddings": True,
    "transformers_version": "5.23.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
}


def shapes(config):
    """(name, shape) of every tensor, shape as [out, in] for matrices."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim") or hidden // HEADS
    yield "model.embed_tokens.weight", (VOCAB, hidden)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        yield f"{name}.input_layernorm.weight", (hidden,)
        for kind, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            yield f"{name}.self_attn.{kind}_proj.weight", (heads * dim, hidden)
            if config["model_type"] == "qwen2":
                yield f"{name}.self_attn.{kind}_proj.bias", (heads * dim,)
        yield f"{name}.self_attn.o_proj.weight", (hidden, HEADS * dim)
        yield f"{name}.post_attention_layernorm.weight", (hidden,)
        yield f"{name}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{name}.mlp.up_proj.weight", (inner, hidden)
        yield f"{name}.mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (VOCAB, hidden)


def values(rng, name, shape):
    """Random float64: norms near one, biases about zero, rows of a matrix of about unit length."""
    drawn = rng.standard_normal(shape)
    if name.endswith("bias"):
        return 0.3 * drawn
    return 1 + 0.1 * drawn if len(shape) == 1 else drawn / np.sqrt(shape[-1])


def bf16(drawn):
    """As uint16, truncated, not rounded: any bf16 value will do."""
    return (drawn.astype("<f4").view("<u4") >> 16).astype("<u2")


def f16(drawn):
    """As uint16 that holds half-precision numbers."""
    return drawn.astype("<f2").view("<u2")


def safetensors_bytes(dtype, tensors):
    """One safetensors file of {name: uint16 array} that hold numbers of a type of two bytes."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, bits in tensors.items():
        end = offset + bits.nbytes
        header[name] = {"dtype": dtype, "shape": list(bits.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(bits.tobytes() for bits in tensors.values())
    return len(text).to_bytes(8, "little") + text + data


def drawn_tensors(config, convert):
    """{name: uint16 array} of a model."""
    rng = np.random.default_rng(SEED)
    return {name: convert(values(rng, name, shape)) for name, shape in shapes(config)}


def write_llama_weights(out):
    """Layer 0 and the embedding in the first shard, the rest in the second, and the index."""
    tensors = drawn_tensors(LLAMA, bf16)
    files = [f"model-{i:05d}-of-00002.safetensors" for i in (1, 2)]
    first = ("model.embed_tokens.", "model.layers.0.")
    where = {name: files[not name.startswith(first)] for name in tensors}
    for file in files:
        shard = {name: bits for name, bits in tensors.items() if where[name] == file}
        (out / file).write_bytes(safetensors_bytes("BF16", shard))
    total = sum(bits.nbytes for bits in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    write_json(out / "model.safetensors.index.json", index)


def write_qwen2_weights(out):
    """All in one file."""
    tensors = drawn_tensors(QWEN2, f16)
    (out / "model.safetensors").write_bytes(safetensors_bytes("F16", tensors))


def tokenizer():
    """tokenizer.json: 62 one-byte tokens after the two special ones, no merges."""
    marks = [c for c in string.punctuation if c not in "\\^`~$|@&"]
    symbols = ["\u0120", "\u010a", *string.ascii_lowercase, *string.digits, *marks]
    special = [
        {
            "id": i,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, content in enumerate((BEGIN, END))
    ]
    level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", **level},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **level},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate([BEGIN, END, *symbols])},
            "merges": [],
        },
    }


def write_json(path, value):
    """Indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_folder(out, config, write_weights):
    """A whole model folder."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", config)
    write_json(out / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})
    write_json(out / "tokenizer.json", tokenizer())
    write_json(
        out / "tokenizer_config.json",
        {
            "bos_token": BEGIN,
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "model_max_length": 512,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    write_weights(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    write_folder(out / "llama", LLAMA, write_llama_weights)
    write_folder(out / "qwen2", QWEN2, write_qwen2_weights)


if __name__ == "__main__":
    main()
