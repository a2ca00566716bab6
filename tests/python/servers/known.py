"""Where a server is known to give less than `exact`, or rolltape to say more than a server.

Each entry is a claim that the tests hold in both directions: a case that does better than it says
fails as one that does worse.
"""

from fnmatch import fnmatch

MASKED = ("usable", "logprobs_not_of_sampling_distribution")
"""Raw logprobs are of the model; what was sampled was cut down by a grammar."""
UNASKED = ("unusable", "no_token_ids")
HELD_BACK = ("unusable", "no_token_ids")
"""llama.cpp's parser holds tokens of calls and of schemas back, and sends nothing of them."""
STOPPED = ("unusable", "logprob_missing")
"""llama.cpp takes all logprobs of a whole reply away that a stop string ended."""
FIRST_ONLY = (("unusable", "no_token_ids"), ("usable", "call_without_token_ids"))
"""llama.cpp tells the ids of the first choice of a whole reply alone."""
TWO_FEWER = "its own route samples two tokens fewer than were asked for"
ENDLESS = ("usable", "logprob_missing", "mapped")
"""llama.cpp's chat streams leave the end of the turn out; its id is proved, its logprob is not."""

VERDICTS = {
    "llamacpp": {
        "chat-schema-streamed": HELD_BACK,
        "responses-schema-streamed": HELD_BACK,
        "*-tools-streamed": HELD_BACK,
        "*-tools-required-streamed": HELD_BACK,
        "*-tools-named-streamed": HELD_BACK,
        "*-tools-any-streamed": HELD_BACK,
        "*-tool-result-streamed": HELD_BACK,
        "chat-no-usage-streamed": HELD_BACK,
        "chat-schema": MASKED,
        "responses-schema": MASKED,
        "*-tools-required": MASKED,
        "*-tools-named": MASKED,
        "*-tools-any": MASKED,
        "chat-stop": STOPPED,
        "chat-stops": STOPPED,
        "messages-stop": STOPPED,
        "chat-two": FIRST_ONLY,
        "chat-two-tools": FIRST_ONLY,
        "completions-two": FIRST_ONLY,
        "completions-batch": FIRST_ONLY,
        "completions-batch-ids": FIRST_ONLY,
        **dict.fromkeys(
            (
                "chat-text-streamed",
                "chat-question-streamed",
                "chat-tools-none-streamed",
                "chat-found-streamed",
                "chat-history-streamed",
                "chat-parts-streamed",
                "chat-unicode-streamed",
                "chat-stop-unmet-streamed",
                "chat-two-streamed",
                "chat-logprobs-streamed",
                "chat-nulls-streamed",
                "chat-penalties-streamed",
                "chat-usage-streamed",
                "responses-text-streamed",
                "responses-items-streamed",
                "responses-parts-streamed",
                "responses-found-streamed",
                "responses-unicode-streamed",
                "responses-metadata-streamed",
                "messages-text-streamed",
                "messages-system-parts-streamed",
                "messages-found-streamed",
                "messages-history-streamed",
                "messages-unicode-streamed",
            ),
            ENDLESS,
        ),
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

INEXACT_GAMES = {"llamacpp": ("chat-streamed", "responses-streamed", "messages-streamed")}
"""Wires and modes in which a server's games are not exact, for the reasons above."""

FULL = "the hosted API tells a full context inside the stream, where Codex looks for it"
DIFFERENCES = {
    "llamacpp": {
        "responses-too-long-streamed": FULL,
        "messages-stop*": "its own route names the stop string and says `end_turn`; chat names none",
        "responses-cut*": "its own route says `completed` of a reply that was cut",
        "responses-schema*": "its own route does not read `text.format`",
        "responses-tool*-streamed": "its own route leaves `function_call_arguments.done` out",
    },
    "vllm": {"responses-too-long-streamed": FULL}
    | dict.fromkeys(
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
    "sglang": {
        "responses-cut*": TWO_FEWER,
        "responses-schema*": TWO_FEWER,
        "responses-tools-required*": TWO_FEWER,
        "messages-stop*": "its own route says `end_turn` where a stop sequence ended the turn",
        "messages-too-long-streamed": "its own route answers 200, with the refusal in the stream",
    },
}
"""Translated cases in which a client is told something else than by the server's own route."""


def of(table, server, case):
    """What a table has for a case; None where it has nothing."""
    return next((told for glob, told in table[server].items() if fnmatch(case, glob)), None)
