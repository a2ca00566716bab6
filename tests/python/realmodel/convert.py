"""Makes a model folder of Hugging Face out of a GGUF file: convert.py IN.gguf FOLDER

For models of Llama's architecture with a byte-level BPE that splits digits (`smollm`), which
SmolLM2 is. Weights become bf16. Needs NumPy only.
"""

import json
import re
import sys
from pathlib import Path

import gguf_file
import numpy

CONTROL, USER_DEFINED = 3, 4
"""Kinds of tokens that are found in a text before all others."""
NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def unpermuted(matrix, heads):
    """A projection as Hugging Face has it; llama.cpp interleaves the halves of each head."""
    halves = matrix.reshape(heads, -1, 2, matrix.shape[-1])
    return halves.swapaxes(1, 2).reshape(matrix.shape)


def bf16(numbers):
    """The nearest numbers in bf16, of two the even one, as 16-bit integers."""
    bits = numpy.ascontiguousarray(numbers, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def renamed(fields, tensors):
    """Each tensor under its name at Hugging Face, in bf16."""
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    for name, read in tensors.items():
        inner = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
        matrix = read()
        if inner and inner[2] in heads:
            matrix = unpermuted(matrix, heads[inner[2]])
        known = f"model.layers.{inner[1]}.{NAMES[inner[2]]}.weight" if inner else OUTER[name]
        yield known, bf16(matrix)


def write_safetensors(path, tensors):
    """Writes tensors of bf16."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, matrix in tensors.items():
        span = [at, at + matrix.nbytes]
        header[name] = {"dtype": "BF16", "shape": list(matrix.shape), "data_offsets": span}
        at = span[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for matrix in tensors.values():
            matrix.tofile(file)


def config_of(fields, is_tied):
    """`config.json`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        # The file has it in 32-bit floats.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_scaling": None,
        "rope_theta": fields["llama.rope.freq_base"],
        "tie_word_embeddings": is_tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
    }


def specials_of(fields):
    """The tokens that are found in a text before all others, by id, and whether one controls."""
    kinds = fields["tokenizer.ggml.token_type"]
    named = zip(fields["tokenizer.ggml.tokens"], kinds, strict=True)
    return {
        id: (text, kind == CONTROL)
        for id, (text, kind) in enumerate(named)
        if kind in (CONTROL, USER_DEFINED)
    }


def tokenizer_of(fields):
    """`tokenizer.json`."""
    assert fields["tokenizer.ggml.pre"] == "smollm", fields["tokenizer.ggml.pre"]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    bytes_of = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    split = [digits, {**bytes_of, "add_prefix_space": False}]
    vocabulary = {text: id for id, text in enumerate(fields["tokenizer.ggml.tokens"])}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": text, **plain, "special": controls}
            for id, (text, controls) in specials_of(fields).items()
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": split},
        "post_processor": None,
        "decoder": {**bytes_of, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [pair.split(" ") for pair in fields["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config_of(fields):
    """`tokenizer_config.json`. The class is the plain one: transformers 5 drops the splitting of
    digits under `GPT2Tokenizer`."""
    tokens = fields["tokenizer.ggml.tokens"]
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return {
        **{
            f"{it}_token": tokens[fields[f"tokenizer.ggml.{by}_token_id"]]
            for it, by in named.items()
        },
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": fields["tokenizer.chat_template"],
    }


def convert(source, folder):
    """Writes a folder."""
    fields, tensors = gguf_file.read(source)
    assert fields["general.architecture"] == "llama", fields["general.architecture"]
    weights = dict(renamed(fields, tensors))
    config = config_of(fields, "lm_head.weight" not in weights)
    ids = {name: id for name, id in config.items() if name.endswith("_token_id")}

    folder.mkdir(parents=True, exist_ok=True)
    documents = {
        "config.json": config,
        "generation_config.json": ids,
        "tokenizer.json": tokenizer_of(fields),
        "tokenizer_config.json": tokenizer_config_of(fields),
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, ensure_ascii=False))
    write_safetensors(folder / "model.safetensors", weights)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
