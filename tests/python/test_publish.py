"""`rolltape publish`: a folder for a dataset hub, without secrets, that readers of a hub read."""

import json
import os

import openai
import pytest
from datasets import load_dataset

import harness

WORD = "a1B2c3D4e5f6g7H8i9J0"
SECRETS = {
    "private key": f"-----BEGIN RSA PRIVATE KEY-----\n{WORD * 3}\n-----END RSA PRIVATE KEY-----",
    "Anthropic key": f"sk-ant-api03-{WORD * 2}",
    "OpenRouter key": "sk-or-v1-" + "0123456789abcdef" * 4,
    "OpenAI key": f"sk-proj-{WORD * 2}",
    "AWS key id": "AKIAA1B2C3D4E5F6G7H8",
    "AWS secret key": f"AWS_SECRET_ACCESS_KEY={WORD * 2}",
    "GitHub token": f"ghp_{WORD}{WORD[:16]}",
    "GitLab token": f"glpat-{WORD}",
    "Slack token": f"xoxb-123456789012-{WORD}",
    "Slack hook": f"https://hooks.slack.com/services/TABCDEF01/BABCDEF01/{WORD}abcd",
    "Google key": f"AIza{WORD}{WORD[:15]}",
    "Google token": f"ya29.{WORD * 2}",
    "Stripe key": f"sk_live_{WORD}abcd",
    "Hugging Face token": f"hf_{WORD}{WORD[:14]}",
    "npm token": f"npm_{WORD}{WORD[:16]}",
    "PyPI token": f"pypi-{WORD * 3}",
    "SendGrid key": f"SG.{WORD}ab.{WORD * 2}abc",
    "Telegram token": f"123456789:AA{WORD}{WORD[:13]}",
    "DigitalOcean token": "dop_v1_" + "0123456789abcdef" * 4,
    "Databricks token": "dapi" + "0123456789abcdef" * 2,
    "Azure storage key": f"AccountKey={WORD * 4}abcdef==",
    "JSON web token": f"eyJ{WORD}.eyJ{WORD}.{WORD}",
    "password in a URL": "postgres://me:correct-horse-battery@db.example/prod",
    "bearer token": f"Authorization: Bearer {WORD}{WORD[:12]}",
}


def hidden(secret):
    """The part of a planted secret that must be nowhere: its last 12 characters of the secret."""
    return secret.removesuffix("@db.example/prod").removesuffix("-----END RSA PRIVATE KEY-----")[-13:]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """One episode a kind of secret: in a message, in a tool's arguments, and in a tool's result."""
    folder = tmp_path_factory.mktemp("publish")
    with harness.serve(folder, "--model", harness.MODEL) as proxy:
        for at, (kind, secret) in enumerate(SECRETS.items()):
            arguments = json.dumps({"command": f"echo '{secret}' > key"})
            call = {"name": "bash", "arguments": arguments}
            messages = [
                {"role": "system", "content": "You are helpful."},
                {"role": "user", "content": f"Use {secret} here."},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c1", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": f"wrote {secret}"},
            ]
            agent = openai.OpenAI(
                base_url=proxy.base_url(f"secret-{at}"), api_key="k", max_retries=0
            )
            for turn in range(2):
                reply = agent.chat.completions.create(
                    model="tiny", messages=messages, max_tokens=4, seed=turn
                )
                messages += [
                    {"role": "assistant", "content": reply.choices[0].message.content},
                    {"role": "user", "content": "Go on."},
                ]
        yield proxy.store


@pytest.fixture(scope="module")
def published(recorded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    ended = harness.command(
        "publish", "--json", "--store", recorded, "--out", folder / "agents",
        "--tokenizer", harness.MODEL, "--license", "cc-by-4.0", folder=folder,
    )
    assert ended.returncode == 0, ended.stderr
    return folder / "agents", json.loads(ended.stdout)


def test_no_planted_secret_is_left_in_words_or_ids(published):
    folder, report = published
    assert set(report["secrets"]) == set(SECRETS)
    rows = load_dataset(str(folder), split="train").to_list()
    assert len(rows) == len(SECRETS)

    document = json.loads((harness.MODEL / "tokenizer.json").read_text())
    spelled = {id: text for text, id in document["model"]["vocab"].items()}
    spelled |= {token["id"]: token["content"] for token in document["added_tokens"]}
    texts = [json.dumps(rows, default=str)]
    texts += ["".join(spelled[id] for id in row["input_ids"]) for row in rows]
    texts += [path.read_text() for path in folder.rglob("*.jsonl")]
    texts.append((folder / "README.md").read_text())
    for kind, secret in SECRETS.items():
        assert all(hidden(secret) not in text for text in texts), kind


def test_rows_are_whole_and_say_why_they_are_not_exact(published):
    folder, _ = published
    for row in load_dataset(str(folder), split="train").to_list():
        assert len(row["turns"]) == 2 and "redacted" in row["reasons"]
        assert "[redacted " in row["prompt"][1]["content"]
        assert len(row["input_ids"]) == len(row["loss_mask"]) == len(row["logprobs"])


def test_a_session_has_the_form_of_agent_traces(published):
    folder, _ = published
    session = folder / "sessions" / "secret-5-0.jsonl"
    header, *entries = map(json.loads, session.read_text().splitlines())
    assert (header["type"], header["version"], header["id"]) == ("session", 3, "secret-5/0")
    roles = [entry.get("message", entry).get("role", entry["type"]) for entry in entries]
    expected = ["custom_message", "user", "assistant", "toolResult", "assistant", "user", "assistant"]
    assert roles == expected
    assert [entry["parentId"] for entry in entries] == [None] + [e["id"] for e in entries[:-1]]
    assert entries[3]["message"]["toolName"] == "bash"

    from datasets.packaged_modules.json.json import parse_traces_info

    harness_name, name, prompt, _, users, calls = parse_traces_info(
        session.read_text().splitlines()
    )
    assert (harness_name, name, users, calls) == ("pi", "secret-5/0", 2, 1)
    assert prompt.startswith("Use AWS_SECRET_ACCESS_KEY=[redacted AWS secret key] here")


def test_the_card_says_what_it_is_and_the_folder_is_its_owners(published):
    folder, report = published
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlicense: cc-by-4.0\ntags:\n- agent-traces\n")
    assert "| GitHub token | 1 |" in card and "rolltape" in card
    assert "--private" in report["upload"]
    for path in (folder, folder / "sessions", *folder.rglob("*")):
        assert os.stat(path).st_mode & 0o077 == 0, path
    assert [path.name for path in folder.parent.iterdir()] == ["agents"]


def test_what_is_there_is_never_replaced(recorded, tmp_path):
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "mine").write_text("x")
    words = ("publish", "--store", recorded, "--out", tmp_path / "agents", "--drop-ids")
    ended = harness.command(*words, folder=tmp_path)
    assert ended.returncode == 1 and "exists already" in ended.stderr
    assert (tmp_path / "agents" / "mine").read_text() == "x"
