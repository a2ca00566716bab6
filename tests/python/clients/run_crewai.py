"""crewai: a crew of one agent with a tool."""

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from task import MODEL, QUESTION, base_url, get_weather, show

llm = LLM(model=f"openai/{MODEL}", base_url=base_url(), api_key="none", stream=False)
agent = Agent(
    role="Forecaster",
    goal="Tell the weather",
    backstory="You look out of the window.",
    llm=llm,
    tools=[tool("get_weather")(get_weather)],
    verbose=False,
)
task = Task(description=QUESTION, expected_output="One sentence.", agent=agent)
show({"answer": Crew(agents=[agent], tasks=[task], verbose=False).kickoff().raw})
