"""Spans that `rolltape serve --otlp-endpoint` sends, as a collector decodes them."""

import time
from collections import defaultdict

import openai
import pytest

import harness
from collector import attributes, chat, collecting, serving
from package import rolltape


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

    resource = attributes(collector.requests["traces"][0].resource_spans[0].resource)
    assert resource["service.name"] == "recorder"
    assert resource["deployment.environment.name"] == "test"
    sent = {name.lower(): value for name, value in collector.headers["traces"][0].items()}
    assert (sent["authorization"], sent["x-tenant"]) == ("Bearer key", "one")
    assert collector.answered["traces"][0] == ("/v1/traces", 200)


def test_nothing_that_was_said_is_in_a_span(tmp_path):
    with collecting() as collector, serving(tmp_path, collector) as (proxy, _):
        said = chat(proxy.base_url("secret")).choices[0].message.content
        collector.await_spans(1)
    raw = b"".join(request.SerializeToString() for request in collector.requests["traces"])
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
    assert [code for _, code in collector.answered["traces"][:3]] == [503, 429, 200]
    assert len(replies) == len({found["rolltape.call_id"] for _, found in spans}) == len(spans)


def test_a_refusal_ends_the_tries_and_no_call(tmp_path):
    with collecting(401) as collector, serving(tmp_path, collector) as (proxy, _):
        chat(proxy.base_url("lost"))
        while not collector.answered["traces"]:
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
