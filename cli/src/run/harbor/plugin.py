"""Harbor's side of `rolltape run --harbor`: each trial calls an address of its own.

Harbor loads this file as a plugin of its job (`--plugin rolltape_harbor:Recorder`). It tells the
process that started Harbor, over the socket beside this file, which trials there are, and when one
begins and ends. That process names their addresses, rewards and closes their episodes, and writes
the recorded ids into their results. Nothing of that is here, because this process is the agent's.
"""

import asyncio
import json
import logging
from importlib.metadata import version
from pathlib import Path

from harbor.agents.agent_auth_resolution import resolve_agent_model_connection
from harbor.models.job.plugin import BaseJobPlugin
from harbor.models.model_api_format import ModelApiFormat
from harbor.trial.hooks import TrialEvent

SOCKET = Path(__file__).with_name("rolltape.sock")
ANSWER_BYTES_MAX = 64 << 20
ANSWER_WAIT_S = 900
UNRECORDED = {
    ModelApiFormat.GOOGLE_GENERATE_CONTENT: "it speaks the wire of Gemini, which is not recorded",
    ModelApiFormat.BEDROCK_CONVERSE: "it speaks the wire of Bedrock, which is not recorded",
}
UNTOLD = "its agent takes no base URL"

logger = logging.getLogger(__name__)


async def ask(message):
    """The answer to one message."""
    reader, writer = await asyncio.open_unix_connection(SOCKET, limit=ANSWER_BYTES_MAX)
    try:
        writer.write(json.dumps(message).encode() + b"\n")
        await writer.drain()
        answer = json.loads(await asyncio.wait_for(reader.readline(), ANSWER_WAIT_S))
    finally:
        writer.close()
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


class Wire:
    """How an agent is told an address: what follows the episode in it, or why it is not told."""

    def __init__(self, agent):
        self.end, self.reason = "/v1", None
        try:
            connection = resolve_agent_model_connection(agent)
        except ValueError as error:
            self.reason = str(error)
            return
        spoken = connection.model_api_format
        if not connection.can_configure_base_url:
            self.reason = UNTOLD
        elif spoken in UNRECORDED:
            self.reason = UNRECORDED[spoken]
        elif spoken == ModelApiFormat.ANTHROPIC_MESSAGES:
            self.end = ""


class Recorder(BaseJobPlugin):
    """Gives each trial of a job the address of its episode.

    Harbor has one base URL for an agent and makes many trials of it, so the address is set on the
    configuration of each trial between the moment when Harbor made them and the first that runs.
    """

    def __init__(self, **options):
        super().__init__(**options)
        self.wires = {}
        self.roots = {}
        self.agents = {}
        self.attempts = {}

    async def on_job_start(self, job):
        configs = trials_of(job)
        called = [config for config in configs if not config.is_regrade]
        self.agents = {config.trial_name: config.agent for config in called}
        self.wires = {name: Wire(agent) for name, agent in self.agents.items()}
        answer = await ask({"plan": {"harbor": version("harbor"), "trials": self.plan(called)}})
        self.roots = answer["roots"]

        job._remaining_trial_configs = [
            config.model_copy(update={"agent": self.addressed(config.trial_name)})
            if config.trial_name in self.roots
            else config
            for config in configs
        ]
        job.add_hook(TrialEvent.START, self.begun)
        job.add_hook(TrialEvent.END, self.ended)

    async def on_job_end(self, job_result):
        pass

    def plan(self, configs):
        """What the process that records has to know of each trial."""
        return [
            {
                "trial": config.trial_name,
                "folder": str((config.trials_dir / config.trial_name).resolve()),
                "job": config.trials_dir.resolve().name,
                "task": config.task.get_task_id().get_name(),
                "agent": config.agent.name or config.agent.import_path,
                "model": config.agent.model_name,
                "reason": self.wires[config.trial_name].reason,
            }
            for config in configs
        ]

    def addressed(self, trial, attempt=0):
        """The agent of a trial with the address of an attempt."""
        agent = self.agents[trial]
        if self.wires[trial].reason:
            return agent
        again = f"/a/{attempt}" if attempt else ""
        # Claude Code would put a nonce into its system prompt, and no call would continue another.
        env = {"CLAUDE_CODE_ATTRIBUTION_HEADER": "0", **agent.env}
        if agent.name != "claude-code":
            env = agent.env
        address = f"{self.roots[trial]}{again}{self.wires[trial].end}"
        return agent.model_copy(update={"base_url": address, "env": env})

    async def begun(self, event):
        await self.tell("begun", event)

    async def ended(self, event):
        trial = event.trial_name
        if trial not in self.roots:
            return
        await self.tell("ended", event)
        self.restore(event.config)
        if event.result.recorded_exceptions():
            # Harbor may run it again, which is another attempt.
            self.attempts[trial] = self.attempts.get(trial, 0) + 1
            event.config.agent = self.addressed(trial, self.attempts[trial])

    async def tell(self, what, event):
        """Tells what a trial does. A trial does not fail because it could not be told."""
        trial = event.trial_name
        if trial not in self.roots:
            return
        try:
            await ask({what: {"trial": trial, "attempt": self.attempts.get(trial, 0)}})
        except Exception as error:
            logger.warning("rolltape was not told that trial %s has %s: %s", trial, what, error)

    def restore(self, config):
        """Writes the trial's configuration as it was planned: `harbor job resume` compares the two,
        and a later job has other addresses. The result keeps the address that was used."""
        planned = config.model_copy(update={"agent": self.agents[config.trial_name]})
        path = config.trials_dir / config.trial_name / "config.json"
        path.write_text(planned.model_dump_json(indent=4))


def trials_of(job):
    """The configurations of the trials that a job is about to run. Harbor has no public name for
    them."""
    found = getattr(job, "_remaining_trial_configs", None)
    if found is None:
        raise RuntimeError(
            f"harbor {version('harbor')} keeps its trials where rolltape does not find them; "
            "docs/harbor.md names the versions that were tried"
        )
    return found
