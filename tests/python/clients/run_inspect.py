"""inspect-ai: an evaluation of one sample by an agent with a tool, by MODE `chat`, `vllm` or
`responses`."""

import os
import sys

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import tool

from task import MODEL, QUESTION, SYSTEM, base_url
from task import get_weather as look
from task import show


@tool
def get_weather():
    """The weather, as inspect wants its tools."""

    async def execute(city: str):
        """Say what the weather is.

        Args:
            city: The name of the city.
        """
        return look(city)

    return execute


os.environ |= {"LOCAL_BASE_URL": base_url(), "LOCAL_API_KEY": "none", "VLLM_BASE_URL": base_url()}
providers = {
    "chat": (f"openai-api/local/{MODEL}", {}),
    "vllm": (f"vllm/{MODEL}", {}),
    "responses": (f"openai/{MODEL}", {"responses_api": True}),
}
name, options = providers[sys.argv[1]]
model = get_model(name, config=GenerateConfig(logprobs=sys.argv[1] == "vllm"), **options)
solver = [system_message(SYSTEM), use_tools(get_weather()), generate()]
task = Task([Sample(QUESTION, target="sunny")], solver=solver, scorer=includes())
(log,) = eval(task, model=model, display="none", log_dir="logs")
(sample,) = log.samples or [None]
choice = sample.output.choices[0]
show(
    {
        "status": [log.status, str(log.error)],
        "score": sample.scores["includes"].value,
        "said": [[message.role, message.text] for message in sample.messages],
        "logprobs": choice.logprobs and [entry.logprob for entry in choice.logprobs.content],
    }
)
