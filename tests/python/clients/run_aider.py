"""aider: its command line edits a file, sees the check fail, and edits it again; MODE `stream` or
`whole`."""

import subprocess
import sys

from task import MODEL, repository, run, show, tool

QUIET = (
    "--yes-always",
    "--no-check-update",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--analytics-disable",
    "--no-pretty",
    "--no-fancy-input",
    "--no-gitignore",
    "--no-detect-urls",
    "--disable-playwright",
)
folder = repository()
model = ("--model", f"openai/{MODEL}", "--edit-format", "diff", "--map-tokens", "0")
check = ("--auto-test", "--test-cmd", "sh check.sh")
stream = "--stream" if sys.argv[1] == "stream" else "--no-stream"
asked = ("--message", "Repair the greeting.", "greeting.txt")
run(tool("aider"), *model, *check, stream, *QUIET, *asked, cwd=folder)
log = ["git", "log", "--format=%s"]
show(
    {
        "file": (folder / "greeting.txt").read_text(),
        "commits": subprocess.check_output(log, cwd=folder, text=True).splitlines(),
    }
)
