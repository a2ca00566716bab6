"""A collector of OpenTelemetry, and recorders that send to it."""

import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import harness
from package import rolltape

GENERATION = {"max_tokens": 6, "seed": 1}
REQUESTS = {
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
}


class Collector:
    """A collector of OTLP over HTTP. It answers a signal with its `codes`, then with 200.

    What it answered, took and was sent beside is kept by signal.
    """

    def __init__(self, **codes):
        self.codes = {signal: list(those) for signal, those in codes.items()}
        self.answered, self.requests = defaultdict(list), defaultdict(list)
        self.headers = defaultdict(list)
        self.open = threading.Event()
        """Nothing is answered while it is not set."""
        self.open.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                signal = self.path.rpartition("/")[2]
                collector.open.wait()
                codes = collector.codes.get(signal)
                code = codes.pop(0) if codes else 200
                collector.answered[signal].append((self.path, code))
                collector.headers[signal].append(dict(self.headers))
                if code == 200:
                    collector.requests[signal].append(REQUESTS[signal].FromString(body))
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
        scopes = [scope for request in self.requests["traces"] for part in request.resource_spans
                  for scope in part.scope_spans]
        return [(span, attributes(span)) for scope in scopes for span in scope.spans]

    def await_spans(self, count):
        """Waits for a number of spans."""
        end = time.monotonic() + 20
        while len(self.spans()) < count:
            assert time.monotonic() < end, [span.name for span, _ in self.spans()]
            time.sleep(0.05)
        return self.spans()

    def records(self):
        """All log records that were taken, each with its attributes as a dictionary."""
        scopes = [scope for request in self.requests["logs"] for part in request.resource_logs
                  for scope in part.scope_logs]
        return [(record, attributes(record)) for scope in scopes for record in scope.log_records]

    def metrics(self):
        """The metrics of the last export, by name."""
        (part,) = self.requests["metrics"][-1].resource_metrics
        (scope,) = part.scope_metrics
        return {metric.name: metric for metric in scope.metrics}


def attributes(part):
    """The attributes of a span, a record, a point or a resource."""

    def value(found):
        kind = found.WhichOneof("value")
        plain = getattr(found, kind)
        return [value(item) for item in plain.values] if kind == "array_value" else plain

    return {pair.key: value(pair.value) for pair in part.attributes}


@contextmanager
def collecting(*traces, **codes):
    collector = Collector(**{"traces": traces, **codes})
    try:
        yield collector
    finally:
        collector.open.set()
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
