"""openhands-sdk: its default agent repairs a file with its own tools."""

from openhands.sdk import LLM, Conversation
from openhands.tools.preset.default import get_default_agent

from task import MODEL, base_url, repository, show

folder = repository()
llm = LLM(model=f"openai/{MODEL}", base_url=base_url(), api_key="none", num_retries=0)
agent = get_default_agent(llm=llm, cli_mode=True)
conversation = Conversation(agent=agent, workspace=str(folder))
conversation.send_message("Repair the greeting.")
conversation.run()
state = conversation.state
show(
    {
        "file": (folder / "greeting.txt").read_text(),
        "status": str(state.execution_status),
        "events": [type(event).__name__ for event in state.events],
    }
)
conversation.close()
