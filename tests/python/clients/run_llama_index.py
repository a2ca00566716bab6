"""llama-index: an agent with a tool that streams, a chat, and a completion."""

import asyncio

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai import OpenAI

from task import QUESTION, SYSTEM, base_url, get_weather, show

# It looks the size of the context up by name, so the name must be one that it knows.
model = OpenAI(model="gpt-4o-mini", api_base=base_url(), api_key="none")


async def agent():
    """One run of the agent, and what it streamed."""
    running = FunctionAgent(tools=[get_weather], llm=model, system_prompt=SYSTEM).run(QUESTION)
    parts = [e.delta async for e in running.stream_events() if isinstance(e, AgentStream)]
    return [parts, str(await running)]


chatted = model.chat([ChatMessage(role="user", content=QUESTION)])
show(
    {
        "agent": asyncio.run(agent()),
        "chat": str(chatted),
        "complete": str(model.complete(QUESTION)),
        "stream": [chunk.delta for chunk in model.stream_complete(QUESTION)],
    }
)
