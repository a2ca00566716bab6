"""OpenAI, hosted, and servers like it."""

from dataclasses import replace

from maker.case import Case
from maker.script import Step, T, f32
from maker.scripts import (
    BREAKS,
    END,
    GUESS,
    INTERLEAVED,
    TEXT,
    TOOLS,
    TOPS,
    TWO,
    UTF8,
    chat,
    script,
    swallowed,
    with_raw,
)
from maker.text import data, pretty


def openai_all():
    def case(short, base, shows, opted_in=True, **fields):
        more = {k: fields.pop(k) for k in ("frame", "refused") if k in fields}
        return Case("openai", "chat", short, chat(**fields), base, shows, opted_in=opted_in, **more)

    stream = dict(stream=True)
    counted = {"stream": True, "stream_options": {"include_usage": True}}
    no = script(
        Step((T(90, "I", f32(-0.1)),), {"refusal": "I"}),
        Step((T(91, " can't.", f32(-0.2)),), {"refusal": " can't."}),
        swallowed(END, finish="stop"),
    )
    hello = replace(TEXT, steps=(*TEXT.steps[:-1], swallowed(END, finish="stop")))
    yield case("text", hello, "indented JSON; logprobs to null")
    yield case("text_stream", hello, "plain text", **stream)
    yield case(
        "not_opted_in_stream",
        hello,
        "nothing is asked for unless the user opts in",
        opted_in=False,
        **stream,
    )
    yield case(
        "utf8",
        replace(UTF8, steps=UTF8.steps[:1] + UTF8.steps[2:]),
        "escapes where other servers write raw text",
    )
    yield case("tools", TOOLS, "calls have no entries: logprobs of the text alone", tools=[GUESS])
    yield case(
        "interleaved_stream", INTERLEAVED, "two calls, pieces in turn", tools=[GUESS], **counted
    )
    yield case("refusal", no, "the entries are under refusal")
    yield case("refusal_stream", no, "the entries are under refusal", **stream)
    yield case("two_stream", TWO, "n=2 with a usage chunk and null usages", n=2, **counted)
    yield case(
        "own_logprobs_stream",
        TOPS,
        "the agent asked for logprobs",
        logprobs=True,
        top_logprobs=2,
        **stream,
    )
    stray = with_raw(
        hello, s0=": OPENROUTER PROCESSING\n\n", s2='event: ping\ndata: {"type":"ping"}\n\n'
    )
    yield case("stray_events_stream", stray, "comments and an unknown event", **stream)
    extra = with_raw(
        hello,
        s1=data(
            '{"provider":"x","choices":[{"index":0,"delta":{"content":"","x":[{}]},'
            '"native_finish_reason":null,"logprobs":null,"finish_reason":null}],"obfuscation":"aZ"}'
        ),
    )
    yield case("stray_fields_stream", extra, "fields that nobody knows", **stream)
    yield case("crlf_stream", stray, "lines end in CRLF", frame="crlf", **stream)
    yield case("tight_stream", hello, "no space after `data:`", frame="tight", **stream)
    broken = replace(BREAKS, steps=(*BREAKS.steps[:-1], Step(error="The server had an error")))
    yield case("breaks_stream", broken, "an error within the stream, and no [DONE]", **stream)
    error = {
        "message": "Unsupported parameter: 'logprobs' is not supported with this model.",
        "type": "invalid_request_error",
    }
    refusal = pretty({"error": error | {"param": "logprobs", "code": "unsupported_parameter"}})
    yield case(
        "reasoning_model",
        hello,
        "refused because of what was asked: the agent's own body is sent again",
        refused=(400, refusal),
    )
    limit = {
        "message": "Rate limit reached",
        "type": "tokens",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    yield case(
        "limited_stream",
        script(fault=(429, pretty({"error": limit}))),
        "an error instead of a stream",
        **stream,
    )

    ended = '{"type":"response.completed","sequence_number":3,"response":{"id":"resp_1","object":"response","status":"completed","output":[{"id":"msg_1","type":"message","status":"completed","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"Hi"}],"role":"assistant"}],"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":0},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":5}}}'
    events = (
        data(
            '{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","output":[],"usage":null}}',
            "response.created",
        )
        + data(
            '{"type":"response.output_text.delta","sequence_number":1,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"Hi","logprobs":[],"obfuscation":"k3"}',
            "response.output_text.delta",
        )
        + data('{"type":"response.new_thing","sequence_number":2}', "response.new_thing")
        + data(ended, "response.completed")
    )
    one = {
        "index": 0,
        "token_ids": None,
        "logprobs": [],
        "finish_reason": "stop",
        "stop_reason": None,
        "versions": [],
    }
    yield Case(
        "openai",
        "responses",
        "text_stream",
        {"model": "m", "input": "Say hi.", "stream": True},
        script(),
        "nothing is asked for",
        raw=("sse", events),
        facts={"choices": [one], "usage": {"prompt": 3, "completion": 2}},
    )
