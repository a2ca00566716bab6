"""What transformers makes of the cases: golden.py make FOLDER, or golden.py check FOLDER

`make` writes golden.json, `check` makes it anew and compares: texts and ids are to be the same,
logprobs within CHECK_ERROR_MAX. FOLDER is the model, which convert.py makes. Numbers are computed
in 64-bit floats. Needs torch and transformers.
"""

import json
import sys
from pathlib import Path

import cases
import tokenizers
import torch
import transformers

GOLDEN = Path(__file__).with_name("golden.json")
CHECK_ERROR_MAX = 1e-6
MARGIN_MIN = 2e-3
"""How much likelier the greedy token must be than the next one, so that no rounding decides it."""
DIGITS = 7


def rendered(tokenizer, chat):
    """The text and the ids of a chat."""
    options = {"add_generation_prompt": True, **chat}
    messages = options.pop("messages")
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False)}


@torch.no_grad()
def logprobs_after(model, ids, cache=None):
    """The logprobs of all tokens after each position; `cache` has the positions before."""
    found = model(torch.tensor([ids]), past_key_values=cache, use_cache=cache is not None)
    return torch.log_softmax(found.logits[0], -1)


def rounded(numbers):
    """Numbers in few digits."""
    return [round(float(number), DIGITS) for number in numbers]


def scored(model, ids):
    """The logprob of each token but the first, and the greedy token before it."""
    table = logprobs_after(model, ids)[:-1]
    chosen = table.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return {"ids": ids, "logprobs": rounded(chosen), "best": rounded(table.max(-1).values)}


def greedy(model, ids, end):
    """The greedy reply to a prompt, with its logprobs."""
    reply, logprobs, cache = [], [], transformers.DynamicCache()
    for _ in range(cases.REPLY_TOKENS):
        best = logprobs_after(model, reply[-1:] or ids, cache)[-1].topk(2)
        margin = float(best.values[0] - best.values[1])
        assert margin > MARGIN_MIN, f"{margin} decides token {len(reply)}: choose another chat"
        reply.append(int(best.indices[0]))
        logprobs.append(best.values[0])
        if reply[-1] == end:
            break
    return {"ids": reply, "logprobs": rounded(logprobs)}


def made(folder):
    """All answers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
    chats = {name: rendered(tokenizer, chat) for name, chat in cases.CHATS.items()}
    end = tokenizer.eos_token_id
    return {
        "made_by": {
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "torch": torch.__version__,
        },
        "texts": [encode(text) for text in cases.TEXTS],
        "decoded": [tokenizer.decode(encode(text)) for text in cases.TEXTS],
        "chats": chats,
        "greedy": {name: greedy(model, chats[name]["ids"], end) for name in cases.GREEDY},
        "scored": [scored(model, encode(text)) for text in cases.SCORED],
    }


def differences(found, golden, at=""):
    """The places where two answers differ."""
    if isinstance(golden, float):
        return [] if abs(found - golden) <= CHECK_ERROR_MAX else [f"{at}: {found} {golden}"]
    if isinstance(golden, dict) and isinstance(found, dict) and found.keys() == golden.keys():
        pairs = [(name, found[name], golden[name]) for name in golden]
    elif isinstance(golden, list) and isinstance(found, list) and len(found) == len(golden):
        pairs = [(place, *pair) for place, pair in enumerate(zip(found, golden, strict=True))]
    else:
        return [] if found == golden else [f"{at}: {found} {golden}"]
    found = [differences(one, other, f"{at}/{place}") for place, one, other in pairs]
    return [text for texts in found for text in texts]


def main():
    """Makes or checks."""
    action, folder = sys.argv[1:]
    answers = made(folder)
    if action == "make":
        GOLDEN.write_text(json.dumps(answers, ensure_ascii=False, separators=(",", ":")) + "\n")
        return
    golden = json.loads(GOLDEN.read_text())
    # Later versions are to give the same.
    golden.pop("made_by")
    versions = answers.pop("made_by")
    print(json.dumps({"differences": differences(answers, golden), "made_by": versions}))


if __name__ == "__main__":
    main()
