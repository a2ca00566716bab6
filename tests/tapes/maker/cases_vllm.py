"""vLLM: chat and text completions."""

from dataclasses import replace

from maker.case import Case
from maker.script import Step, T, f32
from maker.scripts import (
    BREAKS,
    CUT,
    END,
    FIXED,
    GUESS,
    HI,
    INTERLEAVED,
    LOW,
    QUOTED,
    STOP,
    TEXT,
    THINK,
    TOOLS,
    TOPS,
    TWO,
    UTF8,
    chat,
    said,
    script,
    swallowed,
    text,
    with_raw,
)
from maker.text import starlette


def vllm_chat():
    def case(short, base, shows, **fields):
        request = fields.pop("request", None) or chat(**fields)
        return Case("vllm", "chat", short, request, base, shows)

    stream = dict(stream=True)
    counted = {"stream": True, "stream_options": {"include_usage": True}}
    running = {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    odd = (
        '{ "model" : "m",\n  "logprobs": null, "messages":[{"role":"user","content":"\\u00e9 {\\"logprobs\\":1}"}],\n'
        '  "seed": 12345678901234567890, "temperature": 1.50E+0, "return_token_ids":false, "x":{"logprobs":1} }\n'
    )
    yield case("text", TEXT, "plain text; floats in Python's spelling")
    yield case(
        "text_stream", TEXT, "plain text; floats in serde's spelling; the same script", **stream
    )
    yield case("quoted_stream", QUOTED, "field names, quotes and braces inside the text", **stream)
    yield case("utf8_stream", UTF8, "half a character is a chunk only because of the ask", **stream)
    yield case("tools", TOOLS, "two calls after a text", tools=[GUESS])
    yield case(
        "tools_stream",
        TOOLS,
        "tags are swallowed: chunks with an empty delta",
        tools=[GUESS],
        **stream,
    )
    yield case(
        "interleaved_stream",
        INTERLEAVED,
        "two calls in one delta, pieces in turn",
        tools=[GUESS],
        **stream,
    )
    yield case("reasoning", THINK, "reasoning; usage has details")
    yield case("reasoning_stream", THINK, "reasoning; tags are swallowed", **counted)
    nulls = replace(
        THINK,
        steps=(
            *THINK.steps[:3],
            Step((T(84, "!", f32(-0.2)),), {"content": None, "reasoning": "!"}),
            *THINK.steps[3:],
        ),
    )
    yield case(
        "null_delta_stream", nulls, "a delta with an explicit null is no empty delta", **stream
    )
    yield case("two", TWO, "n=2, one of them cut by its length", n=2)
    yield case(
        "two_stream",
        TWO,
        "n=2: two first chunks with the prompt's ids, then interleaved",
        n=2,
        **stream,
    )
    yield case(
        "usage_stream", TEXT, "the agent's own usage chunk; the fingerprint moves there", **counted
    )
    yield case(
        "running_usage_stream",
        TOOLS,
        "running usage stays right where chunks go",
        tools=[GUESS],
        **running,
    )
    no_text = script(HI, said("!", T(0, "!", f32(-0.2))), said("", finish="stop"))
    yield case(
        "no_ids_at_the_end_stream",
        no_text,
        "the last chunk has no tokens: ids and logprobs are []",
        **stream,
    )
    merged = script(
        said("Hi there!", T(13, "Hi", f32(-0.1)), T(391, " there", -1.19e-07), T(0, "!", -1e-05)),
        Step((END,), {"content": ""}, finish="stop"),
    )
    yield case("merged_stream", merged, "a slow reader gets several tokens in one chunk", **stream)
    yield case(
        "stop_string_stream",
        STOP,
        "text is held back: empty contents, asked or not",
        stop=["\nEND"],
        **stream,
    )
    by_id = script(HI, Step((T(7, "?", f32(-0.2)),), {"content": ""}, finish="stop", stop=7))
    yield case(
        "stop_token_stream", by_id, "stopped by an id of the agent's", stop_token_ids=[7], **stream
    )
    yield case("low", LOW, "-9999.0 where a logprob is not known")
    yield case("low_stream", LOW, "an entry without a logprob at all, and -9999.0", **stream)
    asked = dict(logprobs=True, top_logprobs=2)
    yield case("own_logprobs", TOPS, "the agent asked for logprobs with alternatives", **asked)
    yield case(
        "own_logprobs_stream",
        replace(
            TOPS,
            steps=(*TOPS.steps[:1], swallowed(T(50, "<tool_call>", f32(-0.25))), *TOPS.steps[1:]),
            parsers=True,
        ),
        "the agent asked for logprobs: its empty deltas stay",
        **asked,
        **stream,
    )
    yield case(
        "own_ids_stream",
        TOOLS,
        "the agent asked for ids: its empty deltas stay",
        return_token_ids=True,
        tools=[GUESS],
        **stream,
    )
    every = dict(logprobs=True, return_token_ids=True, return_weight_versions=True)
    yield case(
        "own_all_stream", THINK, "the agent asked for all of it: nothing to hide", **every, **stream
    )
    yield case(
        "in_place",
        TEXT,
        "null and false are replaced where they stand, all else stays",
        request=odd,
    )
    spans = replace(TEXT, spans=(("7", 0, 2), ("8", 2, None)))
    yield case("versions_stream", spans, "the weights changed within the reply", **stream)
    yield case(
        "breaks_stream", BREAKS, "an error within the stream, compact, then [DONE]", **stream
    )
    body = {
        "message": "top_logprobs is too big",
        "type": "BadRequestError",
        "param": "top_logprobs",
        "code": 400,
    }
    refusal = script(fault=(400, starlette({"error": body})))
    yield case("refused", refusal, "an error instead of a reply", logprobs=True, top_logprobs=99)
    stray = with_raw(
        TEXT,
        s0=": keep-alive\n\n",
        s1='event: note\ndata: {"note":{"logprobs":[1]}}\n\n',
        s2=": keep-alive\n\n",
        s3='id: 7\nretry: 10\ndata: {"x_new":[1,2]}\n\n',
    )
    yield case(
        "stray_events_stream", stray, "comments, and events and fields that nobody knows", **stream
    )
    yield case("beam", TEXT, "beam search: nothing is asked for", use_beam_search=True)


def vllm_completions():
    def case(short, base, shows, **fields):
        return Case("vllm", "completions", short, text(**fields), base, shows)

    stream = dict(stream=True)
    batch = script(
        said(" a", T(13, " a", f32(-0.1)), finish="length"),
        said(" b", T(14, " b", f32(-0.2)), finish="length", index=1),
        said(" c", T(15, " c", f32(-0.3)), finish="length", index=2),
        said(" d", T(16, " d", f32(-0.4)), finish="length", index=3),
        prompts=((1, 5), (1, 6, 7)),
    )
    late = replace(batch, steps=tuple(batch.steps[i] for i in (2, 0, 3, 1)))
    yield case("text", FIXED, "plain text", max_tokens=3)
    yield case(
        "text_stream", FIXED, "prompt ids in the first chunk, versions in the last", **stream
    )
    yield case("utf8_stream", UTF8, "multi-byte text; offsets count characters", **stream)
    yield case("ids_prompt", CUT, "the prompt is a list of ids", prompt=[1, 5, 9])
    yield case(
        "batch",
        batch,
        "two prompts as lists of ids, n=2: prompt ids a choice",
        prompt=[[1, 5], [1, 6, 7]],
        n=2,
    )
    yield case(
        "batch_stream",
        late,
        "the same, in the order in which they end",
        prompt=["a", "b"],
        n=2,
        stream_options={"include_usage": True},
        **stream,
    )
    both = {"include_usage": True, "continuous_usage_stats": True}
    yield case("usage_stream", TWO, "n=2 with running usage", n=2, stream_options=both, **stream)
    yield case(
        "stop_string_stream", STOP, "text held back for a stop string", stop="\nEND", **stream
    )
    yield case(
        "low_stream",
        script(HI, said("!", T(0, "!", None)), said("?", T(7, "?", -9999.0), finish="length")),
        "a null and a -9999.0",
        **stream,
    )
    yield case(
        "own_logprobs", TOPS, "the agent asked for logprobs: two and the sampled one", logprobs=2
    )
    yield case("own_ids_stream", TEXT, "the agent asked for ids", return_token_ids=True, **stream)
    yield case("echo", CUT, "echo: nothing is asked for", echo=True)
    yield case("breaks_stream", BREAKS, "an error within the stream, spaced, then [DONE]", **stream)
    error = {
        "error": {
            "message": "prompt is empty",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        }
    }
    yield case(
        "refused", script(fault=(400, starlette(error))), "an error instead of a reply", prompt=""
    )
    alive = with_raw(FIXED, s0=": keep-alive\n\n", s1=": keep-alive\n\n")
    yield case("keep_alive_stream", alive, "comments between the chunks", **stream)
