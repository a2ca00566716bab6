"""SGLang."""

from dataclasses import replace

from maker.case import Case
from maker.script import T, f32
from maker.scripts import (
    BREAKS,
    END,
    FIXED,
    GUESS,
    STOP,
    TEXT,
    THINK,
    TOOLS,
    TOPS,
    TWO,
    USER,
    chat,
    said,
    script,
    stops,
    swallowed,
    text,
    with_raw,
)
from maker.text import pydantic


def sglang_all():
    def case(short, base, shows, wire="chat", **fields):
        request = chat(**fields) if wire == "chat" else text(**fields)
        return Case("sglang", wire, short, request, stops(base), shows)

    stream = dict(stream=True)
    counted = {"stream": True, "stream_options": {"include_usage": True}}
    running = {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    halves = script(
        said("数", T(60, "数", f32(-0.7))),
        swallowed(T(30, "\ufffd", f32(-3.25), raw=(240, 159))),
        said("😀", T(31, "\ufffd", f32(-0.125), raw=(152, 128))),
        said("\u2028語é", T(61, "\u2028語", f32(-0.9)), T(62, "é", f32(-0.05))),
        swallowed(END, finish="stop"),
    )
    parsed = lambda base: replace(base, parsers=True)
    yield case("text", TEXT, "plain text; four keys gone or null")
    yield case("text_stream", TEXT, "no parser: the last token's logprob is lost", **stream)
    yield case("text_parser_stream", parsed(TEXT), "a parser: an extra chunk carries it", **stream)
    yield case("utf8", halves, "true bytes of the halves of an emoji")
    yield case("utf8_stream", halves, "no parser: half a character's logprob is lost", **counted)
    yield case("tools", TOOLS, "two calls after a text", tools=[GUESS])
    yield case(
        "tools_stream",
        TOOLS,
        "pydantic chunks, and an extra chunk a step",
        tools=[GUESS],
        **counted,
    )
    yield case("reasoning", THINK, "reasoning_content")
    yield case("reasoning_stream", THINK, "reasoning_content; tags make extra chunks", **running)
    yield case("two_stream", TWO, "n=2: ends after all, ids of both in one event", n=2, **stream)
    yield case("stop_string_stream", parsed(STOP), "a stop string", stop="\nEND", **stream)
    spans = replace(TEXT, spans=(("7", 0, 2), ("8", 2, None)))
    yield case("versions", spans, "the weights changed within the reply: metadata, never ours")
    yield case(
        "own_logprobs",
        TOPS,
        "the agent asked for logprobs with alternatives",
        logprobs=True,
        top_logprobs=2,
    )
    yield case(
        "own_logprobs_stream",
        parsed(TOPS),
        "the agent's logprobs and its extra chunk stay",
        logprobs=True,
        top_logprobs=2,
        **stream,
    )
    own = dict(return_input_ids_in_sglext=True, return_output_ids_in_sglext=True)
    yield case("own_sglext", FIXED, "the agent asked for its own sglext: it stays", **own)
    yield case(
        "own_sglext_stream",
        parsed(FIXED),
        "its plain chunk of ids stays; no headers are sent",
        **own,
        **stream,
    )
    yield case(
        "routed_experts", FIXED, "no meta_info beside routed experts", return_routed_experts=True
    )
    yield case("breaks_stream", BREAKS, "a spaced error, no ids, then [DONE]", **stream)
    flat = {"object": "error", "message": "Messages cannot be empty.", "type": "BadRequestError"}
    refusal = script(fault=(400, pydantic(flat | {"param": None, "code": 400})))
    yield case("refused", refusal, "a flat error instead of a reply")
    stray = with_raw(parsed(TEXT), s1=': ping\n\nevent: sglext_new\ndata: {"sglext":{"x":1}}\n\n')
    yield case(
        "stray_events_stream", stray, "a comment and a named event that nobody knows", **stream
    )

    wire = dict(wire="completions")
    yield case("text", FIXED, "plain text", **wire)
    yield case(
        "text_stream",
        FIXED,
        "ids and logprobs chunk by chunk; usage keeps no nulls",
        **wire,
        **counted,
    )
    yield case(
        "utf8_stream", halves, "tokens as latin-1 characters of their bytes", **wire, **stream
    )
    batch = script(
        said(" a", T(13, " a", f32(-0.1)), finish="length"),
        said(" b", T(14, " b", -1e-05), finish="length", index=1),
        prompts=((1, 5), (1, 6, 7)),
    )
    yield case("batch", batch, "two prompts as lists of ids", prompt=[[1, 5], [1, 6, 7]], **wire)
    yield case(
        "own_logprobs_stream", TOPS, "the agent asked for logprobs", logprobs=1, **wire, **stream
    )
    yield case("breaks_stream", BREAKS, "a spaced error, then [DONE]", **wire, **stream)

    request = {"model": "m", "max_tokens": 64, "messages": USER}
    yield Case("sglang", "messages", "text", request, TEXT, "nothing can be asked for")
