"""llama.cpp."""

from dataclasses import replace

from maker.case import Case
from maker.script import Step, T, f32
from maker.scripts import (
    END,
    GUESS,
    HI,
    TEXT,
    THINK,
    TOOLS,
    TOPS,
    USER,
    chat,
    said,
    script,
    swallowed,
    text,
    with_raw,
)
from maker.text import nlohmann


def llama_all():
    def case(short, base, shows, wire="chat", **fields):
        request = chat(**fields) if wire == "chat" else text(**fields)
        return Case("llamacpp", wire, short, request, base, shows)

    stream = dict(stream=True)
    counted = {"stream": True, "stream_options": {"include_usage": True}}
    halves = script(
        said("数", T(60, "数", f32(-0.7))),
        said("😀", T(30, "", f32(-3.25)), T(31, "😀", f32(-0.125))),
        said("\u2028語", T(61, "\u2028語", f32(-0.9))),
        swallowed(replace(END, text=""), finish="stop"),
    )
    ended = lambda base: replace(
        base,
        steps=tuple(
            replace(s, tokens=(*s.tokens[:-1], replace(s.tokens[-1], text="")))
            if s.finish and s.tokens[-1].id == 2
            else s
            for s in base.steps
        ),
    )

    # Each step is one token here: this server has no merged deltas.
    def single(base):
        steps = []
        for s in base.steps:
            for at, token in enumerate(s.tokens):
                last = at == len(s.tokens) - 1
                steps.append(
                    replace(
                        s,
                        tokens=(token,),
                        finish=s.finish if last else None,
                        delta=s.delta if last else None,
                    )
                )
        return ended(replace(base, steps=tuple(steps)))

    hello = ended(TEXT)
    low = ended(
        script(HI, said("?", T(7, "?", -3.4028234663852886e38)), swallowed(END, finish="stop"))
    )
    stop = script(
        said("One", T(17, "One", f32(-0.1))),
        said(", two", T(20, ", two", f32(-0.4))),
        swallowed(T(18, "", f32(-0.2))),
        swallowed(T(21, "", f32(-0.5)), finish="stop"),
        notes={"cut": 2, "stop_type": "word", "word": "\nEND"},
    )
    yield case("text", hello, "logprobs and __verbose go; the ids are in __verbose")
    yield case("text_stream", hello, "ids in the entries; the last token's is lost", **stream)
    yield case("utf8", halves, "two tokens in one entry: the ids are complete, the logprobs not")
    yield case("utf8_stream", halves, "two tokens in one entry", **counted)
    yield case("tools", single(TOOLS), "two calls after a text", tools=[GUESS])
    yield case(
        "tools_stream", single(TOOLS), "swallowed text loses its entries", tools=[GUESS], **counted
    )
    yield case(
        "reasoning_stream", single(THINK), "the first entry is on the chunk with the role", **stream
    )
    yield case(
        "stop_string",
        stop,
        "a stop string is cut out of the logprobs, not of the ids",
        stop=["\nEND"],
    )
    yield case("low_stream", low, "the lowest float for a probability of zero", **stream)
    yield case(
        "own_logprobs",
        ended(TOPS),
        "the agent asked for logprobs: only __verbose goes",
        logprobs=True,
        top_logprobs=2,
    )
    yield case(
        "own_logprobs_stream",
        ended(TOPS),
        "the agent asked for logprobs: nothing is asked",
        logprobs=True,
        top_logprobs=2,
        **stream,
    )
    yield case(
        "breaks_stream",
        replace(hello, steps=(*hello.steps[:2], Step(error="Compute error."))),
        "an error within the stream, and no [DONE]",
        **stream,
    )
    body = {
        "code": 400,
        "message": "the request exceeds the available context size",
        "type": "exceed_context_size_error",
    }
    refusal = script(
        fault=(400, nlohmann({"error": body | {"n_prompt_tokens": 9000, "n_ctx": 4096}}))
    )
    yield case("refused", refusal, "an error instead of a reply")
    yield case(
        "ping_stream",
        with_raw(hello, s0=":\n\n", s2=":\n\n"),
        "comments between the chunks",
        **stream,
    )

    wire = dict(wire="completions")
    yield case("text", hello, "chat's entries on a text completion; null when not asked", **wire)
    yield case(
        "text_stream", hello, "every step is a chunk, the last token's too", **wire, **stream
    )
    yield case("utf8_stream", halves, "two tokens in one entry: an id is lost", **wire, **stream)
    yield case("own_logprobs", ended(TOPS), "the agent asked for logprobs", logprobs=2, **wire)
    yield case(
        "breaks_stream",
        replace(hello, steps=(*hello.steps[:2], Step(error="Compute error."))),
        "an error within the stream, and no [DONE]",
        **wire,
        **stream,
    )

    message = {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Be brief", "signature": ""},
            {"type": "text", "text": "I try."},
            {"type": "tool_use", "id": "call_a", "name": "guess", "input": {"n": 4}},
        ],
        "model": "m",
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"cache_read_input_tokens": 0, "input_tokens": 3, "output_tokens": 9},
    }
    one = {
        "index": 0,
        "token_ids": None,
        "logprobs": [],
        "finish_reason": "tool_calls",
        "stop_reason": None,
    }
    counts = {"usage": {"prompt": 3, "completion": 9}}
    told = {"choices": [one | {"versions": []}]} | counts
    yield Case(
        "llamacpp",
        "messages",
        "tools",
        {"model": "m", "max_tokens": 64, "messages": USER},
        script(),
        "nothing can be asked for",
        raw=("json", nlohmann(message)),
        facts=told,
    )
    reply = {
        "completed_at": 1763700000,
        "created_at": 1763700000,
        "id": "resp_1",
        "model": "m",
        "object": "response",
        "output": [
            {
                "content": [
                    {"type": "output_text", "annotations": [], "logprobs": [], "text": "Hi"}
                ],
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "type": "message",
            },
            {
                "id": "fc_a",
                "type": "function_call",
                "status": "completed",
                "arguments": '{"n":4}',
                "call_id": "fc_call_a",
                "name": "guess",
            },
        ],
        "status": "completed",
        "usage": {
            "input_tokens": 3,
            "output_tokens": 9,
            "total_tokens": 12,
            "input_tokens_details": {"cached_tokens": 0},
        },
    }
    yield Case(
        "llamacpp",
        "responses",
        "text",
        {"model": "m", "input": "Say hi."},
        script(),
        "nothing comes back, so nothing is asked",
        raw=("json", nlohmann(reply)),
        facts=told,
    )
