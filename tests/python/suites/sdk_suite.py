"""Helpers of OpenAI's and Anthropic's Python packages, against rolltape's engine.

Their own tests need the hosted APIs. A step here calls a helper as its documentation does, and
looks at what the helper makes of the reply.
"""

import json
import time
from typing import Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from engine import Engine

MODEL = "tiny"
CHAT = [{"role": "user", "content": "Say a number."}]
WAIT_SECONDS = 30


class Move(BaseModel):
    """What replies are parsed into. Any number would fill the room of a reply."""

    number: Literal[1, 2, 3]
    certain: bool


@pytest.fixture(scope="module")
def url():
    engine = Engine(MODEL, ["--max-model-len", "8192", "--seed", "1"])
    yield f"http://127.0.0.1:{engine.port}"
    engine.stop()


@pytest.fixture
def gpt(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)


@pytest.fixture
def claude(url):
    return anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0)


def test_openai_chat_parse_returns_the_object(gpt):
    reply = gpt.chat.completions.parse(model=MODEL, messages=CHAT, response_format=Move)
    assert isinstance(reply.choices[0].message.parsed, Move)


def test_openai_chat_parse_returns_the_arguments_of_a_call(gpt):
    reply = gpt.chat.completions.parse(
        model=MODEL,
        messages=CHAT,
        tools=[openai.pydantic_function_tool(Move)],
        tool_choice="required",
    )
    assert isinstance(reply.choices[0].message.tool_calls[0].function.parsed_arguments, Move)


def test_openai_chat_stream_gives_events_and_the_final_completion(gpt):
    with gpt.chat.completions.stream(model=MODEL, messages=CHAT, max_tokens=8, seed=1) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds and "content.done" in kinds
    whole = gpt.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8, seed=1)
    assert final.choices[0].message.content == whole.choices[0].message.content


def test_openai_chat_stream_parses_what_it_streams(gpt):
    with gpt.chat.completions.stream(model=MODEL, messages=CHAT, response_format=Move) as stream:
        parsed = [event.parsed for event in stream if event.type == "content.done"]
    assert isinstance(parsed[0], Move)


def test_openai_chat_stream_assembles_the_arguments_of_a_call(gpt):
    tool = openai.pydantic_function_tool(Move)
    with gpt.chat.completions.stream(
        model=MODEL, messages=CHAT, tools=[tool], tool_choice="required"
    ) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
    assert isinstance(done[0].parsed_arguments, Move)


def test_openai_chat_parse_says_that_a_reply_was_cut(gpt):
    with pytest.raises(openai.LengthFinishReasonError):
        gpt.chat.completions.parse(
            model=MODEL, messages=CHAT, response_format=Move, max_tokens=2
        )


def test_openai_raw_replies_have_headers_and_the_same_object(gpt):
    raw = gpt.chat.completions.with_raw_response.create(model=MODEL, messages=CHAT, max_tokens=4)
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].finish_reason == "length"


def test_openai_streamed_replies_are_read_line_by_line(gpt):
    create = gpt.chat.completions.with_streaming_response.create
    with create(model=MODEL, messages=CHAT, max_tokens=4, stream=True) as reply:
        lines = [line for line in reply.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


def test_openai_models_are_paged_and_retrieved(gpt):
    names = [model.id for model in gpt.models.list()]
    assert gpt.models.retrieve(names[0]).id == MODEL


def test_openai_responses_parse_returns_the_object(gpt):
    reply = gpt.responses.parse(model=MODEL, input="Say a number.", text_format=Move)
    assert isinstance(reply.output_parsed, Move)


def test_openai_responses_stream_gives_the_final_response(gpt):
    with gpt.responses.stream(
        model=MODEL, input="Say a number.", text_format=Move, max_output_tokens=2000
    ) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_text == text and isinstance(final.output_parsed, Move)


def test_openai_responses_continue_each_other(gpt):
    first = gpt.responses.create(model=MODEL, input="One.", max_output_tokens=16)
    second = gpt.responses.create(
        model=MODEL, input="Two.", previous_response_id=first.id, max_output_tokens=16
    )
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens
    assert gpt.responses.retrieve(first.id).output_text == first.output_text


def test_openai_responses_in_the_background_are_polled(gpt):
    reply = gpt.responses.create(
        model=MODEL, input="One.", background=True, max_output_tokens=16
    )
    end = time.monotonic() + WAIT_SECONDS
    while reply.status in ("queued", "in_progress") and time.monotonic() < end:
        reply = gpt.responses.retrieve(reply.id)
    assert reply.status in ("completed", "incomplete") and reply.output_text


def test_openai_responses_parse_the_arguments_of_a_call(gpt):
    reply = gpt.responses.parse(
        model=MODEL,
        input="Say a number.",
        tools=[openai.pydantic_function_tool(Move)["function"] | {"type": "function"}],
        tool_choice="required",
    )
    calls = [item for item in reply.output if item.type == "function_call"]
    assert Move.model_validate_json(calls[0].arguments)


def test_anthropic_stream_gives_text_and_the_final_message(claude):
    with claude.messages.stream(model=MODEL, messages=CHAT, max_tokens=8) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(block.text for block in final.content if block.type == "text") == text
    assert final.usage.output_tokens > 0 and final.stop_reason


def test_anthropic_parse_returns_the_object(claude):
    reply = claude.messages.parse(
        model=MODEL, messages=CHAT, max_tokens=500, output_format=Move
    )
    assert isinstance(reply.parsed_output, Move)


def test_anthropic_stream_parses_what_it_streams(claude):
    with claude.messages.stream(
        model=MODEL, messages=CHAT, max_tokens=500, output_format=Move
    ) as stream:
        final = stream.get_final_message()
    assert isinstance(final.parsed_output, Move)


def test_anthropic_tool_runner_calls_the_function_and_sends_its_result(claude):
    called = []

    @anthropic.beta_tool
    def move(certain: bool) -> str:
        """Makes a move.

        Args:
            certain: what to say
        """
        called.append(certain)
        return "higher"

    runner = claude.beta.messages.tool_runner(
        model=MODEL,
        messages=CHAT,
        max_tokens=500,
        tools=[move],
        tool_choice={"type": "any"},
        max_iterations=2,
    )
    replies = list(runner)
    assert len(replies) == 2 and called
    assert all(reply.stop_reason == "tool_use" for reply in replies)


def test_anthropic_counts_what_it_is_charged_for(claude):
    count = claude.messages.count_tokens(model=MODEL, messages=CHAT)
    reply = claude.messages.create(model=MODEL, messages=CHAT, max_tokens=4)
    usage = reply.usage
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    assert count.input_tokens == usage.input_tokens + cached
    assert json.loads(reply.to_json())["type"] == "message"
