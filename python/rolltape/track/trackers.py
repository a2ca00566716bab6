"""The three libraries behind one form. Each has a run of its own: the trainer's stays untouched."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from rolltape.track.numbers import PREFIX, Table
from rolltape.track.rollouts import COLUMNS, Rollout

LIBRARIES = {"wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}
"""The module of each tracker."""
ROLLOUTS = f"{PREFIX}/rollouts"
STEP = f"{PREFIX}/step"
FLUSH_S = 10


class MissingLibrary(ImportError):
    """The library of a tracker is not installed."""


class Sink(Protocol):
    """A run of a tracker. All calls come from one thread."""

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        """Takes numbers of one moment."""

    def rollouts(self, rollouts: list[Rollout], step: int) -> None:
        """Takes rollouts."""

    def table(self, table: Table, step: int) -> None:
        """Takes a table, which replaces the one with its name."""

    def close(self) -> None:
        """Ends the run, and waits until it is sent."""


def library(name: str) -> Any:
    """The module of a tracker. Raises MissingLibrary, which says how to get it."""
    try:
        return importlib.import_module(LIBRARIES[name])
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != LIBRARIES[name]:
            raise
        told = f"{name} is not installed: pip install 'rolltape[{name}]'"
        raise MissingLibrary(told) from error


def sink(name: str, project: str, run: str | None) -> Sink:
    """A new run in a project. Raises MissingLibrary, and what the library raises."""
    kinds = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}
    return kinds[name](library(name), project, run)


class Wandb:
    """Weights & Biases: numbers by `rolltape/step`, rollouts as tables."""

    def __init__(self, wandb: Any, project: str, run: str | None) -> None:
        self._wandb = wandb
        settings = wandb.Settings(console="off", x_disable_stats=True)
        self._run = wandb.init(
            project=project, name=run, job_type=PREFIX, reinit="create_new", settings=settings
        )
        self._run.define_metric(STEP)
        self._run.define_metric(f"{PREFIX}/*", step_metric=STEP)

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, STEP: step})

    def rollouts(self, rollouts: list[Rollout], step: int) -> None:
        columns = [*COLUMNS, "seconds", "conversation"]
        rows = [[*one.row().values(), conversation(one)] for one in rollouts]
        self._log(ROLLOUTS, columns, rows, step)

    def table(self, table: Table, step: int) -> None:
        self._log(f"{PREFIX}/{table.name}", list(table.columns), table.rows, step)

    def _log(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        made = self._wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
        self._run.log({name: made, STEP: step})

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """MLflow: numbers as metrics of a run, rollouts as traces whose spans are the calls."""

    def __init__(self, mlflow: Any, project: str, run: str | None) -> None:
        from mlflow.entities import Metric

        self._mlflow, self._metric = mlflow, Metric
        self._client = mlflow.MlflowClient()
        found = self._client.get_experiment_by_name(project)
        self._experiment = found.experiment_id if found else self._client.create_experiment(project)
        made = self._client.create_run(self._experiment, run_name=run or PREFIX)
        self._run = made.info.run_id

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        at = int(time.time() * 1e3)
        metrics = [self._metric(_plain(name), value, at, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics, synchronous=True)

    def rollouts(self, rollouts: list[Rollout], step: int) -> None:
        for one in rollouts:
            self._trace(one, step)

    def _trace(self, one: Rollout, step: int) -> None:
        start = self._mlflow.start_span_no_context
        told = {name: value for name, value in one.row().items() if value is not None}
        tags = {f"{PREFIX}.{name}": str(told[name]) for name in TAGS if name in told}
        root = start(
            f"{one.episode_id}/{one.attempt}",
            span_type="AGENT",
            inputs={"prompt": one.prompt},
            attributes={f"{PREFIX}.{name}": value for name, value in told.items()},
            tags=tags,
            metadata={"mlflow.sourceRun": self._run, f"{PREFIX}.step": str(step)},
            experiment_id=self._experiment,
            start_time_ns=_nanoseconds(one.started_at),
        )
        end = one.started_at
        for call in one.said:
            end = max(end, call.started_at + (call.duration_ms or 0.0) / 1e3)
            span = start(
                f"chat {call.model}" if call.model else "chat",
                span_type="CHAT_MODEL",
                parent_span=root,
                inputs={"messages": call.heard},
                attributes={**_facts(call), f"{PREFIX}.call_id": call.call_id},
                start_time_ns=_nanoseconds(call.started_at),
            )
            ended = call.started_at + (call.duration_ms or 0.0) / 1e3
            status = "OK" if call.outcome == "complete" else "ERROR"
            span.end(outputs=call.answer, status=status, end_time_ns=_nanoseconds(ended))
        outputs = {"answer": one.answer, "reward": one.reward}
        root.end(outputs=outputs, end_time_ns=_nanoseconds(max(end, one.ended_at)))

    def table(self, table: Table, step: int) -> None:
        # The form that its own tables have, which it writes only with pandas.
        said = {"columns": list(table.columns), "data": table.rows}
        self._client.log_dict(self._run, said, f"{PREFIX}/{table.name}.json")

    def close(self) -> None:
        self._mlflow.flush_trace_async_logging()
        self._client.set_terminated(self._run)


class Trackio:
    """Trackio: numbers, rollouts as traces with messages and spans."""

    def __init__(self, trackio: Any, project: str, run: str | None) -> None:
        self._trackio = trackio
        self._run = trackio.init(
            project=project,
            name=run,
            group=PREFIX,
            resume="allow" if run else "never",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def rollouts(self, rollouts: list[Rollout], step: int) -> None:
        self._run.log({ROLLOUTS: [self._trace(one) for one in rollouts]}, step=step)

    def _trace(self, one: Rollout) -> Any:
        told = {name: value for name, value in one.row().items() if name not in TEXTS}
        ended_well = one.state in ("completed", "closed", "truncated")
        told |= {"session_id": f"{one.episode_id}/{one.attempt}"}
        told |= {"status": "ok" if ended_well else "error", "duration_ms": one.seconds * 1e3}
        spans = [
            {
                "id": call.call_id,
                "name": f"chat {call.model}" if call.model else "chat",
                "kind": "generation",
                "start_time": call.started_at,
                "duration_ms": call.duration_ms,
                "status": "ok" if call.outcome == "complete" else "error",
                "input": call.heard,
                "output": call.answer,
                "model": call.model,
                "usage": {
                    "prompt_tokens": call.prompt_tokens,
                    "completion_tokens": call.sampled_tokens,
                },
                "metadata": _facts(call),
            }
            for call in one.said
        ]
        return self._trackio.Trace(messages=one.messages, metadata=told, spans=spans)

    def table(self, table: Table, step: int) -> None:
        made = self._trackio.Table(columns=list(table.columns), data=table.rows)
        self._run.log({f"{PREFIX}/{table.name}": made}, step=step)

    def close(self) -> None:
        self._run.finish()


TEXTS = ("prompt", "answer")
TAGS = ("episode_id", "attempt", "group_id", "task_id", "state", "reward", "version", "verdict")


def conversation(one: Rollout) -> str:
    """What was said, as a text to read."""
    lines = []
    for message in one.messages:
        calls = (call["function"] for call in message.get("tool_calls", ()))
        asked = [f"{call['name']} {call['arguments']}" for call in calls]
        said = [text for text in (message.get("reasoning"), message["content"], *asked) if text]
        lines.append(f"{message['role']}: " + "\n".join(said))
    return "\n\n".join(lines)


def _facts(call: Any) -> dict[str, Any]:
    """What is known of a call beside its texts and times."""
    names = ("kind", "outcome", "finish_reason", "prompt_tokens", "sampled_tokens")
    known = asdict(call)
    return {f"{PREFIX}.{name}": known[name] for name in names if known[name] is not None}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e6) * 1000


def _plain(name: str) -> str:
    """A name with the characters alone that MLflow takes."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)
