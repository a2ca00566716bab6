"""Reads exports with the types of the trainers that they are for: `read.py FORMAT[/WHICH]=FILE...`.

Prints one JSON object: for each file how many rows there are, how many tokens were read, and by
which loader of which version; or the error of one that did not read.
"""

import importlib
import importlib.metadata
import json
import sys
import traceback
from pathlib import Path

READERS = {}
"""For each format its package, the name of its loader in there, and what reads a file with it."""


def reads(format, package, loader):
    """Notes the function below as the reader of a format: it gets the loader, rows and path."""

    def note(reader):
        READERS[format] = (package, loader, reader)
        return reader

    return note


def rows_of(path):
    """The rows; texts of JSON columns are read."""
    if path.endswith(".jsonl"):
        with open(path) as file:
            return [json.loads(line) for line in file]
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    rows = table.to_pylist()
    for row in rows:
        for name in ("metrics", "extra_fields", "env_metrics", "metadata"):
            if isinstance(row.get(name), str):
                row[name] = json.loads(row[name])
    return rows


@reads("atif", "harbor", "harbor.models.trajectories.Trajectory")
def atif(Trajectory, rows, _):
    from harbor.utils.trajectory_validator import TrajectoryValidator

    validator = TrajectoryValidator()
    assert all(validator.validate(row) for row in rows), validator.get_errors()
    read = [Trajectory(**row) for row in rows]
    steps = [step for trajectory in read for step in trajectory.steps]
    return {"ids": sum(len(s.metrics.completion_token_ids or []) for s in steps if s.metrics)}


@reads("verl", "verl", "verl.experimental.agent_loop.agent_loop.AgentLoopOutput")
def verl(AgentLoopOutput, rows, _):
    fields = AgentLoopOutput.model_fields
    assert all(set(row) <= set(fields) for row in rows)
    read = [AgentLoopOutput(**row) for row in rows]
    taught = [learns_as_verl(output) for output in read if "teacher_ids" in output.extra_fields]
    tensors = [output.as_dict() for output in read]
    assert all(len(t["responses"]) == len(t["rollout_log_probs"]) for t in tensors)
    told = {"taught": len(taught), "divergence": sum(taught)} if taught else {}
    return {"ids": sum(int(t["response_mask"].sum()) for t in tensors), **told}


def learns_as_verl(output):
    """The divergence, by verl's own loss, of a student that knows nothing from the teacher of an
    output; and the output as verl's workers pad it."""
    import torch
    from verl.experimental.teacher_loop.teacher_manager import _pad_teacher_outputs
    from verl.trainer.distillation.fsdp.losses import compute_forward_kl_topk
    from verl.workers.config import DistillationConfig

    ids = torch.tensor(output.extra_fields["teacher_ids"], dtype=torch.int32)
    logprobs = torch.tensor(output.extra_fields["teacher_logprobs"])
    length = len(output.prompt_ids) + len(output.response_ids)
    assert ids.shape == logprobs.shape and ids.shape[0] == length
    output.extra_fields |= {"teacher_ids": ids, "teacher_logprobs": logprobs}
    widths = (length, length, len(output.prompt_ids), len(output.response_ids))
    padded, _ = _pad_teacher_outputs(ids, logprobs, *widths, pad_token_id=0)
    assert padded.shape == (1, 2 * length, ids.shape[1])

    nested = [torch.nested.as_nested_tensor([t], layout=torch.jagged) for t in (logprobs, ids)]
    logits = torch.zeros(1, length, 480)
    found = compute_forward_kl_topk(
        logits, nested[0], nested[1].long(), DistillationConfig(), "thd"
    )
    (losses,) = found["distillation_losses"]
    mask = torch.tensor([0] * len(output.prompt_ids) + output.response_mask)[1:].bool()
    return float(losses[:-1][mask].sum())


@reads("verl-sessions", "verl", "verl.experimental.agent_loop.agent_loop.AgentLoopOutput")
def verl_sessions(AgentLoopOutput, rows, _):
    """Whole sessions, several outputs in some, as the newest trainer's workers take them."""
    import asyncio

    import verl.trainer.ppo.v1.agent_loop_tq as newest
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


@reads("verifiers", "verifiers", "verifiers.utils.save_utils.load_outputs")
def verifiers(load_outputs, rows, path):
    from verifiers.types import RolloutTiming
    from verifiers.utils.save_utils import make_dataset

    read = load_outputs(Path(path).parent)
    assert [dict(output) for output in read] == rows
    said = (message for row in rows for message in row["prompt"] + row["completion"])
    if not any(isinstance(message.get("content"), list) for message in said):
        # Its datasets have a place for texts or for parts.
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


@reads("verifiers-traces", "verifiers", "verifiers.v1.utils.trace_store.read_episodes")
def verifiers_traces(read_episodes, rows, path):
    from verifiers.v1.trace import WireTrace

    read = read_episodes(Path(path).parent, WireTrace)
    ids, routed, cut = 0, 0, []
    for trace in (trace for episode in read for trace in episode.traces):
        (branch,) = trace.branches
        sampled = sum(branch.sampled_mask)
        assert len(branch.token_ids) == len(branch.logprobs) == len(branch.sampled_mask)
        assert sampled == sum(len(node.logprobs) for node in trace.nodes)
        assert all(trace.nodes[call.node].sampled for call in trace.calls)
        routed += put_back(trace)
        ids += sampled
        cut.append(trace.is_truncated)
    traces = [trace for row in rows for trace in row["traces"]]
    assert [len(e.traces) for e in read] == [len(row["traces"]) for row in rows]
    return {"ids": ids, "routed": routed, "traces": len(traces), "cut": cut}


def put_back(trace):
    """Puts what a trace replays from its `info` where verifiers has it in memory, node by node;
    gives the number of tokens with experts."""
    import base64

    import numpy as np
    from verifiers.v1.types import SamplingMask

    kept, routed = trace.info["sampling_mask"], trace.info["routed_experts"]
    (branch,) = trace.branches
    start = 0
    experts = None
    if routed:
        data = base64.b64decode(routed["data"])
        experts = np.frombuffer(data, routed["dtype"]).reshape(routed["shape"])
    for node in branch.nodes:
        part = slice(start, start + len(node.token_ids))
        start = part.stop
        if routed:
            node.routed_experts = experts[part]
        if kept:
            first, end = sum(kept["counts"][: part.start]), sum(kept["counts"][: part.stop])
            counts = np.array(kept["counts"][part], "int32")[np.array(node.mask, bool)]
            node.sampling_mask = SamplingMask(np.array(kept["ids"][first:end], "int32"), counts)
    if kept:
        assert branch.sampling_mask.ids.tolist() == kept["ids"]
        assert branch.sampling_mask.counts.tolist() == kept["counts"]
    assert routed is None or (branch.routed_experts == experts).all()
    return 0 if routed is None else len(branch.routed_experts)


@reads("nemo-gym", "nemo-gym", "nemo_gym.base_resources_server.BaseVerifyResponse")
def nemo_gym(BaseVerifyResponse, rows, _):
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


@reads("mooncake", "aiperf", "aiperf.dataset.loader.models.MooncakeTrace")
def mooncake(MooncakeTrace, rows, path):
    """As a generator of load reads it: a line of each prompt, with as many blocks as fill it."""
    read = [MooncakeTrace(**row) for row in rows]
    assert [line.timestamp for line in read] == sorted(line.timestamp for line in read)
    assert all(len(line.hash_ids) == -(-line.input_length // 512) for line in read)
    blocks = {number for line in read for number in line.hash_ids}
    assert blocks == set(range(len(blocks)))
    read_tokens = sum(line.input_length for line in read)
    return {"ids": sum(line.output_length for line in read), "prompts": read_tokens}


@reads("tinker", "tinker", "tinker.types.Datum")
def tinker(Datum, rows, _):
    from tinker.types import ModelInput

    trained = 0
    for row in rows:
        inputs = {k: v for k, v in row["loss_fn_inputs"].items() if v is not None}
        datum = Datum(ModelInput.from_ints(row["model_input"]), inputs)
        shapes = {tuple(tensor.shape) for tensor in datum.loss_fn_inputs.values()}
        assert shapes == {(datum.model_input.length,)}
        trained += sum(datum.loss_fn_inputs["weights"].data)
        if row.get("teacher_logprobs"):
            soft = row["teacher_loss_fn_inputs"]
            towards = Datum(ModelInput.from_ints(row["model_input"]), soft).loss_fn_inputs
            shape = [datum.model_input.length, len(soft["weights"][0])]
            assert towards["weights"].shape == towards["target_tokens"].shape == shape
            assert len(row["teacher_logprobs"]) == datum.model_input.length
    return {"ids": trained}


@reads("skyrl", "skyrl", "skyrl.train.generators.base.GeneratorOutput")
def skyrl(GeneratorOutput, rows, _):
    import numpy as np
    from skyrl.train.dataset.preprocess import build_sample_support
    from skyrl.train.generators.base import TrajectoryID
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


@reads("art", "openpipe-art", "art.Trajectory")
def art(Trajectory, rows, _):
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


@reads("trl-async", "trl", "trl.experimental.async_grpo.async_rollout_worker.RolloutSample")
def trl_async(RolloutSample, rows, _):
    import dataclasses

    import numpy as np

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


def distilled(rows):
    """The rows as TRL's samples, and its collator of some of them."""
    import dataclasses

    import numpy as np
    import trl.experimental.async_distillation.async_distillation_trainer as trainer
    from trl.experimental.async_distillation.async_rollout_worker import RolloutSample

    kinds = {"input_ids": "int64", "completion_mask": "int64", "teacher_topk_ids": "int64"}
    kinds["teacher_topk_logprobs"] = "float32"
    names = {field.name for field in dataclasses.fields(RolloutSample)}
    samples = []
    for row in rows:
        assert set(row) == names
        arrays = {name: np.array(row[name], dtype=kind) for name, kind in kinds.items()}
        samples.append(RolloutSample(**{**row, **arrays}))
    collator = trainer.DataCollatorForRollout(pad_token_id=0)
    fields = [name for name in names if name not in ("prompt", "completion", "enqueued_at")]

    def collate(some):
        return collator([[[{name: getattr(one, name) for name in fields} for one in some]]])

    return samples, collate


@reads(
    "trl-distillation", "trl", "trl.experimental.async_distillation.async_rollout_worker.RolloutSample"
)
def trl_distillation(RolloutSample, rows, _):
    import numpy as np

    samples, collate = distilled(rows)
    for one in samples:
        ids, logprobs, trained = one.teacher_topk_ids, one.teacher_topk_logprobs, one.completion_mask
        assert ids.shape == logprobs.shape and len(ids) == len(one.input_ids)
        assert ((ids == -1) == np.isneginf(logprobs)).all()
        is_there = (ids == one.input_ids[:, None]).sum(axis=1)
        assert (is_there == trained).all(), "the token itself, once, where it is trained"
        assert (np.diff(logprobs[trained == 1][:, :-1], axis=1) <= 0).all()
    batch = collate(samples)
    assert batch["teacher_topk_ids"].shape[:2] == batch["input_ids"].shape
    return {"ids": int(batch["completion_mask"].sum()), "width": ids.shape[1]}


def read(format, path):
    """What the loader of a format found in a file, or why it found nothing."""
    package, name, reader = READERS[format]
    by = {"loader": name, "version": f"{package} {importlib.metadata.version(package)}"}
    try:
        module, _, loader = name.rpartition(".")
        rows = rows_of(path)
        told = reader(getattr(importlib.import_module(module), loader), rows, path)
    except Exception:
        return {**by, "error": traceback.format_exc()}
    return {**by, "rows": len(rows), **told}


if __name__ == "__main__":
    files = dict(argument.split("=", 1) for argument in sys.argv[1:])
    print(json.dumps({name: read(name.split("/")[0], path) for name, path in files.items()}))
