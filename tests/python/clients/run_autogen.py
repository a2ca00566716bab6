"""autogen: an assistant with a tool that reflects on what the tool said, run and streamed."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

from task import MODEL, QUESTION, SYSTEM, base_url, get_weather, show

INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=False,
    family="unknown",
    structured_output=False,
)


async def run(stream):
    """One question; what was said."""
    client = OpenAIChatCompletionClient(
        model=MODEL, base_url=base_url(), api_key="none", model_info=INFO
    )
    agent = AssistantAgent(
        "weather",
        client,
        tools=[get_weather],
        system_message=SYSTEM,
        reflect_on_tool_use=True,
        model_client_stream=stream,
    )
    result = await agent.run(task=QUESTION)
    await client.close()
    return [[message.type, message.to_text()] for message in result.messages]


async def main():
    """Both ways to run it."""
    return {"whole": await run(stream=False), "streamed": await run(stream=True)}


show(asyncio.run(main()))
