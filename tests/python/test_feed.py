"""`rolltape feed`: rows off a server that runs, followed, acked, killed; the token; `show`."""

import json
import os
import signal
import time
import urllib.error
import urllib.request

import pyarrow.ipc
import pytest

import control
import harness
from harness import MODEL, Process, command, done, environment, serve, text, until

QUESTION = "Find the secret number from 1 to 7. You have 3 guesses."
ACKED = ("--consumer", "t", "--ack")
TOKEN = {"FEED_TOKEN": "s3cret-of-the-test"}


@pytest.fixture
def server(tmp_path):
    """A recorder in front of the tiny model."""
    with serve(tmp_path, "--model", MODEL) as proxy:
        yield proxy


def ask(proxy, episode, question=QUESTION):
    """One call of an episode."""
    words = [{"role": "user", "content": question}]
    body = {"model": "tiny", "messages": words, "max_tokens": 8}
    request = urllib.request.Request(
        f"{proxy.base_url(episode)}/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert reply.status == 200


def play(proxy, *episodes):
    """A call and a close for each."""
    for episode in episodes:
        ask(proxy, episode)
        control.close(proxy, episode)


def url(proxy):
    """The control listener's."""
    return f"http://{text(proxy.control)}"


def feed(proxy, *options):
    """What `rolltape feed` prints, and what it says."""
    where = ("--control", url(proxy), "--store", proxy.store)
    ended = command("feed", *where, *options, folder=proxy.folder)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line)["episode_id"] for line in ended.stdout.splitlines()], ended.stderr


def acked(proxy):
    """How many attempts the consumer has acked."""
    (counts,) = control.page(proxy, "/feed/consumers")["consumers"]
    return counts["acked"]


def test_what_is_finished_is_read_from_a_cursor_on(server):
    play(server, "a", "b", "c")
    assert feed(server, "--limit", "2") == (["a", "b", "c"], "cursor 3\n")
    assert feed(server, "--cursor", "1") == (["b", "c"], "cursor 3\n")
    assert feed(server, "--cursor", "3") == ([], "cursor 3\n")


def test_the_lease_of_a_reply_is_in_its_headers(server):
    """As the feed's page has it for a shell."""
    play(server, "a")
    where = ("--control", url(server), "--headers", "head")
    rows = server.command("control", "POST", "/feed?consumer=t&unit=episode", *where)
    assert json.loads(rows)["episode_id"] == "a"
    lines = (server.folder / "head").read_text().splitlines()
    lease = dict(line.split(": ", 1) for line in lines)["x-rolltape-lease"]
    server.command("control", "POST", f"/feed/leases/{lease}/ack", *where)
    assert acked(server) == 1


def test_what_is_acked_is_not_read_again(server):
    play(server, "a", "b")
    assert feed(server, "--consumer", "t", "--ack", "--limit", "1")[0] == ["a", "b"]
    assert feed(server, "--consumer", "t", "--ack")[0] == []
    assert feed(server, "--consumer", "u")[0] == ["a", "b"]
    assert feed(server, "--consumer", "u")[0] == [], "it is leased"


def test_streams_of_arrow_are_one_file(server):
    play(server, "a", "b", "c")
    rows = server.folder / "rows.arrow"
    feed(server, "--format", "arrow", "--limit", "1", "--out", rows)
    table = pyarrow.ipc.open_stream(rows).read_all()
    assert table["episode_id"].to_pylist() == ["a", "b", "c"]
    lengths = [len(ids) for ids in table["input_ids"].to_pylist()]
    assert lengths == [len(mask) for mask in table["loss_mask"].to_pylist()]


def follow(server, out):
    """A reader that goes on until it is stopped."""
    options = ("--consumer", "t", "--ack", "--follow", "--limit", "2", "--lease-s", "2")
    where = ("--control", url(server), "--store", server.store)
    reader = ("feed", *where, *options)
    return Process(*reader, folder=server.folder, stdout=out.open("ab"))


def test_what_is_waited_for_is_said_once_and_counted_apart(server):
    for group, size, members in (("g1", 4, 3), ("g2", 4, 1), ("g3", 2, 2)):
        for number in range(members):
            episode = {"episode_id": f"{group}-{number}", "group_id": group, "group_size": size}
            status, reply = control.post(server, "/episodes", episode)
            assert status == 200, reply
            play(server, f"{group}-{number}")
    play(server, "alone")
    grouped = ("--consumer", "t", "--ack", "--unit", "group")
    names, said = feed(server, *grouped)
    assert names == ["g3-0", "g3-1"]
    waits = "2 groups wait: g1 has 3 of 4, g2 has 1 of 4; 1 finished attempt without a group"
    assert said.startswith(waits), said

    def counts():
        (found,) = control.page(server, "/feed/consumers")["consumers"]
        return found["depth"], found["waiting"], found["oldest_age_s"]

    assert counts() == (0, 4, 0.0)
    headers = control.headers_for(server.control)
    metrics = urllib.request.Request(f"{url(server)}/metrics", headers=headers)
    with urllib.request.urlopen(metrics, timeout=10) as page:
        page = page.read().decode()
    assert 'rolltape_feed_depth{consumer="t"} 0' in page
    assert 'rolltape_feed_waiting{consumer="t"} 4' in page

    where = ("--control", url(server), "--store", server.store)
    reader = Process("feed", *where, *grouped, "--follow", folder=server.folder)
    until("a word about what is waited for", lambda: "g1 has 3 of 4" in reader.stderr)
    status, reply = control.post(
        server, "/episodes", {"episode_id": "g1-3", "group_id": "g1", "group_size": 4}
    )
    assert status == 200, reply
    play(server, "g1-3")
    until("the last ack", lambda: acked(server) >= 6)
    assert reader.stop() == 0
    assert reader.stderr.count("groups wait") == 1, reader.stderr
    assert counts()[:2] == (0, 1)


@pytest.mark.parametrize("follow", [False, True])
def test_a_stream_of_arrow_without_rows_can_be_read(server, follow):
    where = ("--control", url(server), "--store", server.store, "--format", "arrow")
    words = ("feed", *where, "--out", "none.arrow", *(["--follow"] if follow else []))
    if follow:
        reader = Process(*words, folder=server.folder)
        until("its first reply", lambda: "waiting for episodes" in reader.stderr)
        assert reader.stop() == 0, reader.stderr
    else:
        done(*words, folder=server.folder)
    with pyarrow.ipc.open_stream(server.folder / "none.arrow") as stream:
        table = stream.read_all()
    assert table.num_rows == 0
    assert {"input_ids", "loss_mask", "feed_item"} <= set(table.column_names)
    play(server, "one")
    done("feed", *where, "--out", "one.arrow", folder=server.folder)
    with pyarrow.ipc.open_stream(server.folder / "one.arrow") as stream:
        assert stream.schema.remove_metadata() == table.schema.remove_metadata()


def test_a_reader_that_is_killed_costs_nothing_but_a_wait(server):
    out = server.folder / "rows.ndjson"
    names = [f"e{number}" for number in range(24)]
    for start in range(0, 24, 6):
        reader = follow(server, out)
        play(server, *names[start : start + 6])
        reader.kill()
    reader = follow(server, out)
    until("all acks", lambda: acked(server) >= 24)
    assert reader.stop() == 0
    seen = [json.loads(line)["episode_id"] for line in whole(out)]
    assert set(seen) == set(names), "a row was lost"


def piped(server, *options):
    """A reader whose rows go through a pipe, which is read here byte by byte."""
    where = ("--control", url(server), "--store", server.store)
    reader = ("feed", *where, *options)
    rows, into = os.pipe()
    process = Process(*reader, folder=server.folder, stdout=into)
    os.close(into)
    return process, rows


def row_of(rows):
    """The next row of a pipe, and no byte more."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(rows, 1)
        assert byte, "it ended"
        line += byte
    return json.loads(line)["episode_id"]


def standing(server):
    """What became of the attempts: acked, leased, not handed out."""
    (counts,) = control.page(server, "/feed/consumers")["consumers"]
    return [counts[name] for name in ("acked", "leased", "depth")]


@pytest.mark.parametrize("ends", ["leaves", "SIGINT", "SIGTERM"])
def test_what_nobody_read_is_given_back(server, ends):
    names = [f"e{number}" for number in range(6)]
    play(server, *names)
    process, rows = piped(server, *ACKED)
    assert row_of(rows) == "e0"
    if ends == "leaves":
        os.close(rows)
        assert process.child.wait(30) == 0, "that is no failure"
    else:
        assert process.stop(getattr(signal, ends)) == 0
        os.close(rows)
    assert standing(server) == [0, 0, 6], "who read how much of the pipe is not known"
    assert feed(server, "--consumer", "t", "--ack")[0] == names


@pytest.mark.parametrize("acked", [True, False])
def test_at_a_signal_what_is_written_is_done_and_the_rest_comes_again(server, acked):
    names = [f"e{number}" for number in range(60)]
    for name in names:
        # Rows that are together more than a pipe holds.
        ask(server, name, "word " * 30)
        control.close(server, name)
    process, rows = piped(server, "--limit", "60", *(ACKED if acked else ()))
    seen = [row_of(rows)]
    process.child.send_signal(signal.SIGINT)
    # In which it hears of it; reading on makes room for more rows. It waits twice as long for that.
    time.sleep(1)
    with open(rows, "rb") as rest:
        seen += [json.loads(line)["episode_id"] for line in rest]
    assert process.child.wait(30) == 0, process.stderr
    assert seen == names[: len(seen)] and len(seen) < 60, "rows are whole, and not all are there"
    if acked:
        assert standing(server) == [len(seen), 0, 60 - len(seen)]
        again = feed(server, *ACKED, "--limit", "60")[0]
    else:
        assert process.stderr == f"cursor {len(seen)}\n"
        again = feed(server, "--limit", "60", "--cursor", len(seen))[0]
    assert again == names[len(seen) :]


def test_rows_come_one_by_one_to_a_slow_reader_and_are_its_for_as_long(server):
    play(server, "a", "b", "c")
    process, rows = piped(server, *ACKED, "--lease-s", "3")
    for name in ("a", "b", "c"):
        assert row_of(rows) == name
        time.sleep(1.6)
        if name != "c":
            assert standing(server) == [0, 3, 0], "it is renewed"
    assert process.child.wait(30) == 0
    assert standing(server) == [3, 0, 0]
    os.close(rows)


def test_a_reader_that_is_killed_within_a_reply_has_acked_nothing_that_nobody_read(server):
    names = ["a", "b", "c"]
    play(server, *names)
    process, rows = piped(server, *ACKED, "--lease-s", "1")
    assert row_of(rows) == "a"
    time.sleep(0.5)  # in which it could ack what it has written
    process.kill()
    os.close(rows)
    assert acked(server) == 0
    # Its lease may have been renewed just before.
    assert until("the end of the lease", lambda: feed(server, *ACKED)[0]) == names


def whole(path):
    """The whole lines of a file that killed readers wrote to one after the other."""
    for line in path.read_text().splitlines():
        # A line that was cut has the next reader's first line behind it.
        start = line.rfind('{"schema_version":')
        if line.endswith("}"):
            yield line[start:]


def test_a_token_is_asked_for_and_sent(tmp_path):
    env = environment(**TOKEN)
    data, listener = harness.free_addresses(2)
    where = ("--listen", text(data), "--control", text(listener), "--store", tmp_path / "a.db")
    options = ("--model", MODEL, "--control-token-env", "FEED_TOKEN")
    process = Process("serve", *options, *where, folder=tmp_path, env=env)
    try:
        process.await_answer(f"http://{text(listener)}/health")
        reader = ("feed", "--control", f"http://{text(listener)}")
        refused = command(*reader, folder=tmp_path)
        assert refused.returncode == 1 and "401" in refused.stderr
        token = ("--control-token-env", "FEED_TOKEN")
        assert command(*reader, *token, folder=tmp_path, env=env).returncode == 0
        run = ("run", "--proxy", f"http://{text(data)}", "--control", f"http://{text(listener)}")
        with_it = command(*run, *token, "true", folder=tmp_path, env=env)
        assert "called no model" in with_it.stderr and "401" not in with_it.stderr
        without = command(*run, "true", folder=tmp_path)
        assert without.returncode == 1 and "401" in without.stderr
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://{text(listener)}/metrics", timeout=10)
        process.end_well()
    finally:
        process.kill()


def test_beyond_loopback_a_token_is_needed(tmp_path):
    where = ("--control", "0.0.0.0:0", "--listen", "127.0.0.1:0", "--store", tmp_path / "a.db")
    refused = command("serve", "--model", MODEL, *where, "--control-open", folder=tmp_path)
    assert refused.returncode == 1 and "--control-open" in refused.stderr
    unset = ("--control-token-env", "NOT_SET_ANYWHERE")
    refused = command("serve", "--model", MODEL, *where, *unset, folder=tmp_path)
    assert refused.returncode == 1 and "NOT_SET_ANYWHERE" in refused.stderr


def test_show_names_the_weights_of_each_turn(server):
    play(server, "a")
    served = control.page(server, "/weight_info")
    assert served["weight_version"] == "default"
    # It is asked for when the first reply has passed.
    until("the version", lambda: control.page(server, "/versions")["versions"])
    shown = server.command("show", "a", "--tree")
    assert " by default " in shown
    assert f"weights default: version 0, checksum {served['checksum']}" in shown
    (turn,) = map(json.loads, server.command("show", "a", "--json").splitlines())
    (span,) = turn["versions"]
    said = (span["version"], span["number"], span["checksum"])
    assert said == ("default", 0, served["checksum"])
    assert (span["start"], span["end"]) == (0, turn["sampled_tokens"])
    call = json.loads(server.command("show", "a", "--call", turn["call_id"]))
    assert call["choices"][0]["versions"] == turn["versions"]
    assert call["stamps"] == [None, None]


def test_one_server_runs_at_a_time_and_readers_do_not_mind(tmp_path):
    with serve(tmp_path, "--model", MODEL) as first:
        play(first, "a")
        first.process.kill()
    with serve(tmp_path, "--model", MODEL) as second:
        play(second, "b")
        assert feed(second, "--consumer", "t", "--ack")[0] == ["a", "b"]
    assert done("episodes", "--store", tmp_path / "recorded.db", folder=tmp_path)


def test_what_is_wrong_is_told(tmp_path):
    nobody = command("feed", "--control", "http://127.0.0.1:9", folder=tmp_path)
    assert nobody.returncode == 1 and "no answer" in nobody.stderr
    usage = command("feed", "--ack", folder=tmp_path)
    assert usage.returncode == 2 and "--consumer" in usage.stderr
