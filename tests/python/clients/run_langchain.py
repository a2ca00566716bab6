"""langchain-openai: whole and streamed, with tools, by MODE `chat` or `responses`."""

import sys

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from task import MODEL, QUESTION, SYSTEM, TURNS_MAX, get_weather, show

model = ChatOpenAI(model=MODEL, use_responses_api=sys.argv[1] == "responses")
weather = tool(get_weather)


def loop():
    """A conversation with tools."""
    asked, messages = model.bind_tools([weather]), [SystemMessage(SYSTEM), HumanMessage(QUESTION)]
    for _ in range(TURNS_MAX):
        reply = asked.invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            return messages
        messages += [
            ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
            for call in reply.tool_calls
        ]


def told(message):
    """A message without the ids that the client makes up."""
    fields = message.model_dump(mode="json")
    fields.pop("id", None)
    fields["response_metadata"].pop("id", None)
    return fields


show(
    {
        "loop": [told(message) for message in loop()],
        "chunks": [chunk.content for chunk in model.stream(QUESTION)],
        "two": [told(reply) for reply in model.batch(["one?", "two?"])],
    }
)
