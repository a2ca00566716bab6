"""smolagents: a tool-calling agent, run and streamed."""

from smolagents import OpenAIModel, ToolCallingAgent, tool
from smolagents.monitoring import LogLevel

from task import MODEL, QUESTION, base_url, get_weather, show


def run(stream):
    """One agent, to its final answer."""
    model = OpenAIModel(MODEL, api_base=base_url(), api_key="none")
    options = {"stream_outputs": stream, "verbosity_level": LogLevel.OFF}
    agent = ToolCallingAgent([tool(get_weather)], model, max_steps=4, **options)
    answer = agent.run(QUESTION)
    steps = [getattr(step, "observations", None) for step in agent.memory.steps]
    return [str(answer), steps]


show({"whole": run(stream=False), "streamed": run(stream=True)})
