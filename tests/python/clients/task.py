"""What the clients are asked, and how they tell what they saw."""

import json
import os
import subprocess
import sys
from pathlib import Path

MODEL = "scripted"
SYSTEM = "Be brief."
QUESTION = "What is the weather in Zürich?"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
TURNS_MAX = 4


def get_weather(city: str) -> str:
    """Say what the weather is.

    Args:
        city: The name of the city.
    """
    return f"sunny in {city}, 21 °C"


FUNCTION = {"name": "get_weather", "description": "Say what the weather is.", "parameters": CITY}
CHAT_TOOL = {"type": "function", "function": FUNCTION}


def base_url():
    """The base URL that this client was given, with /v1."""
    return os.environ["OPENAI_BASE_URL"]


def show(result):
    """The last line of stdout is the result, as JSON."""
    print("\n" + json.dumps(result, ensure_ascii=False, sort_keys=True, default=_plain), flush=True)


def _plain(value):
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return repr(value)


def repository():
    """A small git repository with a fault, made anew in the current folder."""
    folder = Path("repository").absolute()
    folder.mkdir()
    (folder / "greeting.txt").write_text("helo world\n")
    check = "grep -q 'hello world' greeting.txt || { echo wrong; exit 1; }\n"
    (folder / "check.sh").write_text(check)
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "start"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def tool(name):
    """The command of this environment, whatever the PATH is."""
    return str(Path(sys.executable).with_name(name))


def run(*command, **options):
    """Runs a client's command line; what it says on stdout comes back, where it ended well."""
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **options
    )
    if ended.returncode != 0:
        sys.exit(f"{command} ended with {ended.returncode}:\n{ended.stdout}")
    return ended.stdout
