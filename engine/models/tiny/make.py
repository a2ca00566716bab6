"""Make the tiny model beside this file: tokenizer, weights and a short supervised warm start.

The model plays one game. A secret number lies between 1 and 7; the model calls `guess(n)` up to
three times and a tool answers "higher", "lower", "correct" or "no guesses left". The teacher
bisects half of the time and guesses blindly otherwise, so the model knows the form of a call
and wins a little under half of its games: enough to learn from, with room to learn.

Needs torch, transformers, tokenizers and safetensors; downloads nothing; about two minutes on
one core. `chat_template.jinja` is kept by hand and read from the output folder.

    python make.py [--out DIR] [--seed N]
"""

import argparse
import functools
import hashlib
import json
import os
import random
import shutil
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import tokenizers  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402
from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: E402

HERE = Path(__file__).resolve().parent

SEED = 0
BISECT = 0.5  # probability that the teacher bisects
STEPS = 400
BATCH = 32  # episodes a step
RATE = 2e-3
EPISODES = 2800  # of the final measurement, every secret equally often
TURN_LIMIT = 24  # tokens a sampled turn may have

HIGHEST = 7
GUESSES = 3
QUESTION = f"Find the secret number from 1 to {HIGHEST}. You have {GUESSES} guesses."
TOOL = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guess the secret number.",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
        },
    },
}

VOCAB = 480
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"


# The game


class Game:
    """One game; by the answers so far, `low` to `high` is still possible."""

    def __init__(self, secret):
        self.secret = secret
        self.low, self.high = 1, HIGHEST
        self.used = 0
        self.won = False

    @property
    def over(self):
        return self.won or self.used == GUESSES

    def guess(self, n):
        """Take one guess and return the tool's answer."""
        self.used += 1
        if n == self.secret:
            self.won = True
            return "correct"
        if n < self.secret:
            self.low = max(self.low, n + 1)
        else:
            self.high = min(self.high, n - 1)
        if self.over:
            return "no guesses left"
        return "higher" if n < self.secret else "lower"


def teach(rng):
    """Let the teacher play one game; returns ((guess, answer), ...) of 1 to 3 turns."""
    game = Game(rng.randint(1, HIGHEST))
    turns = []
    while not game.over:
        bisect = rng.random() < BISECT
        n = (game.low + game.high) // 2 if bisect else rng.randint(1, HIGHEST)
        turns.append((n, game.guess(n)))
    return tuple(turns)


def messages_of(turns):
    """The conversation of a game; once it is over the model closes it with a few words."""
    messages = [{"role": "user", "content": QUESTION}]
    for n, answer in turns:
        call = {"type": "function", "function": {"name": "guess", "arguments": {"n": n}}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "name": "guess", "content": answer})
    closing = {"correct": "Found it.", "no guesses left": "Not found."}
    if turns and turns[-1][1] in closing:
        messages.append({"role": "assistant", "content": closing[turns[-1][1]]})
    return messages


def guess_in(text):
    """Return the number in a sampled turn, or None if the turn is not one well-formed call."""
    if not (text.startswith(CALL_OPEN) and text.endswith(CALL_CLOSE + END)):
        return None
    try:
        call = json.loads(text[len(CALL_OPEN) : -len(CALL_CLOSE + END)])
        n = call["arguments"]["n"]
    except (ValueError, KeyError, TypeError):
        return None
    return n if call.get("name") == "guess" and type(n) is int else None


# The tokenizer


def corpus():
    """Text between added tokens, as the game shows it."""
    for n in range(10):
        yield f'{{"name": "guess", "arguments": {{"n": {n}}}}}'
        yield f"user\nFind the secret number from 1 to {n}. You have {n} guesses."
        yield from ("system\ntools: guess(n)", "assistant\n")
        for answer in ("higher", "lower", "correct", "no guesses left"):
            yield f"tool\n{answer}"
        yield from ("Found it.", "Not found.")
        yield from ("system\n", "user\n", "tool\n")


def write_tokenizer(out):
    """Train a byte-level BPE without word splits (a constant phrase becomes one token)."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    special = [tokenizers.AddedToken(t, special=True) for t in (END_OF_TEXT, START, END)]
    added = [tokenizers.AddedToken(t, normalized=False) for t in (CALL_OPEN, CALL_CLOSE)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(special) - len(added),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(), trainer)
    bpe.add_special_tokens(special)
    bpe.add_tokens(added)
    bpe.save(str(out / "tokenizer.json"))
    write_json(
        out / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "model_max_length": 1024,
            "pad_token": END_OF_TEXT,
            "response_template": response_template(),
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )


def response_template():
    """How `tokenizer.parse_response` of transformers reads a sampled turn."""
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": f"{START}assistant\n",
        "fields": {
            "tool_calls": {
                "open": CALL_OPEN,
                "close_pattern": f"{CALL_CLOSE}\\s*",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": "<\\|im_end\\|>\\s*", "content": "text"},
        },
    }


def render(tok, messages, **options):
    """Token ids of a conversation through the chat template."""
    return tok.apply_chat_template(messages, tools=[TOOL], return_dict=False, **options)


def text_ids(tok, text):
    """Token ids of a piece of prompt text; added tokens in it are recognised."""
    return tok(text, add_special_tokens=False)["input_ids"]


# The model


def new_model(tok):
    """Qwen3 with random weights: 96 wide, 3 layers, 3 heads over 1 kv head of 32."""
    config = transformers.Qwen3Config(
        vocab_size=len(tok),
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
    )
    return transformers.Qwen3ForCausalLM(config)


def padded(rows, fill):
    """Rows of unequal length as one [rows, longest] tensor, padded at the right."""
    longest = max(map(len, rows))
    return torch.tensor([list(row) + [fill] * (longest - len(row)) for row in rows])


def warm_start(model, tok, seed):
    """Supervised training on the teacher's games, with loss on the assistant's tokens only."""

    @functools.cache
    def example(turns):
        """(ids, mask) of a game; the mask is 1 on tokens the model has to say."""
        row = tok.apply_chat_template(
            messages_of(turns), tools=[TOOL], return_dict=True, return_assistant_tokens_mask=True
        )
        return row["input_ids"], row["assistant_masks"]

    rng = random.Random(seed)
    adam = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    for step in range(STEPS):
        rows = [example(teach(rng)) for _ in range(BATCH)]
        ids = padded([row[0] for row in rows], tok.pad_token_id)
        mask = padded([row[1] for row in rows], 0)[:, 1:]
        logits = model(input_ids=ids).logits[:, :-1]  # right padding: causal rows need no mask
        each = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = (each * mask).sum() / mask.sum()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        if step % 50 == 0 or step == STEPS - 1:
            print(f"step {step:3d}  loss {loss.item():.4f}", flush=True)


# The measurement


@torch.no_grad()
def sample_turns(model, tok, contexts):
    """Sample one turn for each context at temperature 1; ids end with <|im_end|> or the limit."""
    rows = [list(c) for c in contexts]
    live = range(len(rows))
    for _ in range(TURN_LIMIT):
        ids = padded([rows[i] for i in live], tok.pad_token_id)
        last = torch.tensor([len(rows[i]) - 1 for i in live])
        hidden = model.model(input_ids=ids).last_hidden_state[torch.arange(len(last)), last]
        picks = model.lm_head(hidden).softmax(-1).multinomial(1)[:, 0].tolist()
        for i, pick in zip(live, picks):
            rows[i].append(pick)
        live = [i for i, pick in zip(live, picks) if pick != tok.eos_token_id]
        if not live:
            break
    return [row[len(c) :] for row, c in zip(rows, contexts)]


def play(model, tok, episodes):
    """Play games on the sampled ids themselves.

    Returns the counts of games won, of games ended by a malformed turn, and of games whose ids
    differ from those of the chat template over the parsed conversation.
    """
    games = [Game(i % HIGHEST + 1) for i in range(episodes)]
    start = render(tok, messages_of(()), add_generation_prompt=True)
    contexts = [list(start) for _ in games]
    turns = [[] for _ in games]
    malformed = 0
    live = list(range(episodes))
    while live:
        sampled = sample_turns(model, tok, [contexts[i] for i in live])
        for i, ids in zip(live, sampled):
            contexts[i] += ids
            n = guess_in(tok.decode(ids))
            if n is None:
                malformed += 1
                games[i].used = GUESSES
                continue
            answer = games[i].guess(n)
            turns[i].append((n, answer))
            text = f"\n{START}tool\n{answer}{END}\n{START}assistant\n"
            contexts[i] += text_ids(tok, text)
        live = [i for i in live if not games[i].over]
    drifted = sum(
        bool(turn) and not starts_alike(tok, turn, ids) for turn, ids in zip(turns, contexts)
    )
    return sum(game.won for game in games), malformed, drifted


def starts_alike(tok, turns, ids):
    """Whether the ids begin with the template's ids of the same turns."""
    messages = [m for m in messages_of(turns) if m["role"] != "assistant" or m["content"] == ""]
    again = render(tok, messages, add_generation_prompt=True)
    return ids[: len(again)] == again


def closes(model, tok, episodes=70):
    """How many of the teacher's finished games the model closes in words, not with a call."""
    rng = random.Random(1)
    contexts = [
        render(tok, messages_of(teach(rng))[:-1], add_generation_prompt=True)
        for _ in range(episodes)
    ]
    texts = map(tok.decode, sample_turns(model, tok, contexts))
    return sum(text in (f"Found it.{END}", f"Not found.{END}") for text in texts)


# The files


def write_json(path, value):
    """Indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_model(model, out):
    """config.json, generation_config.json and model.safetensors (f32, head tied away)."""
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    config = model.config
    write_json(
        out / "generation_config.json",
        {"eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id},
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    begun = time.process_time()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    if out.resolve() != HERE:
        shutil.copy(HERE / "chat_template.jinja", out)

    write_tokenizer(out)
    tok = transformers.AutoTokenizer.from_pretrained(out)
    model = new_model(tok)
    warm_start(model, tok, options.seed)
    model.eval()
    write_model(model, out)

    torch.manual_seed(options.seed)
    won, malformed, drifted = play(model, tok, EPISODES)
    closed = closes(model, tok)
    prompt = render(tok, messages_of(()), add_generation_prompt=True)
    call = f'{CALL_OPEN}{{"name": "guess", "arguments": {{"n": 4}}}}{CALL_CLOSE}{END}'
    digest = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    print(f"torch {torch.__version__}, transformers {transformers.__version__},", end=" ")
    print(f"tokenizers {tokenizers.__version__}, seed {options.seed}")
    print(f"{model.num_parameters()} parameters, vocabulary {len(tok)},", end=" ")
    print(f"prompt {len(prompt)} tokens, call {len(text_ids(tok, call))} tokens")
    print(f"malformed turns {malformed}, games off the template {drifted},", end=" ")
    print(f"closed in words {closed} of 70, {time.process_time() - begun:.0f} CPU seconds")
    print(f"success {won / EPISODES:.3f} of {EPISODES} episodes at temperature 1.0")
    print(f"model.safetensors sha256 {digest}")


if __name__ == "__main__":
    main()
