"""`rolltape scan`: secrets that agents said, wherever they are recorded."""

import base64
import contextlib
import hashlib
import json
import random

import openai
import pytest

import harness

KEY = "sk-ant-api03-" + "a1B2c3D4e5" * 4
TOKEN = "ghp_" + "a1B2c3D4e5f6" * 3
PASSWORD = "postgres://me:hunter22@db.example/prod"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A store with secrets in a message, in the arguments of a call and beside the messages."""
    folder = tmp_path_factory.mktemp("scan")
    with harness.serve(folder, "--model", harness.MODEL) as proxy:
        tool_call = {
            "id": "call-1",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": f"psql {PASSWORD}"})},
        }
        for name, messages, extra in (
            ("said", [{"role": "user", "content": f"The key is {KEY}."}], {}),
            (
                "called",
                [
                    {"role": "user", "content": "Look."},
                    {"role": "assistant", "content": None, "tool_calls": [tool_call]},
                    {"role": "tool", "tool_call_id": "call-1", "content": "(3 rows)"},
                ],
                {},
            ),
            ("beside", [{"role": "user", "content": "Go."}], {"user": TOKEN}),
            ("clean", [{"role": "user", "content": "A task-force of sk-learn."}], {}),
        ):
            agent = openai.OpenAI(base_url=proxy.base_url(name), api_key="k", max_retries=0)
            agent.chat.completions.create(
                model="tiny", messages=messages, max_tokens=4, seed=1, **extra
            )
        yield proxy.store


def scan(store, *words):
    """The exit code, and the findings by episode."""
    ended = harness.command("scan", "--json", "--store", store, *words, folder=store.parent)
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert all(secret not in ended.stdout for secret in (KEY, TOKEN, "hunter22"))
    return ended.returncode, {one["episode_id"]: one for one in found}


def test_secrets_are_found_where_they_are(recorded):
    code, found = scan(recorded)
    assert code == 1 and set(found) == {"said", "called", "beside"}
    assert found["said"]["kind"] == "Anthropic key"
    assert found["said"]["places"] == ["message", "body"]
    assert found["called"]["kind"] == "password in a URL"
    assert found["beside"]["kind"] == "GitHub token" and found["beside"]["places"] == ["body"]


def test_ids_are_read_with_a_tokenizer(recorded):
    _, found = scan(recorded, "--tokenizer", harness.MODEL)
    assert found["said"]["places"] == ["message", "body", "ids"]


def test_an_episode_without_a_secret_ends_with_0(recorded):
    assert scan(recorded, "--episode", "clean") == (0, {})


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    """A store with secrets in code, and with one in several events of a stream."""
    folder = tmp_path_factory.mktemp("encoded")
    code = {
        "base64": base64.b64encode(f"TOKEN={TOKEN}\n".encode()).decode(),
        "hex": TOKEN.encode().hex(),
        "percent": "".join(f"%{byte:02X}" for byte in TOKEN.encode()),
        "escaped": "".join(f"\\u{byte:04x}" for byte in TOKEN.encode()),
        "image": base64.b64encode(random.Random(7).randbytes(50_000)).decode(),
        "hash": hashlib.sha512(b"x").hexdigest(),
    }
    with harness.serve(folder, "--model", harness.MODEL) as proxy:
        for name, content in code.items():
            agent = openai.OpenAI(base_url=proxy.base_url(name), api_key="k", max_retries=0)
            with contextlib.suppress(openai.APIStatusError):
                agent.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": content}], max_tokens=1
                )
        yield proxy.store


def test_a_secret_in_code_is_found_and_what_is_none_is_not(encoded):
    code, found = scan(encoded)
    assert code == 1
    assert {name: one["kind"] for name, one in found.items()} == {
        "base64": "GitHub token in base64",
        "hex": "GitHub token in hex",
        "percent": "GitHub token in URL escapes",
        "escaped": "GitHub token in JSON escapes",
    }

