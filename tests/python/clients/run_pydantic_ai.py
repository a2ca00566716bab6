"""pydantic-ai: an agent with a tool, run and streamed, by MODE `chat` or `responses`."""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

from task import MODEL, QUESTION, SYSTEM, get_weather, show

KEPT = ("kind", "part_kind", "content", "tool_name", "args")


def told(messages):
    """What was said, without times and ids that the client makes up."""
    return [
        {key: getattr(part, key) for key in KEPT if hasattr(part, key)}
        for message in messages
        for part in message.parts
    ]


async def main():
    """Both ways to run it."""
    kind = OpenAIChatModel if sys.argv[1] == "chat" else OpenAIResponsesModel
    agent = Agent(kind(MODEL), instructions=SYSTEM, tools=[get_weather])
    whole = await agent.run(QUESTION)
    async with agent.run_stream(QUESTION) as streamed:
        parts = [part async for part in streamed.stream_text(debounce_by=None)]
    usage = whole.usage() if callable(whole.usage) else whole.usage
    return {
        "whole": [whole.output, told(whole.all_messages()), repr(usage)],
        "streamed": [parts, told(streamed.all_messages())],
    }


show(asyncio.run(main()))
