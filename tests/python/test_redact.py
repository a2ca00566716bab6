"""`rolltape redact`: a copy of a store without the secrets in it, words and ids alike."""

import json

import openai
import pyarrow.parquet as parquet
import pytest

import harness
from test_scan import KEY, PASSWORD, TOKEN, recorded  # noqa: F401

SECRETS = (KEY, TOKEN, "hunter22")


def redact(store, to, *words):
    return harness.command("redact", "--json", "--store", store, "--to", to, *words, folder=to.parent)


def rows(store, folder, name):
    out = folder / name
    ended = harness.command("export", "--store", store, "--out", out, folder=folder)
    assert ended.returncode == 0, ended.stderr
    return parquet.read_table(out / "trajectories.parquet")


@pytest.fixture(scope="module")
def decode():
    """What ids of the tiny model say, byte by byte as its vocabulary spells them."""
    document = json.loads((harness.MODEL / "tokenizer.json").read_text())
    spelled = {id: text for text, id in document["model"]["vocab"].items()}
    spelled |= {token["id"]: token["content"] for token in document["added_tokens"]}
    return lambda ids: "".join(spelled[id] for id in ids).replace("Ġ", " ").replace("Ċ", "\n")


@pytest.fixture(scope="module")
def redacted(recorded, tmp_path_factory):  # noqa: F811
    """The recorded store, the copy of it, and what the command reported."""
    folder = tmp_path_factory.mktemp("redact")
    to = folder / "clean.db"
    ended = redact(recorded, to, "--tokenizer", harness.MODEL)
    assert ended.returncode == 0, ended.stderr
    return recorded, to, json.loads(ended.stdout)


def test_nothing_is_found_in_the_copy(redacted):
    store, clean, report = redacted
    assert report["secrets"] == {
        "Anthropic key": 1,
        "GitHub token": 1,
        "password in a URL": 1,
    }
    words = ("scan", "--store", clean, "--tokenizer", harness.MODEL)
    ended = harness.command(*words, folder=clean.parent)
    assert ended.returncode == 0, ended.stdout
    calls = harness.command(
        "export", "--store", clean, "--format", "calls", "--encoding", "jsonl", "--out", "-",
        folder=clean.parent,
    )
    assert calls.returncode == 0
    for secret in SECRETS:
        assert secret not in calls.stdout and secret.encode() not in clean.read_bytes()


def test_the_copy_is_whole_and_says_what_it_is(redacted):
    _, clean, report = redacted
    verified = harness.command("verify", "--store", clean, folder=clean.parent)
    assert verified.returncode == 0, verified.stdout
    listed = harness.command("episodes", "--json", "--store", clean, folder=clean.parent)
    labels = {
        one["episode_id"]: one["labels"] for one in map(json.loads, listed.stdout.splitlines())
    }
    assert labels["clean"] == {} and labels["said"] == {"redacted": "1 call"}
    assert (report["episodes"], report["changed_episodes"]) == (4, 3)


def test_ids_keep_their_places_and_say_the_mark_of_none(redacted, decode):
    store, clean, _ = redacted
    before, after = (
        {row["episode_id"]: row for row in rows(path, clean.parent, name).to_pylist()}
        for path, name in ((store, "before"), (clean, "after"))
    )
    assert before["clean"] == after["clean"]

    old, new = before["said"], after["said"]
    assert len(old["input_ids"]) == len(new["input_ids"])
    differ = [at for at, (a, b) in enumerate(zip(old["input_ids"], new["input_ids"])) if a != b]
    assert KEY in decode(old["input_ids"])
    hidden = decode([old["input_ids"][at] for at in differ])
    assert KEY in hidden and len(hidden) < len(KEY) + 16
    assert KEY[:12] not in decode(new["input_ids"])
    assert new["prompt"][-1]["content"] == "The key is [redacted Anthropic key]."
    assert "redacted" in new["reasons"] and new["verdict"] == "usable"


def test_a_store_without_secrets_gives_the_same_rows(recorded, tmp_path):  # noqa: F811
    to = tmp_path / "clean.db"
    ended = redact(recorded, to, "--tokenizer", harness.MODEL, "--episode", "clean")
    assert ended.returncode == 0 and json.loads(ended.stdout)["changed_calls"] == 0
    only = ("--episode", "clean")
    for store, name in ((recorded, "a.parquet"), (to, "b.parquet")):
        words = ("export", "--store", store, "--out", tmp_path / name, *only)
        assert harness.command(*words, folder=tmp_path).returncode == 0
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_ids_that_nobody_reads_are_refused_or_left_out(recorded, tmp_path):  # noqa: F811
    to = tmp_path / "clean.db"
    refused = redact(recorded, to)
    assert refused.returncode == 1 and "--drop-ids" in refused.stderr and not to.exists()
    assert redact(recorded, to, "--drop-ids").returncode == 0
    table = rows(to, tmp_path, "rows")
    assert all(len(ids) == 0 for ids in table["input_ids"].to_pylist())


def test_rules_and_spans_of_the_user_are_secrets(recorded, tmp_path, decode):  # noqa: F811
    shown = harness.command("show", "clean", "--json", "--store", recorded, folder=tmp_path)
    turn = json.loads(shown.stdout.splitlines()[0])
    (tmp_path / "rules").write_text("# names\nfolder: sk-learn\n")
    to = tmp_path / "clean.db"
    ended = redact(
        recorded, to, "--tokenizer", harness.MODEL, "--episode", "clean",
        "--rules", tmp_path / "rules", "--match", "task-(force)",
        "--span", f"{turn['call_id']}:0-2",
    )
    assert ended.returncode == 0, ended.stderr
    (row,) = rows(to, tmp_path, "rows").to_pylist()
    assert row["prompt"][0]["content"] == "A task-[redacted match] of [redacted folder]."
    start = row["turns"][0]["start"]
    assert row["loss_mask"][start : start + 2] == [0, 0] and sum(row["loss_mask"]) > 0
    assert len(set(row["input_ids"][start : start + 2])) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--match", "("), "is no regular expression"),
        (("--match", "x*"), "matches an empty text"),
        (("--match", "."), "would be left"),
        (("--span", "nothing"), "CALL:12-20"),
        (("--episode", "none"), "no episode matches"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_left(recorded, tmp_path, words, said):  # noqa: F811
    to = tmp_path / "clean.db"
    ended = redact(recorded, to, "--tokenizer", harness.MODEL, *words)
    assert ended.returncode != 0 and said in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_never_overwritten(recorded, tmp_path):  # noqa: F811
    to = tmp_path / "clean.db"
    to.write_text("mine")
    assert "exists already" in redact(recorded, to, "--drop-ids").stderr
    assert to.read_text() == "mine"


def comment(proxy, **said):
    body = json.dumps({"comments": [{"episode_id": "said", "author": "ada", **said}]})
    where = ("--control", harness.text(proxy.control), "--store", proxy.store)
    words = ("control", "POST", "/annotations", *where, "--json", body)
    ended = harness.command(*words, folder=proxy.store.parent)
    assert ended.returncode == 0, ended.stderr


def test_a_secret_in_the_store_itself_is_gone_from_every_byte_of_it(tmp_path):
    with harness.serve(tmp_path, "--model", harness.MODEL) as proxy:
        store = proxy.store
        for name, content in (("said", f"The key is {KEY}."), ("clean", "A task-force.")):
            agent = openai.OpenAI(base_url=proxy.base_url(name), api_key="k", max_retries=0)
            agent.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": content}], max_tokens=4
            )
        comment(proxy, text=f"who pasted {TOKEN}?", score=0)
        harness.command("reward", "said", "1", "--store", store, folder=tmp_path)
        words = ("--in-place", "--store", store, "--tokenizer", harness.MODEL)
        refused = harness.command("redact", *words, folder=tmp_path)
        assert refused.returncode == 1 and "stop the server" in refused.stderr, refused.stderr
    before = rows(store, tmp_path, "before").to_pylist()
    raw = [TOKEN.encode()]
    assert all(secret in store.read_bytes() for secret in raw)

    ended = harness.command("redact", "--json", *words, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["changed_episodes"], report["changed_calls"]) == (1, 1)
    for path in tmp_path.glob("*"):
        held = path.is_file() and any(secret in path.read_bytes() for secret in raw)
        assert not held, path
    assert not list(tmp_path.glob(".redact-*"))
    scanned = harness.command(
        "scan", "--store", store, "--tokenizer", harness.MODEL, folder=tmp_path
    )
    assert scanned.returncode == 0, scanned.stdout
    assert harness.command("verify", "--store", store, folder=tmp_path).returncode == 0

    after = rows(store, tmp_path, "after").to_pylist()
    of = lambda table, name: next(row for row in table if row["episode_id"] == name)  # noqa: E731
    assert of(after, "clean") == of(before, "clean")
    assert of(after, "said")["reward"] == 1 and "redacted" in of(after, "said")["reasons"]
    given = json.loads(of(after, "said")["rewards"])[0]
    assert (given["given_by"], given["given_from"]) == ("command", "file")
    shown = harness.command("show", "said", "--store", store, folder=tmp_path)
    assert "ada scores 0: who pasted [redacted GitHub token]?" in shown.stdout

    again = harness.command("redact", "--json", *words, folder=tmp_path)
    assert json.loads(again.stdout)["changed_episodes"] == 0
