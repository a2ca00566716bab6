"""vLLM 0.33: Responses."""

from maker.text import CREATED, LOGPROBS, data, pydantic, starlette


def function_tool(name):
    return {
        "name": name, "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "strict": None, "type": "function", "allowed_callers": None, "async": None,
        "defer_loading": None, "description": None, "output_schema": None,
    }  # fmt: skip


def vllm_responses(body, script):
    shows, wants = body.get("enable_response_messages"), LOGPROBS in (body.get("include") or [])
    top = body.get("top_logprobs") or 0
    tokens, end = script.tokens(0), script.end(0) if script.steps else None

    def entries(some):
        return [
            {
                "token": t.text, "bytes": t.bytes, "logprob": t.logprob,
                "top_logprobs": [
                    {"token": a, "bytes": list(a.encode()), "logprob": p}
                    for a, p in [(t.text, t.logprob), *t.top][:top]
                ],
            }
            for t in some
        ]  # fmt: skip

    def part(text, logprobs):
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}

    def message(content, status):
        head = {"id": "msg_1", "content": content, "role": "assistant"}
        return head | {"status": status, "type": "message", "phase": None}

    def reasoning(text, status):
        content = None if text is None else [{"text": text, "type": "reasoning_text"}]
        return {
            "id": "rs_1", "summary": [], "type": "reasoning", "content": content,
            "encrypted_content": None, "status": status,
        }  # fmt: skip

    def call(at, id, name, arguments, status):
        return {
            "arguments": arguments, "call_id": id, "name": name, "type": "function_call",
            "id": f"fc_{at + 1}", "async": None, "caller": None, "namespace": None, "status": status,
        }  # fmt: skip

    def response(status, output=(), final=False):
        prompt, completion = script.counts()
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        raw = lambda text, ids: [{"message": text, "tokens": ids, "type": "raw_message_tokens"}]
        said = "".join(t.text for t in tokens if not t.text.startswith("<|im_end"))
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {
                "cached_tokens": 0, "cache_write_tokens": 0,
                "input_tokens_per_turn": [], "cached_tokens_per_turn": [],
            },
            "output_tokens": completion,
            "output_tokens_details": {
                "reasoning_tokens": script.reasoning_tokens or 0, "tool_output_tokens": 0,
                "output_tokens_per_turn": [], "tool_output_tokens_per_turn": [],
            },
            "total_tokens": prompt + completion,
        }  # fmt: skip
        return {
            "id": "resp_1", "created_at": CREATED, "incomplete_details": cut,
            "instructions": body.get("instructions"), "metadata": None, "model": "m",
            "object": "response", "output": list(output), "parallel_tool_calls": True,
            "temperature": body.get("temperature", 1.0), "tool_choice": "auto",
            "tools": [function_tool(t["name"]) for t in body.get("tools", [])], "top_p": 1.0,
            "background": False, "max_output_tokens": body.get("max_output_tokens", 4096),
            "max_tool_calls": None, "previous_response_id": None, "prompt": None,
            "prompt_cache_options": None, "prompt_cache_key": None, "prompt_cache_retention": None,
            "reasoning": None, "safety_identifier": None, "service_tier": "auto", "status": status,
            "text": None, "top_logprobs": top if wants else None, "truncation": "disabled",
            "usage": usage if final else None, "user": None, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "kv_transfer_params": None, "ec_transfer_params": None,
            "input_messages": raw(script.texts[0], list(script.prompts[0])) if shows and final else None,
            "output_messages": raw(said, [t.id for t in tokens]) if shows and final else None,
        }  # fmt: skip

    status = "incomplete" if end.finish == "length" else "completed"
    if not body.get("stream"):
        said, calls = script.message(0)
        output = [reasoning(said["reasoning"], None)] if "reasoning" in said else []
        if "content" in said:
            content = [part(said["content"], entries(tokens) if wants else None)]
            output.append(message(content, "completed" if calls else status))
        for at, (id, name, text) in enumerate(calls):
            output.append(call(at, id, name, text, status if at == len(calls) - 1 else "completed"))
        return "json", starlette(response(status, output, True))

    out, done, now = [], [], {"kind": None}

    def emit(type, **fields):
        event = dict(sorted({**fields, "sequence_number": len(out)}.items()))
        name = {"name": event.pop("name")} if "name" in event else {}
        out.append(data(pydantic(event | {"type": type} | name), type))

    def place(id):
        return {"item_id": id, "output_index": len(done)}

    def close(status="completed"):
        kind, text = now["kind"], now.get("text")
        if kind == "content":
            kept = part(text, now["entries"] or None)
            emit(
                "response.output_text.done",
                content_index=0,
                logprobs=[],
                text=text,
                **place("msg_1"),
            )
            emit("response.content_part.done", content_index=0, part=kept, **place("msg_1"))
            item = message([kept], status)
        elif kind == "reasoning":
            kept = {"text": text, "type": "reasoning_text"}
            emit("response.reasoning_text.done", content_index=0, text=text, **place("rs_1"))
            emit("response.content_part.done", content_index=0, part=kept, **place("rs_1"))
            item = reasoning(text, status)
        elif kind is not None:
            at, id, name = kind
            spot = place(f"fc_{at + 1}")
            emit("response.function_call_arguments.done", arguments=text, name=name, **spot)
            item = call(at, id, name, text, status)
        else:
            return
        emit("response.output_item.done", item=item, output_index=len(done))
        done.append(item)
        now.clear()
        now["kind"] = None

    def open(kind):
        now.update(kind=kind, text="", entries=[])
        if kind == "content":
            item, id, blank = message([], "in_progress"), "msg_1", part("", [])
        elif kind == "reasoning":
            item, id = reasoning(None, "in_progress"), "rs_1"
            blank = {"text": "", "type": "reasoning_text"}
        else:
            item, id, blank = call(*kind, "", "in_progress"), None, None
        emit("response.output_item.added", item=item, output_index=len(done))
        if blank:
            emit("response.content_part.added", content_index=0, part=blank, **place(id))

    emit("response.created", response=response("in_progress"))
    emit("response.in_progress", response=response("in_progress"))
    for step in script.steps:
        if step.raw is not None:
            out.append(step.raw)
            continue
        if step.error is not None:
            return "sse", "".join(out)  # an error fits no event type: the stream is cut
        for key, value in (step.delta or {}).items():
            for piece in value if key == "tools" else [value]:
                if key != "tools" and now["kind"] != key:
                    close()
                    open(key)
                elif key == "tools" and (
                    not isinstance(now["kind"], tuple) or now["kind"][0] != piece[0]
                ):
                    close()
                    open(piece[:3])
                text = piece[3] if key == "tools" else piece
                now["text"] += text
                if key == "content":
                    seen = entries(step.tokens) if wants else []
                    now["entries"] += seen
                    slim = lambda e: {k: v for k, v in e.items() if k != "bytes"}
                    short = [
                        slim(e) | {"top_logprobs": [slim(a) for a in e["top_logprobs"]]}
                        for e in seen
                    ]
                    spot = {"content_index": 0, "delta": text, "logprobs": short}
                    emit("response.output_text.delta", **spot, **place("msg_1"))
                elif key == "reasoning":
                    emit(
                        "response.reasoning_text.delta",
                        content_index=0,
                        delta=text,
                        **place("rs_1"),
                    )
                elif text:
                    spot = place(f"fc_{piece[0] + 1}")
                    emit("response.function_call_arguments.delta", delta=text, **spot)
    close(status)
    last = "response.incomplete" if status == "incomplete" else "response.completed"
    emit(last, response=response(status, done, True))
    return "sse", "".join(out)
