"""vLLM: Responses and Messages."""

from maker.case import Case
from maker.scripts import (
    BREAKS,
    CUT,
    END,
    FIXED,
    FLAT,
    GUESS,
    STOP,
    TEXT,
    THINK,
    TOOLS,
    TOPS,
    USER,
    script,
    swallowed,
    with_raw,
)
from maker.text import LOGPROBS, starlette


def vllm_responses():
    def case(short, base, shows, **fields):
        return Case(
            "vllm", "responses", short, {"model": "m", "input": "Say hi.", **fields}, base, shows
        )

    stream = dict(stream=True)
    agent = script(*THINK.steps[:4], *TOOLS.steps, parsers=True, reasoning_tokens=4)
    call = script(*TOOLS.steps[1:6], swallowed(END, finish="tool_calls"), parsers=True)
    yield case("text", TEXT, "a message: logprobs of all tokens on its one part")
    yield case("text_stream", TEXT, "deltas with logprobs; the last token has none", **stream)
    yield case("agent", agent, "reasoning, a message, two calls", tools=[FLAT])
    yield case(
        "agent_stream", agent, "reasoning, a message, two calls, all events", tools=[FLAT], **stream
    )
    yield case("call_only", call, "no text, so nowhere for logprobs", tools=[FLAT])
    yield case("incomplete", CUT, "cut by its length", max_output_tokens=2)
    yield case(
        "incomplete_stream",
        CUT,
        "cut by its length: response.incomplete",
        max_output_tokens=2,
        **stream,
    )
    other = ["reasoning.encrypted_content"]
    yield case(
        "include_appended", TEXT, "the agent's list of includes gets one more", include=other
    )
    yield case("include_null_stream", FIXED, "a null is replaced in place", include=None, **stream)
    yield case("include_empty", FIXED, "an empty list gets one", include=[])
    yield case(
        "own_logprobs",
        TOPS,
        "the agent asked for logprobs with alternatives",
        include=[LOGPROBS],
        top_logprobs=2,
    )
    yield case(
        "own_logprobs_stream",
        TOPS,
        "the agent's logprobs stay, the messages go",
        include=[LOGPROBS],
        top_logprobs=2,
        **stream,
    )
    yield case(
        "own_messages",
        FIXED,
        "the agent asked for messages: they stay",
        enable_response_messages=True,
    )
    yield case("breaks_stream", BREAKS, "cut without a last event", **stream)
    stray = with_raw(
        TEXT,
        s1='event: response.new_thing\ndata: {"sequence_number":99,"type":"response.new_thing","logprobs":[1]}\n\n',
    )
    yield case("stray_event_stream", stray, "an event that nobody knows", **stream)
    said_no = {
        "message": "logprobs are not supported with gpt-oss models",
        "type": "BadRequestError",
    }
    refusal = (400, starlette({"error": said_no | {"param": "include", "code": 400}}))
    yield Case(
        "vllm",
        "responses",
        "gpt_oss",
        {"model": "m", "input": "Say hi."},
        FIXED,
        "refused because of what was asked: the agent's own body is sent again",
        refused=refusal,
    )


def vllm_messages():
    def case(short, base, shows, **fields):
        request = {"model": "m", "max_tokens": 64, "messages": USER, **fields}
        return Case("vllm", "messages", short, request, base, shows)

    stream = dict(stream=True)
    tool = {"name": "guess", "input_schema": GUESS["function"]["parameters"]}
    yield case("text", TEXT, "a text block; nothing can be asked for")
    yield case("text_stream", TEXT, "a text block", **stream)
    yield case("thinking", THINK, "thinking, then text")
    yield case("thinking_stream", THINK, "thinking closed by its signature, then text", **stream)
    yield case("tools", TOOLS, "text, then two tools", tools=[tool])
    yield case("tools_stream", TOOLS, "text, then two tools", tools=[tool], **stream)
    yield case("stop_sequence", STOP, "a stop sequence", stop_sequences=["\nEND"])
    yield case("cut_stream", CUT, "cut by its length", **stream)
    yield case("breaks_stream", BREAKS, "an error event; no message_stop", **stream)
