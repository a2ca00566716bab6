"""What a push of weights, sleep and a start cost while others decode."""

import concurrent.futures
import time

from .engine import Engine
from .shapes import prompts_of

EXCHANGE = "rolltape_weight_exchange_seconds_total"


def quantile(values, share):
    """Returns the value below which so many of the sorted values lie."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def between(moments, span):
    """Returns the times from one token to the next of all replies, those that end in a span."""
    first, last = span
    pairs = [(a, b) for one in moments for a, b in zip(one, one[1:])]
    return [b - a for a, b in pairs if first <= b <= last]


def folder(run, name, config, source, folder):
    """Pushes a folder while many sequences decode: the times between tokens before and during it,
    the pause of the exchange. Then sleep, and a start from the folder."""
    batch, length, count = (3, 16, 60) if run.tiny else (32, 512, 1_500)
    with Engine(run, source, "--gpu-memory-utilization", "0.5") as engine:
        with concurrent.futures.ThreadPoolExecutor(batch) as pool:
            jobs = [pool.submit(engine.moments, prompt, count)
                    for prompt in prompts_of(config, batch, length)]
            time.sleep(1 if run.tiny else 2)
            begun = time.perf_counter()
            took = engine.post("/update_weights_from_disk", seconds=120, model_path=str(folder))
            pushed = time.perf_counter()
            engine.post("/abort_requests", request_ids=[])
            moments = [job.result() for job in jobs]
        pause = engine.metric(EXCHANGE)
        spans = {"before": (0, begun), "during": (begun, pushed)}
        for what, span in spans.items():
            times = between(moments, span)
            p50, p99 = (1000 * quantile(times, share) for share in (0.5, 0.99))
            run.report.row(f"{name:11} {batch} decode, {what} a push: p50 {p50:.2f} ms, p99 "
                           f"{p99:.2f} ms, longest {1000 * max(times, default=0):.1f} ms between "
                           f"{len(times)} tokens", shape=name, what=what, p50_ms=p50, p99_ms=p99)
        run.report.row(f"{name:11} push of a folder: {took:.1f} s, exchange {1000 * pause:.1f} ms",
                       shape=name, seconds=took, exchange=pause)
        sleep = engine.post("/sleep?level=1", seconds=60)
        wake = engine.post("/wake_up", seconds=60)
        run.report.row(f"{name:11} /sleep {sleep:.2f} s, /wake_up {wake:.2f} s", shape=name,
                       sleep=sleep, wake=wake)
    with Engine(run, ["--model", folder]) as engine:
        run.report.row(f"{name:11} from start to ready, by its folder: {engine.ready:.1f} s",
                       shape=name, ready=engine.ready)
