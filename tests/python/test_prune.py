"""Episodes are deleted while agents are recorded."""

import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import control
import harness
from harness import command, done, text

AGENTS = 6
OLD = 60
WORD = "archaeopteryx"


class Upstream(BaseHTTPRequestHandler):
    """A server that repeats the last message, in a stream if it is asked for one."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = asked["messages"][-1]["content"]
        kind, part = "chat.completion", "message"
        if asked.get("stream"):
            kind, part = "chat.completion.chunk", "delta"
        choice = {"index": 0, "finish_reason": "stop", part: {"content": said}}
        reply = json.dumps({"object": kind, "model": "m", "choices": [choice]})
        if asked.get("stream"):
            reply = f"data: {reply}\n\ndata: [DONE]\n\n"
        self.send_response(200)
        streams = "text/event-stream" if asked.get("stream") else "application/json"
        self.send_header("content-type", streams)
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply.encode())

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


@pytest.fixture(name="upstream", scope="module")
def served_upstream():
    """The URL of the server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def call(address, episode, words="hello", stream=False):
    """One call; true once its end was seen."""
    body = {"model": "m", "messages": [{"role": "user", "content": words}], "stream": stream}
    connection = HTTPConnection(*address, timeout=20)
    try:
        connection.request("POST", f"/e/{episode}/v1/chat/completions", json.dumps(body))
        reply = connection.getresponse()
        read = reply.read()
        return reply.status == 200 and (b"[DONE]" in read if stream else bool(json.loads(read)))
    except (OSError, HTTPException, json.JSONDecodeError):
        return False
    finally:
        connection.close()


def ask(proxy, method, path, token=None):
    """A request without a body; status and reply."""
    headers = {"authorization": f"Bearer {token or proxy.token}"}
    url = f"http://{text(proxy.control)}{path}"
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def record_old(proxy):
    """Closed episodes, with texts that compress badly."""
    for number in range(OLD):
        words = " ".join(f"{WORD}{number * 7919 * turn % 9973}" for turn in range(1, 2500))
        for _ in range(2):
            assert call(proxy.data, f"old-{number}", words)
        control.close(proxy, f"old-{number}")


def calls_by_episode(store, folder):
    """The number of calls that have ended, by episode."""
    question = (
        "SELECT episode_id, count(*) AS calls FROM calls WHERE outcome IS NOT NULL GROUP BY 1"
    )
    rows = done("sql", question, "--json", "--store", store, folder=folder)
    return {row["episode_id"]: row["calls"] for row in map(json.loads, rows.splitlines())}


def agents_until(proxy, over):
    """Agents that call until `over`; the calls whose ends they saw, by episode, later."""

    def agent(number):
        seen = 0
        while not over.is_set():
            seen += call(proxy.data, f"new-{number}", stream=number % 2 == 0)
        return seen

    pool = ThreadPoolExecutor(AGENTS)
    playing = {f"new-{number}": pool.submit(agent, number) for number in range(AGENTS)}
    pool.shutdown(wait=False)
    return playing


def is_clean(store, folder):
    """Whether nothing of a store is broken."""
    return json.loads(done("verify", "--json", "--store", store, folder=folder))["clean"]


def test_agents_lose_nothing_while_others_episodes_go(tmp_path, upstream):
    """Nothing acknowledged is lost, the file shrinks, and what stays open is named."""
    with harness.serve(tmp_path, "--upstream", upstream) as proxy:
        record_old(proxy)
        assert call(proxy.data, "open")
        over = threading.Event()
        playing = agents_until(proxy, over)
        plan = control.post(proxy, "/prune", {"older_than_s": 0, "dry_run": True})
        status, gone = control.post(proxy, "/prune", {"older_than_s": 0})
        over.set()
        seen = {episode: future.result() for episode, future in playing.items()}
        assert (plan[0], status) == (200, 200), (plan, gone)

        assert {one["episode_id"] for one in gone["pruned"]} == {f"old-{n}" for n in range(OLD)}
        assert gone["calls"] == 2 * OLD and gone["withheld"] is None
        assert {"open", "new-0"} <= {one["episode_id"] for one in gone["kept"]}
        listed = control.page(proxy, "/episodes")["episodes"]
        assert {one["episode_id"] for one in listed} == {"open", *seen}
        assert calls_by_episode(proxy.store, tmp_path) == seen | {"open": 1}
        assert min(seen.values()) > 0
        assert is_clean(proxy.store, tmp_path)
    # The pages of an empty store stay.
    assert proxy.store.stat().st_size < 0.6 * gone["file_bytes_before"]
    assert is_clean(proxy.store, tmp_path)


def test_a_kill_in_the_middle_leaves_whole_episodes(tmp_path, upstream):
    """What is left of a prune whose recorder dies is sound, and goes with the next one."""
    with harness.serve(tmp_path, "--upstream", upstream) as proxy:
        record_old(proxy)
        begun = threading.Event()

        def prune():
            begun.set()
            try:
                control.post(proxy, "/prune", {"older_than_s": 0})
            except (OSError, HTTPException):
                pass

        asked = threading.Thread(target=prune)
        asked.start()
        begun.wait()
        harness.until(
            "an episode that is gone",
            lambda: control.page(proxy, "/episodes?limit=1")["total"] < OLD,
        )
        proxy.process.kill()
        asked.join()
    left = calls_by_episode(proxy.store, tmp_path)
    assert set(left.values()) <= {2}
    assert is_clean(proxy.store, tmp_path)
    done("prune", "--older-than", "0s", "--store", proxy.store, folder=tmp_path)
    assert calls_by_episode(proxy.store, tmp_path) == {}


def test_one_attempt_goes_by_its_name_once_it_is_closed(tmp_path, upstream):
    """It is gone from lists, searches and metrics; a call under its name begins it anew."""
    with harness.serve(tmp_path, "--upstream", upstream) as proxy:
        assert call(proxy.data, "a", f"the {WORD}") and call(proxy.data, "b", f"a {WORD}")
        done("index", "--store", proxy.store, folder=tmp_path)
        status, refusal = ask(proxy, "DELETE", "/episodes/a")
        assert status == 409 and "close it first" in refusal["error"]["message"]
        assert ask(proxy, "DELETE", "/episodes/nobody")[0] == 404
        control.close(proxy, "a")
        status, gone = ask(proxy, "DELETE", "/episodes/a")
        assert (status, gone["episode_id"], gone["calls"]) == (200, "a", 1), gone

        assert ask(proxy, "GET", "/episodes/a")[0] == 404
        hits = control.page(proxy, f"/search?q={WORD}")["hits"]
        assert {hit["episode_id"] for hit in hits} == {"b"}
        assert control.page(proxy, "/episodes")["total"] == 1
        assert call(proxy.data, "a")
        status, shown = ask(proxy, "GET", "/episodes/a")
        assert (status, shown["calls"], shown["closed"]) == (200, 1, False)
        assert is_clean(proxy.store, tmp_path)


def test_the_read_token_deletes_nothing(tmp_path, upstream):
    """Only the control listener's own token opens what deletes."""
    with harness.serve(tmp_path, "--upstream", upstream) as proxy:
        assert call(proxy.data, "a")
        control.close(proxy, "a")
        reads = control.page(proxy, "/read-token")["read_token"]
        for method, path in (("DELETE", "/episodes/a"), ("POST", "/prune")):
            status, reply = ask(proxy, method, path, token=reads)
            assert status == 403 and "read token" in reply["error"]["message"], reply
            assert ask(proxy, method, path, token="x" * 40)[0] == 401
        assert ask(proxy, "GET", "/episodes/a")[0] == 200


@pytest.mark.parametrize("body", [{}, {"attempt": 1, "older_than_s": 1}, {"keep": ["a"]}, {"x": 1}])
def test_what_says_not_what_is_to_go_is_refused(tmp_path, upstream, body):
    """A request without a choice, or with half of one, deletes nothing."""
    with harness.serve(tmp_path, "--upstream", upstream) as proxy:
        assert call(proxy.data, "a")
        control.close(proxy, "a")
        assert control.post(proxy, "/prune", body)[0] == 400
        assert ask(proxy, "GET", "/episodes/a")[0] == 200


def test_the_command_asks_the_server_that_records(tmp_path, upstream):
    """It deletes through it; what another process holds is refused, and says why."""
    with harness.serve(tmp_path, "--upstream", upstream) as proxy:
        for episode in ("a", "b", "c"):
            assert call(proxy.data, episode)
        control.close(proxy, "a")
        env = harness.environment(XDG_STATE_HOME=str(tmp_path / "states"))
        prune = ("prune", "--older-than", "0s", "--store", proxy.store)
        planned = command(*prune, "--dry-run", "--json", folder=tmp_path, env=env)
        assert json.loads(planned.stdout)["kept_open"] == 2, planned.stderr
        told = command(*prune, folder=tmp_path, env=env)
        assert told.returncode == 0, told.stderr
        assert "gone: 1 episode, 1 call" in told.stdout and "b 0, c 0" in told.stdout
        assert call(proxy.data, "b"), "it goes on"

        # Without the pointer to the server.
        elsewhere = harness.environment(XDG_STATE_HOME=str(tmp_path / "none"))
        refused = command(*prune, folder=tmp_path, env=elsewhere)
        assert refused.returncode == 1 and "is being recorded to" in refused.stderr
        assert "POST /prune" in refused.stderr
        assert is_clean(proxy.store, tmp_path)
