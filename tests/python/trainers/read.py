"""Reads exports with the types of the trainers that they are for: `read.py FORMAT=FILE...`.

Prints one JSON object: for each format how many rows there are, and how many tokens were read.
"""

import json
import sys

import pyarrow.parquet as pq


def rows_of(path):
    """The rows; texts of JSON columns are read."""
    if path.endswith(".jsonl"):
        with open(path) as file:
            return [json.loads(line) for line in file]
    table = pq.read_table(path)
    rows = table.to_pylist()
    for row in rows:
        for name in ("metrics", "extra_fields", "env_metrics", "metadata"):
            if isinstance(row.get(name), str):
                row[name] = json.loads(row[name])
    return rows


def atif(rows):
    from harbor.models.trajectories import Trajectory

    read = [Trajectory(**row) for row in rows]
    steps = [step for trajectory in read for step in trajectory.steps]
    return {"ids": sum(len(s.metrics.completion_token_ids or []) for s in steps if s.metrics)}


def verl(rows):
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    fields = AgentLoopOutput.model_fields
    assert all(set(row) <= set(fields) for row in rows)
    read = [AgentLoopOutput(**row) for row in rows]
    tensors = [output.as_dict() for output in read]
    assert all(len(t["responses"]) == len(t["rollout_log_probs"]) for t in tensors)
    return {"ids": sum(int(t["response_mask"].sum()) for t in tensors)}


def tinker(rows):
    from tinker.types import Datum, ModelInput

    trained = 0
    for row in rows:
        inputs = {k: v for k, v in row["loss_fn_inputs"].items() if v is not None}
        datum = Datum(ModelInput.from_ints(row["model_input"]), inputs)
        shapes = {tuple(tensor.shape) for tensor in datum.loss_fn_inputs.values()}
        assert shapes == {(datum.model_input.length,)}
        trained += sum(datum.loss_fn_inputs["weights"].data)
    return {"ids": trained}


def skyrl(rows):
    from pydantic import TypeAdapter
    from skyrl.train.generators.base import GeneratorOutput, TrajectoryID

    fields = GeneratorOutput.__annotations__
    batch = {name: [row[name] for row in rows] for name in rows[0]}
    assert set(batch) <= set(fields)
    batch["trajectory_ids"] = [TrajectoryID(**value) for value in batch["trajectory_ids"]]
    for name in ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs", "rewards"):
        TypeAdapter(fields[name]).validate_python(batch[name])
    return {"ids": sum(map(sum, batch["loss_masks"]))}


def art(rows):
    from art import Trajectory
    from art.utils.trajectory_migration import dict_to_trajectory
    from openai.types.chat.chat_completion import Choice

    ids = 0
    for row in rows:
        assert set(row) <= set(Trajectory.model_fields)
        said = [m for m in dict_to_trajectory(row).messages_and_choices if isinstance(m, Choice)]
        tokens = [t.token for choice in said for t in choice.logprobs.content]
        assert all(token.removeprefix("token_id:").isdigit() for token in tokens)
        ids += len(tokens)
    return {"ids": ids}


def trl_async(rows):
    import dataclasses

    import numpy as np
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    names = {field.name for field in dataclasses.fields(RolloutSample)}
    ids = 0
    for row in rows:
        assert names - set(row) == {"enqueued_at"} and set(row) <= names
        kinds = (("input_ids", "int64"), ("completion_mask", "int64"), ("old_log_probs", "float32"))
        arrays = {name: np.array(row[name], dtype=kind) for name, kind in kinds}
        sample = RolloutSample(**{**row, **arrays})
        assert len(sample.input_ids) == len(sample.completion_mask) == len(sample.old_log_probs)
        ids += int(sample.completion_mask.sum())
    return {"ids": ids}


READERS = {
    "art": art,
    "atif": atif,
    "skyrl": skyrl,
    "tinker": tinker,
    "trl-async": trl_async,
    "verl": verl,
}

if __name__ == "__main__":
    found = {}
    for argument in sys.argv[1:]:
        format, path = argument.split("=", 1)
        rows = rows_of(path)
        found[format] = {"rows": len(rows), **READERS[format](rows)}
    print(json.dumps(found))
