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
    from harbor.utils.trajectory_validator import TrajectoryValidator

    validator = TrajectoryValidator()
    assert all(validator.validate(row) for row in rows), validator.get_errors()
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


def verl_sessions(rows):
    """Whole sessions, several outputs in some, as the newest trainer's workers take them."""
    import asyncio

    import verl.trainer.ppo.v1.agent_loop_tq as newest
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer  # noqa: F401, it reads the keys

    put = {}

    async def note(keys, fields, tags, partition_id):
        put.update(zip(keys, zip(fields["rm_scores"].unbind(), tags)))

    class Worker(newest.AgentLoopWorkerTQ.__ray_actor_class__):
        """A worker without servers: it has nothing to score and nobody to ask."""

        def __init__(self):
            self.processor = self.reward_loop_worker_handles = None

        async def _compute_teacher_logprobs(self, *_, **__):
            pass

    newest.tq.async_kv_batch_put = note
    sessions = {}
    for row in rows:
        extra = row["extra_fields"]
        sessions.setdefault((extra["uid"], extra["session_id"]), []).append(row)
    for (uid, session_id), of_session in sessions.items():
        assert [row["extra_fields"]["index"] for row in of_session] == list(range(len(of_session)))
        outputs = [AgentLoopOutput(**row) for row in of_session]
        told = {"uid": uid, "session_id": session_id, "global_steps": 0}
        asyncio.run(Worker()._agent_loop_postprocess(outputs, False, **told))
    keys = [key.rsplit("_", 2) for key in put]
    assert all(key.split("_")[0] == uid for key, (uid, _, _) in zip(put, keys))
    scores = {key: float(scored.sum()) for key, (scored, _) in put.items()}
    return {"ids": len(put), "several": max(map(len, sessions.values())), "scores": scores}


def verifiers(rows, path):
    from pathlib import Path

    from verifiers.types import RolloutTiming
    from verifiers.utils.save_utils import load_outputs, make_dataset

    read = load_outputs(Path(path).parent)
    assert [dict(output) for output in read] == rows
    assert make_dataset({"outputs": read}).num_rows == len(rows)
    ids = 0
    for output in read:
        RolloutTiming(**output["timing"])
        for step in output["trajectory"]:
            tokens = step["tokens"]
            names = ("completion_ids", "completion_mask", "completion_logprobs")
            assert len({len(tokens[name]) for name in names}) == 1
            assert len(tokens["prompt_ids"]) == len(tokens["prompt_mask"])
            ids += sum(tokens["completion_mask"])
    return {"ids": ids}


def nemo_gym(rows):
    from nemo_gym.base_resources_server import BaseVerifyResponse
    from nemo_gym.reward_profile import RewardProfiler

    ids = 0
    for row in rows:
        read = BaseVerifyResponse(**row)
        assert read.responses_create_params.input and not row["mask_sample"]
        seen = []
        for item in read.response.output:
            if getattr(item, "generation_token_ids", None) is None:
                continue
            assert item.prompt_token_ids[: len(seen)] == seen, "a prompt goes on from all before"
            assert len(item.generation_token_ids) == len(item.generation_log_probs)
            seen = item.prompt_token_ids + item.generation_token_ids
            ids += len(item.generation_token_ids)
    groups = RewardProfiler().profile_from_data(rows, rows)[0]
    return {"ids": ids, "groups": len(groups)}


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
    import numpy as np
    from skyrl.train.dataset.preprocess import build_sample_support
    from skyrl.train.generators.base import GeneratorOutput, TrajectoryID
    from skyrl.train.utils.trainer_utils import validate_generator_output

    batch = {name: [row[name] for row in rows] for name in rows[0]}
    token_rewards = batch.pop("token_rewards")
    assert set(batch) <= set(GeneratorOutput.__annotations__)
    batch["trajectory_ids"] = [TrajectoryID(**value) for value in batch["trajectory_ids"]]
    if any(token_rewards):
        batch["rewards"] = [
            given or [0.0] * (len(row["response_ids"]) - 1) + [row["rewards"]]
            for given, row in zip(token_rewards, rows)
        ]

    # What replays is there for all rows of a batch or for none.
    for name in ("rollout_expert_indices", "rollout_sample_support"):
        if any(value is None for value in batch[name]):
            batch[name] = None
    if kept := batch["rollout_sample_support"]:
        width = max(len(value[0]) for value in kept)
        batch["rollout_sample_support"] = kept = [
            np.array([ids + [-1] * (width - len(ids)) for ids in value], "int32") for value in kept
        ]
        lengths = np.array([len(row["response_ids"]) for row in rows])
        assert len(build_sample_support(kept, lengths).values) == lengths.sum()
    validate_generator_output(len(rows), batch)
    return {"ids": sum(map(sum, batch["loss_masks"])), "kept": bool(kept)}


def art(rows):
    from art import Trajectory
    from art.utils.trajectory_migration import dict_to_message_or_choice
    from openai.types.chat.chat_completion import Choice

    ids = 0
    for row in rows:
        assert set(row) <= set(Trajectory.model_fields)
        said = [dict_to_message_or_choice(one) for one in row["messages_and_choices"]]
        read = Trajectory(**{**row, "messages_and_choices": said})
        assert read.tools == row.get("tools")
        assert read.initial_policy_version == row.get("initial_policy_version")
        said = [m for m in read.messages_and_choices if isinstance(m, Choice)]
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
        assert set(row) == names
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
    "nemo-gym": nemo_gym,
    "tinker": tinker,
    "trl-async": trl_async,
    "verifiers": verifiers,
    "verl": verl,
    "verl-sessions": verl_sessions,
}
NEED_PATHS = ("verifiers",)

if __name__ == "__main__":
    found = {}
    for argument in sys.argv[1:]:
        format, path = argument.split("=", 1)
        rows = rows_of(path)
        more = (path,) if format in NEED_PATHS else ()
        found[format] = {"rows": len(rows), **READERS[format](rows, *more)}
    print(json.dumps(found))
