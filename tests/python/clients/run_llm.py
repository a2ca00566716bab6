"""llm: its command line with a tool, then a second command that goes on with the conversation."""

import json
import os
from pathlib import Path

from task import MODEL, QUESTION, SYSTEM, base_url, run, show, tool

home = Path("llm").absolute()
home.mkdir()
os.environ["LLM_USER_PATH"] = str(home)
about = {"model_id": MODEL, "model_name": MODEL, "api_base": base_url(), "api_key_name": "none"}
more = {"supports_tools": True}
# YAML takes JSON.
(home / "extra-openai-models.yaml").write_text(json.dumps([about | more]))
(home / "keys.json").write_text('{"none": "none"}')
function = """
def get_weather(city: str) -> str:
    "Say what the weather is."
    return f"sunny in {city}, 21 °C"
"""
llm = tool("llm")
show(
    {
        "first": run(llm, "-m", MODEL, "-s", SYSTEM, "--functions", function, QUESTION),
        "whole": run(llm, "-m", MODEL, "--no-stream", QUESTION),
        "second": run(llm, "-c", "And tomorrow?"),
    }
)
