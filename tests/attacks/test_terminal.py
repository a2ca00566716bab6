"""Terminals: text of a model, an agent, an upstream or a store never drives one."""

import json
import os
import pty
import re
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

import harness
import hostile
import http1

OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Characters that a terminal obeys, or that hide what stands there."""
EVIL = (
    "\x1b]0;owned\x07 \x1b[2J\x1b]52;c;cm0gLXJm\x07 \x9b31m\x9d0;owned\x9c\x85\x7f\x00\x08\r "
    "\u202egnp.exe\u2066 \u2028\u2029 \U000e0041\U000e007f"
)
FORGED = "\nrolltape: all is well"
"""A line that passes for a message of rolltape's own."""
LONG_S = 20


def document(text):
    """A reply that says a text wherever a reply says any."""
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": text}}
    message = {"role": "assistant", "content": text, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": text}
    return {**hostile.REPLY, "model": text, "system_fingerprint": text, "choices": [choice]}


def answer(request):
    """A list of one hostile model; a hostile error for one path; else a hostile reply."""
    if b"models" in request.path.encode():
        models = [{"id": EVIL + FORGED, "object": "model", "owned_by": EVIL, "root": EVIL}]
        return hostile.reply({"object": "list", "data": models})
    if b"fail" in request.body:
        return hostile.reply({"error": {"message": EVIL + FORGED}}, status="400 Bad Request")
    return hostile.reply(document(EVIL + FORGED))


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A proxy in front of a hostile server, with calls of a hostile agent."""
    with hostile.Stage(tmp_path_factory.mktemp("stage")) as stage:
        proxy = stage("--dialect", "openai", answer=answer)
        asked = {"role": "user", "content": EVIL + FORGED, "name": EVIL}
        for body in (
            {"model": EVIL + FORGED, "messages": [asked]},
            {"model": "m", "messages": [{"role": EVIL, "content": [{"text": EVIL}]}]},
            {"model": "m", "messages": [asked], "user": "fail"},
        ):
            hostile.post(proxy, "/e/evil/v1/chat/completions", body)
        tags = [("x-episode-id", "evil"), ("x-episode-tag", "key=\u009b31m")]
        hostile.post(proxy, "/v1/chat/completions?x=%1b[2J", headers=tags)
        yield proxy


@pytest.fixture(scope="module")
def store(stage, tmp_path_factory):
    """The store of these calls."""
    copy = tmp_path_factory.mktemp("store") / "copy.db"
    stage.command("backup", "--to", copy)
    return copy


def said(*words, folder, codes=(0,)):
    """What a command says on stdout and stderr."""
    words = [harness.binary(), *map(str, words)]
    env = harness.environment()
    ended = subprocess.run(words, cwd=folder, env=env, capture_output=True, timeout=LONG_S)
    assert ended.returncode in codes, ended
    return ended.stdout.decode(), ended.stderr.decode()


def assert_safe(*texts):
    """Checks that a terminal shows a text as it is, and that no line is forged."""
    for text in texts:
        assert not OBEYED.search(text), OBEYED.search(text)
        assert not [line for line in text.split("\n") if line.startswith(FORGED.strip())], text


COMMANDS = [
    ("show", "evil"),
    ("show", "evil", "--json"),
    ("show", "evil", "--full"),
    ("show", "evil", "--tree"),
    ("show", "evil", "--turn", "1"),
    ("show", "evil", "--turn", "1", "--json"),
    ("show", "evil", "--turn", "1", "--raw"),
    ("show", "evil", "--turn", "1", "--tokens"),
    ("stats",),
    ("stats", "--json"),
    ("diff", "evil", "evil"),
    ("sql", "SELECT * FROM messages JOIN calls USING (call_id)"),
    ("sql", "--json", "SELECT * FROM messages"),
    ("episodes",),
    ("episodes", "--json"),
    ("verify",),
    ("verify", "--json"),
    ("doctor", "--episode", "evil"),
    ("doctor", "--episode", "evil", "--json"),
    ("prune", "--episode", "evil", "--dry-run"),
    ("export", "--out", "out", "--format", "calls"),
    ("export", "--out", "json", "--format", "calls", "--json"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_lets_recorded_text_drive_the_terminal(store, tmp_path, words):
    out, err = said(*words, "--store", store, folder=tmp_path, codes=(0, 1))
    assert out
    assert_safe(out, err)


COLORS = re.compile(r"\x1b\[[0-9;]*m")
"""What sets a color, and nothing else."""


@pytest.mark.parametrize("words", [("show", "evil", "--full"), ("show", "evil"), ("episodes",)])
def test_no_color_lets_recorded_text_drive_the_terminal(store, tmp_path, words):
    out, _ = said(*words, "--color", "always", "--store", store, folder=tmp_path)
    colored = COLORS.findall(out)
    assert colored and "\x1b[31mb" not in out
    assert_safe(COLORS.sub("", out))


def test_the_lines_of_calls_do_not_drive_the_terminal(serve):
    proxy = serve("--dialect", "openai", answer=answer)
    for body in ({"model": EVIL + FORGED, "messages": []}, {"model": "m", "user": "fail"}):
        hostile.post(proxy, "/e/evil/v1/chat/completions?x=%1b[2J", body)
    until = time.monotonic() + LONG_S
    while proxy.process.stderr.count(" evil ") < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert proxy.process.stderr.count(" evil ") == 2, proxy.process.stderr
    assert_safe(proxy.process.stderr)


def test_the_tree_shows_the_text_that_it_escapes(store, tmp_path):
    out, _ = said("show", "evil", "--store", store, folder=tmp_path)
    assert "\\u001b]0;owned\\u0007" in out


def calls(store, folder):
    """The calls of the episode, each as `show --call` prints it."""
    turns, _ = said("show", "evil", "--json", "--store", store, folder=folder)
    ids = {json.loads(line)["call_id"] for line in turns.splitlines()}
    where = ("--store", store)
    return [said("show", "evil", "--call", id, *where, folder=folder)[0] for id in ids]


def test_a_call_in_full_is_safe_and_means_what_was_recorded(store, tmp_path):
    found = calls(store, tmp_path)
    assert_safe(*found)
    replies = [json.loads(json.loads(text)["reply"]) for text in found]
    told = [reply["choices"][0]["message"]["content"] for reply in replies if "choices" in reply]
    assert told and set(told) == {EVIL + FORGED}


def test_raw_bytes_of_a_body_are_shown_as_escapes(serve, tmp_path):
    raw = '{"model":"m","messages":[{"role":"user","content":"\u009b31m\u202e\x7f"}]}'.encode()
    proxy = serve(answer=lambda request: hostile.reply(document("\u009b31m\u2028")))
    hostile.post(proxy, "/e/evil/v1/chat/completions", raw)
    (call,) = calls(proxy.store, tmp_path)
    assert_safe(call)
    assert json.loads(call)["request"].encode() == raw


def on_terminal(words, folder):
    """What a command shows on a terminal."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [harness.binary(), *map(str, words)],
        cwd=folder,
        env=harness.environment(),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    shown = bytearray()
    try:
        while piece := os.read(ours, 1 << 16):
            shown += piece
    except OSError:  # the terminal has no other end any more
        pass
    os.close(ours)
    assert child.wait(LONG_S) == 0
    # The terminal itself returns the carriage.
    return shown.replace(b"\r\n", b"\n").decode()


def test_rows_that_are_printed_to_a_terminal_do_not_drive_it(store, tmp_path):
    words = ("export", "--out", "-", "--format", "calls", "--encoding", "jsonl", "--store", store)
    out = on_terminal(words, tmp_path)
    assert_safe(out)
    piped, _ = said(*words, folder=tmp_path)
    shown, meant = ([json.loads(line) for line in text.split("\n")[:-1]] for text in (out, piped))
    assert shown == meant != []


def test_the_report_on_a_hostile_upstream_does_not_drive_the_terminal(stage, tmp_path):
    where = ("doctor", "--upstream", stage.upstream.url)
    for words in (where, (*where, "--json")):
        out, err = said(*words, folder=tmp_path, codes=(0, 1))
        assert "owned" in out
        assert_safe(out, err)


def test_an_error_that_quotes_a_server_cannot_pass_for_a_message(tmp_path):
    refusal = hostile.reply({"error": {"message": EVIL + FORGED}}, status="500 Sorry")
    server = hostile.Upstream(lambda request: refusal)
    for words in (
        ("run", "--control", server.url, "--", "true"),
        ("feed", "--control", server.url),
    ):
        _, err = said(*words, folder=tmp_path, codes=(1,))
        assert "owned" in err
        assert_safe(err)
    server.stop()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE call SET outcome = ?",
        "UPDATE call SET method = ?, path = ?",
        "UPDATE call SET requested_model = ?, reply_model = ?",
        "UPDATE episode SET episode_id = ?",
        "UPDATE episode SET group_id = ?, task_id = ?",
        "UPDATE episode SET status = ?, closed_at = 1",
        "UPDATE episode SET source = ?",
        "UPDATE choice SET finish_reason = ?",
    ],
)
def test_a_store_that_somebody_else_made_does_not_drive_the_terminal(store, tmp_path, statement):
    copy = tmp_path / "theirs.db"
    copy.write_bytes(store.read_bytes())
    with sqlite3.connect(copy) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        changed = connection.execute(statement, [EVIL + FORGED] * statement.count("?"))
        assert changed.rowcount > 0
    connection.close()
    for words in (("episodes",), ("show", "evil"), ("verify",), ("episodes", "--json")):
        out, err = said(*words, "--store", copy, folder=tmp_path, codes=(0, 1))
        assert_safe(out, err)


def test_the_log_does_not_drive_the_terminal(serve):
    proxy = serve(answer=answer, env=harness.environment(ROLLTAPE_LOG="trace"))
    hostile.post(proxy, "/e/evil/v1/chat/completions", {"model": EVIL + FORGED, "messages": []})
    head = b"GET /v1/\x1b[2J HTTP/1.1\r\nhost: x\r\n\r\n"
    http1.exchange(proxy.data, head)
    err = Path(proxy.process._log).read_text(errors="replace")
    assert err and not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", err)
