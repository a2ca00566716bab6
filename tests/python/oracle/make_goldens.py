"""Write the goldens an engine is tested with, after checking the oracle against transformers.

    tiny_logits.json   float64 logits of the tiny Qwen3 model, three prompts, three positions each
    tiny_moe_logits.json  the same for the tiny mixture of experts (weights bf16, widened)
    tiny_hybrid_logits.json  the same for the tiny hybrid (weights bf16, widened)
    llama_logits.json  the same for the random Llama of make_small.py (weights bf16, widened)
    qwen2_logits.json  the same for its random Qwen2 (f16, widened)
    tiny_chat.json     conversations as transformers renders and tokenizes them

Run make_small.py first. Needs numpy, torch and transformers; nothing is written if a logit of
the oracle and one of transformers in f32 differ by more than `TOLERANCE`.

    python make_goldens.py
"""

import hashlib
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import reference  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "engine" / "models" / "tiny"
TINY_MOE = ROOT / "engine" / "models" / "tiny-moe"
TINY_HYBRID = ROOT / "engine" / "models" / "tiny-hybrid"
TAPES = ROOT / "tests" / "tapes" / "engine"
LLAMA = TAPES / "llama"
QWEN2 = TAPES / "qwen2"

TOLERANCE = 1e-4
DIGITS = 9  # significant digits of a written logit

QUESTION = "Find the secret number from 1 to 7. You have 3 guesses."


def tool(name, *arguments):
    """A function tool with integer arguments."""
    properties = {argument: {"type": "integer"} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def call(name, arguments):
    """One tool call of an assistant message; arguments are a dict or a string of JSON."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


GUESS = tool("guess", "n")


def guess_turn(n, answer, content=""):
    """An assistant's guess and the tool's answer to it."""
    return [
        {"role": "assistant", "content": content, "tool_calls": [call("guess", {"n": n})]},
        {"role": "tool", "name": "guess", "content": answer},
    ]


def game(*turns):
    """Messages of a game after the given (guess, answer) turns."""
    replies = [message for turn in turns for message in guess_turn(*turn)]
    return [{"role": "user", "content": QUESTION}, *replies]


# Logits


def tiny_prompts():
    """(name, ids) of the tiny model's prompts."""
    tok = transformers.AutoTokenizer.from_pretrained(TINY)
    options = {"tools": [GUESS], "add_generation_prompt": True, "return_dict": False}
    yield "game prompt", tok.apply_chat_template(game(), **options)
    turns = [(4, "higher"), (6, "lower")]
    yield "game after two turns", tok.apply_chat_template(game(*turns), **options)
    yield "random ids", random_ids(64, len(tok))


def small_prompts():
    """(name, ids) of the prompts of the small random models, which share a tokenizer."""
    tok = transformers.AutoTokenizer.from_pretrained(LLAMA)
    yield "one token", [tok.bos_token_id]
    yield "text", [tok.bos_token_id, *tok("a tape rolls, 24 frames each second.\n")["input_ids"]]
    yield "random ids", random_ids(100, len(tok))


def random_ids(count, vocab):
    """`count` ids below `vocab` from a linear congruential generator."""
    state, ids = 1, []
    for _ in range(count):
        state = (1103515245 * state + 12345) % 2**31
        ids.append((state >> 8) % vocab)
    return ids


def difference(folder, ids, logits):
    """Largest |delta| between the oracle's logits and those of transformers in f32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor([ids])).logits[0].double().numpy()
    return float(np.abs(theirs - logits).max())


def write_logits(path, folder, prompts):
    """Check one model and write its goldens, each row of logits on a line of its own."""
    oracle = reference.Model(folder)
    cases = []
    for name, ids in prompts:
        logits = oracle.logits(ids)
        delta = difference(folder, ids, logits)
        print(f"{path.name}: {name}: {len(ids)} ids, max |delta| {delta:.2e}", end=", ")
        print(f"max |logit| {np.abs(logits).max():.2f}")
        if delta > TOLERANCE:
            raise SystemExit("the oracle and transformers disagree")
        positions = sorted({0, len(ids) // 2, len(ids) - 1})
        rows = [[float(f"{x:.{DIGITS}g}") for x in logits[p]] for p in positions]
        cases.append({"name": name, "ids": ids, "positions": positions, "logits": rows})
    write_cases(path, weights_digest(folder), cases)


def write_cases(path, digest, cases):
    """The file's layout: one short line per field and one line per row of logits."""
    texts = []
    for case in cases:
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in case["logits"])
        fields = [f'"{key}": {json.dumps(case[key])}' for key in ("name", "ids", "positions")]
        texts.append("{" + ",\n".join(fields) + ',\n"logits": [\n' + rows + "\n]}")
    text = f'{{"weights_sha256": "{digest}",\n"cases": [\n' + ",\n".join(texts) + "\n]}\n"
    json.loads(text)
    path.write_text(text)


def weights_digest(folder):
    """sha256 over the safetensors files of a folder, in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(Path(folder).glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


# Chat


def conversations():
    """(name, messages, tools, add_generation_prompt) of the chat goldens."""
    ask = [{"role": "user", "content": "Hello, who are you?"}]
    system = [{"role": "system", "content": "You are a player of games."}]
    two = [(4, "higher"), (6, "correct")]
    closing = [{"role": "assistant", "content": "Found it."}]
    lines = [{"role": "user", "content": '  One line,\n\n\tand another: {"n": 12}\n'}]
    drawn = {"städte": ["Zürich", "東京"], "n": 4, "x": -0.5, "ok": True, "none": None, "s": '<"&>'}
    draw = tool("draw", "städte", "n", "x", "ok", "none", "s")
    calls = [call("draw", drawn), call("guess", {"n": 10})]
    foreign = [
        {"role": "user", "content": "Où est la gare ? 駅はどこ ☃ 🎲"},
        {"role": "assistant", "content": "Là-bas…", "tool_calls": calls},
        {"role": "tool", "name": "draw", "content": "fait ✓"},
        {"role": "tool", "name": "guess", "content": "lower"},
    ]
    as_text = [
        {"role": "assistant", "content": None, "tool_calls": [call("guess", '{"n": 4}')]},
        {"role": "tool", "name": "guess", "content": "higher"},
    ]
    yield "plain", ask, None, True
    yield "system", system + ask, None, True
    yield "system and tools", system + game(), [GUESS, draw], True
    yield "game prompt", game(), [GUESS], True
    yield "game after one turn", game((4, "higher")), [GUESS], True
    yield "arguments as a string", game() + as_text, [GUESS], True
    yield "closed game", game(*two) + closing, [GUESS], False
    yield "tool history without tools", game(*two), None, True
    yield "many lines", lines, None, False
    yield "beyond ascii", foreign, [draw], True


def write_chat(path):
    """Each conversation with the text and the ids transformers makes of it."""
    tok = transformers.AutoTokenizer.from_pretrained(TINY)
    cases = []
    for name, messages, tools, prompt in conversations():
        options = {"tools": tools, "add_generation_prompt": prompt}
        text = tok.apply_chat_template(messages, tokenize=False, **options)
        ids = tok.apply_chat_template(messages, return_dict=False, **options)
        case = {"name": name, "messages": messages, **options, "text": text, "ids": ids}
        cases.append(json.dumps(case, ensure_ascii=False))
        print(f"{path.name}: {name}: {len(ids)} ids")
    path.write_text("[\n" + ",\n".join(cases) + "\n]\n", encoding="utf-8")


def main():
    torch.set_num_threads(1)
    write_logits(TAPES / "tiny_logits.json", TINY, tiny_prompts())
    write_logits(TAPES / "tiny_moe_logits.json", TINY_MOE, tiny_prompts())
    write_logits(TAPES / "tiny_hybrid_logits.json", TINY_HYBRID, tiny_prompts())
    write_logits(TAPES / "llama_logits.json", LLAMA, small_prompts())
    write_logits(TAPES / "qwen2_logits.json", QWEN2, small_prompts())
    write_chat(TAPES / "tiny_chat.json")


if __name__ == "__main__":
    main()
