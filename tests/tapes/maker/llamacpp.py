"""llama.cpp's server: ordered objects of nlohmann's JSON."""

from maker.script import f32
from maker.text import CREATED, DONE, data, nlohmann

LLAMA_PRINT = "b7101-9008027aa"


def llama_timings(script):
    prompt, predicted = script.counts()
    prompt //= max(1, len(script.prompts))
    return {
        "cache_n": 0, "prompt_n": prompt, "prompt_ms": 24.5, "prompt_per_token_ms": 24.5 / prompt,
        "prompt_per_second": 1000 * prompt / 24.5, "predicted_n": predicted, "predicted_ms": 50.0,
        "predicted_per_token_ms": 50.0 / max(1, predicted), "predicted_per_second": 20.0 * predicted,
    }  # fmt: skip


def llama_usage(prompt, completion):
    return {
        "completion_tokens": completion, "prompt_tokens": prompt,
        "total_tokens": prompt + completion, "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip


def llama_settings(body, k):
    """How the server sampled, as a verbose reply tells it."""
    return {
        "seed": 4294967295, "temperature": f32(0.8), "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0, "top_k": 40, "top_p": f32(0.95), "min_p": f32(0.05),
        "top_n_sigma": -1.0, "xtc_probability": 0.0, "xtc_threshold": f32(0.1), "typical_p": 1.0,
        "repeat_last_n": 64, "repeat_penalty": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "dry_multiplier": 0.0, "dry_base": 1.75,
        "dry_allowed_length": 2, "dry_penalty_last_n": 64,
        "dry_sequence_breakers": ["\n", ":", "\"", "*"], "mirostat": 0, "mirostat_tau": 5.0,
        "mirostat_eta": f32(0.1), "adaptive_target": -1.0, "adaptive_decay": f32(0.9),
        "stop": body.get("stop", []), "max_tokens": -1, "n_predict": -1, "n_keep": 0,
        "n_discard": 0, "ignore_eos": False, "stream": bool(body.get("stream")), "logit_bias": [], "n_probs": k,
        "min_keep": 0, "grammar": "", "grammar_lazy": False, "grammar_triggers": [],
        "preserved_tokens": [], "chat_format": "peg-native", "reasoning_format": "deepseek",
        "reasoning_in_content": False, "generation_prompt": "<|im_start|>assistant\n",
        "samplers": ["top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
        "speculative.types": "none", "timings_per_token": False, "post_sampling_probs": False,
        "backend_sampling": False, "lora": [],
    }  # fmt: skip


def llama_entry(step, k):
    """A step's entry: the id of its last token with the text of all that made it whole."""
    token = step.tokens[-1]
    text = "".join(t.text for t in step.tokens)
    tops = [
        (token.id, text, token.logprob),
        *[(900 + at, t, p) for at, (t, p) in enumerate(token.top)],
    ]
    return {
        "id": token.id, "token": text, "bytes": list(text.encode()), "logprob": token.logprob,
        "top_logprobs": [
            {"id": i, "token": t, "bytes": list(t.encode()), "logprob": p} for i, t, p in tops[:k]
        ],
    }  # fmt: skip


def llama_probs(body):
    """How many probabilities the server keeps for this body."""
    if body.get("n_probs"):
        return body["n_probs"]
    asked = body.get("logprobs")
    return body.get("top_logprobs", 20) if asked is True else asked or 0


def llama_kept(script, index):
    """Steps of a choice whose entries a whole reply has: a stop string takes its own away."""
    cut = script.notes.get("cut", 0)
    steps = [s for s in script.of(index) if s.tokens]
    return steps[: len(steps) - cut]


def llama_verbose(body, script, probs):
    """What the server knows of a choice that has ended; a stream has told its tokens before."""
    prompt, completion = script.counts()
    whole = not body.get("stream")
    tokens = [t.id for t in script.tokens(0)] if whole and body.get("return_tokens") else []
    return {
        "index": 0, "content": "".join(t.text for t in script.tokens(0)) if whole else "",
        "tokens": tokens,
        "id_slot": 0, "stop": True, "model": "m", "tokens_predicted": completion,
        "tokens_evaluated": prompt,
        "generation_settings": llama_settings(body, llama_probs(body)),
        "prompt": script.texts[0], "has_new_line": False, "truncated": False,
        "stop_type": script.notes.get("stop_type", "eos"),
        "stopping_word": script.notes.get("word", ""),
        "tokens_cached": prompt + completion - 1, "timings": llama_timings(script),
        **({"completion_probabilities": probs} if probs and whole else {}),
    }  # fmt: skip


def llama_chat(body, script, headers):
    k = llama_probs(body)
    prompt, completion = script.counts()
    usage = llama_usage(prompt, completion)
    tail = lambda kind: {
        "created": CREATED, "id": "chatcmpl-1", "model": "m", "system_fingerprint": LLAMA_PRINT, "object": kind,
    }  # fmt: skip
    if not body.get("stream"):
        said, calls = script.message(0)
        message = {"role": "assistant", "content": said.get("content", "")}
        if "reasoning" in said:
            message["reasoning_content"] = said["reasoning"]
        if calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": name, "arguments": text}, "id": id}
                for id, name, text in calls
            ]
        choice = {"finish_reason": script.end(0).finish, "index": 0, "message": message}
        probs = [llama_entry(s, k) for s in llama_kept(script, 0)] if k else []
        if probs:
            choice["logprobs"] = {"content": probs}
        reply = {
            "choices": [choice],
            "created": CREATED,
            "model": "m",
            "system_fingerprint": LLAMA_PRINT,
        }
        reply |= {"object": "chat.completion", "usage": usage, "id": "chatcmpl-1"}
        if body.get("verbose"):
            reply["__verbose"] = llama_verbose(body, script, probs)
        return "json", nlohmann(reply | {"timings": llama_timings(script)})
    out, started = [], set()

    def chunk(index, delta, finish=None, **more):
        choice = {"finish_reason": finish, "index": index, "delta": delta}
        return {"choices": [choice]} | tail("chat.completion.chunk") | more

    for step in script.steps:
        if step.raw is not None:
            out.append(step.raw)
            continue
        if step.error is not None:
            error = {"code": 500, "message": step.error, "type": "server_error"}
            return "sse", "".join([*out, data(nlohmann({"error": error}))])
        i, delta, chunks = step.index, step.delta or {}, []
        if i not in started:
            started.add(i)
            chunks.append(chunk(i, {"role": "assistant", "content": None}))
        for key, value in delta.items():
            if key == "tools":
                for at, id, name, piece in value:
                    call = {"index": at} | ({"id": id, "type": "function"} if id else {})
                    call["function"] = ({"name": name} if name else {}) | {"arguments": piece}
                    chunks.append(chunk(i, {"tool_calls": [call]}))
            else:
                name = "reasoning_content" if key == "reasoning" else key
                chunks.append(chunk(i, {name: value}))
        if k and chunks and step.tokens:
            chunks[-1]["choices"][0]["logprobs"] = {"content": [llama_entry(step, k)]}
        if step.finish:
            timings = {"timings": llama_timings(script)}
            counted = (body.get("stream_options") or {}).get("include_usage")
            chunks.append(chunk(i, {}, step.finish) | ({} if counted else timings))
            if body.get("verbose"):
                chunks[-1]["__verbose"] = llama_verbose(body, script, [])
            if counted:
                head = {"choices": []} | tail("chat.completion.chunk")
                chunks.append(head | {"usage": usage} | timings)
        out += [data(nlohmann(c)) for c in chunks]
    return "sse", "".join([*out, DONE])


def llama_completions(body, script, headers):
    k = llama_probs(body)
    prompt, completion = script.counts()
    usage = llama_usage(prompt, completion)
    text = lambda step: (step.delta or {}).get("content", "")

    def reply(text, entries, finish, last):
        choice = {"text": text, "index": 0, "logprobs": {"content": entries} if entries else None}
        whole = {"choices": [choice | {"finish_reason": finish}], "created": CREATED, "model": "m"}
        whole |= {"system_fingerprint": LLAMA_PRINT, "object": "text_completion"}
        whole |= ({"usage": usage} if last else {}) | {"id": "chatcmpl-1"}
        if last and body.get("verbose"):
            whole["__verbose"] = llama_verbose(body, script, entries)
        return nlohmann(whole | ({"timings": llama_timings(script)} if last else {}))

    if not body.get("stream"):
        entries = [llama_entry(s, k) for s in llama_kept(script, 0)] if k else []
        return "json", reply("".join(map(text, script.of(0))), entries, script.end(0).finish, True)
    out = []
    for step in script.steps:
        if step.error is not None:
            error = {"code": 500, "message": step.error, "type": "server_error"}
            return "sse", "".join([*out, data(nlohmann({"error": error}))])
        out.append(
            step.raw or data(reply(text(step), [llama_entry(step, k)] if k else [], None, False))
        )
        if step.finish:
            out.append(data(reply("", [], step.finish, True)))
    return "sse", "".join([*out, DONE])
