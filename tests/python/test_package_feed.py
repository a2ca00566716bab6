"""The package's feed and its hold on the engine, against a real recorder."""

import http.server
import json
import sys
import threading
import time
import tomllib
import types
import urllib.error
import urllib.request
from array import array
from zlib import crc32

import openai
import pyarrow.parquet as pq
import pytest

import harness
from game import Agent, Game
from harness import MODEL
from package import PYTHON, rolltape

GROUP_SIZE = 3
LONG = 800
"""Tokens that take longer to sample than an episode to close."""
SAME = ("trajectory_id", "input_ids", "loss_mask", "versions", "reward", "advantage")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A recorder in front of the tiny model, with two groups that were played and closed."""
    store = tmp_path_factory.mktemp("feed") / "rolltape.db"
    with rolltape.Server(model=MODEL, store=store) as running:
        for group in ("g0", "g1"):
            for member in range(GROUP_SIZE):
                play(running.client, f"{group}-{member}", group)
        yield running


def play(client, name, group=None, secret=4):
    """One game as an episode."""
    with rolltape.episode(client, name, group_id=group) as episode:
        agent = openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0)
        game = Game(secret)
        Agent(agent, seed=crc32(name.encode())).play(game)
        episode.reward(game.reward)


def feed(server, consumer, **options):
    """A reader of whole groups."""
    asked = {"unit": "group", "group_size": GROUP_SIZE, "advantage": "grpo"} | options
    return rolltape.Feed(server.client, consumer, lease_s=60, **asked)


def ids(lease):
    return sorted({row["episode_id"] for row in lease.rows})


def test_rows_are_those_of_an_export(server, tmp_path):
    out = tmp_path / "out"
    server.command("export", "--out", out, "--group", "g0", "--advantage", "grpo")
    exported = pq.read_table(out / "trajectories.parquet").to_pylist()
    lease = feed(server, "same", group="g0").lease(limit=1, wait_s=10)
    assert len(lease.rows) == len(exported) == GROUP_SIZE
    order = lambda row: row["trajectory_id"]  # noqa: E731
    for row, theirs in zip(sorted(lease.rows, key=order), sorted(exported, key=order)):
        assert {name: row[name] for name in SAME} == {name: theirs[name] for name in SAME}
        assert array("f", row["logprobs"]) == array("f", theirs["logprobs"])
        assert row["completion"] and row["turns"][0]["call_id"]


def test_what_is_acked_does_not_come_again_and_what_is_given_back_does(server):
    reader = feed(server, "acks")
    assert reader.standing() is None
    first = reader.lease(limit=1, wait_s=10)
    second = reader.lease(limit=1, wait_s=10)
    assert ids(first) == ["g0-0", "g0-1", "g0-2"] and ids(second) == ["g1-0", "g1-1", "g1-2"]
    assert reader.lease(wait_s=0) is None, "all of it is leased"
    first.ack()
    first.ack()
    second.nack()
    again = reader.lease(wait_s=10)
    assert ids(again) == ids(second) and again.id != second.id
    again.renew(120)
    again.ack([("g1-0", 0), ("g1-1", 0), ("g1-2", 0)])
    assert reader.lease(wait_s=0) is None
    standing = reader.standing()
    assert (standing["acked"], standing["leased"], standing["depth"]) == (6, 0, 0)


def test_an_ack_of_what_was_handed_to_another_is_an_error(server):
    reader = feed(server, "late", group="g0")
    lease = reader.lease(wait_s=10)
    lease.nack()
    other = reader.lease(wait_s=10)
    with pytest.raises(rolltape.RolltapeError) as caught:
        lease.ack()
    assert caught.value.status == 409
    other.ack()


SENT_ON = ("authorization", "content-type")


class Relay(http.server.BaseHTTPRequestHandler):
    """Passes requests on to `upstream`; the first reply with rows breaks off in the middle."""

    protocol_version = "HTTP/1.1"
    upstream = ""
    asked = []

    def do_GET(self):
        page = self.path.split("?")[0]
        self.asked.append(page)
        length = int(self.headers.get("content-length", 0))
        data = self.rfile.read(length) if length else None
        sent = {name: self.headers[name] for name in SENT_ON if name in self.headers}
        request = urllib.request.Request(self.upstream + self.path, data, sent, method=self.command)
        with urllib.request.urlopen(request, timeout=60) as reply:
            body = reply.read()
            self.send_response_only(reply.status)
            for name, value in reply.getheaders():
                if name.lower().startswith("x-rolltape-"):
                    self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        breaks = page == "/feed" and self.asked.count(page) == 1
        self.wfile.write(body[: len(body) // 2] if breaks else body)
        self.close_connection = breaks

    do_POST = do_GET

    def log_message(self, *_):
        pass


def test_a_reply_that_breaks_off_leaves_no_lease_behind(server):
    handler = type("Here", (Relay,), {"upstream": server.client.http.url, "asked": []})
    relay = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=relay.serve_forever)
    thread.start()
    try:
        token = server.client.http.token
        client = rolltape.Client("127.0.0.1:%d" % relay.server_address[1], token=token)
        client.versions()  # the connection is a kept one when rows are asked for
        reader = rolltape.Feed(client, "breaks", unit="group", group_size=GROUP_SIZE)
        lease = reader.lease(limit=2, wait_s=0)
    finally:
        relay.shutdown()
        thread.join()
        relay.server_close()
    assert ids(lease) == [f"g{group}-{n}" for group in range(2) for n in range(GROUP_SIZE)]
    gone, taken = (handler.asked.index("/feed"), len(handler.asked) - 1)
    between = handler.asked[gone + 1 : taken]
    assert len(between) == 1 and between[0].endswith("/nack") and handler.asked[taken] == "/feed"
    lease._http = server.client.http
    lease.ack()
    standing = feed(server, "breaks").standing()
    assert (standing["acked"], standing["leased"]) == (2 * GROUP_SIZE, 0)


def test_a_reader_waits_for_what_is_finished_later(server):
    reader = rolltape.Feed(server.client, "waits", cursor="end")
    assert reader.lease(wait_s=0) is None
    later = threading.Timer(0.5, play, (server.client, "later"))
    later.start()
    began = time.monotonic()
    lease = reader.lease(wait_s=20)
    later.join()
    assert ids(lease) == ["later"] and time.monotonic() - began < 20


def test_a_lease_that_would_end_while_it_is_held_is_refused(server):
    with pytest.raises(ValueError, match="7 s"):
        rolltape.trl.RolloutWorker(server.client, lease_s=7)
    rolltape.trl.RolloutWorker(server.client, lease_s=8)


def test_rows_without_a_lease(server):
    def asked(**names):
        return sorted({row["episode_id"] for row in rolltape.rows_of(server.client, **names)})

    assert asked(groups=["g0"]) == ["g0-0", "g0-1", "g0-2"]
    assert asked(episodes=["g0-1", "g1-2"]) == ["g0-1", "g1-2"]
    assert asked(episodes=["nobody-knows-it"]) == []


def test_columns_for_a_rollout_func(server):
    rows = rolltape.rows_of(server.client, groups=["g0"])
    best = rolltape.trl.rollout.best_rows(rows)
    assert sorted(best) == ["g0-0", "g0-1", "g0-2"]
    columns = rolltape.trl.samples.to_columns([best["g0-1"], None, best["g0-0"]], (3, 1))
    lists = ("completion_ids", "logprobs", "env_mask")
    assert len({tuple(map(len, columns[name])) for name in lists}) == 1
    first = best["g0-1"]
    assert columns["prompt_ids"][0] + columns["completion_ids"][0] == first["input_ids"]
    assert sum(columns["env_mask"][0]) == sum(first["loss_mask"]) > 0
    assert [columns[name][1] for name in ("prompt_ids", *lists)] == [[3], [1], [0.0], [0]]
    rewards = rolltape.trl.recorded_reward([], [], columns["reward"])
    assert rewards == [first["reward"], None, best["g0-0"]["reward"]]


def test_a_rollout_takes_the_rows_that_the_file_has_and_says_what_it_leaves(played, tmp_path):
    """Of episodes with siblings and forks, too: their other rows are counted."""
    store = ("--store", played.world.proxy.store)
    words = ("export", *store, "--out", "out", "--format", "trl", "--json")
    report = json.loads(harness.done(*words, folder=tmp_path))
    exported = pq.read_table(tmp_path / "out" / "trl.parquet").to_pylist()
    rows = played.rows()
    best = rolltape.trl.rollout.best_rows(rows)
    taken = {row["trajectory_id"] for row in best.values()}
    assert taken == {row["trajectory_id"] for row in exported} and report["rows"] == len(taken)
    left = rolltape.trl.rollout.left_out(rows)
    assert left.rows.total() == sum(any(r["loss_mask"]) for r in rows) - len(taken) > 0
    trained = sum(sum(row["loss_mask"]) for row in rows)
    assert left.tokens.total() == trained - sum(sum(row["env_mask"]) for row in exported)
    columns = left.columns(["two-choices", "plain-0"])
    assert columns["rows_left_out"][0] > 0 == columns["rows_left_out"][1]


def test_of_equal_main_rows_the_first_is_taken():
    def row(name, kind, trained):
        mask = [1] * trained + [0] * 3
        return {"episode_id": "e", "trajectory_id": name, "kind": kind, "loss_mask": mask}

    rows = [row("none", "main", 0), row("a", "main", 2), row("b", "main", 2)]
    best = rolltape.trl.rollout.best_rows([*rows, row("sub", "subagent", 9)])
    assert best["e"]["trajectory_id"] == "a"
    left = rolltape.trl.rollout.left_out([*rows, row("sub", "subagent", 9)])
    assert (left.rows["e"], left.tokens["e"]) == (2, 11)
    assert rolltape.trl.rollout.best_rows(rows[:1]) == {}


def test_a_rollout_waits_for_all_of_its_batch(server):
    """One member's last call is still under way when it is closed, one makes no call at all."""
    threads = []

    def one(episode, prompt):
        if prompt == "nothing":
            return 0.0
        agent = openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0)
        Agent(agent, seed=1).play(Game(2))
        if prompt == "slow":
            begun = threading.Event()
            threads.append(threading.Thread(target=long_call, args=(agent, begun)))
            threads[-1].start()
            assert begun.wait(60)
        return 1.0

    def long_call(agent, begun):
        more = {"ignore_eos": True, "min_tokens": LONG}
        stream = agent.completions.create(
            model="tiny",
            prompt=list(range(5, 45)),
            n=16,
            max_tokens=LONG,
            stream=True,
            extra_body=more,
        )
        for _ in stream:
            begun.set()

    trainer = types.SimpleNamespace(
        num_generations=3,
        state=types.SimpleNamespace(global_step=0),
        processing_class=types.SimpleNamespace(pad_token_id=3, eos_token_id=1),
    )
    columns = rolltape.trl.rollout_func(server.client, one)(["quick", "slow", "nothing"], trainer)
    for thread in threads:
        thread.join()
    assert columns["reward"] == [1.0, 1.0, None]
    assert [sum(mask) > 0 for mask in columns["env_mask"]] == [True, True, False]


def test_a_rollout_does_not_wait_for_what_was_never_closed(server):
    client = server.client
    client.announce("open")
    agent = openai.OpenAI(base_url=client.base_url("open"), api_key="none", max_retries=0)
    Agent(agent, seed=1).play(Game(2))
    assert client.show("open")["with_ids"]
    begun = time.monotonic()
    assert rolltape.trl.rollout.whole(client, ["open"], wait_s=40) == []
    assert time.monotonic() - begun < 20


def test_weights_come_in_under_their_version(server):
    client = server.client
    before = client.weight_info()
    client.pause("keep")
    assert client.is_paused()
    try:
        client.update_weights(MODEL, version=7)
    finally:
        client.resume()
    assert not client.is_paused()
    after = client.weight_info()
    assert (before["weight_version"], after["weight_version"]) == ("default", "7")
    assert before["checksum"] == after["checksum"], "the same weights under another name"
    play(client, "seventh")
    (row,) = rolltape.rows_of(client, episodes=["seventh"])
    assert {v for v, m in zip(row["versions"], row["loss_mask"]) if m} == {7}
    seen = {version["label"]: version for version in client.versions()}
    assert seen["7"]["number"] == 7 and seen["7"]["checksum"] == after["checksum"]


def test_weights_that_do_not_fit_are_refused_and_the_old_ones_serve(server, tmp_path):
    before = server.client.weight_info()
    with pytest.raises(rolltape.RolltapeError) as caught:
        server.client.update_weights(tmp_path, version=99)
    assert caught.value.status == 400
    assert server.client.weight_info() == before
    play(server.client, "still-serving")


def test_the_engine_sleeps_and_wakes_up(server):
    client = server.client
    client.sleep(1)
    assert client.is_sleeping()
    client.wake_up("weights", "kv_cache", "scheduling")
    assert not client.is_sleeping()
    play(client, "awake")


def test_an_episode_begins_only_if_it_would_be_trained_in_time(tmp_path):
    with rolltape.Server(model=MODEL, store=tmp_path / "rolltape.db") as running:
        client = running.client
        assert client.admission() is None
        rule = client.set_admission("t", batch_attempts=1, max_versions=0, wait_s=0)
        assert (rule["limit"], rule["taken"]) == (1, 0)
        play(client, "one")
        with pytest.raises(openai.InternalServerError, match="no new episode may begin"):
            play(client, "two")
        lease = rolltape.Feed(client, "t").lease()
        assert ids(lease) == ["one"]
        lease.ack()
        play(client, "three")
        assert client.admission()["finished"] == 1
        client.lift_admission()
        assert client.admission() is None


def test_agents_cannot_reach_the_engine_s_control(server):
    root = server.client.data
    request = urllib.request.Request(f"{root}/v1/load_lora_adapter", data=b"{}")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    assert caught.value.code == 403
    assert server.client.server_info()["vllm_config"]["model_config"]["served_model_name"] == "tiny"


def test_the_trace_of_an_episode_has_each_turn_once(server):
    rows = rolltape.rows_of(server.client, episodes=["g0-0"])
    entries = rolltape.openenv.trace_entries(rows)
    assert len(entries) == len({entry["metadata"]["node_id"] for entry in entries}) > 0
    for entry in entries:
        prompt, sampled = entry["prompt_token_ids"], entry["completion_token_ids"]
        assert len(entry["loss_mask"]) == len(prompt) + len(sampled)
        assert len(entry["per_token_logps"]) == len(sampled) == sum(entry["loss_mask"])
        assert entry["request"]["messages"][0]["role"] == "user"
        assert entry["response"]["choices"][0]["message"]["role"] == "assistant"


def test_a_turn_keeps_its_own_answer_beside_the_agent_s(server):
    """An answer that the agent wrote itself is context, and shifts nobody else's."""
    row = rolltape.rows_of(server.client, episodes=["g0-0"])[0]
    answer = row["completion"][-1]
    own = {**answer, "content": "the agent's own"}
    row["completion"] = [own, *row["completion"]]
    for turn in row["turns"]:
        turn["message"] += 1
    last = rolltape.openenv.trace_entries([row])[-1]
    assert last["response"]["choices"][0]["message"].get("content") == answer["content"]
    asked = [m.get("content") for m in last["request"]["messages"] if m["role"] == "assistant"]
    assert asked[0] == "the agent's own"
    row["turns"][-1]["message"] = None
    last = rolltape.openenv.trace_entries([row])[-1]
    assert last["response"]["choices"][0]["message"]["content"] == ""


def test_openenv_s_routes(server):
    sessions = rolltape.sessions.server(server.client)
    thread = threading.Thread(target=sessions.serve_forever)
    thread.start()
    http = rolltape.http.Http("127.0.0.1:%d" % sessions.server_address[1], timeout_s=30)
    try:
        sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
        made = http.post("/sessions", {"metadata": {"split": "train"}, "sampling": sampling})
        agent = openai.OpenAI(base_url=made["base_url"], api_key=made["api_key"], max_retries=0)
        Agent(agent, seed=1).play(Game(2))
        name = made["session_id"]
        assert http.get(f"/sessions/{name}")["generations"] > 0
        assert http.call("DELETE", f"/sessions/{name}")["deleted"]
        document = http.get(f"/sessions/{name}/rollout")
        (sequence,) = document["sequences"]
        assert document["trainable"] and sequence["role"] == "agent"
        assert len(sequence["input_ids"]) == len(sequence["loss_mask"]) == len(sequence["logprobs"])
        assert document["stats"]["n_trainable_tokens"] == sum(sequence["loss_mask"]) > 0
        entries = http.get(f"/sessions/{name}/trace_entries")["entries"]
        assert [len(e["completion_token_ids"]) for e in entries] == sequence["turn_lengths"]
        for path, status in {"/sessions/nobody/rollout": 404, "/nowhere": 404}.items():
            with pytest.raises(rolltape.RolltapeError) as caught:
                http.get(path)
            assert caught.value.status == status
    finally:
        sessions.shutdown()
        thread.join()
        sessions.server_close()


def pins(path):
    """The packages of a list whose version is given."""
    lines = (harness.ROOT / path).read_text().splitlines()
    said = (line.split("#")[0].strip() for line in lines)
    return dict(line.split("==") for line in said if "==" in line)


def test_what_users_install_is_what_was_tested():
    tested = pins("tests/python/trainers/requirements.txt")
    assert pins("examples/guess/requirements.txt").items() <= tested.items()
    project = tomllib.loads((PYTHON / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    bounds = [bound.split(">=") for bound in extras["trl"] + extras["openenv"] if ">=" in bound]
    assert len(bounds) == 6 and dict(bounds).items() <= tested.items()
    bounds = [bound.split(">=") for name in ("wandb", "mlflow", "trackio") for bound in extras[name]]
    assert len(bounds) == 3
    assert dict(bounds).items() <= pins("tests/python/requirements.txt").items()


def test_examples_import_without_their_trainers():
    for path in ("verl/agent_loop.py", "prime-rl/push_weights.py"):
        text = (harness.ROOT / "examples" / path).read_text()
        names = {"__name__": "imported", "__file__": path}
        exec(compile(text, path, "exec"), names)
    assert names["newest"]


def test_verl_s_fields_are_those_of_the_row(server):
    text = (harness.ROOT / "examples" / "verl" / "agent_loop.py").read_text()
    names = {"__name__": "imported"}
    exec(compile(text, "agent_loop.py", "exec"), names)
    (row,) = rolltape.rows_of(server.client, episodes=["g1-0"])
    fields = names["fields"](row, 10_000, 10_000)
    assert fields["prompt_ids"] + fields["response_ids"] == row["input_ids"]
    assert sum(fields["response_mask"]) == sum(row["loss_mask"])
    assert names["number"](b"words\n0.5\n") == 0.5 and names["number"](b"") is None


def test_verl_s_command_sees_no_token(server, monkeypatch, tmp_path):
    text = (harness.ROOT / "examples" / "verl" / "agent_loop.py").read_text()
    names = {"__name__": "imported"}
    exec(compile(text, "agent_loop.py", "exec"), names)
    monkeypatch.setenv("ROLLTAPE_CONTROL_TOKEN", "secret")
    loop = object.__new__(names["RolltapeAgentLoop"])
    loop.client = server.client
    look = (
        "import json, os, sys, openai; from game import Agent, Game; "
        "Agent(openai.OpenAI(), seed=1).play(Game(3)); "
        f"json.dump(dict(os.environ), open({str(tmp_path / 'seen')!r}, 'w')); print(0.5)"
    )
    monkeypatch.setenv("PYTHONPATH", str(harness.ROOT / "tests" / "python"))
    loop.command = [sys.executable, "-c", look]
    row = loop.client_side({"temperature": 1.0}, {"index": "verl-0"})
    seen = json.loads((tmp_path / "seen").read_text())
    assert row["reward"] == 0.5 and seen["ROLLTAPE_TASK"] == '{"index": "verl-0"}'
    assert "secret" not in seen.values()


def test_prime_rl_s_folder_is_pushed(server, tmp_path):
    text = (harness.ROOT / "examples" / "prime-rl" / "push_weights.py").read_text()
    names = {"__name__": "imported"}
    exec(compile(text, "push_weights.py", "exec"), names)
    for step in (11, 12, 13):
        folder = tmp_path / f"step_{step}"
        folder.mkdir()
        for file in ("config.json", "model.safetensors"):
            (folder / file).write_bytes((MODEL / file).read_bytes())
        if step < 13:
            (folder / "STABLE").touch()
    found = names["newest"](tmp_path, -1)
    assert found == (12, tmp_path / "step_12") and names["newest"](tmp_path, 12) is None
    names["push"](server.client, *found)
    assert server.client.weight_info()["weight_version"] == "12"
    assert not server.client.is_paused()
    assert json.dumps(server.client.show("g0-0"))
