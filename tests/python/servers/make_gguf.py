"""A small Qwen3 model folder as one file for llama.cpp, in 32-bit floats: make_gguf.py FOLDER OUT

llama.cpp names pre-tokenizers by models, and the tiny model's own has no name there. `qwen2` is
close; tokens that it would cut in two are told as the user's own, which are looked for before it
cuts, so that the game's prompts have the ids that they have elsewhere.
"""

import json
import re
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

UNCUT = re.compile(rb" ?[A-Za-z]+|[^\sA-Za-z0-9]+")
"""What `qwen2` leaves in one piece, of what the tiny model has."""
GENERATION_TAGS = ("{%- generation -%}", "{% generation %}")
GENERATION_TAGS += ("{%- endgeneration -%}", "{% endgeneration %}")
# llama.cpp's templates have no `list` of an object; a loop renders the same words.
NAMES_SET = "{%- set names = ((f.parameters or {}).properties or {}) | list -%}"
NAMES_USED = "{{- ' ' + f.name + '(' + (names | join(', ')) + ')' -}}"
NAMES_LOOP = (
    "{{- ' ' + f.name + '(' -}}"
    "{%- for name in ((f.parameters or {}).properties or {}) -%}"
    "{{- name + ('' if loop.last else ', ') -}}"
    "{%- endfor -%}{{- ')' -}}"
)


def byte_letters():
    """The byte that each letter of the byte-level alphabet stands for."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + at): b for at, b in enumerate(rest)}


def tokens(folder, size):
    """The texts and kinds of all ids, and the merges."""
    told = json.loads((folder / "tokenizer.json").read_text())
    letters = byte_letters()
    texts, kinds = {}, {}
    for text, at in told["model"]["vocab"].items():
        texts[at], kinds[at] = text, gguf.TokenType.NORMAL
        raw = bytes(letters[letter] for letter in text)
        if len(raw) > 1 and not UNCUT.fullmatch(raw):
            try:
                texts[at], kinds[at] = raw.decode(), gguf.TokenType.USER_DEFINED
            except UnicodeDecodeError:
                pass
    for token in told["added_tokens"]:
        texts[token["id"]] = token["content"]
        special = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        kinds[token["id"]] = special
    merges = [m if isinstance(m, str) else " ".join(m) for m in told["model"]["merges"]]
    every = range(size)
    unused = gguf.TokenType.UNUSED
    return [texts.get(i, f"[PAD{i}]") for i in every], [kinds.get(i, unused) for i in every], merges


def template(folder):
    """The chat template in what llama.cpp's engine for them knows."""
    text = (folder / "chat_template.jinja").read_text()
    for tag in GENERATION_TAGS:
        text = text.replace(tag, "")
    return text.replace(NAMES_SET, "").replace(NAMES_USED, NAMES_LOOP)


def add_sizes(writer, config):
    """What llama.cpp asks about the shape of a Qwen3."""
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def add_vocabulary(writer, folder, config):
    """Tokens, merges, the ends of a turn and the chat template."""
    texts, kinds, merges = tokens(folder, config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(template(folder))


def add_weights(writer, folder, config):
    """Every tensor under llama.cpp's name for it."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for path in sorted(folder.glob("*.safetensors")):
        for name, data in load_file(path).items():
            theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
            writer.add_tensor(theirs, data.astype(np.float32))


def main(folder, out):
    """Writes the file."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(out, "qwen3")
    writer.add_name(folder.name)
    add_sizes(writer, config)
    add_vocabulary(writer, folder, config)
    add_weights(writer, folder, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
