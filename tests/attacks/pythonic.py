"""A server in Python, as vLLM and SGLang are: its bodies are read by json, its fields by pydantic."""

import json
import threading

import hostile
from pydantic import BaseModel, ValidationError

IDS = [5, 6]


class Asked(BaseModel):
    """The fields of a request that matter here. Others are taken and mean nothing."""

    return_token_ids: bool | None = False
    logprobs: bool | int | None = False
    echo: bool = False
    stream: bool | None = False
    background: bool | None = False
    priority: int = 0


class Chat(Asked):
    """A chat request, whose logprobs are a switch."""

    logprobs: bool | None = False
    messages: list


class Completion(Asked):
    """A text completion, whose logprobs are a number."""

    logprobs: int | None = None
    prompt: str | list


def read(body):
    """A body as a server in Python reads it: an object, or None if it would refuse it."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _logprobs(is_chat):
    if is_chat:
        entry = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
        return {"content": [entry, entry]}
    return {"tokens": ["a", "a"], "token_logprobs": [-0.5, -0.5], "top_logprobs": [None, None]}


def vllm(request):
    """Answers as vLLM does: with what was asked for, and nothing else."""
    if request.method != "POST":
        return hostile.reply({"object": "list", "data": []})
    is_chat = "chat" in request.path
    fields = read(request.body)
    try:
        asked = (Chat if is_chat else Completion).model_validate(fields)
    except ValidationError as error:
        return hostile.reply({"error": {"message": str(error), "code": 400}}, "400 Bad Request")
    has_logprobs = asked.logprobs if is_chat else asked.logprobs is not None
    ids = IDS if asked.return_token_ids else None
    said = {"message": {"role": "assistant", "content": "aa"}} if is_chat else {"text": "aa"}
    choice = {
        "index": 0,
        **said,
        "logprobs": _logprobs(is_chat) if has_logprobs else None,
        "finish_reason": "stop",
        "token_ids": ids,
    }
    prompt = {"prompt_token_ids": [1] if ids else None}
    if not is_chat:
        choice |= prompt
        prompt = {}
    return hostile.reply({**hostile.REPLY, "choices": [choice], **prompt})


def _chat(name, streams):
    if not streams:
        return hostile.reply({**hostile.REPLY, "id": name})
    chunk = {"id": name, "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choices = [
        {"index": 0, "delta": {"role": "assistant", "content": "yes"}, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": "stop"},
    ]
    events = [f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n" for choice in choices]
    body = "".join([*events, "data: [DONE]\n\n"]).encode()
    return hostile.reply(body, content_type="text/event-stream")


class Keeper:
    """Answers Responses calls and keeps them, as hosted servers do: each has ids of its own."""

    def __init__(self):
        self._numbers = iter(range(1, 1 << 30))
        self._lock = threading.Lock()

    def __call__(self, request):
        if request.method != "POST":
            return hostile.reply({"object": "list", "data": []})
        with self._lock:
            number = next(self._numbers)
        if request.path.endswith("/conversations"):
            return hostile.reply({"id": f"conv_{number}", "object": "conversation"})
        body = read(request.body)
        if "chat" in request.path:
            return _chat(f"chatcmpl-{number}", body.get("stream"))
        said = {"type": "output_text", "text": "yes", "annotations": []}
        response = {
            "id": f"resp_{number}",
            "object": "response",
            "status": "completed",
            "model": "m",
            "output": [
                {
                    "id": f"msg_{number}",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [said],
                }
            ],
            "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
        }
        if not body.get("stream"):
            return hostile.reply(response)
        begun = {**response, "status": "in_progress", "output": []}
        events = [
            {"type": "response.created", "response": begun},
            {"type": "response.output_item.done", "item": response["output"][0]},
            {"type": "response.completed", "response": response},
        ]
        lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
        return hostile.reply("".join(lines).encode(), content_type="text/event-stream")
