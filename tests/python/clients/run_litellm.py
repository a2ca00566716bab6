"""litellm: its OpenAI, hosted vLLM, Responses and Anthropic routes, by MODE."""

import asyncio
import json
import os
import sys

import litellm

from task import CHAT_TOOL, CITY, FUNCTION, MODEL, QUESTION, SYSTEM, TURNS_MAX, get_weather, show

USER = {"role": "user", "content": QUESTION}
TOOL = {"name": "get_weather", "description": FUNCTION["description"], "input_schema": CITY}


def loop(model):
    """A conversation with tools."""
    messages, seen = [{"role": "system", "content": SYSTEM}, USER], []
    for _ in range(TURNS_MAX):
        message = litellm.completion(model, messages, tools=[CHAT_TOOL]).choices[0].message
        messages.append(message)
        seen.append(message.model_dump())
        if not message.tool_calls:
            return seen
        for call in message.tool_calls:
            said = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})


def streamed(model):
    """A streamed call, put together by the client."""
    chunks = list(litellm.completion(model, [USER], tools=[CHAT_TOOL], stream=True))
    whole = litellm.stream_chunk_builder(chunks).choices[0].message
    return [whole.model_dump(), [chunk.choices[0].delta.content for chunk in chunks]]


async def at_once(model):
    """Two calls at once."""
    calls = [litellm.acompletion(model, [USER], seed=seed) for seed in (1, 2)]
    return [reply.choices[0].message.model_dump() for reply in await asyncio.gather(*calls)]


def chat():
    """The chat route, by both of its clients."""
    found = {}
    for provider in ("openai", "hosted_vllm"):
        model = f"{provider}/{MODEL}"
        found[provider] = [loop(model), streamed(model), asyncio.run(at_once(model))]
    return found


def responses():
    """The Responses route."""
    tool = {"type": "function", **FUNCTION}
    asked = {"model": f"openai/{MODEL}", "input": QUESTION, "instructions": SYSTEM}
    whole = litellm.responses(**asked, tools=[tool])
    events = [event.type for event in litellm.responses(**asked, stream=True)]
    return {"whole": [item.model_dump() for item in whole.output], "events": events}


async def messages():
    """The Messages route."""
    asked = {
        "model": f"anthropic/{MODEL}",
        "messages": [USER],
        "max_tokens": 64,
        "api_base": os.environ["ANTHROPIC_BASE_URL"],
    }
    whole = await litellm.anthropic.messages.acreate(**asked, tools=[TOOL])
    stream = await litellm.anthropic.messages.acreate(**asked, stream=True)
    raw = b"".join([part async for part in stream])
    completed = await litellm.acompletion(
        asked["model"], [USER], max_tokens=64, api_base=asked["api_base"]
    )
    events = [json.loads(line[6:]) for line in raw.decode().splitlines() if line[:6] == "data: "]
    return {
        "whole": [told(block) for block in whole["content"]],
        "events": [[event["type"], told(event.get("delta"))] for event in events],
        "completed": completed.choices[0].message.model_dump(),
    }


def told(block):
    """A block without its signature, which differs from run to run."""
    return {key: value for key, value in (block or {}).items() if key != "signature"}


modes = {"chat": chat, "responses": responses, "messages": lambda: asyncio.run(messages())}
show(modes[sys.argv[1]]())
