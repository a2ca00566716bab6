"""Spans that `rolltape serve --otlp-endpoint` sends, as a collector decodes them."""

import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import harness
from package import rolltape

GENERATION = {"max_tokens": 6, "seed": 1}


class Collector:
    """A collector of OTLP over HTTP. It answers with the codes of `codes`, then with 200."""

    def __init__(self, codes=()):
        self.codes, self.answered, self.requests, self.headers = list(codes), [], [], []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                code = collector.codes.pop(0) if collector.codes else 200
                collector.answered.append((self.path, code))
                collector.headers.append(dict(self.headers))
                if code == 200:
                    collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(code)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self):
        """All spans that were taken, each with its attributes as a dictionary."""
        scopes = [scope for request in self.requests for part in request.resource_spans
                  for scope in part.scope_spans]
        return [(span, attributes(span)) for scope in scopes for span in scope.spans]

    def await_spans(self, count):
        """Waits for a number of spans."""
        end = time.monotonic() + 20
        while len(self.spans()) < count:
            assert time.monotonic() < end, [span.name for span, _ in self.spans()]
            time.sleep(0.05)
        return self.spans()


def attributes(part):
    """The attributes of a span or a resource."""

    def value(found):
        kind = found.WhichOneof("value")
        plain = getattr(found, kind)
        return [value(item) for item in plain.values] if kind == "array_value" else plain

    return {pair.key: value(pair.value) for pair in part.attributes}


@contextmanager
def collecting(*codes):
    collector = Collector(codes)
    try:
        yield collector
    finally:
        collector.server.shutdown()


@contextmanager
def serving(folder, collector, **variables):
    """A recorder in front of the tiny model, with a collector."""
    env = harness.environment(**variables)
    options = ("--model", harness.MODEL, "--otlp-endpoint", collector.url)
    with harness.serve(folder, *options, env=env) as proxy:
        yield proxy, rolltape.Client(
            f"http://{harness.text(proxy.control)}", f"http://{harness.text(proxy.data)}",
            token=proxy.token)


def chat(base_url, **more):
    agent = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0)
    messages = [{"role": "user", "content": "Hello"}]
    return agent.chat.completions.create(model="tiny", messages=messages, **GENERATION, **more)


def test_an_attempt_is_a_trace_of_its_calls_and_rewards(tmp_path):
    headers = "authorization=Bearer%20key,x-tenant=one"
    with collecting() as collector, serving(
        tmp_path, collector, OTEL_EXPORTER_OTLP_HEADERS=headers,
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test", OTEL_SERVICE_NAME="recorder",
    ) as (proxy, client):
        with rolltape.episode(client, "traced", group_id="g1") as episode:
            reply = chat(episode.base_url)
            for _ in chat(episode.base_url, stream=True):
                pass
            episode.reward(0.5)
        spans = collector.await_spans(4)

        (tree,) = [client.recording.tree("traced")]
        calls = {turn["call_id"]: turn for turn in tree["turns"]}
        assert len(calls) == 2

    chats = [(span, found) for span, found in spans if found.get("rolltape.call_id")]
    (attempt,) = [(span, found) for span, found in spans if span.name == "invoke_agent"]
    (reward,) = [(span, found) for span, found in spans if span.name.startswith("evaluation ")]
    assert len(spans) == 4 and {found["rolltape.call_id"] for _, found in chats} == set(calls)
    assert len({span.trace_id for span, _ in spans}) == 1
    assert {span.parent_span_id for span, _ in (*chats, reward)} == {attempt[0].span_id}
    assert not attempt[0].parent_span_id and len({span.span_id for span, _ in spans}) == 4

    span, found = chats[0]
    assert span.name == "chat tiny" and span.kind == span.SPAN_KIND_CLIENT
    expected = {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "tiny",
        "gen_ai.conversation.id": "traced", "rolltape.group_id": "g1",
        "gen_ai.usage.input_tokens": reply.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": reply.usage.completion_tokens,
        "gen_ai.response.finish_reasons": ["length"], "http.response.status_code": 200,
        "rolltape.outcome": "complete", "url.path": "/v1/chat/completions",
    }
    assert {name: found[name] for name in expected} == expected
    assert span.status.code == span.status.STATUS_CODE_UNSET
    now = time.time_ns()
    assert now - 60e9 < span.start_time_unix_nano < span.end_time_unix_nano < now
    assert attempt[0].start_time_unix_nano <= span.start_time_unix_nano
    assert attempt[0].end_time_unix_nano >= span.end_time_unix_nano
    assert (attempt[1]["rolltape.calls"], attempt[1]["rolltape.state"]) == (2, "completed")
    assert reward[1]["gen_ai.evaluation.score.value"] == 0.5

    resource = attributes(collector.requests[0].resource_spans[0].resource)
    assert resource["service.name"] == "recorder"
    assert resource["deployment.environment.name"] == "test"
    sent = {name.lower(): value for name, value in collector.headers[0].items()}
    assert (sent["authorization"], sent["x-tenant"]) == ("Bearer key", "one")
    assert collector.answered[0] == ("/v1/traces", 200)


def test_nothing_that_was_said_is_in_a_span(tmp_path):
    with collecting() as collector, serving(tmp_path, collector) as (proxy, _):
        said = chat(proxy.base_url("secret")).choices[0].message.content
        collector.await_spans(1)
    raw = b"".join(request.SerializeToString() for request in collector.requests)
    assert b"Hello" not in raw and said.encode() not in raw


def test_a_failed_call_has_its_error(tmp_path):
    with collecting() as collector, serving(tmp_path, collector) as (proxy, _):
        with pytest.raises(openai.BadRequestError):
            chat(proxy.base_url("broken"), temperature=-1)
        ((span, found),) = collector.await_spans(1)
    assert (found["error.type"], found["http.response.status_code"]) == ("400", 400)
    assert span.status.code == span.status.STATUS_CODE_ERROR


def test_spans_wait_for_a_collector_that_is_away(tmp_path):
    with collecting(503, 429) as collector, serving(tmp_path, collector) as (proxy, _):
        replies = [chat(proxy.base_url(f"wait-{number}")) for number in range(3)]
        spans = collector.await_spans(3)
    assert [code for _, code in collector.answered[:3]] == [503, 429, 200]
    assert len(replies) == len({found["rolltape.call_id"] for _, found in spans}) == len(spans)


def test_a_refusal_ends_the_tries_and_no_call(tmp_path):
    with collecting(401) as collector, serving(tmp_path, collector) as (proxy, _):
        chat(proxy.base_url("lost"))
        while not collector.answered:
            time.sleep(0.05)
        chat(proxy.base_url("sent"))
        ((_, found),) = collector.await_spans(1)
        assert "the collector refused spans" in proxy.process.stderr
    assert found["gen_ai.conversation.id"] == "sent"


def test_the_last_spans_are_sent_before_the_end(tmp_path):
    with collecting() as collector:
        with serving(tmp_path, collector) as (proxy, _):
            for number in range(20):
                chat(proxy.base_url(f"last-{number}"))
        episodes = defaultdict(int)
        for _, found in collector.spans():
            episodes[found["gen_ai.conversation.id"]] += 1
    assert episodes == {f"last-{number}": 1 for number in range(20)}


def test_a_collector_that_is_gone_holds_no_stop_up(tmp_path):
    with collecting() as collector:
        pass
    with serving(tmp_path, collector) as (proxy, _):
        chat(proxy.base_url("alone"))
        begun = time.monotonic()
        proxy.process.end_well()
        assert time.monotonic() - begun < 20
    shown = proxy.command("show", "alone")
    assert "assistant: " in shown and "1 call |" in shown


@pytest.mark.parametrize("variables, complaint", [
    ({"OTEL_EXPORTER_OTLP_HEADERS": "no-equals-sign"}, "OTEL_EXPORTER_OTLP_HEADERS is not a list"),
    ({"OTEL_RESOURCE_ATTRIBUTES": "broken"}, "OTEL_RESOURCE_ATTRIBUTES is not a list"),
    ({"ROLLTAPE_OTLP_ENDPOINT": "collector:4318"}, "is not a URL such as http://127.0.0.1:4318"),
])
def test_what_is_malformed_is_said_at_the_start(tmp_path, variables, complaint):
    env = harness.environment(**{"ROLLTAPE_OTLP_ENDPOINT": "http://127.0.0.1:1", **variables})
    ended = harness.command("serve", "--model", harness.MODEL, "--store", tmp_path / "a.db",
                            "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0",
                            folder=tmp_path, env=env)
    assert ended.returncode in (1, 2) and complaint in ended.stderr
