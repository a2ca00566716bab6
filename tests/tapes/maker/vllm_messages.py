"""vLLM 0.33: Messages."""

import json

from maker.text import data, pydantic, starlette


def vllm_messages(body, script):
    prompt, completion = script.counts()
    said, calls = script.message(0)
    end = script.end(0)
    reason = {"length": "max_tokens", "tool_calls": "tool_use"}.get(end.finish, "end_turn")
    reason = "stop_sequence" if isinstance(end.stop, str) else reason
    matched = end.stop if isinstance(end.stop, str) else None
    if not body.get("stream"):
        blocks = []
        if "reasoning" in said:
            blocks.append(
                {"type": "thinking", "thinking": said["reasoning"], "signature": "5f" * 16}
            )
        if "content" in said:
            blocks.append({"type": "text", "text": said["content"]})
        for id, name, text in calls:
            blocks.append({"type": "tool_use", "id": id, "name": name, "input": json.loads(text)})
        return "json", starlette({
            "id": "chatcmpl-1", "type": "message", "role": "assistant", "content": blocks, "model": "m",
            "stop_reason": reason, **({"stop_sequence": matched} if matched else {}),
            "usage": {"input_tokens": prompt, "output_tokens": completion},
        })  # fmt: skip
    out, now = [], {"kind": None, "at": 0}

    def emit(type, **fields):
        out.append(data(pydantic({"type": type} | fields), type))

    def close():
        if now["kind"] is None:
            return
        if now["kind"] == "thinking":
            sign = {"type": "signature_delta", "signature": "5f" * 16}
            emit("content_block_delta", delta=sign, index=now["at"])
        emit("content_block_stop", index=now["at"])
        now.update(kind=None, at=now["at"] + 1)

    def start(kind, block):
        close()
        emit("content_block_start", content_block=block, index=now["at"])
        now["kind"] = kind

    message = {
        "id": "chatcmpl-1", "type": "message", "role": "assistant", "content": [], "model": "m",
        "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": prompt, "output_tokens": 0},
    }  # fmt: skip
    emit("message_start", message=message)
    for step in script.steps:
        if step.raw is not None:
            out.append(step.raw)
            continue
        if step.error is not None:
            if now["kind"] is not None:
                close()
            emit("error", error={"type": "api_error", "message": step.error})
            return "sse", "".join(out)
        for key, value in (step.delta or {}).items():
            if key == "tools":
                for at, id, name, piece in value:
                    if id:
                        start(
                            ("tool", at), {"type": "tool_use", "id": id, "name": name, "input": {}}
                        )
                    if piece:
                        delta = {"type": "input_json_delta", "partial_json": piece}
                        emit("content_block_delta", delta=delta, index=now["at"])
                continue
            kind, slot = ("thinking", "thinking") if key == "reasoning" else ("text", "text")
            if now["kind"] != kind:
                start(kind, {"type": kind, slot: ""})
            emit(
                "content_block_delta", delta={"type": f"{kind}_delta", slot: value}, index=now["at"]
            )
    close()
    ending = {"stop_reason": reason, "stop_sequence": matched}
    emit("message_delta", delta=ending, usage={"input_tokens": prompt, "output_tokens": completion})
    emit("message_stop")
    return "sse", "".join(out)
