"""The scripts and requests that cases share."""

from dataclasses import replace

from maker.script import Script, Step, T, f32

USER = [{"role": "user", "content": "Say hi."}]
GUESS = {
    "type": "function",
    "function": {
        "name": "guess",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
}
FLAT = {"type": "function", "name": "guess", "parameters": GUESS["function"]["parameters"]}
END = T(2, "<|im_end|>", f32(-0.015625))
PROMPT = ((1, 5, 9),)
TEXTS = ("<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n",)


def script(*steps, **more):
    return Script(prompts=more.pop("prompts", PROMPT), steps=steps, texts=TEXTS, **more)


def said(text, *tokens, **more):
    return Step(tokens, {"content": text}, **more)


def swallowed(*tokens, **more):
    return Step(tokens, None, **more)


def tools(*pieces, tokens=(), **more):
    return Step(tokens, {"tools": list(pieces)}, **more)


HI = said("Hi", T(13, "Hi", f32(-0.1)))
TEXT = script(
    HI,
    said(" there", T(391, " there", -1.19e-07)),
    said("!", T(0, "!", -1e-05)),
    swallowed(END, finish="stop"),
)
QUOTED = script(
    said(
        'He said "logprobs": null',
        T(40, "He", f32(-0.3)),
        T(41, ' said "logprobs": null', f32(-1.7)),
    ),
    said("\n\\ {[/]}\u007f", T(42, "\n\\ {[/]}\u007f", f32(-2.2))),
    swallowed(END, finish="stop"),
)
# One emoji in two tokens, CJK, a line separator.
UTF8 = script(
    said("数", T(60, "数", f32(-0.7))),
    swallowed(T(30, "", f32(-3.25), raw=())),
    said("😀", T(31, "😀", f32(-0.125))),
    said("\u2028語é", T(61, "\u2028語", f32(-0.9)), T(62, "é", f32(-0.05))),
    swallowed(END, finish="stop"),
)
TOOLS = script(
    said("I try.", T(70, "I", f32(-0.2)), T(71, " try.", f32(-0.4))),
    swallowed(T(50, "<tool_call>", f32(-0.25))),
    tools(
        (0, "call_a", "guess", ""), tokens=(T(51, '{"name": "guess", "arguments": ', f32(-0.5)),)
    ),
    tools((0, None, None, '{"n": '), tokens=(T(52, '{"n": ', f32(-0.01)),)),
    tools((0, None, None, "4}"), tokens=(T(53, "4", f32(-1.5)), T(54, "}", f32(-0.02)))),
    swallowed(T(55, "</tool_call>", f32(-1e-3))),
    swallowed(T(50, "<tool_call>", f32(-0.25))),
    tools(
        (1, "call_b", "guess", '{"n": '),
        tokens=(T(51, '{"name": "guess", "arguments": ', f32(-0.5)),),
    ),
    tools((1, None, None, "6}"), tokens=(T(56, "6", f32(-2.5)), T(54, "}", f32(-0.02)))),
    swallowed(T(55, "</tool_call>", f32(-1e-3))),
    swallowed(END, finish="tool_calls"),
    parsers=True,
)
# Two calls in one delta, then their pieces in turn.
INTERLEAVED = script(
    swallowed(T(50, "<tool_call>", f32(-0.25))),
    tools(
        (0, "call_a", "guess", ""),
        (1, "call_b", "guess", ""),
        tokens=(T(57, "guess guess", f32(-0.5)),),
    ),
    tools((1, None, None, '{"n":'), tokens=(T(52, '{"n":', f32(-0.01)),)),
    tools((0, None, None, '{"n":'), tokens=(T(52, '{"n":', f32(-0.03)),)),
    tools((0, None, None, "4}"), (1, None, None, "6}"), tokens=(T(58, "4}6}", f32(-0.75)),)),
    swallowed(T(55, "</tool_call>", f32(-1e-3))),
    swallowed(END, finish="tool_calls"),
    parsers=True,
)
THINK = script(
    swallowed(T(80, "<think>", f32(-1e-4))),
    Step((T(81, "Be", f32(-0.6)),), {"reasoning": "Be"}),
    Step((T(82, " brief", f32(-0.8)),), {"reasoning": " brief"}),
    swallowed(T(83, "</think>", f32(-0.03))),
    said("Hi", T(13, "Hi", f32(-0.1))),
    swallowed(END, finish="stop"),
    parsers=True,
    reasoning_tokens=4,
)
TWO = script(
    said("Hi", T(13, "Hi", f32(-0.1)), index=1),
    said("Hey", T(14, "Hey", f32(-1.1))),
    said(" you", T(15, " you", f32(-0.9))),
    swallowed(END, index=1, finish="stop"),
    said(" all", T(16, " all", f32(-2.9)), finish="length"),
)
STOP = script(
    said("One", T(17, "One", f32(-0.1))),
    said("", T(18, "\n", f32(-0.2))),
    said(", two", T(19, ",", f32(-0.3)), T(20, " two", f32(-0.4))),
    said("", T(18, "\n", f32(-0.2)), T(21, "END", f32(-0.5)), finish="stop", stop="\nEND"),
)
CUT = script(HI, said(" there", T(391, " there", -1.19e-07), finish="length"))
TOPS = script(
    said("Hi", T(13, "Hi", f32(-0.5), ("Hey", f32(-0.9)), ("Yo", f32(-3.5)))),
    said("!", T(0, "!", f32(-1.25), (".", f32(-1.0)), ("?", f32(-4.0)))),
    swallowed(replace(END, top=(("<pad>", -9999.0),)), finish="stop"),
)
LOW = script(
    HI, said("?", T(7, "?", -9999.0)), said("!", T(0, "!", None)), swallowed(END, finish="stop")
)
BREAKS = script(
    HI, said(" there", T(391, " there", f32(-0.5))), Step(error="Internal server error")
)
FIXED = script(HI, said("!", T(0, "!", -1e-05)), said("", END, finish="stop"))


def with_raw(base, **at):
    """The steps of `base` with `raw` texts put before the step of a number, `s0`, `s1`, ..."""
    steps = []
    for number, step in enumerate(base.steps):
        if f"s{number}" in at:
            steps.append(Step(raw=at[f"s{number}"]))
        steps.append(step)
    return replace(base, steps=tuple(steps))


def chat(**fields):
    return {"model": "m", "messages": USER, **fields}


def text(**fields):
    return {"model": "m", "prompt": "Say hi.", **fields}


def stops(base, *values):
    """SGLang names the id of the token that ended a choice."""
    steps = tuple(
        replace(s, stop=s.tokens[-1].id)
        if s.finish in ("stop", "tool_calls") and s.stop is None
        else s
        for s in base.steps
    )
    return replace(base, steps=steps)
