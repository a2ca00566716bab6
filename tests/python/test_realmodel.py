"""A real, trained model in the engine: SmolLM2-135M-Instruct, beside transformers.

What transformers makes of the cases is in `realmodel/golden.json`, which `realmodel/golden.py`
makes; in the step `trainers` it is made anew and compared. `realmodel/install.sh` fetches the model
(93 MB); without it the tests are skipped, unless ROLLTAPE_REALMODEL=required.
"""

import json
import os
import sys
from pathlib import Path

import pytest
from openai import OpenAI

import harness
import test_trainers

FOLDER = Path(__file__).resolve().parent / "realmodel"
HOME = Path(os.environ.get("ROLLTAPE_REALMODEL_HOME", FOLDER / ".fetched"))
MODEL = HOME / "model"
sys.path.append(str(FOLDER))

import cases  # noqa: E402

GOLDEN = json.loads((FOLDER / "golden.json").read_text())
LOGPROB_ERROR_MAX = 1e-4
"""The engine computes in 32-bit floats, the golden file has 64-bit ones."""
SEEDS = (1, 2)
PARSERS = ("--tool-call-parser", "hermes", "--reasoning-parser", "think")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        not (HOME / ".installed").exists() and os.environ.get("ROLLTAPE_REALMODEL") != "required",
        reason="realmodel/install.sh has not been run",
    ),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """An engine with the model."""
    (address,) = harness.free_addresses(1)
    where = ("--model", MODEL, "--listen", harness.text(address), "--device", "cpu")
    bounds = ("--max-model-len", "1024", "--kv-cache-memory", "512MiB")
    folder = tmp_path_factory.mktemp("real")
    process = harness.Process("engine", *where, *bounds, *PARSERS, folder=folder)
    try:
        process.url = f"http://{harness.text(address)}"
        process.await_answer(f"{process.url}/health")
        yield process
        process.end_well()
    finally:
        process.kill()


@pytest.fixture(scope="module")
def client(engine):
    """OpenAI's client, which talks to it."""
    with OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def asked(client, path, **body):
    """The reply to a request of no OpenAI route."""
    url = str(client.base_url).removesuffix("/v1/")
    return client.post(f"{url}{path}", body=body, cast_to=object)


def chat(client, name, **options):
    """A reply to one of the chats."""
    given = dict(cases.CHATS[name])
    for field in ("add_generation_prompt", "continue_final_message"):
        if field in given:
            options.setdefault("extra_body", {})[field] = given.pop(field)
    options.setdefault("extra_body", {})["return_token_ids"] = True
    options = {"temperature": 0, "max_tokens": cases.REPLY_TOKENS, "logprobs": True, **options}
    return client.chat.completions.create(model="model", **given, **options)


def logprobs_of(choice):
    """The logprob of each token of a reply to a chat."""
    return [token.logprob for token in choice.logprobs.content]


def close(found, golden):
    """True if logprobs are those of the golden file."""
    pairs = zip(found, golden, strict=True)
    return max(abs(one - other) for one, other in pairs) <= LOGPROB_ERROR_MAX


def test_texts_have_the_ids_of_transformers(client):
    for text, ids, decoded in zip(cases.TEXTS, GOLDEN["texts"], GOLDEN["decoded"], strict=True):
        found = asked(client, "/tokenize", model="model", prompt=text, add_special_tokens=False)
        assert found["tokens"] == ids, text
        assert asked(client, "/detokenize", model="model", tokens=ids)["prompt"] == decoded, text


@pytest.mark.parametrize("name", cases.CHATS)
def test_chats_are_rendered_as_by_transformers(client, name):
    found = asked(client, "/tokenize", model="model", **cases.CHATS[name])
    assert found["tokens"] == GOLDEN["chats"][name]["ids"]
    text = asked(client, "/detokenize", model="model", tokens=found["tokens"])["prompt"]
    assert text == GOLDEN["chats"][name]["text"]


@pytest.mark.parametrize("name", cases.GREEDY)
def test_greedy_replies_are_those_of_transformers(client, name):
    golden = GOLDEN["greedy"][name]
    reply = chat(client, name)
    (choice,) = reply.choices
    assert reply.prompt_token_ids == GOLDEN["chats"][name]["ids"]
    assert choice.token_ids == golden["ids"]
    assert close(logprobs_of(choice), golden["logprobs"])


@pytest.mark.parametrize("number", range(len(cases.SCORED)))
def test_every_token_of_a_text_has_the_logprob_of_transformers(client, number):
    golden = GOLDEN["scored"][number]
    extra = {"prompt_logprobs": 1}
    reply = client.completions.create(
        model="model", prompt=golden["ids"], max_tokens=1, extra_body=extra
    )
    first, *rest = reply.choices[0].prompt_logprobs
    assert first is None
    told = [row[str(id)]["logprob"] for row, id in zip(rest, golden["ids"][1:], strict=True)]
    assert close(told, golden["logprobs"])
    best = [max(token["logprob"] for token in row.values()) for row in rest]
    assert close(best, golden["best"])


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_sampled_has_the_same_bits_when_it_is_scored(client, seed):
    options = {"temperature": 1, "seed": seed, "max_tokens": 32}
    reply = chat(client, "question", **options)
    (choice,) = reply.choices
    whole = [*reply.prompt_token_ids, *choice.token_ids]
    scored = client.completions.create(
        model="model", prompt=whole, max_tokens=1, extra_body={"prompt_logprobs": 0}
    )
    rows = scored.choices[0].prompt_logprobs[len(reply.prompt_token_ids) :]
    again = [row[str(id)]["logprob"] for row, id in zip(rows, choice.token_ids, strict=True)]
    assert again == logprobs_of(choice)


def test_a_tool_that_is_required_is_called(client, engine):
    required = chat(client, "given tools", tool_choice="required", max_tokens=64)
    (call,) = required.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    # The template has no place for tools, which is told once.
    assert engine.stderr.count("has no place for them") == 1


def test_a_thought_that_the_prompt_begins_goes_on_in_the_reply(client):
    message = chat(client, "continued thought").choices[0].message
    text = asked(
        client, "/detokenize", model="model", tokens=GOLDEN["greedy"]["continued thought"]["ids"]
    )["prompt"]
    thought, _, answer = text.removesuffix("<|im_end|>").partition("</think>")
    assert message.reasoning.strip() == thought.strip() != ""
    assert (message.content or "").strip() == answer.strip()


def test_turns_go_on_from_what_was_sampled(client):
    """Text that is sent back would have other ids here and there; the prompt has the sampled
    ones."""
    messages = [{"role": "user", "content": "Write a limerick about a cat, with emoji."}]
    before = []
    for seed in range(3):
        options = {"temperature": 1.5, "seed": seed, "max_tokens": 24, "model": "model"}
        extra = {"return_token_ids": True}
        reply = client.chat.completions.create(messages=messages, extra_body=extra, **options)
        (choice,) = reply.choices
        assert reply.prompt_token_ids[: len(before)] == before
        before = [*reply.prompt_token_ids, *choice.token_ids]
        said = {"role": "assistant", "content": choice.message.content}
        messages += [said, {"role": "user", "content": "Go on."}]


class TestTrainers:
    """What needs transformers."""

    pytestmark = test_trainers.pytestmark

    def test_transformers_still_says_what_the_golden_file_has(self, tmp_path):
        found = test_trainers.run(FOLDER / "golden.py", "check", MODEL, folder=tmp_path)
        assert found["differences"] == [], found["made_by"]
