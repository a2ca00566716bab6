"""openai-agents: an agent with a tool, run and streamed, by MODE `responses` or `chat`."""

import asyncio
import sys

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from task import MODEL, QUESTION, SYSTEM, get_weather, show


async def main():
    """Both ways to run it."""
    set_tracing_disabled(True)
    chat = sys.argv[1] == "chat"
    model = OpenAIChatCompletionsModel(MODEL, AsyncOpenAI()) if chat else MODEL
    weather = function_tool(get_weather)
    agent = Agent(name="Weather", instructions=SYSTEM, model=model, tools=[weather])
    whole = await Runner.run(agent, QUESTION)
    streamed = Runner.run_streamed(agent, QUESTION)
    events = [event.type async for event in streamed.stream_events()]
    return {
        "whole": [whole.final_output, whole.to_input_list()],
        "streamed": [events, streamed.final_output, streamed.to_input_list()],
    }


show(asyncio.run(main()))
