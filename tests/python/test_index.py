"""`rolltape index`: a search reads only the attempts that may hold the text."""

import json
import os
import sqlite3
import urllib.parse
import urllib.request

import openai
import pytest

import control
import harness


@pytest.fixture
def recorder(tmp_path):
    with harness.serve(tmp_path, "--model", harness.MODEL) as proxy:
        yield proxy


def say(proxy, episode, text):
    agent = openai.OpenAI(base_url=proxy.base_url(episode), api_key="k", max_retries=0)
    messages = [{"role": "user", "content": text}]
    agent.chat.completions.create(model="tiny", messages=messages, max_tokens=2, seed=1)


def search(proxy, text):
    url = f"http://{harness.text(proxy.control)}/search?q={urllib.parse.quote(text)}"
    request = urllib.request.Request(url, headers=control.headers_for(proxy.control))
    with urllib.request.urlopen(request, timeout=30) as reply:
        found = json.load(reply)
    return sorted(hit["episode_id"] for hit in found["hits"]), found["searched"]


def index(proxy):
    ended = harness.command("index", "--store", proxy.store, folder=proxy.store.parent)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_search_finds_the_same_with_an_index_as_without(recorder, tmp_path):
    texts = {"a": "The ANSWER is größe 42", "b": "an other\nanswer", "c": "nothing of it"}
    for episode, text in texts.items():
        say(recorder, episode, text)
    asked = ["answer", "GRÖSSE", "größe", "other\nans", "42", "no such word", "\"", "nothing of"]
    before = [search(recorder, text) for text in asked]
    assert "3 new attempts" in index(recorder)
    assert [search(recorder, text) for text in asked] == before
    assert before[0] == (["a", "b"], 3) and before[5] == ([], 3)
    assert "0 new attempts" in index(recorder)

    file = tmp_path / (recorder.store.name + "-text")
    assert os.stat(file).st_mode & 0o077 == 0


def test_what_was_said_since_is_found_and_indexed_by_the_search(recorder, tmp_path):
    say(recorder, "a", "before")
    index(recorder)
    say(recorder, "a", "afterwards and more")
    say(recorder, "b", "afterwards")
    assert search(recorder, "afterwards")[0] == ["a", "b"]

    file = tmp_path / (recorder.store.name + "-text")
    with sqlite3.connect(file) as connection:
        rows = connection.execute("SELECT calls FROM indexed ORDER BY episode_key").fetchall()
    assert rows == [(2,), (1,)]
    assert "0 new attempts" in index(recorder)


def test_a_file_that_is_no_index_is_not_used(recorder, tmp_path):
    say(recorder, "a", "a word")
    (tmp_path / (recorder.store.name + "-text")).write_text("not an index at all" * 100)
    assert search(recorder, "word") == (["a"], 1)
