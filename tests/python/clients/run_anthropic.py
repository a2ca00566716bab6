"""anthropic: whole and streamed, sync and async, with tools, and counted tokens."""

import asyncio

import anthropic

from task import CITY, FUNCTION, MODEL, QUESTION, SYSTEM, TURNS_MAX, get_weather, show

TOOL = {"name": "get_weather", "description": FUNCTION["description"], "input_schema": CITY}
USER = {"role": "user", "content": QUESTION}
ASKED = {"model": MODEL, "max_tokens": 512, "system": SYSTEM}


def told(reply):
    """What a reply says, without signatures, which differ from run to run."""
    fields = reply.model_dump(mode="json", exclude_none=True)
    blocks = [fields, fields.get("delta", {}), fields.get("content_block", {})]
    for block in [*blocks, *fields.get("content", [])]:
        block.pop("signature", None)
    return fields


def loop(client, stream):
    """A conversation with tools."""
    messages, seen = [USER], []
    for _ in range(TURNS_MAX):
        asked = {**ASKED, "messages": messages, "tools": [TOOL]}
        if stream:
            with client.messages.stream(**asked) as events:
                seen += [event.type for event in events]
                reply = events.get_final_message()
        else:
            reply = client.messages.create(**asked)
        seen.append(told(reply))
        messages.append({"role": "assistant", "content": reply.content})
        uses = [block for block in reply.content if block.type == "tool_use"]
        if not uses:
            return seen
        results = [
            {"type": "tool_result", "tool_use_id": use.id, "content": get_weather(**use.input)}
            for use in uses
        ]
        messages.append({"role": "user", "content": results})


async def at_once():
    """Three calls at once, one of them streamed."""
    async with anthropic.AsyncAnthropic() as client:

        async def streamed():
            async with client.messages.stream(**ASKED, messages=[USER]) as events:
                return [part async for part in events.text_stream]

        calls = [client.messages.create(**ASKED, messages=[USER]) for _ in range(2)]
        first, *rest = await asyncio.gather(streamed(), *calls)
        return [first, *(reply.content for reply in rest)]


client = anthropic.Anthropic()
streamed = client.messages.create(**ASKED, messages=[USER], stream=True)
show(
    {
        "loop": loop(client, stream=False),
        "stream loop": loop(client, stream=True),
        "events": [told(event) for event in streamed],
        "counted": client.messages.count_tokens(model=MODEL, messages=[USER], system=SYSTEM),
        "async": asyncio.run(at_once()),
    }
)
