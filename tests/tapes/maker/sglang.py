"""SGLang 0.5.23: two encoders in one chat stream."""

from maker.text import CREATED, DONE, data, dumps, pydantic
from maker.vllm_messages import vllm_messages


def sglang_usage(script, prompt=None, completion=None):
    if prompt is None:
        prompt, completion = script.counts()
    thought = script.reasoning_tokens or 0
    return {
        "prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion,
        "prompt_tokens_details": None, "reasoning_tokens": thought,
        "completion_tokens_details": {"reasoning_tokens": thought} if thought else None,
    }  # fmt: skip


def sglang_entries(tokens, top):
    return {
        "content": [
            {
                "token": t.text, "bytes": t.bytes, "logprob": t.logprob,
                "top_logprobs": [
                    {"token": a, "bytes": list(a.encode()), "logprob": p}
                    for a, p in ([(t.text, t.logprob), *t.top][:top])
                ],
            }
            for t in tokens
        ]
    }  # fmt: skip


def sglang_metadata(script):
    newest = script.spans[-1][0] if script.spans else script.version
    return {"weight_version": newest, "weight_versions": script.versions(0)}


def sglang_meta_info(script, index, wants, top, matched):
    """What a choice of a whole reply carries along where it is asked for."""
    tokens, end = script.tokens(index), script.end(index)
    triples = [[t.logprob, t.id, t.text] for t in tokens]
    tops = [[[p, 900 + at, a] for at, (a, p) in enumerate(t.top[:top])] for t in tokens]
    return {
        "id": "9f" * 16, "finish_reason": {"type": end.finish, "matched": matched},
        "prompt_tokens": len(script.prompts[0]),
        "weight_version": sglang_metadata(script)["weight_version"], "num_retractions": 0,
        **({"input_token_logprobs": [], "output_token_logprobs": triples,
            "output_token_logprobs_length": len(tokens)} if wants else {}),
        **({"input_top_logprobs": [], "output_top_logprobs": tops} if wants and top else {}),
        "reasoning_tokens": script.reasoning_tokens or 0, "completion_tokens": len(tokens),
        "cached_tokens": 0, "weight_versions": script.versions(index),
        "cached_tokens_details": {"device": 0, "host": 0}, "dp_rank": None, "e2e_latency": 0.25,
        "response_sent_to_client_ts": CREATED + 0.5,
    }  # fmt: skip


def sglang_fault(step):
    error = {"object": "error", "message": step.error, "type": "INTERNAL_SERVER_ERROR"}
    return data(dumps({"error": error | {"param": None, "code": 500}}))


def sglang_chat(body, script, headers):
    wants, top = body.get("logprobs"), body.get("top_logprobs") or 0
    if not body.get("stream"):
        choices = []
        for i in script.indexes():
            said, calls = script.message(i)
            message = {"role": "assistant", "content": said.get("content", "")}
            message["reasoning_content"] = said.get("reasoning")
            if calls:
                message["tool_calls"] = [
                    {
                        "id": id,
                        "index": at,
                        "type": "function",
                        "function": {"name": name, "arguments": text},
                    }
                    for at, (id, name, text) in enumerate(calls)
                ]
            tokens, end = script.tokens(i), script.end(i)
            matched = None if end.finish == "tool_calls" else end.stop
            choice = {"index": i, "message": message}
            choice["logprobs"] = sglang_entries(tokens, top) if wants else None
            choice |= {"finish_reason": end.finish, "matched_stop": matched}
            if body.get("return_token_ids"):
                choice["prompt_token_ids"] = list(script.prompts[0])
                choice["response_token_ids"] = [t.id for t in tokens]
            if body.get("return_meta_info"):
                choice["meta_info"] = sglang_meta_info(script, i, wants, top, matched)
            choices.append(choice)
        ext = {}
        if body.get("return_input_ids_in_sglext"):
            ext["input_ids"] = list(script.prompts[0])
        if body.get("return_output_ids_in_sglext"):
            ext["output_ids"] = [[t.id for t in script.tokens(i)] for i in script.indexes()]
        return "json", pydantic({
            "id": "9f" * 16, "object": "chat.completion", "created": CREATED, "model": "m",
            "choices": choices, "usage": sglang_usage(script), "metadata": sglang_metadata(script),
            **({"sglext": ext} if ext else {}),
        })  # fmt: skip
    on = lambda key, field: headers.get(key) == "1" or body.get(field)
    inputs = on("x-sglext-return-input-ids", "return_input_ids_in_sglext")
    outputs = on("x-sglext-return-output-ids", "return_output_ids_in_sglext")
    options = body.get("stream_options") or {}
    running = options.get("include_usage") and options.get("continuous_usage_stats")
    parsing = script.parsers and bool(body.get("tools"))
    head = {"id": "9f" * 16, "object": "chat.completion.chunk", "created": CREATED, "model": "m"}
    out, started, ended, sent, failed = [], set(), {}, {}, False

    def fast(index, delta, logprobs=None, finish=None, stop=None):
        """Text, reasoning and finish chunks: msgspec leaves out what is null but a few keys."""
        order = {"reasoning_content": delta.get("reasoning_content")}
        order |= {k: delta[k] for k in ("role", "content") if k in delta}
        choice = {"index": index, "delta": order, "logprobs": logprobs, "finish_reason": finish}
        bare = "role" in delta or finish
        usage = {} if bare or not running else {"usage": sglang_usage(script, *sent[index])}
        return data(pydantic(head | {"choices": [choice | {"matched_stop": stop}]} | usage))

    def slow(index, **delta):
        """Chunks made by pydantic keep every null."""
        full = {"role": None, "content": None, "reasoning_content": None} | delta
        choice = {
            "index": index,
            "delta": full,
            "logprobs": None,
            "finish_reason": None,
            "matched_stop": None,
        }
        usage = sglang_usage(script, *sent[index]) if running else None
        return data(pydantic(head | {"choices": [choice], "usage": usage}))

    for step in script.steps:
        if step.raw is not None:
            out.append(step.raw)
            continue
        if step.error is not None:
            out.append(sglang_fault(step))
            failed = True
            break
        i, delta = step.index, step.delta or {}
        sent[i] = (len(script.prompts[0]), sent.get(i, (0, 0))[1] + len(step.tokens))
        left = sglang_entries(step.tokens, top) if wants and step.tokens else None
        if step.finish:
            ended[i] = step
        if i not in started:
            started.add(i)
            out.append(fast(i, {"role": "assistant", "content": ""}))
        if "reasoning" in delta:
            out.append(fast(i, {"reasoning_content": delta["reasoning"]}, left))
            left = None
        if "content" in delta and parsing:
            out.append(slow(i, content=delta["content"]))
        elif "content" in delta:
            out.append(fast(i, {"content": delta["content"]}, left))
            left = None
        for at, id, name, piece in delta.get("tools", []):
            call = {
                "id": id,
                "index": at,
                "type": "function",
                "function": {"name": name, "arguments": piece},
            }
            out.append(slow(i, tool_calls=[call]))
        if left is not None and script.parsers:
            out.append(fast(i, {}, left))
    for i, step in ended.items():
        out.append(fast(i, {}, None, step.finish, step.stop))
    ext = {"input_ids": list(script.prompts[0])} if inputs else {}
    if outputs:
        ext["output_ids"] = [[t.id for t in script.tokens(i)] for i in script.indexes()]
    if ext and not failed:
        named = "sglext_ids" if headers.get("x-sglext-ids-framed") == "1" else None
        out.append(data(pydantic(head | {"choices": [], "usage": None, "sglext": ext}), named))
    if options.get("include_usage"):
        out.append(data(pydantic(head | {"choices": [], "usage": sglang_usage(script)})))
    return "sse", "".join([*out, DONE])


def sglang_completions(body, script, headers):
    k, ids, n = body.get("logprobs"), body.get("return_token_ids"), body.get("n") or 1

    def logprobs(tokens):
        if k is None or not tokens:
            return None
        return {
            "text_offset": [-1] * len(tokens), "token_logprobs": [t.logprob for t in tokens],
            "tokens": [bytes(t.raw).decode("latin-1") if t.raw else t.text for t in tokens],
            "top_logprobs": [dict([(t.text, t.logprob), *t.top][:k]) for t in tokens] if k else [],
        }  # fmt: skip

    def choice(i, text, tokens, end, first):
        chosen = {"index": i, "text": text, "logprobs": logprobs(tokens)}
        chosen |= {"finish_reason": end and end.finish, "matched_stop": end and end.stop}
        if ids:
            chosen["token_ids"] = [t.id for t in tokens]
            if first:
                chosen["prompt_token_ids"] = list(script.prompts[i // n])
        return chosen

    text = lambda step: (step.delta or {}).get("content", "")
    head = {"id": "9f" * 16, "object": "text_completion", "created": CREATED, "model": "m"}
    if not body.get("stream"):
        choices = [
            choice(i, "".join(map(text, script.of(i))), script.tokens(i), script.end(i), True)
            for i in script.indexes()
        ]
        tail = {"usage": sglang_usage(script), "metadata": sglang_metadata(script)}
        return "json", pydantic(head | {"choices": choices} | tail)
    out, seen = [], set()
    for step in script.steps:
        if step.raw is not None:
            out.append(step.raw)
        elif step.error is not None:
            out.append(sglang_fault(step))
            break
        else:
            one = choice(
                step.index,
                text(step),
                step.tokens,
                step if step.finish else None,
                step.index not in seen,
            )
            seen.add(step.index)
            out.append(data(pydantic(head | {"choices": [one], "usage": None})))
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {k: v for k, v in sglang_usage(script).items() if v is not None}
        out.append(data(pydantic(head | {"choices": [], "usage": usage})))
    return "sse", "".join([*out, DONE])


def sglang_messages(body, script, headers):
    """The same reply as vLLM's but for the id; only whole replies are written."""
    kind, text = vllm_messages(body, script)
    return kind, text.replace('"chatcmpl-1"', '"msg_1"')
