"""vLLM 0.33: chat and text completions."""

from maker.text import CREATED, DONE, data, dumps, pydantic, starlette

VLLM_PRINT = "vllm-0.33.0-ab12cd34"


def vllm_entry(token, top, stream):
    if token.logprob is None:
        seen = {"token": token.text, "bytes": token.bytes}
        late = {"token": token.text, "logprob": -9999.0, "bytes": token.bytes, "top_logprobs": []}
        return seen if stream else late
    listed = [(token.text, token.logprob), *token.top][:top]
    tops = [{"token": t, "logprob": p, "bytes": list(t.encode())} for t, p in listed]
    return {
        "token": token.text,
        "logprob": token.logprob,
        "bytes": token.bytes,
        "top_logprobs": tops,
    }


def vllm_call(at, id, name, piece):
    """The parts of a delta's call: its name in one, a piece of its arguments in another."""
    if name:
        yield {"id": id, "type": "function", "index": at, "function": {"name": name}}
    if piece:
        yield {"index": at, "function": {"arguments": piece}}


def vllm_usage(prompt, completion, details=True, reasoning=None):
    usage = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    if details:
        usage["prompt_tokens_details"] = None
        usage["completion_tokens_details"] = (
            None if reasoning is None else {"reasoning_tokens": reasoning}
        )
    return usage


def vllm_chat(body, script):
    ids, wants = body.get("return_token_ids"), body.get("logprobs")
    versions, top = body.get("return_weight_versions"), body.get("top_logprobs") or 0
    logprobs = lambda tokens, stream: (
        {"content": [vllm_entry(t, top, stream) for t in tokens]} if wants else None
    )
    if not body.get("stream"):
        choices = []
        for i in script.indexes():
            said, calls = script.message(i)
            message = {"role": "assistant", "content": said.get("content"), "refusal": None}
            message |= {"annotations": None, "audio": None, "function_call": None}
            if calls:
                message["tool_calls"] = [
                    {"id": id, "type": "function", "function": {"name": name, "arguments": text}}
                    for id, name, text in calls
                ]
            message["reasoning"] = said.get("reasoning")
            tokens, end = script.tokens(i), script.end(i)
            choices.append({
                "index": i, "message": message, "logprobs": logprobs(tokens, False),
                "finish_reason": end.finish, "stop_reason": end.stop,
                "token_ids": [t.id for t in tokens] if ids else None, "routed_experts": None,
                "weight_versions": script.versions(i) if versions else None,
            })  # fmt: skip
        prompt, completion = script.counts()
        return "json", starlette({
            "id": "chatcmpl-1", "object": "chat.completion", "created": CREATED, "model": "m",
            "choices": choices, "service_tier": None, "system_fingerprint": VLLM_PRINT,
            "usage": vllm_usage(prompt, completion, reasoning=script.reasoning_tokens),
            "prompt_logprobs": None, "prompt_token_ids": list(script.prompts[0]) if ids else None,
            "prompt_text": None, "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None,
        })  # fmt: skip
    options = body.get("stream_options") or {}
    usage = options.get("include_usage")
    running = usage and options.get("continuous_usage_stats")
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": CREATED, "model": "m"}
    prompt, out, sent = len(script.prompts[0]), [], {}

    def count(index):
        details = {"completion_tokens_details": None}
        return {"usage": vllm_usage(prompt, sent.get(index, 0), False) | details} if running else {}

    for i in script.indexes():
        delta = {"role": "assistant", "content": ""}
        choice = {"index": i, "delta": delta, "logprobs": None, "finish_reason": None}
        tail = {"prompt_token_ids": list(script.prompts[0]) if ids else None, "prompt_text": None}
        out.append(data(pydantic(head | {"choices": [choice]} | count(i) | tail)))
    for step in script.steps:
        if step.raw is not None:
            out.append(step.raw)
            continue
        if step.error is not None:
            error = {
                "message": step.error,
                "type": "InternalServerError",
                "param": None,
                "code": 500,
            }
            return "sse", "".join([*out, data(pydantic({"error": error})), DONE])
        i = step.index
        sent[i] = sent.get(i, 0) + len(step.tokens)
        delta = step.delta
        if delta is None:
            if step.finish is None and not wants and not ids:
                continue
            delta = {}
        elif "tools" in delta:
            calls = [part for told in delta["tools"] for part in vllm_call(*told)]
            rest = {k: v for k, v in delta.items() if k != "tools"}
            delta = {"content": None} | rest | {"tool_calls": calls}
        choice = {"index": i, "delta": delta, "logprobs": logprobs(step.tokens, True)}
        choice["finish_reason"] = step.finish
        if step.finish:
            choice["stop_reason"] = step.stop
        choice["token_ids"] = [t.id for t in step.tokens] if ids else None
        if step.finish:
            choice["weight_versions"] = script.versions(i) if versions else None
        mark = {"system_fingerprint": VLLM_PRINT} if step.finish and not usage else {}
        chunk = head | {"choices": [choice]} | count(i) | mark | {"kv_transfer_params": None}
        out.append(data(pydantic(chunk)))
    if usage:
        total = {"usage": vllm_usage(*script.counts(), False), "system_fingerprint": VLLM_PRINT}
        if script.reasoning_tokens is not None:
            details = {"reasoning_tokens": script.reasoning_tokens}
            total["usage"]["completion_tokens_details"] = details
        out.append(data(pydantic(head | {"choices": []} | total)))
    return "sse", "".join([*out, DONE])


def vllm_completions(body, script):
    ids, k = body.get("return_token_ids"), body.get("logprobs")
    versions, n = body.get("return_weight_versions"), body.get("n") or 1
    echo = script.texts[0] if body.get("echo") else ""

    def logprobs(tokens, offset=0):
        if k is None:
            return None
        offsets, missing = [], [t.logprob is None for t in tokens]
        for t in tokens:
            offsets.append(offset)
            offset += len(t.text)
        tops = [dict([(t.text, t.logprob), *t.top][: k + 1]) for t in tokens]
        return {
            "text_offset": offsets, "token_logprobs": [t.logprob for t in tokens],
            "tokens": [t.text for t in tokens],
            "top_logprobs": [None if lost else top for lost, top in zip(missing, tops)],
        }  # fmt: skip

    def text(step):
        return (step.delta or {}).get("content", "")

    prompts = lambda i: list(script.prompts[i // n])
    if not body.get("stream"):
        choices = []
        for i in script.indexes():
            tokens, end = script.tokens(i), script.end(i)
            choices.append({
                "index": i, "text": echo + "".join(map(text, script.of(i))),
                "logprobs": logprobs(tokens), "finish_reason": end.finish, "stop_reason": end.stop,
                "token_ids": [t.id for t in tokens] if ids else None, "prompt_logprobs": None,
                "prompt_token_ids": prompts(i) if ids else None, "routed_experts": None,
                "weight_versions": script.versions(i) if versions else None,
            })  # fmt: skip
        usage = vllm_usage(*script.counts())
        return "json", starlette({
            "id": "cmpl-1", "object": "text_completion", "created": CREATED, "model": "m",
            "choices": choices, "service_tier": None, "system_fingerprint": VLLM_PRINT,
            "usage": usage, "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None,
        })  # fmt: skip
    usage = (body.get("stream_options") or {}).get("include_usage")
    running = usage and body["stream_options"].get("continuous_usage_stats")
    head = {"id": "cmpl-1", "object": "text_completion", "created": CREATED, "model": "m"}
    out, offsets, sent = [], {}, {}
    for step in script.steps:
        if step.raw is not None:
            out.append(step.raw)
            continue
        if step.error is not None:
            error = {
                "message": step.error,
                "type": "InternalServerError",
                "param": None,
                "code": 500,
            }
            return "sse", "".join([*out, data(dumps({"error": error})), DONE])
        i = step.index
        choice = {
            "index": i, "text": text(step), "logprobs": logprobs(step.tokens, offsets.get(i, 0)),
            "finish_reason": step.finish, "stop_reason": step.stop,
            "prompt_token_ids": prompts(i) if ids and i not in sent else None,
            "token_ids": [t.id for t in step.tokens] if ids else None,
            "weight_versions": script.versions(i) if versions and step.finish else None,
        }  # fmt: skip
        offsets[i] = offsets.get(i, 0) + sum(len(t.text) for t in step.tokens)
        sent[i] = sent.get(i, 0) + len(step.tokens)
        count = {"usage": vllm_usage(len(prompts(i)), sent[i], False)} if running else {}
        mark = {"system_fingerprint": VLLM_PRINT} if step.finish and not usage else {}
        out.append(
            data(
                pydantic(head | {"choices": [choice]} | count | mark | {"kv_transfer_params": None})
            )
        )
    if usage:
        total = {"usage": vllm_usage(*script.counts(), False), "system_fingerprint": VLLM_PRINT}
        out.append(data(pydantic(head | {"choices": []} | total)))
    return "sse", "".join([*out, DONE])
