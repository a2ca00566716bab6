"""Metrics and log records that `rolltape serve --otlp-endpoint` sends."""

import re
import time

import openai
import pytest

import harness
from collector import attributes, chat, collecting, serving
from harness import until
from package import rolltape

OFTEN = {"OTEL_METRIC_EXPORT_INTERVAL": "200"}
POINT = re.compile(r"^(rolltape_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def page(client):
    """The values of the page of metrics, by name and labels."""
    points = {}
    for name, labels, value in POINT.findall(client.metrics()):
        pairs = frozenset(re.findall(r'(\w+)="([^"]*)"', labels))
        points[name, pairs] = float(value)
    return points


def sent(collector):
    """The values of the last export, by name and labels."""
    points = {}
    for name, metric in collector.metrics().items():
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            value = getattr(point, point.WhichOneof("value"))
            points[name, frozenset(attributes(point).items())] = float(value)
    return points


def test_the_metrics_are_those_of_the_page(tmp_path):
    begun = time.time_ns()
    with collecting() as collector, serving(tmp_path, collector, **OFTEN) as (proxy, client):
        chat(proxy.base_url("measured"))
        client.close("measured")
        ended = ("rolltape_calls_ended_total", frozenset({("outcome", "complete")}))
        until("an export of the end", lambda: collector.requests["metrics"] and sent(
            collector).get(ended) == 1)
        found = page(client)
        exported, metrics = sent(collector), collector.metrics()
        resource = attributes(collector.requests["metrics"][-1].resource_metrics[0].resource)

    assert {name for name, _ in exported} == {name for name, _ in found}
    assert found[ended] == 1
    for name in ("rolltape_upstream_up", "rolltape_memory_bytes_max"):
        assert exported[name, frozenset()] == found[name, frozenset()]
    calls = metrics["rolltape_calls_begun_total"].sum
    assert calls.is_monotonic and calls.aggregation_temporality == 2
    (point,) = calls.data_points
    assert begun - 60e9 < point.start_time_unix_nano < point.time_unix_nano < time.time_ns()
    assert metrics["rolltape_memory_bytes"].WhichOneof("data") == "gauge"
    assert metrics["rolltape_calls_begun_total"].description
    assert resource["service.name"] == "rolltape"
    assert {path for path, _ in collector.answered["metrics"]} == {"/v1/metrics"}


def test_the_last_metrics_are_sent_before_the_end(tmp_path):
    with collecting() as collector:
        with serving(tmp_path, collector) as (proxy, _):
            for number in range(3):
                chat(proxy.base_url(f"last-{number}"))
        assert sent(collector)["rolltape_calls_begun_total", frozenset()] == 3


def test_a_call_is_a_log_record_that_leads_to_its_span(tmp_path):
    with collecting() as collector, serving(tmp_path, collector) as (proxy, _):
        said = chat(proxy.base_url("logged")).choices[0].message.content
        with pytest.raises(openai.BadRequestError):
            chat(proxy.base_url("broken"), temperature=-1)
        spans = {found["rolltape.call_id"]: span for span, found in collector.await_spans(2)}
        calls = until("two records", lambda: two_calls(collector))

    for record, found in calls:
        span = spans[found["rolltape.call_id"]]
        assert (record.trace_id, record.span_id) == (span.trace_id, span.span_id)
        assert abs(record.time_unix_nano - span.end_time_unix_nano) < 2000
    told = {found["gen_ai.conversation.id"]: (record, found) for record, found in calls}
    record, found = told["logged"]
    assert (record.severity_text, found["rolltape.outcome"]) == ("INFO", "complete")
    assert record.body.string_value == "POST /v1/chat/completions of logged: complete"
    assert found["gen_ai.usage.output_tokens"] == 6 and found["rolltape.duration_ms"] > 0
    record, found = told["broken"]
    assert (record.severity_text, found["error.type"]) == ("ERROR", "400")
    raw = b"".join(request.SerializeToString() for request in collector.requests["logs"])
    assert b"Hello" not in raw and said.encode() not in raw


def two_calls(collector):
    """The records of two calls, once they are there."""
    calls = [(record, found) for record, found in collector.records()
             if record.event_name == "rolltape.call"]
    return calls if len(calls) == 2 else None


def test_events_of_the_server_are_log_records(tmp_path):
    with collecting(401) as collector, serving(tmp_path, collector) as (proxy, _):
        chat(proxy.base_url("refused"))
        until("the event", lambda: "the collector refused spans" in proxy.process.stderr)
        event = until("its record", lambda: next((both for both in collector.records() if
                      both[0].body.string_value.startswith("the collector refused")), None))
    record, found = event
    assert record.severity_text == "WARN" and found["why"].startswith("401")
    assert found["code.namespace"].startswith("rolltape::")


def test_what_is_dropped_is_counted_and_holds_no_call_up(tmp_path):
    codes = {"metrics": [404] * 1000, "logs": [404] * 1000}
    with collecting(401, **codes) as collector, serving(
            tmp_path, collector, **OFTEN) as (proxy, client):
        chat(proxy.base_url("lost"))
        names = ("traces", "metrics", "logs")
        labels = {name: frozenset({("signal", name)}) for name in names}
        found = until("the counts", lambda: all_lost(page(client), labels))
        assert found["traces"] == 1 and found["logs"] >= 1 and found["metrics"] > 10
        # Each is complained of once.
        assert proxy.process.stderr.count("the collector did not take") <= 2

        collector.open.clear()
        begun = time.monotonic()
        for number in range(5):
            chat(proxy.base_url(f"free-{number}"))
        assert time.monotonic() - begun < 5
        collector.open.set()


def all_lost(points, labels):
    """The counts of what was dropped, once each has some."""
    counts = {name: points["rolltape_otlp_dropped_total", those] for name, those in labels.items()}
    return counts if all(counts.values()) else None


def test_a_signal_is_left_out_by_its_variable(tmp_path):
    none = {"OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    with collecting() as collector, serving(tmp_path, collector, **OFTEN, **none) as (proxy, _):
        chat(proxy.base_url("quiet"))
        until("metrics", lambda: collector.requests["metrics"])
    assert set(collector.requests) == {"metrics"}


def test_without_a_collector_nothing_is_counted(tmp_path):
    with harness.serve(tmp_path, "--model", harness.MODEL) as proxy:
        client = rolltape.Client(f"http://{harness.text(proxy.control)}", token=proxy.token)
        assert "rolltape_otlp_dropped_total" not in client.metrics()


@pytest.mark.parametrize("variables, complaint", [
    ({"OTEL_METRIC_EXPORT_INTERVAL": "1s"}, "OTEL_METRIC_EXPORT_INTERVAL is `1s`"),
    ({"OTEL_LOGS_EXPORTER": "console"}, "OTEL_LOGS_EXPORTER names no exporter of rolltape"),
])
def test_what_is_malformed_is_said_at_the_start(tmp_path, variables, complaint):
    env = harness.environment(**{"ROLLTAPE_OTLP_ENDPOINT": "http://127.0.0.1:1", **variables})
    ended = harness.command("serve", "--model", harness.MODEL, "--store", tmp_path / "a.db",
                            "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0",
                            folder=tmp_path, env=env)
    assert ended.returncode == 1 and complaint in ended.stderr
