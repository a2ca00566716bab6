"""openai-agents: a picture, a document, a search by the server, and a helper as a tool."""

import asyncio

from agents import Agent, Runner, WebSearchTool, function_tool, set_tracing_disabled

from shown import DOCUMENT, PICTURE, QUESTION
from task import MODEL, SYSTEM, get_weather, show

ASKED = [
    {"type": "input_text", "text": QUESTION},
    {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PICTURE}"},
    {
        "type": "input_file",
        "filename": "page.pdf",
        "file_data": f"data:application/pdf;base64,{DOCUMENT}",
    },
]


async def main():
    """One run of an agent that has a helper."""
    set_tracing_disabled(True)
    helper = Agent(name="Helper", instructions="You count cities.", model=MODEL)
    tools = [function_tool(get_weather), WebSearchTool(), helper.as_tool("ask_helper", "Counts.")]
    agent = Agent(name="Weather", instructions=SYSTEM, model=MODEL, tools=tools)
    whole = await Runner.run(agent, [{"role": "user", "content": ASKED}])
    return {"said": whole.final_output, "kinds": [item.type for item in whole.new_items]}


show(asyncio.run(main()))
