"""What a server says of its tokens: read from its own bytes, and asked of it again."""

import numpy as np

from . import same
from .running import NAME


def bits(numbers):
    """Numbers as 32-bit floats, to be compared bit by bit."""
    return np.asarray(numbers, dtype=np.float64).astype(np.float32).tolist()


def of_reply(message):
    """For each choice of a chat or completions reply: the ids and logprobs that the server told.

    Where it tells entries without ids, `ids` is None; where only their ids, `logprobs` is.
    """
    choices = {}
    for document in same.documents(message):
        verbose = document.get("__verbose") or {}
        for part in document.get("choices") or []:
            found = choices.setdefault(part["index"], {"ids": [], "logprobs": []})
            found["ids"] += ids_of(part, verbose)
            found["logprobs"] += logprobs_of(part)
    return [choices[index] for index in sorted(choices)]


def ids_of(part, verbose):
    """The sampled ids of a part of a choice, wherever its server puts them."""
    for given in (part.get("token_ids"), part.get("response_token_ids"), verbose.get("tokens")):
        if given:
            return given
    return [entry["id"] for entry in entries_of(part) if "id" in entry]


def entries_of(part):
    """The logprob entries of a part, in chat's form."""
    given = part.get("logprobs")
    return (given.get("content") or []) if isinstance(given, dict) else []


def logprobs_of(part):
    """The logprobs of a part, in chat's form or in that of completions."""
    given = part.get("logprobs")
    if isinstance(given, dict) and "token_logprobs" in given:
        return given["token_logprobs"]
    return [entry["logprob"] for entry in entries_of(part)]


def score(server, ids, start):
    """What the server says of the probability of `ids[start:]`, each behind those before it."""
    return SCORES[server.kind.dialect](server, ids, start)


def score_by_vllm(server, ids, start):
    """Asks for the logprobs of a prompt. The Rust frontend tells none: one token at a time."""
    if server.kind.name == "vllm-rust":
        return [one_by_vllm(server, ids[:at], ids[at]) for at in range(start, len(ids))]
    body = {"model": NAME, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1}
    told = server.post("/v1/completions", body)["choices"][0]["prompt_logprobs"]
    return [told[at][str(ids[at])]["logprob"] for at in range(start, len(ids))]


def one_by_vllm(server, prompt, token):
    """The logprob of a token, where it is among the twenty likeliest; None where it is not."""
    body = {"model": NAME, "prompt": prompt, "max_tokens": 1, "temperature": 1, "logprobs": 20}
    told = server.post("/v1/completions", {**body, "return_tokens_as_token_ids": True})
    (top,) = told["choices"][0]["logprobs"]["top_logprobs"]
    return top.get(f"token_id:{token}")


def score_by_sglang(server, ids, start):
    """Asks the native route for the logprobs of its input."""
    body = {
        "input_ids": ids,
        "return_logprob": True,
        "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 1, "temperature": 1},
    }
    told = server.post("/generate", body)["meta_info"]["input_token_logprobs"]
    return [told[at][0] for at in range(start, len(ids))]


def score_by_llamacpp(server, ids, start):
    """Asks the native route for the whole distribution behind each beginning.

    It is the model's, before the end of a turn is forbidden; of that token alone it says nothing.
    """
    found = []
    for at in range(start, len(ids)):
        body = {"prompt": ids[:at], "n_predict": 1, "n_probs": 1 << 20, "ignore_eos": True}
        (place,) = server.post("/completion", body)["completion_probabilities"]
        by_id = {entry["id"]: entry["logprob"] for entry in place["top_logprobs"]}
        found.append(by_id[ids[at]])
    return found


SCORES = {
    "vllm": score_by_vllm,
    "sglang": score_by_sglang,
    "llamacpp": score_by_llamacpp,
}
