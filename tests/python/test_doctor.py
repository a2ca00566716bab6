"""`rolltape doctor`: what it finds out about servers that give all, some or nothing."""

import itertools
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import harness
from harness import command
from imitated import imitated

DONE, FAILED, USAGE = 0, 1, 2
WIRES = {"chat": 4, "completions": 2, "responses": 4, "messages": 4}
KEY = "secret-of-the-upstream"
COLUMNS_MAX = 100


def doctor(folder, url, *options, **more):
    """The exit code and the findings."""
    ended = command("doctor", "--upstream", url, "--json", *options, folder=folder, **more)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def by_wire(found, wire):
    """The probes of a wire."""
    return [probe for probe in found["probes"] if probe["wire"] == wire]


class Stub(BaseHTTPRequestHandler):
    """A server that says it is vLLM, wants a key, and chats without streaming."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        """Nothing is logged."""

    def do_GET(self):
        """The list of models."""
        if self.path == "/v1/models" and self._is_known():
            self._say(200, {"data": [{"id": "stub", "owned_by": "vllm"}]})
        else:
            self._say(404, {"detail": "Not Found"})

    def do_POST(self):
        """A chat completion that is no stream, or a refusal."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self._is_known():
            self._say(401, {"error": "Unauthorized"})
        elif self.path != "/v1/chat/completions":
            self._say(404, {"detail": "Not Found"})
        else:
            self.server.bodies.append(body)
            self._say(*self.server.answer(body))

    def _is_known(self):
        return self.headers.get("authorization") == f"Bearer {KEY}"

    def _say(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def says(text, **more):
    """A reply without ids."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return 200, {"id": "x", "choices": [choice], "usage": usage} | more


def is_asked(body):
    """Whether rolltape has added its own to a request."""
    return "return_token_ids" in body


@contextmanager
def stub(answer):
    """A running stub that answers a request's body with `answer(body)`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as server:
        server.answer, server.bodies = answer, []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server, f"http://{harness.text(server.server_address)}"
        server.shutdown()


def examined(folder, answer):
    """The exit code, the findings, and the bodies that the stub was sent."""
    env = harness.environment(THEIR_KEY=KEY)
    with stub(answer) as (server, url):
        found = doctor(folder, url, "--upstream-key-env", "THEIR_KEY", env=env)
        return *found, server.bodies


def test_the_engine_gives_everything(world, tmp_path):
    url = f"http://{harness.text(world.engine)}"
    code, found = doctor(tmp_path, url)
    assert (code, found["missing"], found["complete"]) == (DONE, [], True), found["missing"]
    assert found["logprob_kind"] == "processed"
    assert (found["dialect"], found["model"], found["weight_version"]) == (
        "rolltape",
        "tiny",
        "default",
    )
    assert found["version"]
    for wire, count in WIRES.items():
        probes = by_wire(found, wire)
        assert len(probes) == count
        for probe in probes:
            assert probe["exact"] and probe["fidelity"] == "exact" and probe["usage_agrees"]
            assert probe["ids"] == probe["logprobs"] > 0 and probe["prompt_ids"] > 0
            assert probe["hidden_reply"] in ("equal", "other chunks"), probe
            native = wire in ("chat", "completions")
            assert probe["how"] == ("native" if native else "as chat")
    assert list(tmp_path.iterdir()) == [], "a doctor leaves nothing behind"


def test_the_table(world, tmp_path):
    url = f"http://{harness.text(world.engine)}"
    ended = command("doctor", "--upstream", url, folder=tmp_path)
    assert ended.returncode == DONE, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == f"upstream  {url}"
    assert lines[1].startswith("server    rolltape ") and lines[2] == "model     tiny"
    head = next(at for at, line in enumerate(lines) if line.startswith("wire "))
    rows = lines[head + 1 : head + 1 + sum(WIRES.values())]
    assert lines[head - 1] == "" and all(row.startswith(tuple(WIRES)) for row in rows)
    assert all(len(row.split()) >= len(lines[head].split()) for row in rows)
    assert lines[-1].startswith("Nothing is missing")
    assert max(map(len, lines)) <= COLUMNS_MAX
    assert "\x1b" not in ended.stdout + ended.stderr


def test_the_first_weights_of_the_engine_have_a_number(world, tmp_path):
    """Rows of tokens that the label `default` sampled get version 0."""
    _, found = doctor(tmp_path, f"http://{harness.text(world.engine)}")
    assert found["weight_version"] == "default"
    assert not any("-1" in note or "number" in note for note in found["notes"]), found["notes"]


def test_a_route_is_probed_as_it_is_where_nothing_is_translated(world, tmp_path):
    url = f"http://{harness.text(world.engine)}"
    code, found = doctor(tmp_path, url, "--translate", "never")
    assert code == FAILED and any("--translate always" in one for one in found["missing"])
    for wire in ("responses", "messages"):
        probes = by_wire(found, wire)
        assert {(probe["how"], probe["exact"]) for probe in probes} == {("native", False)}
        assert {probe["hidden_reply"] for probe in probes} == {"nothing asked"}


def test_a_server_spoken_to_in_another_dialect_tells_nothing(world, tmp_path):
    url = f"http://{harness.text(world.engine)}"
    code, found = doctor(tmp_path, url, "--dialect", "openai")
    assert code == FAILED
    assert "--tokenizer" in found["missing"][0] and "--dialect" in found["missing"][0]
    assert not any(probe["exact"] for probe in found["probes"])


def test_a_scripted_vllm(tmp_path):
    """What vLLM gives on its own Responses route and does not on its Messages route."""
    upstream = pytest.importorskip("upstream", reason="there is no scripted upstream")
    call = {"name": "get_weather", "arguments": {"city": "Paris"}}
    turn = {"text": "Let me look — ✓", "reasoning": "hm", "tool_calls": [call]}
    folder = tmp_path / "scripted"
    folder.mkdir()
    with upstream.scripted(folder, [turn]) as running:
        code, found = doctor(tmp_path, running.url)
        never = doctor(tmp_path, running.url, "--translate", "never")
    assert (found["dialect"], found["version"]) == ("vllm", "0.33.0")
    assert (found["weight_version"], found["logprob_kind"]) == ("7", "raw")
    assert (code, found["missing"]) == (DONE, [])
    for probe in found["probes"]:
        assert probe["hidden_reply"] in ("equal", "other chunks"), probe
        assert probe["exact"] and probe["usage_agrees"], probe
        assert probe["versions"] == ["7"]
    notes = found["notes"]
    assert any("--logprobs-mode processed_logprobs" in note for note in notes)
    assert found["complete"] and not any("which weights" in note for note in notes)
    assert {probe["how"] for probe in by_wire(found, "responses")} == {"as chat"}
    (silent,) = [note for note in never[1]["notes"] if "which weights" in note]
    assert silent.startswith("responses: ") and "--translate always" in silent
    (missing,) = [told for told in never[1]["missing"] if told.startswith("messages")]
    assert never[0] == FAILED and "--translate always" in missing


def test_a_server_that_ignores_a_prompt_as_ids(tmp_path):
    with imitated("vllm") as url:
        code, found = doctor(tmp_path, url)
        wanted, told = doctor(tmp_path, url, "--continue", "exact")
    assert (code, found["missing"]) == (DONE, [])
    (note,) = [note for note in found["notes"] if "--continue exact" in note]
    assert note.startswith("the server ignores the prompt of a chat as ids")
    assert "VLLM_USE_RUST_FRONTEND" in note
    assert (wanted, told["missing"]) == (FAILED, [note]) and note not in told["notes"]


def test_a_server_that_takes_a_prompt_as_ids(tmp_path):
    upstream = pytest.importorskip("upstream", reason="there is no scripted upstream")
    folder = tmp_path / "scripted"
    folder.mkdir()
    with upstream.scripted(folder, [{"text": "a"}]) as running:
        code, found = doctor(tmp_path, running.url, "--continue", "exact")
        prompts = [heard.prompt for heard in running.heard() if "chat" in heard.path]
    assert not any("prompt of a chat" in told for told in [*found["missing"], *found["notes"]])
    assert code == DONE and prompts[-1] == (*prompts[-2], prompts[-2][-1])


def test_continuation_where_no_field_takes_ids(tmp_path):
    with imitated("llamacpp", {"/props": {"build_info": "b7100-abcdef"}}) as url:
        told = [doctor(tmp_path, url, *more)[1] for more in ((), ("--continue", "exact"))]
    lost = [[one for one in found["missing"] if "no field" in one] for found in told]
    assert lost[0] == [] and "rolltape engine continues by itself" in lost[1][0]
    assert not any("no field" in note for found in told for note in found["notes"])


def test_sglang_without_a_parser(tmp_path):
    about = {"/server_info": {"version": "0.5.23", "tool_call_parser": None}}
    with imitated("sglang", about, parsers=False) as url:
        code, found = doctor(tmp_path, url)
    assert (found["dialect"], found["version"], code) == ("sglang", "0.5.23", FAILED)
    assert {probe["hidden_reply"] for probe in by_wire(found, "chat")} == {"equal"}
    (missing,) = found["missing"]
    assert "chat, streamed" in missing and "--tool-call-parser NAME" in missing
    assert "completions" not in missing
    whole = [probe for probe in found["probes"] if not probe["stream"]]
    assert all(probe["versions"] == ["7"] and probe["ids"] for probe in whole[:2])


def test_sglang_with_a_parser(tmp_path):
    about = {"/server_info": {"version": "0.5.23", "tool_call_parser": "qwen25"}}
    with imitated("sglang", about) as url:
        code, found = doctor(tmp_path, url)
    assert (code, found["missing"]) == (DONE, [])
    (note,) = [note for note in found["notes"] if "which weights" in note]
    assert "whole replies only" in note and not found["complete"]


def test_llamacpp(tmp_path):
    with imitated("llamacpp", {"/props": {"build_info": "b7100-abcdef"}}) as url:
        code, found = doctor(tmp_path, url)
    assert (found["dialect"], found["version"], code) == ("llamacpp", "b7100-abcdef", FAILED)
    assert {probe["hidden_reply"] for probe in by_wire(found, "chat")} == {"equal"}
    assert all(probe["ids"] for probe in by_wire(found, "chat") if not probe["stream"])
    assert any("/apply-template" in told for told in found["missing"])


def test_what_is_missing_names_the_flag(tmp_path):
    def answer(body):
        # As vLLM without a parser: it is only a call that is not forced that it refuses.
        if "tools" not in body or body.get("tool_choice") == "required":
            return says("the same")
        refusal = '"auto" tool choice requires --enable-auto-tool-choice'
        return 400, {"error": {"message": refusal, "code": 400}}

    code, found, bodies = examined(tmp_path, answer)
    assert code == FAILED
    assert {p["how"] for p in by_wire(found, "completions")} == {"not there"}
    tools, ids = found["missing"]
    assert "--enable-auto-tool-choice --tool-call-parser" in tools
    of = "chat with a tool; responses with a tool; messages with a tool: "
    assert tools.startswith(of)
    assert "return_token_ids" in ids
    refused = [probe for probe in by_wire(found, "chat") if probe["tools"]]
    assert all("auto" in probe["error"] and probe["status"] == 400 for probe in refused)
    plain = [body for body in bodies if "tools" not in body]
    assert len([body for body in plain if is_asked(body)]) * 3 == len(plain), "between two plain"
    assert KEY not in json.dumps(found)


def test_replies_that_do_not_repeat(tmp_path):
    count = itertools.count()
    _, found, _ = examined(tmp_path, lambda _: says(f"reply {next(count)}"))
    assert {probe["hidden_reply"] for probe in by_wire(found, "chat")} == {"not repeatable"}
    assert any("not repeatable" in note for note in found["notes"])
    assert not any("unasked" in told for told in found["missing"])


def test_a_server_that_once_says_something_else_is_not_blamed_on_hiding(tmp_path):
    asked = itertools.count()

    def answer(body):
        return says("another" if is_asked(body) and next(asked) == 0 else "the same")

    _, found, _ = examined(tmp_path, answer)
    first, *others = by_wire(found, "chat")
    assert first["hidden_reply"] == "not repeatable"
    assert {probe["hidden_reply"] for probe in others} == {"equal"}


def test_what_cannot_be_hidden_is_told_with_its_place(tmp_path):
    def answer(body):
        return says("the same", **({"trace": "asked"} if is_asked(body) else {}))

    code, found, _ = examined(tmp_path, answer)
    assert code == FAILED
    first = by_wire(found, "chat")[0]
    assert first["hidden_reply"] == "differs" and '"trace"' in first["difference"]["hidden"]
    assert '"trace"' not in first["difference"]["unasked"]
    assert any("what the server says unasked" in told for told in found["missing"])
    env = harness.environment(THEIR_KEY=KEY)
    with stub(answer) as (_, url):
        options = ("--upstream", url, "--upstream-key-env", "THEIR_KEY")
        page = command("doctor", *options, folder=tmp_path, env=env).stdout
    assert "differences:" in page and f"differs @{first['difference']['at']}" in page
    assert max(map(len, page.splitlines())) <= COLUMNS_MAX


def test_a_server_that_fails_when_asked(tmp_path):
    def answer(body):
        return (500, {"error": {"message": "boom"}}) if is_asked(body) else says("the same")

    code, found, _ = examined(tmp_path, answer)
    assert code == FAILED and all(p["refused_asked"] for p in by_wire(found, "chat"))
    assert any("--dialect openai" in told for told in found["missing"])


def test_a_server_that_will_not_be_asked(tmp_path):
    def answer(body):
        return (400, {"error": {"message": "no"}}) if is_asked(body) else says("the same")

    code, found, _ = examined(tmp_path, answer)
    assert code == FAILED and all(probe["declined"] for probe in by_wire(found, "chat"))
    # It is still asked for logprobs.
    assert {probe["hidden_reply"] for probe in by_wire(found, "chat")} == {"equal"}
    assert any("refuses to be asked" in told for told in found["missing"])


def test_a_server_that_wants_a_key(tmp_path):
    with stub(lambda _: says("")) as (_, url):
        ended = command("doctor", "--upstream", url, folder=tmp_path)
        assert ended.returncode == FAILED and ended.stdout == ""
        sentence, hint = ended.stderr.splitlines()
        assert url in sentence and "--model" in hint
        code, found = doctor(tmp_path, url, "--model", "stub", "--dialect", "vllm")
    assert code == FAILED
    assert all("--upstream-key-env" in told for told in found["missing"])


def test_a_model_that_is_not_there(world, tmp_path):
    code, found = doctor(tmp_path, f"http://{harness.text(world.engine)}", "--model", "nope")
    (missing,) = found["missing"]
    assert code == FAILED and missing.endswith("--model: tiny"), missing


def test_a_recorder_is_not_asked(tmp_path):
    with harness.world(tmp_path) as world:
        url = f"http://{harness.text(world.proxy.data)}"
        ended = command("doctor", "--upstream", url, folder=tmp_path)
        assert ended.returncode == FAILED and ended.stdout == ""
        assert "records" in ended.stderr and "the server behind it" in ended.stderr
        assert not world.tap.generations()
        assert world.proxy.command("episodes", "--json").strip() in ("", "[]")


def test_a_server_that_is_down(tmp_path):
    (nowhere,) = harness.free_addresses(1)
    ended = command("doctor", "--upstream", f"http://{harness.text(nowhere)}", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (FAILED, "")
    sentence, hint = ended.stderr.splitlines()
    assert sentence.startswith("rolltape: ") and harness.text(nowhere) in sentence
    assert "--upstream" in hint


@pytest.mark.parametrize("arguments", [[], ["--upstream", "nowhere"]], ids=" ".join)
def test_wrong_usage(tmp_path, arguments):
    ended = command("doctor", *arguments, folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (USAGE, "")
    assert ended.stderr.startswith("error: ") and "--help" in ended.stderr
