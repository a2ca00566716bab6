"""pydantic-ai: a picture and a document as parts of chat."""

import base64

from pydantic_ai import Agent, BinaryContent
from pydantic_ai.models.openai import OpenAIChatModel

from shown import DOCUMENT, PICTURE, QUESTION
from task import MODEL, SYSTEM, get_weather, show

FILES = [
    BinaryContent(base64.b64decode(PICTURE), media_type="image/png"),
    BinaryContent(base64.b64decode(DOCUMENT), media_type="application/pdf"),
]
agent = Agent(OpenAIChatModel(MODEL), instructions=SYSTEM, tools=[get_weather])
whole = agent.run_sync([QUESTION, *FILES])
show({"said": whole.output, "messages": len(whole.all_messages())})
