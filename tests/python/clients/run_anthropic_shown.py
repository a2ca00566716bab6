"""anthropic: a picture, a document, and a search by the server, in a loop with a tool."""

import anthropic

from shown import DOCUMENT, PICTURE, QUESTION
from task import CITY, FUNCTION, MODEL, SYSTEM, TURNS_MAX, get_weather, show


def file(kind, media_type, data):
    """A block with a file in it."""
    return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": data}}


ASKED = [
    {"type": "text", "text": QUESTION},
    file("image", "image/png", PICTURE),
    file("document", "application/pdf", DOCUMENT),
]
TOOLS = [
    {"name": "get_weather", "description": FUNCTION["description"], "input_schema": CITY},
    {"type": "web_search_20250305", "name": "web_search"},
]


def loop(client):
    """The conversation, each reply as the kinds of its blocks and its words."""
    messages, seen = [{"role": "user", "content": ASKED}], []
    for _ in range(TURNS_MAX):
        asked = {"model": MODEL, "max_tokens": 512, "system": SYSTEM, "tools": TOOLS}
        with client.messages.stream(**asked, messages=messages) as events:
            reply = events.get_final_message()
        seen.append([(block.type, getattr(block, "text", None)) for block in reply.content])
        messages.append({"role": "assistant", "content": reply.content})
        uses = [block for block in reply.content if block.type == "tool_use"]
        if not uses:
            return seen
        results = [
            {
                "type": "tool_result",
                "tool_use_id": use.id,
                "content": [{"type": "text", "text": get_weather(**use.input)}, ASKED[1]],
            }
            for use in uses
        ]
        messages.append({"role": "user", "content": results})


show(loop(anthropic.Anthropic()))
