"""Prompts that begin with what was sampled, before real vLLM and SGLang: `--continue exact`."""

import json
import sqlite3
import urllib.request

import openai
import pyarrow.parquet as pq
import pytest

import control
import harness
from servers import same, truth
from servers.measured import GREEDY, send
from servers.running import NAME
from test_servers import SCORE_ERROR_MAX

LETTERS = "theransio"
"""An answer of single letters hardly ever has the ids of its text."""
TURNS = 4

pytestmark = pytest.mark.timeout(900)


def ask(server, path, body):
    """What a server answers to a JSON body."""
    head = {"content-type": "application/json"}
    asked = urllib.request.Request(server.url + path, json.dumps(body).encode(), head)
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return json.load(reply)


def tokenize(server, text):
    """The ids of a text, as the server has them."""
    return ask(server, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]


def text_of(server, ids):
    """The text of ids, as the server has it."""
    told = ask(server, "/detokenize", {"tokens": ids, "skip_special_tokens": False})
    return told["prompt"] if server.kind.dialect == "vllm" else told["text"]


def only(server, letters):
    """The fields by which nothing else is sampled."""
    if server.kind.dialect == "vllm":
        return {"extra_body": {"allowed_token_ids": letters}}
    return {"logit_bias": {str(letter): 100 for letter in letters}}


def play(server, proxy, letters):
    """A conversation that is spelled letter by letter, and goes on plainly at its end."""
    messages = [{"role": "user", "content": "Find the number."}]
    spelled = only(server, letters) | {"temperature": 1.5}
    with openai.OpenAI(base_url=proxy.base_url("a"), api_key="k", max_retries=0) as agent:
        for turn in range(TURNS):
            asked = spelled if turn < TURNS - 1 else {"temperature": 1.0}
            asked |= {"model": NAME, "messages": messages, "max_tokens": 12, "seed": turn}
            if turn % 2:
                with agent.chat.completions.create(**asked, stream=True) as chunks:
                    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
                said = "".join(delta.content or "" for delta in deltas)
            else:
                said = agent.chat.completions.create(**asked).choices[0].message.content
            messages.append({"role": "assistant", "content": said})
            messages.append({"role": "user", "content": f"too low {turn}"})
    control.close(proxy, "a")


def reasons_of(proxy):
    """Why each recorded call did not go on from recorded ids, in their order; None where it did."""
    with sqlite3.connect(proxy.store) as store:
        rows = store.execute("SELECT continued FROM calls ORDER BY started_at").fetchall()
    return [json.loads(continued)["reason"] for (continued,) in rows]


def test_what_was_sampled_keeps_its_ids(takes_ids, tmp_path):
    server = takes_ids
    letters = [token for letter in LETTERS for token in tokenize(server, letter)]
    told = ("--upstream", server.url, *server.kind.told, "--continue", "exact")
    with harness.serve(tmp_path, *told) as proxy:
        play(server, proxy, letters)
        proxy.command("export", "--out", tmp_path / "out")
        reasons = reasons_of(proxy)
    if server.kind.name == "vllm-rust" and reasons[1] == "not_supported":
        # A frontend that does not know the field is left alone.
        assert reasons == ["no_parent", *["not_supported"] * (TURNS - 1)]
        return
    assert reasons == ["no_parent", *[None] * (TURNS - 1)]
    (row,) = pq.read_table(tmp_path / "out" / "trajectories.parquet").to_pylist()
    ids, last = row["input_ids"], row["turns"][-1]["start"]

    # Other ids than those of the text, and the server computed on them.
    assert tokenize(server, text_of(server, ids[:last])) != ids[:last]
    own = truth.score(server, ids, last)
    for recorded, scored in zip(row["logprobs"][last:], own, strict=True):
        assert recorded == pytest.approx(scored, abs=SCORE_ERROR_MAX)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
def test_greedy_replies_have_the_bytes_of_the_server(takes_ids, tmp_path, is_stream):
    server, messages = takes_ids, []
    told = ("--upstream", server.url, *server.kind.told, "--continue", "exact")
    with harness.serve(tmp_path, *told) as proxy:
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"Guess {turn}."})
            asked = {"model": NAME, "messages": messages, "stream": is_stream, **GREEDY}
            # One token has the ids of its text, so both prompts are the same. SGLang's logprobs
            # differ in their last bits from one reply to the next, whose prompt is in its cache.
            told = {"logprobs": True} if server.kind.dialect == "vllm" else {}
            body = json.dumps(asked | {"max_tokens": 1} | told).encode()
            direct = send(server.address, "/v1/chat/completions", body)
            through = send(proxy.data, "/e/a/v1/chat/completions", body)
            assert direct.status == 200, direct.body
            assert (same.equal_joined if is_stream else same.equal)(direct, through), through.body
            choices, _ = same.joined(direct) if is_stream else ({}, None)
            said = choices[0]["delta"] if is_stream else json.loads(direct.body)["choices"][0]["message"]
            messages.append({"role": "assistant", "content": said["content"]})
        reasons = reasons_of(proxy)
    if server.kind.name == "vllm-rust" and reasons[1] == "not_supported":
        return
    assert reasons == ["no_parent", *[None] * (TURNS - 1)]
