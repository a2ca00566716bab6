"""mini-swe-agent: its command line repairs a file by shell commands."""

import json
from pathlib import Path

from task import MODEL, repository, run, show, tool

folder, told = repository(), Path("trajectory.json").absolute()
config = ("-c", "mini.yaml", "-c", "model.cost_tracking=ignore_errors")
arguments = ("-t", "Repair the greeting.", "-y", "--exit-immediately", "-o", str(told))
run(tool("mini"), "-m", f"openai/{MODEL}", *arguments, *config, cwd=folder)
trajectory = json.loads(told.read_text())
show(
    {
        "file": (folder / "greeting.txt").read_text(),
        "exit": trajectory["info"]["exit_status"],
        "said": [[m.get("role"), m.get("content")] for m in trajectory["messages"]],
    }
)
