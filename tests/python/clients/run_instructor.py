"""instructor: a typed answer through a forced tool, one that must be asked for again, and a partial
one that streams."""

import instructor
import openai
from pydantic import BaseModel, field_validator

from task import MODEL, QUESTION, show


class Weather(BaseModel):
    """The weather somewhere."""

    city: str
    degrees: int

    @field_validator("degrees")
    @classmethod
    def _believable(cls, value):
        if value > 60:
            raise ValueError("nobody would believe that")
        return value


asked = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}
client = instructor.from_openai(openai.OpenAI())
whole = client.chat.completions.create(response_model=Weather, max_retries=2, **asked)
partial = client.chat.completions.create_partial(response_model=Weather, max_retries=2, **asked)
show({"whole": whole, "partial": list(partial)[-1]})
