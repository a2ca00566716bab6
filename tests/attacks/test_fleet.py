"""Several engines: what one agent, or an engine that lies about its health, does to the others."""

import json
import os
import signal
import threading
import time
from contextlib import ExitStack

import pytest

import control
import harness
import hostile
import keyed
import lines
import paths

EPISODES = 12


class Engine(hostile.Upstream):
    """An engine that resets what is hostile, and stalls on calls while it is told to."""

    def __init__(self):
        super().__init__(self.reply_to)
        self.stalls = False

    def reply_to(self, request):
        if b"reset me" in request.body:
            raise ConnectionError
        while self.stalls and request.path == hostile.CHAT:
            time.sleep(0.05)
        return paths.vllm(request)


@pytest.fixture
def fleet(tmp_path):
    """Starts a proxy before two engines."""
    with ExitStack() as held:
        engines = [Engine(), Engine()]
        for engine in engines:
            held.callback(engine.stop)

        def start(*options):
            named = [word for engine in engines for word in ("--upstream", engine.url)]
            words = (*named, "--dialect", "vllm", *options)
            proxy = held.enter_context(harness.serve(tmp_path, *words))
            proxy.engines = engines
            return proxy

        yield start


def routed(proxy):
    """How all calls came to their engines."""
    return [row["routed"] for row in hostile.rows(proxy, "SELECT routed FROM calls")]


def states(proxy):
    """The states of the engines, by their addresses."""
    listed = json.loads(lines.control(proxy, "/upstreams").body)["upstreams"]
    return {one["url"].rstrip("/"): one["state"] for one in listed}


def test_one_agents_failures_move_no_thread_of_another(fleet):
    proxy = fleet()
    for episode in range(EPISODES):
        assert keyed.call(proxy, f"honest-{episode}").status == 200
    hostile_body = hostile.BODY | {"messages": [{"role": "user", "content": "reset me"}]}
    stop = threading.Event()

    def attack(number):
        body = hostile_body | {"user": f"{number}"}
        while not stop.is_set():
            try:
                keyed.call(proxy, "hostile", body=body)
            except (OSError, AssertionError):
                pass

    agents = [threading.Thread(target=attack, args=(number,)) for number in range(2)]
    for agent in agents:
        agent.start()
    try:
        for _ in range(5):
            for episode in range(EPISODES):
                assert keyed.call(proxy, f"honest-{episode}").status == 200
    finally:
        stop.set()
        for agent in agents:
            agent.join()
    failed = hostile.rows(proxy, "SELECT 1 FROM calls WHERE episode_id = 'hostile'")
    moved = "SELECT routed FROM calls WHERE episode_id <> 'hostile' AND routed LIKE 'moved%'"
    assert failed and not hostile.rows(proxy, moved)
    assert set(states(proxy).values()) == {"up"}


def test_an_engine_that_answers_no_call_gets_no_new_threads(fleet):
    proxy = fleet("--stalled-after", "1")
    stuck, well = proxy.engines
    stuck.stalls = True
    calls = []
    with ExitStack() as held:
        for episode in range(2 * EPISODES):
            line = held.enter_context(lines.connect(proxy.data))
            line.sendall(lines.chat(f"/e/first-{episode}{hostile.CHAT}"))
            calls.append(line)
        harness.until("it is stalled", lambda: states(proxy)[stuck.url] == "stalled")
        assert states(proxy)[well.url] == "up"
        before = len(stuck.calls())
        for episode in range(2 * EPISODES):
            assert keyed.call(proxy, f"later-{episode}").status == 200
        assert len(stuck.calls()) == before, "no new thread comes to it"
        gauge = f'rolltape_upstream_state{{state="stalled",upstream="{stuck.url[7:]}"}}'
        assert lines.metric(proxy, gauge) == 1

        stuck.stalls = False
        harness.until("it answers again", lambda: states(proxy)[stuck.url] == "up")
        for line in calls:
            assert lines.whole(line).status == 200
    for episode in range(2 * EPISODES):
        assert keyed.call(proxy, f"last-{episode}").status == 200
    assert len(stuck.calls()) > before, "new threads come to it again"


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a long file"])
def test_a_file_of_upstreams_that_becomes_another_thing_holds_up_nothing(tmp_path, kind):
    engine = Engine()
    listed = tmp_path / "upstreams.txt"
    listed.write_text(f"{engine.url}\n")
    with harness.serve(tmp_path, "--upstreams-file", listed, "--dialect", "vllm") as proxy:
        assert keyed.call(proxy, "before").status == 200
        other = tmp_path / "other"
        if kind == "a pipe":
            os.mkfifo(other)
        elif kind == "a device":
            other.symlink_to("/dev/zero")
        else:
            other.write_text("# \n" * (1 << 20))
        other.replace(listed)
        harness.until("it is told", lambda: "the upstreams stay as they were" in proxy.process.stderr)
        reason = "more than 1048576 bytes" if kind == "a long file" else "no regular file"
        assert reason in proxy.process.stderr
        for number in range(8):
            assert keyed.call(proxy, f"after-{number}").status == 200
        assert hostile.is_alive(proxy) and hostile.peak_mib(proxy) < 200
        proxy.process.child.send_signal(signal.SIGTERM)
        assert proxy.process.child.wait(timeout=20) == 0
    engine.stop()


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://127.0.0.1:0", "http://[::1]:65536"])
def test_no_upstream_has_a_port_that_cannot_be(fleet, url):
    proxy = fleet()
    status, reply = control.post(proxy, "/upstreams", {"url": url})
    assert status == 400 and "from 1 to 65535" in json.dumps(reply)
    assert len(states(proxy)) == 2
