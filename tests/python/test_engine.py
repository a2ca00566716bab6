"""The engine alone: real clients of OpenAI's API, TRL's client, and transformers on its weights."""

import json
import shutil
import time

import openai
import pytest
from openai import OpenAI

import control
import harness
import test_trainers

QUESTION = "Find the secret number from 1 to 7. You have 3 guesses."
ASK = [{"role": "user", "content": QUESTION}]
INTEGER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
GUESS = {"type": "function", "function": {"name": "guess", "parameters": INTEGER}}
LOGITS_DIFFERENCE_MAX = 1e-4
RANDOM_HYBRID_MAX = 2e-4
STEPS = 200
MIXTURE = harness.MODEL.with_name("tiny-moe")
REPLAY_ERROR_MAX = 1e-5
OTHER_EXPERTS_ERROR_MIN = 1e-3
needs_trainers = test_trainers.pytestmark


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """An engine of its own, which says the same in each run where a call has no seed."""
    with harness.engine(tmp_path_factory.mktemp("engine"), "--seed", "1") as running:
        yield running


@pytest.fixture(scope="module")
def client(address):
    """OpenAI's client, which talks to it."""
    url = f"http://{harness.text(address)}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client):
    """The name of the model."""
    return client.models.list().data[0].id


def test_a_chat_is_the_same_whole_and_streamed(client, model):
    options = {"model": model, "messages": ASK, "tools": [GUESS], "seed": 3, "max_tokens": 40}
    whole = client.chat.completions.create(**options).choices[0]
    with client.chat.completions.stream(**options) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    assert streamed.message.content == (whole.message.content or "")
    assert streamed.finish_reason == whole.finish_reason
    calls = [[c.function.arguments for c in m.message.tool_calls or []] for m in (whole, streamed)]
    assert calls[0] == calls[1]


def test_a_tool_that_is_required_is_called(client, model):
    choices = ("required", {"type": "function", "function": {"name": "guess"}})
    for choice in choices:
        reply = client.chat.completions.create(
            model=model, messages=ASK, tools=[GUESS], tool_choice=choice, max_tokens=200
        )
        (call,) = reply.choices[0].message.tool_calls
        assert call.function.name == "guess"
        assert isinstance(json.loads(call.function.arguments)["n"], int)


def test_a_reply_keeps_to_its_schema(client, model):
    schema = {"name": "point", "strict": True, "schema": {**INTEGER, "additionalProperties": False}}
    asked = {"type": "json_schema", "json_schema": schema}
    options = {"messages": ASK, "n": 4, "temperature": 1.5, "max_tokens": 200}
    # A number may be longer than a reply, in one reply of three.
    replies = [
        client.chat.completions.create(model=model, seed=seed, response_format=asked, **options)
        for seed in range(4)
    ]
    choices = [choice for reply in replies for choice in reply.choices]
    ended = [choice for choice in choices if choice.finish_reason == "stop"]
    assert len(ended) >= len(choices) / 4
    for choice in ended:
        found = json.loads(choice.message.content)
        assert list(found) == ["n"] and isinstance(found["n"], int)


def test_the_responses_wire_is_the_same_whole_and_streamed(client, model):
    options = {"model": model, "input": QUESTION, "max_output_tokens": 30, "temperature": 0}
    whole = client.responses.create(**options)
    with client.responses.stream(**options) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    assert streamed.output_text == whole.output_text != ""
    assert streamed.usage == whole.usage


def test_ids_in_make_the_same_tokens_as_text(client, model, address):
    options = {"model": model, "max_tokens": 16, "seed": 9, "logprobs": 0}
    extra = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    by_text = client.completions.create(prompt="guess 4", extra_body=extra, **options).choices[0]
    ids = by_text.prompt_token_ids
    by_ids = client.completions.create(prompt=ids, extra_body=extra, **options).choices[0]
    assert by_ids.token_ids == by_text.token_ids
    assert by_ids.logprobs.token_logprobs == by_text.logprobs.token_logprobs
    assert by_ids.logprobs.tokens == [f"token_id:{id}" for id in by_ids.token_ids]


def test_an_image_and_an_unknown_model_are_refused_by_name(client, model):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(openai.BadRequestError, match="image"):
        content = [{"type": "text", "text": "what is this?"}, image]
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": content}])
    with pytest.raises(openai.NotFoundError, match="gpt-5"):
        client.chat.completions.create(model="gpt-5", messages=ASK)


def test_tools_that_the_template_leaves_out_are_told_once(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(harness.MODEL, folder)
    turn = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    plain = "{% for m in messages %}" + turn + "{% endfor %}<|im_start|>assistant\n"
    (folder / "chat_template.jinja").write_text(plain)
    (address,) = harness.free_addresses(1)
    url = f"http://{harness.text(address)}"
    where = ("--model", folder, "--listen", harness.text(address))
    where = (*where, "--tool-call-parser", "hermes")
    process = harness.Process("engine", *where, folder=tmp_path)
    try:
        process.await_answer(f"{url}/health")
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            ask = lambda **tools: client.chat.completions.create(
                model="model", messages=ASK, max_tokens=1, **tools
            )
            ask()
            assert "no place" not in process.stderr
            lengths = [ask(tools=[GUESS]).usage.prompt_tokens for _ in range(2)]
            assert lengths == [ask().usage.prompt_tokens] * 2
        assert process.stderr.count("has no place for them") == 1
        told = harness.command("doctor", "--upstream", url, "--json", folder=tmp_path).stdout
        assert any("no place for tools" in note for note in json.loads(told)["notes"])
        process.end_well()
    finally:
        process.kill()


def test_the_memory_of_the_cache_is_told_at_the_start(tmp_path):
    for given, told in (
        ((), "at most a quarter of the machine's memory; --kv-cache-memory sets it"),
        (("--kv-cache-memory", "3MiB"), "the KV cache grows to 3.0 MiB, "),
    ):
        (address,) = harness.free_addresses(1)
        where = ("--model", harness.MODEL, "--listen", harness.text(address), "--device", "cpu")
        process = harness.Process("engine", *where, *given, folder=tmp_path)
        try:
            process.await_answer(f"http://{harness.text(address)}/health")
            assert told in process.stderr
            process.end_well()
        finally:
            process.kill()


def test_what_a_closed_episode_alone_had_in_the_cache_goes_first(tmp_path):
    # Twelve pages of sixteen tokens: two prompts of five pages are kept, and a third one takes six.
    memory = 12 * 16 * 2 * 32 * 4 * 3
    bounds = ("--kv-cache-memory", str(memory), "--max-model-len", "112", "--device", "cpu")

    def cached(proxy, episode, number):
        url = proxy.base_url(episode)
        with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            ids = [(7 * i + 31 * number) % 300 + 1 for i in range(81)]
            reply = client.completions.create(model="tiny", prompt=ids, max_tokens=1)
            return reply.usage.prompt_tokens_details.cached_tokens

    for closes, found in ((False, 16), (True, 80)):
        folder = tmp_path / str(closes)
        folder.mkdir()
        with harness.serve(folder, "--model", harness.MODEL, *bounds) as proxy:
            assert [cached(proxy, name, at) for at, name in enumerate(("old", "new"))] == [0, 0]
            if closes:
                control.close(proxy, "new")
                # The engine is told, but nobody is told when it was.
                time.sleep(1)
            assert cached(proxy, "next", 2) == 0
            assert cached(proxy, "old", 0) == found, f"closes: {closes}"


def test_memory_of_the_host_is_for_a_gpu(tmp_path):
    where = ("--model", harness.MODEL, "--kv-host-memory", "1GiB", "--device", "cpu")
    refused = harness.command("engine", *where, folder=tmp_path)
    assert refused.returncode == 1
    assert "on the CPU keys and values are in the host's memory already" in refused.stderr


class TestTrainers:
    """What needs the trainers' environment."""

    pytestmark = needs_trainers

    def test_trl_s_own_client_samples_and_scores(self, address, tmp_path):
        url = f"http://{harness.text(address)}"
        found = test_trainers.run("client.py", url, folder=tmp_path)
        for part in ("ids", "plain", "chat"):
            for ids, logprobs in zip(
                found[part]["completion_ids"], found[part]["logprobs"], strict=True
            ):
                assert len(ids) == len(logprobs) > 0
            assert len(found[part]["completion_ids"]) == 6
        assert all(len(top) == 1 for one in found["plain"]["logprobs"] for top in one)
        assert all(4 <= len(top) <= 5 for one in found["ids"]["logprobs"] for top in one)
        # Scored again as a prompt, the tokens have the logprobs that they were sampled with.
        sampled = [top[0] for top in found["plain"]["logprobs"][0]]
        scored = [top[0] for top in found["scored"]["actual_logprobs"][0]]
        for a, b in zip(sampled, scored, strict=True):
            assert b == float("-inf") or a == b

    def test_the_logits_are_those_of_transformers(self, tmp_path):
        found = test_trainers.run("families.py", harness.binary(), tmp_path, folder=tmp_path)
        assert len(found) == 13
        for name, numbers in found.items():
            # Random hybrids are worse conditioned, for transformers in f32 as well.
            most = LOGITS_DIFFERENCE_MAX
            if "qwen3.5" in name:
                most = max(RANDOM_HYBRID_MAX, 2 * numbers["f32_difference_max"])
            assert numbers["logits_difference_max"] <= most, (name, numbers)
            assert numbers["prompt_logprobs_difference_max"] <= most, (name, numbers)
            assert numbers["greedy_equal"] == STEPS, (name, numbers)
            if name != "tiny-hybrid":
                assert numbers["greedy_distinct"] > STEPS / 10, (name, numbers)
        assert found["tiny-hybrid"]["logits_difference_max"] <= LOGITS_DIFFERENCE_MAX / 5
        assert found["qwen3-yarn"]["shards"] > 1

    def test_experts_of_exported_rows_are_replayed_in_transformers(self, tmp_path):
        with harness.serve(tmp_path, "--model", MIXTURE, "--routed-experts") as proxy:
            play(proxy.base_url("played"))
            for episode in range(3):
                ramble(proxy.base_url(f"rambled-{episode}"), seed=episode)
            out = ("--out", "rows", "--encoding", "jsonl", "--kind", "main", "--json")
            report = json.loads(proxy.command("export", *out))
            traces = test_trainers.export(proxy, "verifiers-traces", tmp_path)[0]
        assert report["rows"] == 4
        read = test_trainers.read_all({"verifiers-traces": traces}, tmp_path)["verifiers-traces"]
        assert "error" not in read, read["error"]
        assert read["routed"] > read["ids"] > 100
        file = tmp_path / report["files"][0]
        found = test_trainers.run("replay.py", MIXTURE, file, folder=tmp_path)
        assert found["rows"] == 4 and found["tokens"] > 100
        assert found["worst"]["replayed"] <= REPLAY_ERROR_MAX, found
        # The dense layer has no experts; the others have those of the engine's own pass.
        assert found["differing"]["own"] <= found["experts"] / 1000, found
        assert found["differing"]["version"] > 0, found
        assert found["worst"]["version"] >= OTHER_EXPERTS_ERROR_MIN, found


def ramble(base_url, seed):
    """A reply to a prompt that the model was not trained on: none of its tokens is certain."""
    ids = [(7 * i * i + 13 * i + seed) % 380 for i in range(40)]
    with OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        options = {"prompt": ids, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
        client.completions.create(model="tiny-moe", seed=seed, **options)


def play(base_url):
    """A chat of several turns whose agent asks for no experts and is told of none."""
    messages = list(ASK)
    with OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        for turn in range(3):
            options = {"model": "tiny-moe", "messages": messages, "seed": 3}
            if turn == 1:
                options |= {"stream": True}
            reply = client.chat.completions.create(**options, max_tokens=24)
            messages += answered(reply, streamed=turn == 1)


def answered(reply, streamed):
    """The reply of a turn as a message, and the user's next one."""
    if streamed:
        chunks = [choice for chunk in reply for choice in chunk.choices]
        assert all("routed_experts" not in choice.model_extra for choice in chunks)
        text = "".join(choice.delta.content or "" for choice in chunks)
    else:
        assert reply.choices[0].model_extra.get("routed_experts") is None
        text = reply.choices[0].message.content or ""
    return [{"role": "assistant", "content": text}, {"role": "user", "content": "lower"}]
