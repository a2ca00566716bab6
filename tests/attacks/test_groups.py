"""Groups, tasks and labels: whose word counts, and who is handed out as a member."""

import json
import socket
import threading

import pytest

import control
import harness
import hostile
import http1
import keyed
import lines

CHOICE = hostile.REPLY["choices"][0] | {
    "token_ids": [5],
    "logprobs": {"content": [{"token": "yes", "logprob": -0.5, "bytes": None, "top_logprobs": []}]},
}
STREAM = hostile.BODY | {"stream": True}
WITH_IDS = hostile.REPLY | {"prompt_token_ids": [1], "choices": [CHOICE]}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A server that takes calls without keys, before an upstream that reports ids."""
    with hostile.Stage(tmp_path_factory.mktemp("groups")) as stage:
        yield stage("--dialect", "vllm", answer=lambda request: hostile.reply(WITH_IDS))


def in_group(group):
    """The header with which an agent names its group."""
    return [("x-group-id", group)]


def feed(proxy, query):
    """The episodes that the feed hands out."""
    headers = [("content-length", "0"), *control.headers_for(proxy.control).items()]
    request = http1.request("POST", f"/feed?consumer=t&{query}", b"", headers)
    reply = http1.exchange(proxy.control, request)
    assert reply.status in (200, 204), reply.body
    return {json.loads(line)["episode_id"] for line in reply.body.splitlines()}


def finished(proxy, episode):
    """Whether the feed takes an episode for finished."""
    feed(proxy, "limit=1")
    query = "SELECT 1 FROM finished JOIN episode USING (episode_key) WHERE episode_id = ?"
    return hostile.rows(proxy, query, episode)


def members(proxy, group):
    """The episodes that the store says are of a group."""
    found = hostile.rows(proxy, "SELECT episode_id FROM episodes WHERE group_id = ?", group)
    return {row["episode_id"] for row in found}


@pytest.mark.parametrize("word, value", [("group", "other"), ("task", "other")])
def test_a_word_that_control_did_not_announce_is_refused_before_it_is_forwarded(proxy, word, value):
    episode = f"fixed-{word}"
    assert keyed.announce(proxy, episode, **{f"{word}_id": f"{word}-announced"}) == 200
    same = [(f"x-{word}-id", f"{word}-announced")]
    assert keyed.call(proxy, episode, headers=same).status == 200
    before = len(proxy.upstream.calls())
    refused = keyed.call(proxy, episode, headers=[(f"x-{word}-id", value)])
    assert refused.status == 409 and value in keyed.message(refused)
    assert refused.header("x-should-retry") == "false"
    assert len(proxy.upstream.calls()) == before
    assert keyed.call(proxy, episode).status == 200, "a call that says nothing passes"
    assert keyed.episodes(proxy)[episode, 0][f"{word}_id"] == f"{word}-announced"


def test_an_announced_episode_without_a_group_joins_none(proxy):
    assert keyed.announce(proxy, "groupless") == 200
    assert keyed.call(proxy, "groupless", headers=in_group("any")).status == 409
    assert keyed.episodes(proxy)["groupless", 0]["group_id"] is None


def test_labels_of_an_announced_episode_come_from_control(proxy):
    assert keyed.announce(proxy, "labelled", labels={"split": "train"}) == 200
    for label in ("split=test", "new=1"):
        assert keyed.call(proxy, "labelled", headers=[("x-episode-tag", label)]).status == 409
    assert keyed.call(proxy, "labelled", headers=[("x-episode-tag", "split=train")]).status == 200
    assert keyed.labels(proxy, "labelled") == {"split": "train"}


def test_an_agents_first_words_do_not_beat_a_later_announcement(proxy):
    words = [*in_group("agents"), ("x-task-id", "agents"), ("x-episode-tag", "split=test")]
    assert keyed.call(proxy, "preempt", headers=words).status == 200
    told = {"group_id": "real", "task_id": "real", "labels": {"split": "train"}}
    assert keyed.announce(proxy, "preempt", **told) == 200
    row = keyed.episodes(proxy)["preempt", 0]
    assert (row["group_id"], row["task_id"]) == ("real", "real")
    assert keyed.labels(proxy, "preempt") == {"split": "train"}
    assert keyed.call(proxy, "preempt", headers=words).status == 409, "the same words as before"
    assert keyed.call(proxy, "preempt", headers=in_group("real")).status == 200


def test_an_announcement_takes_back_a_group_that_an_agent_named(proxy):
    assert keyed.call(proxy, "claims", headers=in_group("claimed")).status == 200
    assert keyed.announce(proxy, "claims") == 200
    assert keyed.episodes(proxy)["claims", 0]["group_id"] is None


def test_an_agent_cannot_block_an_announcement(proxy):
    flood = [("x-episode-tag", f"n{n}=1") for n in range(32)]
    for _ in range(2):
        assert keyed.call(proxy, "blocked", headers=[*in_group("x"), *flood]).status == 200
    labels = {f"m{n}": "1" for n in range(90)}
    assert keyed.announce(proxy, "blocked", group_id="blocked-group", labels=labels) == 200
    assert keyed.labels(proxy, "blocked") == labels


def test_a_second_announcement_with_another_group_is_a_conflict_and_changes_nothing(proxy):
    assert keyed.announce(proxy, "twice", group_id="first") == 200
    assert keyed.announce(proxy, "twice", group_id="first") == 200, "the same again is no conflict"
    assert keyed.announce(proxy, "twice", task_id="t") == 200, "nor is more"
    assert keyed.announce(proxy, "twice", group_id="second") == 409
    row = keyed.episodes(proxy)["twice", 0]
    assert (row["group_id"], row["task_id"]) == ("first", "t")


def test_an_agent_does_not_join_a_group_that_control_announces(proxy):
    assert keyed.announce(proxy, "member-1", group_id="closed-group") == 200
    for episode in ("intruder", "member-1"):
        refused = keyed.call(proxy, episode, headers=in_group("closed-group"), attempt=9)
        assert refused.status == 409
    assert members(proxy, "closed-group") == {"member-1"}


def test_an_agent_that_was_in_a_group_before_its_announcement_is_put_out(proxy):
    assert keyed.call(proxy, "early", headers=in_group("taken")).status == 200
    assert members(proxy, "taken") == {"early"}
    assert keyed.announce(proxy, "member-2", group_id="taken") == 200
    assert members(proxy, "taken") == {"member-2"}
    assert keyed.call(proxy, "early", headers=in_group("taken")).status == 409
    assert keyed.call(proxy, "early").status == 200, "its episode goes on by itself"


def test_an_intruder_is_not_handed_out_in_place_of_a_member(proxy):
    assert keyed.call(proxy, "intruder-2", headers=in_group("pair")).status == 200
    for episode in ("pair-1", "pair-2"):
        assert keyed.announce(proxy, episode, group_id="pair", group_size=2) == 200
        assert keyed.call(proxy, episode).status == 200
    for episode in ("intruder-2", "pair-1", "pair-2"):
        control.close(proxy, episode)
    assert feed(proxy, "unit=group&group=pair") == {"pair-1", "pair-2"}


def test_groups_that_only_calls_name_work_as_before(proxy):
    for episode in ("h-1", "h-2"):
        assert keyed.call(proxy, episode, headers=in_group("by-header")).status == 200
    assert members(proxy, "by-header") == {"h-1", "h-2"}


# Words about other episodes.

CLAUDE = ("user-agent", "claude-cli/2.0.0 (external, cli)")
CODEX = ("originator", "codex_exec")
TURN = '{"session_id":"v-session","thread_id":"t","parent_thread_id":"v-agent"}'
VICTIM = [
    [CLAUDE, ("x-claude-code-session-id", "v-session")],
    [CLAUDE, ("x-claude-code-session-id", "v-session"), ("x-claude-code-agent-id", "v-agent")],
]
SPOOFS = {
    "its parent": [CLAUDE, ("x-claude-code-parent-agent-id", "v-agent")],
    "its session": [CLAUDE, ("x-claude-code-session-id", "v-session")],
    "its agent": VICTIM[1],
    "its agent and its parent": [*VICTIM[1], ("x-claude-code-parent-agent-id", "v-agent")],
    "the parent of codex": [CODEX, ("x-codex-parent-thread-id", "v-agent")],
    "the turn of codex": [CODEX, ("x-codex-turn-metadata", TURN)],
    "a summary of codex": [CODEX, ("x-openai-subagent", "compact"), ("session-id", "v-session")],
    "the parent of opencode": [("x-session-affinity", "s"), ("x-parent-session-id", "v-session")],
    "the session of litellm": [("x-litellm-session-id", "v-session")],
}


def exported(proxy, episode, folder):
    """The rows and the calls of an episode, as they are exported."""
    found = []
    for form in ("trajectories", "calls"):
        out = folder / f"{len(list(folder.iterdir()))}.jsonl"
        proxy.command("export", "--episode", episode, "--format", form, "--out", out)
        found.append(out.read_text())
    return found


@pytest.mark.parametrize("name", SPOOFS)
def test_no_word_about_another_episode_changes_what_is_exported_of_it(proxy, tmp_path, name):
    place = f"victim-{list(SPOOFS).index(name)}"
    for headers in VICTIM:
        assert keyed.call(proxy, place, headers=headers).status == 200
    before = exported(proxy, place, tmp_path)
    assert all(before)
    said = [*hostile.BODY["messages"], hostile.REPLY["choices"][0]["message"]]
    goes_on = hostile.BODY | {"messages": [*said, {"role": "user", "content": "more"}]}
    for body in (hostile.BODY, goes_on):
        assert keyed.call(proxy, f"thief-of-{place}", headers=SPOOFS[name], body=body).status == 200
    assert exported(proxy, place, tmp_path) == before
    assert len(keyed.recorded(proxy, f"thief-of-{place}")) == 2
    for row in exported(proxy, f"thief-of-{place}", tmp_path)[0].splitlines():
        row = json.loads(row)
        assert row["episode_id"] == f"thief-of-{place}"
        parent = row["parent_trajectory_id"]
        assert parent is None or parent.startswith(f"thief-of-{place}/")


# Closing ends calls.

COMMENT = b": x\n\n"
COMMENTS_AFTER = 10
"""Half a second of a stream: one that is cut by a close elsewhere does not last so long."""


def stalled(hold):
    """An answer that begins and then waits until `hold` is set, or for ever."""

    def answer(request):
        if request.method == "GET":
            yield hostile.reply({"data": []})
            return
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        yield head
        yield b'data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[1]}]}\n\n'
        while not hold.wait(0.05):
            yield COMMENT

    return answer


def flooding(hold):
    """An answer of more bytes than any socket holds."""

    def answer(request):
        if request.method == "GET":
            yield hostile.reply({"data": []})
            return
        yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        chunk = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"a" * 60_000 + b'"}}]}\n\n'
        while not hold.is_set():
            yield chunk

    return answer


def begun(agent, episode):
    """What came of a stream until its first event."""
    agent.sendall(keyed.sent(f"/e/{episode}/v1/chat/completions", body=STREAM))
    received = bytearray()
    while b"data:" not in received:
        received += agent.recv(1 << 16)
    return received


def test_closing_an_episode_ends_its_calls(serve):
    hold = threading.Event()
    proxy = serve(answer=stalled(hold))
    with socket.create_connection(proxy.data, timeout=10) as agent:
        received = begun(agent, "run")
        control.close(proxy, "run")
        while piece := agent.recv(1 << 16):
            received += piece
    assert b"[DONE]" not in received and not received.endswith(b"0\r\n\r\n"), "it breaks off"
    ended = "SELECT outcome FROM calls WHERE episode_id = 'run' AND outcome IS NOT NULL"
    (call,) = harness.until("the call ends", lambda: hostile.rows(proxy, ended))
    assert call["outcome"] == "client_gone"
    hold.set()


def test_closing_an_episode_answers_a_call_whose_upstream_is_silent(serve):
    hold = threading.Event()

    def silent(request):
        if request.method != "GET":
            hold.wait()
        yield hostile.reply({"data": []})

    proxy = serve(answer=silent)
    with socket.create_connection(proxy.data, timeout=10) as agent:
        agent.sendall(keyed.sent("/e/run/v1/chat/completions", body=STREAM))
        harness.until("the call begins", lambda: keyed.recorded(proxy, "run"))
        control.close(proxy, "run")
        answer = lines.whole(agent)
    hold.set()
    assert (answer.status, b"episode_closed" in answer.body) == (409, True)
    ended = "SELECT outcome FROM calls WHERE episode_id = 'run' AND outcome IS NOT NULL"
    (call,) = harness.until("the call ends", lambda: hostile.rows(proxy, ended))
    assert call["outcome"] == "client_gone"


def test_a_reader_that_stalls_does_not_keep_a_closed_episode_from_the_feed(serve):
    hold = threading.Event()
    proxy = serve(answer=flooding(hold))
    with socket.create_connection(proxy.data, timeout=10) as agent:
        agent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        agent.sendall(keyed.sent("/e/run/v1/chat/completions", body=STREAM))
        harness.until("the call begins", lambda: keyed.recorded(proxy, "run"))
        control.close(proxy, "run")
        ended = "SELECT outcome FROM calls WHERE episode_id = 'run' AND outcome IS NOT NULL"
        (call,) = harness.until("the call ends", lambda: hostile.rows(proxy, ended))
        assert call["outcome"] == "client_gone"
        harness.until("the feed takes it for finished", lambda: finished(proxy, "run"))
        hold.set()
    assert hostile.is_clean(proxy)


def test_closing_one_episode_leaves_the_calls_of_others(serve):
    hold = threading.Event()
    proxy = serve(answer=stalled(hold))
    with socket.create_connection(proxy.data, timeout=10) as agent:
        begun(agent, "other")
        assert keyed.announce(proxy, "run") == 200
        control.close(proxy, "run")
        while lines.is_answered(agent):
            assert agent.recv(1 << 16), "what had come by the close"
        received = bytearray()
        while received.count(COMMENT) < COMMENTS_AFTER:
            piece = agent.recv(1 << 16)
            assert piece, "the stream goes on"
            received += piece
        hold.set()
