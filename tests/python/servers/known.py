"""Where a server is known to give less than `exact`, or rolltape to say more than a server.

Each entry is a claim that the tests hold in both directions: a case that does better than it says
fails as one that does worse.
"""

from fnmatch import fnmatch

MASKED = ("usable", "logprobs_not_of_sampling_distribution")
"""Raw logprobs are of the model; what was sampled was cut down by a grammar."""
UNASKED = ("unusable", "no_token_ids")

VERDICTS = {
    "llamacpp": {
        "chat-schema*": MASKED,
        "chat-tools-required*": MASKED,
        "chat-tools-named*": MASKED,
        "messages-tools-any*": MASKED,
        "messages-tools-named*": MASKED,
        "responses-schema*": MASKED,
        "responses-tools-required*": MASKED,
    },
    "vllm": {"completions-echo*": UNASKED},
    "vllm-rust": {"completions-echo*": UNASKED},
    "sglang": {
        "chat-schema*": MASKED,
        "chat-tools-required*": MASKED,
        "chat-tools-named*": MASKED,
        "completions-echo*": UNASKED,
        "messages-tools-any*": MASKED,
        "messages-tools-named*": MASKED,
        "responses-schema*": MASKED,
        "responses-tools-required*": MASKED,
    },
}
"""Verdict and reasons of cases that are not `exact`, by server and pattern."""

DIFFERENCES = {
    "llamacpp": {
        "messages-stop": "its own route names the stop string and says `end_turn`; chat names none",
        "responses-cut*": "its own route says `completed` of a reply that was cut",
        "responses-schema*": "its own route does not read `text.format`",
        "responses-tool*-streamed": "its own route leaves `function_call_arguments.done` out",
    },
    "vllm": dict.fromkeys(
        (
            "messages-text-streamed",
            "messages-system-parts*",
            "messages-history*",
            "messages-unicode-streamed",
            "messages-stop-streamed",
            "messages-one-token-streamed",
        ),
        "its own route looks for tool calls where no tools were given, and drops such text",
    ),
    "vllm-rust": {},
    "sglang": {},
}
"""Translated cases in which a client is told something else than by the server's own route."""


def of(table, server, case):
    """What a table has for a case; None where it has nothing."""
    return next((told for glob, told in table[server].items() if fnmatch(case, glob)), None)
