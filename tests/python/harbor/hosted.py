"""What Harbor runs trials with where there is no container: this machine, and an agent in Python.

Harbor loads both by their names: `--env hosted:Host`, `--agent hosted:Flaky`.
"""

import asyncio
import json
import os
import re
import shutil
import tempfile
import urllib.request
from pathlib import Path

from harbor.agents.agent_auth_resolution import ModelConnectionSpec
from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.models.model_api_format import ModelApiFormat

PLACES = re.compile(r"(?<![\w./~-])/(logs|tests|solution|app|installed-agent)\b")
"""The places of a container that Harbor names in its commands."""


class Host(BaseEnvironment):
    """A folder for each trial, with the places of a container in it. It keeps nobody out."""

    @staticmethod
    def type():
        return "host"

    @property
    def capabilities(self):
        return EnvironmentCapabilities()

    def _validate_definition(self):
        pass

    async def start(self, force_build):
        self.root = Path(tempfile.mkdtemp(prefix="harbor-host-"))
        for place in ("app", "home", "tmp", "tests", "logs/agent", "logs/verifier"):
            (self.root / place).mkdir(parents=True)

    async def stop(self, delete):
        await self.exec("tmux kill-server")
        shutil.rmtree(self.root, ignore_errors=True)

    def text(self, text):
        """A text with the places of this trial in it."""
        return PLACES.sub(rf"{self.root}/\1", text)

    def path(self, path):
        return Path(self.text(str(path)))

    async def upload_file(self, source_path, target_path):
        target = self.path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, target)

    async def upload_dir(self, source_dir, target_dir):
        target = self.path(target_dir)
        shutil.copytree(source_dir, target, dirs_exist_ok=True)
        for script in target.rglob("*.sh"):
            script.write_text(self.text(script.read_text()))

    async def download_file(self, source_path, target_path):
        shutil.copy(self.path(source_path), target_path)

    async def download_dir(self, source_dir, target_dir):
        shutil.copytree(self.path(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        given = {name: self.text(value) for name, value in (self._merge_env(env) or {}).items()}
        child = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            self.text(command),
            cwd=self.path(cwd) if cwd else self.root / "app",
            env=self.variables() | given,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(child.communicate(), timeout_sec)
        except TimeoutError:
            child.kill()
            return ExecResult(stdout="", stderr="timed out", return_code=124)
        out, err = out.decode(errors="replace"), err.decode(errors="replace")
        return ExecResult(stdout=out, stderr=err, return_code=child.returncode)

    def variables(self):
        """What every command sees: nothing of this machine but its programs and those of agents."""
        return {
            "PATH": f"{os.environ['HOSTED_PATH']}:{os.environ['PATH']}",
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "TMUX_TMPDIR": str(self.root / "tmp"),
            "LANG": "C.UTF-8",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }


class Flaky(BaseAgent):
    """An agent that asks its model once, and fails the first time that its job runs it."""

    MODEL_CONNECTION = ModelConnectionSpec(
        base_url_destination_names={"default": None},
        supported_api_formats=[ModelApiFormat.OPENAI_CHAT_COMPLETIONS],
    )
    capabilities = AgentCapabilities(base_url=True)

    @staticmethod
    def name():
        return "flaky"

    def version(self):
        return "1"

    async def setup(self, environment):
        pass

    async def run(self, instruction, environment, context):
        body = {"model": "m", "messages": [{"role": "user", "content": instruction}]}
        request = urllib.request.Request(
            f"{self._base_url}/chat/completions",
            json.dumps({**body, "temperature": 1.0}).encode(),
            {"content-type": "application/json"},
        )
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=20).read())
        mark = self.logs_dir.parents[1] / "failed-once"
        if not mark.exists():
            mark.touch()
            raise ConnectionResetError("the box went away")
        await environment.exec("echo hello > greeting.txt")
