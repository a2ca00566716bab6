"""`rolltape doctor --episode` and `_forks.pq`: why a history forked, and what to change."""

import json
import sys

import pytest

import harness
from harness import MODEL, command

DONE, FOUND, USAGE = 0, 1, 2
TOKENIZER = MODEL / "tokenizer.json"
AGENT = """
import json, os, urllib.request

def chat(*messages):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    body = json.dumps({"model": "tiny", "messages": messages, "max_tokens": 24}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]

def user(text):
    return {"role": "user", "content": text}

first = user("It is 09:15. " + GAME)
said = chat(first)
again = chat(first, said, user("Higher."))
if CLOCK:
    first = user("It is 09:16. " + GAME)
chat(first, said, user("Higher."), again, user("Lower."))
"""
GAME = "Find the secret number from 1 to 7. You have 3 guesses."


@pytest.fixture(scope="module", params=[False, True], ids=["steady", "clock"])
def episode(request, tmp_path_factory):
    """A store with an episode, and whether the clock in its first message went on."""
    folder = tmp_path_factory.mktemp("episode")
    agent = f"GAME, CLOCK = {GAME!r}, {request.param!r}\n{AGENT}"
    store = folder / "run.db"
    options = ["--model", MODEL, "--store", store, "--episode", "e1"]
    ended = command("run", *options, "--", sys.executable, "-c", agent, folder=folder)
    assert ended.returncode == 0, ended.stderr
    return store, request.param


def doctor(store, *options):
    """The exit code and what is said."""
    ended = command("doctor", "--episode", "e1", "--store", store, *options, folder=store.parent)
    return ended.returncode, ended.stdout


def test_a_fork_is_told_with_its_cause_and_its_cost(episode):
    store, clock = episode
    code, told = doctor(store, "--json")
    found = json.loads(told)
    assert (found["verdict"], found["reasons"], found["calls"]) == ("exact", [], 3)
    assert (code, found["well"]) == ((FOUND, False) if clock else (DONE, True))
    assert len(found["forks"]) == clock
    for fork in found["forks"]:
        assert fork["cause"] == "nonce_or_date" and "fix the date" in fork["advice"]
        assert (fork["text_known"][:2], fork["text_sent"][:2]) == ("5.", "6.")
        assert fork["text_source"] == "messages" and not fork["in_sampled"]
        assert 0 < fork["lost_sampled_tokens"] < fork["lost_tokens"]


def test_a_tokenizer_shows_the_text_of_the_ids(episode):
    store, clock = episode
    _, told = doctor(store, "--json", "--tokenizer", TOKENIZER)
    for fork in json.loads(told)["forks"]:
        assert fork["text_source"] == "tokenizer"
        assert fork["text_before"].endswith("It is 09:1") and "<|im_start|>" in fork["text_before"]
    _, page = doctor(store)
    assert ("fork 1: #3" in page) == clock and "verdict   exact" in page


def test_a_tokenizer_is_named_by_its_file_or_its_folder(episode, tmp_path):
    store, _ = episode
    by_file, by_folder = (doctor(store, "--json", "--tokenizer", at) for at in (TOKENIZER, MODEL))
    assert by_file == by_folder and "tokenizer" in by_file[1] or not json.loads(by_file[1])["forks"]
    for number, path in enumerate((TOKENIZER, MODEL)):
        options = ["--store", store, "--out", tmp_path / str(number), "--tokenizer", path]
        ended = command("export", *options, folder=tmp_path)
        assert ended.returncode == 0, ended.stderr


def test_the_table_beside_an_export_says_the_same(episode):
    parquet = pytest.importorskip("pyarrow.parquet")
    store, _ = episode
    out = store.parent / "data"
    ended = command("export", "--out", out, "--store", store, "--overwrite", folder=store.parent)
    assert ended.returncode == 0, ended.stderr
    table = parquet.read_table(out / "_forks.pq").to_pylist()
    _, told = doctor(store, "--json")
    for row, fork in zip(table, json.loads(told)["forks"], strict=True):
        assert {name: row[name] for name in fork} == fork
    manifest = json.loads((out / "manifest.json").read_text())
    assert [file["rows"] for file in manifest["files"] if "forks" in file["path"]] == [len(table)]


def test_what_is_not_there_is_said(episode, tmp_path):
    store, _ = episode
    code, told = doctor(store, "--attempt", "7")
    assert (code, told) == (FOUND, "")
    bad = tmp_path / "tokenizer.json"
    bad.write_text("{}")
    assert doctor(store, "--tokenizer", bad)[0] == FOUND
    neither = command("doctor", folder=tmp_path, env=harness.environment())
    assert neither.returncode == USAGE and "--episode" in neither.stderr
