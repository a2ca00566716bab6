"""The commands that show a recording to people, on a store and on the server that records."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import time

import openai
import pytest

import harness
import upstream

SAID = "A word — and ✓."
POEM = "\n".join(f"Line {number} of a long poem" for number in range(40))
LATE_S = 20


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A recorder with an episode of three turns and one of two."""
    with harness.serve(tmp_path_factory.mktemp("show"), "--model", harness.MODEL) as proxy:
        talk(proxy, "run-1", ["Hello", POEM, "Third"])
        talk(proxy, "run-2", ["Hello", "Else"])
        yield proxy


def talk(proxy, episode, texts):
    """Turns of one conversation."""
    agent = openai.OpenAI(base_url=proxy.base_url(episode), api_key="k", max_retries=0)
    messages = []
    for text in texts:
        messages.append({"role": "user", "content": text})
        reply = agent.chat.completions.create(
            model="tiny", messages=messages, max_tokens=6, seed=1
        )
        messages.append({"role": "assistant", "content": reply.choices[0].message.content})


def both(proxy, *words):
    """What a command prints, from the store and from the server, which is the same."""
    token = harness.token_file(proxy.store)
    server = ("--control", f"http://{harness.text(proxy.control)}", "--control-token-file", token)
    one = harness.done(*words, "--store", proxy.store, folder=proxy.folder)
    other = harness.done(*words, *server, folder=proxy.folder)
    assert one == other
    return one


def test_an_episode_reads_like_a_conversation(proxy):
    page = both(proxy, "show", "run-1")
    assert [line for line in page.splitlines() if line.startswith("#")] and "exact" in page
    assert page.index("Hello") < page.index("Line 0 of") < page.index("Third")
    assert "Line 39" not in page and "rolltape show run-1 --turn 2" in page


@pytest.mark.parametrize("where", ["store", "control"])
def test_a_person_is_told_where_the_page_is(proxy, where):
    control = f"http://{harness.text(proxy.control)}"
    named = {
        "store": (("--store", proxy.store), f"rolltape view run-1/0 --store {proxy.store}"),
        "control": (
            ("--control", control, "--control-token-file", harness.token_file(proxy.store)),
            f"{control}/#/e/run-1/0/read",
        ),
    }
    options, page = named[where]
    master, slave = pty.openpty()
    try:
        command = [harness.binary(), "show", "run-1", *map(str, options)]
        ended = subprocess.run(
            command, cwd=proxy.folder, env=harness.environment(), stdout=subprocess.PIPE,
            stderr=slave, timeout=LATE_S, text=True)
        said = os.read(master, 65536).decode()
    finally:
        os.close(slave)
        os.close(master)
    assert ended.returncode == 0 and f"in a browser: {page}" in said
    assert page not in ended.stdout


def test_a_view_of_what_is_not_there_is_no_page(proxy):
    ended = harness.command("view", "gone", "--store", proxy.store, folder=proxy.folder)
    assert ended.returncode == 1 and "no episode `gone`" in ended.stderr, ended


def test_a_turn_is_there_in_full(proxy):
    turn = both(proxy, "show", "run-1", "--turn", "2")
    assert all(line in turn for line in POEM.splitlines())
    assert "Third" not in turn
    whole = both(proxy, "show", "run-1", "--full")
    assert all(line in whole for line in [*POEM.splitlines(), "Third"])


@pytest.mark.parametrize("columns", [60, 90])
def test_a_tree_is_as_wide_as_its_reader(proxy, columns):
    env = harness.environment(COLUMNS=str(columns))
    words = ("show", "run-1", "--tree", "--store", proxy.store)
    tree = harness.command(*words, folder=proxy.folder, env=env).stdout.splitlines()
    turns = [line for line in tree if "#" in line]
    assert len(turns) == 3 and max(map(len, turns)) <= columns, tree


def test_a_call_is_named_by_its_number_or_the_beginning_of_its_id(proxy):
    turns = [json.loads(line) for line in both(proxy, "show", "run-1", "--json").splitlines()]
    call_id = turns[1]["call_id"]
    by_number = both(proxy, "show", "run-1", "--call", "2")
    assert json.loads(by_number)["call_id"] == call_id
    assert both(proxy, "show", "run-1", "--call", call_id[:-2]) == by_number
    raw = both(proxy, "show", "run-1", "--turn", "2", "--raw")
    assert "Line 39 of a long poem" in raw
    tokens = ("show", "run-1", "--turn", "2", "--tokens")
    where = ("--store", proxy.store, "--tokenizer", harness.MODEL)
    table = harness.done(*tokens, *where, folder=proxy.folder)
    assert "logprob" in table and len(table.splitlines()) > 6


@pytest.mark.parametrize(
    "words",
    [
        ("episodes", "--json", "--sort", "name"),
        ("show", "run-1", "--json"),
        ("show", "run-1", "--turn", "1", "--json"),
        ("stats", "--json"),
        ("diff", "run-1", "run-2", "--json"),
    ],
    ids=" ".join,
)
def test_json_is_for_programs(proxy, words):
    assert [json.loads(line) for line in both(proxy, *words).splitlines()]


def test_a_list_says_what_episodes_were_about(proxy):
    found = [json.loads(line) for line in both(proxy, "episodes", "--wide", "--json").splitlines()]
    asked = {one["first_prompt"] for one in found if one["episode_id"].startswith("run-")}
    assert asked == {"Hello"}
    assert "first_prompt" not in both(proxy, "episodes", "--json")
    head, *rows = proxy.command("episodes", "--wide").splitlines()
    assert "first prompt" in head and "last error" not in head
    assert all(" Hello " in f"{row} " for row in rows if row.startswith("run-"))

    for columns in (80, 120):
        env = {**harness.environment(), "COLUMNS": str(columns)}
        ended = harness.command("episodes", "--store", proxy.store, folder=proxy.folder, env=env)
        assert ("Hello" in ended.stdout) == (columns == 120)
        assert all(len(line) <= columns for line in ended.stdout.splitlines())


def test_a_list_has_the_verdicts_of_the_episodes(proxy):
    columns = ("--columns", "verdict,episode")
    head, *rows = (row.split() for row in both(proxy, "episodes", *columns).splitlines())
    assert head == ["verdict", "episode"] and len(rows) > 1
    for verdict, name in rows:
        assert verdict in proxy.command("show", name).splitlines()
    listed = [json.loads(row) for row in both(proxy, "episodes", "--json", *columns).splitlines()]
    assert [[one["verdict"], one["episode_id"]] for one in listed] == rows
    assert "verdict" not in both(proxy, "episodes", "--json")
    head = proxy.command("episodes", "--columns", "+verdict").splitlines()[0].split()
    assert head[:3] == ["episode", "state", "verdict"] and len(head) > 3


@pytest.fixture(scope="module")
def unnamed(tmp_path_factory):
    """A recorder in front of a server whose tokenizer nobody names, and two agents' calls."""
    folder = tmp_path_factory.mktemp("unnamed")
    with (
        upstream.scripted(folder, [{"text": SAID}]) as said,
        harness.serve(folder, "--upstream", said.url) as proxy,
    ):
        for episode, options in (("asked", {"logprobs": True}), ("silent", {})):
            agent = openai.OpenAI(base_url=proxy.base_url(episode), api_key="k", max_retries=0)
            messages = [{"role": "user", "content": "Hello"}]
            agent.chat.completions.create(model="coder", messages=messages, **options)
        yield proxy


def test_texts_of_tokens_are_those_of_the_reply(unnamed):
    tokens = json.loads(both(unnamed, "show", "asked", "--tokens", "--json"))
    texts = tokens["texts"][tokens["prompt_tokens"]:]
    assert tokens["text_source"] == "logprobs" and "".join(texts).startswith(SAID), texts
    assert "" in texts, "half a character has no text, its other half has all of it"
    assert set(tokens["texts"][: tokens["prompt_tokens"]]) == {None}
    assert '"✓"' in both(unnamed, "show", "asked", "--tokens")


def test_where_no_text_is_known_the_way_to_it_is_said(unnamed):
    tokens = json.loads(both(unnamed, "show", "silent", "--tokens", "--json"))
    assert tokens["text_source"] is None and set(tokens["texts"]) == {None}
    words = ("show", "silent", "--tokens")
    said = harness.command(*words, "--store", unnamed.store, folder=unnamed.folder)
    assert "with --tokenizer" in said.stderr, said
    control = ("--control", f"http://{harness.text(unnamed.control)}")
    token = ("--control-token-file", harness.token_file(unnamed.store))
    said = harness.command(*words, *control, *token, folder=unnamed.folder)
    assert "start the server with --tokenizer" in said.stderr, said


def test_two_attempts_differ_where_they_differ(proxy):
    page = both(proxy, "diff", "run-1", "run-2")
    assert "Else" in page and "Line 0 of" in page


def test_two_attempts_stand_side_by_side(proxy):
    words = ("diff", "run-1", "run-2", "--layout", "columns", "--store", proxy.store)
    env = harness.environment(COLUMNS="90")
    page = harness.command(*words, folder=proxy.folder, env=env).stdout.splitlines()
    sides = [line for line in page if line[43:46] == " | "]
    assert [line for line in sides if "A #3" in line[:43] and "B #2" in line[46:]], page
    assert [line for line in sides if "Third" in line[:43] and "Else" in line[46:]], page
    assert max(map(len, sides)) <= 90
    assert not any("Else" in line for line in page if line not in sides)


@pytest.mark.parametrize("columns", [100, 130])
def test_a_wide_terminal_shows_both_attempts_at_once(proxy, columns):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [harness.binary(), "diff", "run-1", "run-2", "--store", proxy.store, "-q"]
    shown = subprocess.Popen(command, cwd=proxy.folder, env=harness.environment(), stdout=slave)
    os.close(slave)
    page = b""
    try:
        while part := os.read(master, 65536):
            page += part
    except OSError:
        """Linux says so at the end of a terminal."""
    finally:
        os.close(master)
    assert shown.wait(LATE_S) == 0
    is_beside = [line for line in page.decode().splitlines() if "A #3" in line and "B #2" in line]
    assert bool(is_beside) and ("A #3, B #2" in page.decode()) == (columns == 100), page


def test_what_is_the_same_behind_a_difference_is_no_difference(proxy):
    """The seeds differ, and so do the answers to them; what follows is the same in both."""
    for name, seed in (("seeded-1", "Seed 1. Say a word."), ("seeded-2", "Seed 2. Say a word.")):
        agent = openai.OpenAI(base_url=proxy.base_url(name), api_key="k", max_retries=0)
        history = [
            {"role": "user", "content": seed},
            {"role": "assistant", "content": "An answer."},
            {"role": "user", "content": "Go on."},
        ]
        agent.chat.completions.create(model="tiny", messages=history, max_tokens=4, seed=3)
    page = both(proxy, "diff", "seeded-1", "seeded-2")
    assert "  - Seed 1. Say a word.\n  + Seed 2. Say a word.\n" in page, page
    # The tiny model may give both the same answer.
    assert re.search("= [23] messages are the same", page), page
    found = json.loads(both(proxy, "diff", "seeded-1", "seeded-2", "--json"))
    assert found["first"] == found["differences"][0]
    assert "Go on." not in json.dumps(found["differences"])
    # Against the newest, the newest is compared with the one before it.
    newest = json.loads(both(proxy, "diff", "seeded-2", "--json"))
    assert newest["b"]["episode_id"] == "seeded-1"


@pytest.mark.parametrize("where", ["store", "control"])
def test_a_tail_shows_a_call_when_it_ends(proxy, where):
    token = harness.token_file(proxy.store)
    named = {
        "store": ("--store", proxy.store),
        "control": (
            "--control", f"http://{harness.text(proxy.control)}", "--control-token-file", token,
        ),
    }
    tail = harness.Process(
        "tail", "--episode", f"tailed-{where}", *named[where], folder=proxy.folder,
        stdout=subprocess.PIPE,
    )
    try:
        until = time.monotonic() + LATE_S
        while "waiting for calls" not in tail.stderr and time.monotonic() < until:
            time.sleep(0.02)
        talk(proxy, f"tailed-{where}", ["Now"])
        line = tail.child.stdout.readline().decode()
        assert f" tailed-{where} chat tiny " in line, line
    finally:
        tail.kill()


def test_a_server_prints_a_line_for_each_call(proxy):
    talk(proxy, "printed", ["Say", "More"])
    until = time.monotonic() + LATE_S
    while proxy.process.stderr.count(" printed chat tiny ") < 2 and time.monotonic() < until:
        time.sleep(0.05)
    lines = [line for line in proxy.process.stderr.splitlines() if " printed chat " in line]
    assert len(lines) == 2 and "Say" not in "".join(lines)


def test_a_quiet_server_prints_none(tmp_path):
    with harness.serve(tmp_path, "--quiet", "--model", harness.MODEL) as proxy:
        talk(proxy, "printed", ["Say"])
        time.sleep(1.5)
        assert " printed chat " not in proxy.process.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell, tmp_path):
    script = harness.done("completions", shell, folder=tmp_path)
    assert "episodes" in script and "control-token-file" in script


def test_what_is_not_there_is_named_with_a_way_out(proxy):
    for words, expected in [
        (("show", "gone"), "no episode `gone`"),
        (("show", "run-1", "--turn", "9"), "9"),
        (("show", "run-1", "--call", "zzz"), "zzz"),
    ]:
        ended = harness.command(*words, "--store", proxy.store, folder=proxy.folder)
        assert ended.returncode in (1, 2) and expected in ended.stderr, ended
