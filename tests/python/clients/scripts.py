"""What the scripted model says to each client."""

ANSWER = "It is sunny — 21 °C. 🌞"
WEATHER = [
    {
        "reasoning": "They want the weather, so I look.",
        "text": "Let me look.",
        "tool_calls": [{"name": "get_weather", "arguments": {"city": "Zürich"}}],
    },
    {"text": ANSWER},
]
TWO_CALLS = [
    {
        "text": "",
        "tool_calls": [
            {"name": "get_weather", "arguments": {"city": "Zürich"}},
            {"name": "get_weather", "arguments": {"city": "Bern"}},
        ],
    },
    {"reasoning": "Both are sunny.", "text": ANSWER},
]


def shell(command, text):
    """A turn of mini-swe-agent."""
    return {"text": text, "tool_calls": [{"name": "bash", "arguments": {"command": command}}]}


def fielded(**fields):
    """A reply in dspy's own format."""
    said = "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in fields.items())
    return {"text": said + "[[ ## completed ## ]]"}


def edited(old, new):
    """A reply of aider's, in its format `diff`."""
    block = f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE"
    return {"text": f"I repair it.\n\ngreeting.txt\n```\n{block}\n```\n"}


def typed(degrees):
    """An answer for instructor."""
    arguments = {"city": "Zürich", "degrees": degrees}
    return {"text": "", "tool_calls": [{"name": "Weather", "arguments": arguments}]}


FINAL = {"text": "", "tool_calls": [{"name": "final_answer", "arguments": {"answer": ANSWER}}]}
SMOLAGENTS = [WEATHER[0], FINAL]
INSTRUCTOR = {"turns": [typed(999), typed(21)], "by": "requests"}
LOOK = {"next_thought": "I look.", "next_tool_name": "get_weather"}
DSPY_SAID = [
    fielded(answer=ANSWER),
    fielded(**LOOK, next_tool_args='{"city": "Zürich"}'),
    fielded(next_thought="I know.", next_tool_name="finish", next_tool_args="{}"),
    fielded(reasoning="I looked.", answer=ANSWER),
]
DSPY = {"turns": DSPY_SAID, "by": "requests"}
REPAIR = "sed -i 's/helo/hello/' greeting.txt"
MINI = [
    shell("cat greeting.txt", "I look at it first."),
    shell(REPAIR + " && sh check.sh", "I repair it."),
    shell("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "Done."),
]
AIDER = {
    "turns": [edited("helo world", "hello wrld"), edited("hello wrld", "hello world")],
    "by": "requests",
    "aside": [{"match": "one-line Git commit", "text": "fix: repair the greeting"}],
}
OPENHANDS = [
    {
        "reasoning": "I look at the file.",
        "text": "I look at it first.",
        "tool_calls": [{"name": "terminal", "arguments": {"command": "cat greeting.txt"}}],
    },
    {"text": "", "tool_calls": [{"name": "terminal", "arguments": {"command": REPAIR}}]},
    {"text": "", "tool_calls": [{"name": "finish", "arguments": {"message": "Repaired."}}]},
]
SEARCH = {"query": "weather", "results": [{"title": "Weather", "url": "https://example.org/"}]}
SEARCHED = [{**WEATHER[0], "search": SEARCH}, WEATHER[1]]
COUNT = [{"name": "ask_helper", "arguments": {"input": "How many cities?"}}]
HELPED = {
    "turns": [SEARCHED[0], {"text": "I ask my helper.", "tool_calls": COUNT}, WEATHER[1]],
    "aside": [{"match": "You count cities.", "text": "One."}],
}
