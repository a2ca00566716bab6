"""openai: whole and streamed, sync and async, with tools, by MODE `chat`, `responses` or `text`."""

import asyncio
import json
import sys

import openai

from task import CHAT_TOOL, FUNCTION, MODEL, QUESTION, SYSTEM, TURNS_MAX, get_weather, show

USER = {"role": "user", "content": QUESTION}
ASKED = {"model": MODEL, "tools": [CHAT_TOOL]}


def chat_loop(client, stream):
    """A conversation with tools; the client's own objects go back into the history."""
    messages, seen = [{"role": "system", "content": SYSTEM}, USER], []
    for _ in range(TURNS_MAX):
        if stream:
            with client.chat.completions.stream(messages=messages, **ASKED) as events:
                for event in events:
                    seen.append(event.type)
                reply = events.get_final_completion()
        else:
            reply = client.chat.completions.create(messages=messages, **ASKED)
        seen.append(reply)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return seen
        for call in message.tool_calls:
            said = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})


def chat():
    """The chat route."""
    client = openai.OpenAI()
    options = {"model": MODEL, "messages": [USER]}
    asking = {"logprobs": True, "top_logprobs": 2, "extra_body": {"return_token_ids": True}}
    raw = client.chat.completions.with_raw_response.create(**options)
    return {
        "models": [model.id for model in client.models.list()],
        "loop": chat_loop(client, stream=False),
        "stream loop": chat_loop(client, stream=True),
        "chunks": list(client.chat.completions.create(**ASKED, messages=[USER], stream=True)),
        "usage": list(
            client.chat.completions.create(
                **options, stream=True, stream_options={"include_usage": True}
            )
        ),
        "two": client.chat.completions.create(**options, n=2),
        "two streamed": list(client.chat.completions.create(**options, n=2, stream=True)),
        "asking": client.chat.completions.create(**options, **asking),
        "asking streamed": list(client.chat.completions.create(**options, **asking, stream=True)),
        "raw": raw.http_response.text,
        "async": asyncio.run(chat_async(options)),
    }


async def chat_async(options):
    """Four calls at once, one of them streamed."""
    async with openai.AsyncOpenAI() as client:

        async def streamed():
            stream = await client.chat.completions.create(**options, stream=True)
            return [chunk.choices[0].delta async for chunk in stream]

        calls = [client.chat.completions.create(**options, seed=seed) for seed in range(3)]
        replies = await asyncio.gather(streamed(), *calls)
        return [replies[0], *(reply.choices for reply in replies[1:])]


def responses():
    """The Responses route."""
    client = openai.OpenAI()
    tool = {"type": "function", "strict": False, **FUNCTION}
    options = {"model": MODEL, "instructions": SYSTEM}
    items, seen = [USER], []
    for _ in range(TURNS_MAX):
        reply = client.responses.create(**options, input=items, tools=[tool])
        seen.append(reply)
        items += reply.output
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            break
        for call in calls:
            said = get_weather(**json.loads(call.arguments))
            output = {"type": "function_call_output", "call_id": call.call_id, "output": said}
            items.append(output)
    with client.responses.stream(**options, input=[USER], tools=[tool]) as events:
        streamed = [event.type for event in events]
        final = events.get_final_response()
    created = client.responses.create(**options, input=QUESTION, stream=True)
    wanted = ["message.output_text.logprobs"]
    return {
        "loop": seen,
        "stream": [streamed, final],
        "events": list(created),
        "asking": client.responses.create(**options, input=QUESTION, include=wanted),
        "async": asyncio.run(responses_async(options)),
    }


async def responses_async(options):
    """Three calls at once."""
    async with openai.AsyncOpenAI() as client:
        calls = [client.responses.create(**options, input=f"{n}?") for n in range(3)]
        return [reply.output_text for reply in await asyncio.gather(*calls)]


def text():
    """The text completions route, and embeddings."""
    client = openai.OpenAI()
    options = {"model": MODEL, "prompt": QUESTION}
    return {
        "whole": client.completions.create(**options),
        "ids": client.completions.create(model=MODEL, prompt=[9, 8, 7]),
        "streamed": list(client.completions.create(**options, stream=True)),
        "asking": client.completions.create(**options, logprobs=1),
        "embeddings": client.embeddings.create(model=MODEL, input=["a", "bc"]),
    }


show({"chat": chat, "responses": responses, "text": text}[sys.argv[1]]())
