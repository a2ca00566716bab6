"""Exports load with `datasets` as they are, with the documented types."""

import json
import re

import datasets
import pytest
from datasets import Json, List, Value

import harness

TURN = {
    "call_id": Value("string"),
    "choice": Value("int32"),
    "start": Value("int32"),
    "end": Value("int32"),
    "finish_reason": Value("string"),
    "version_start": Value("int64"),
    "version_end": Value("int64"),
    "temperature": Value("float64"),
    "reward": Value("float64"),
    "continued": Value("bool"),
    "mc_return": Value("float64"),
    "model": Value("string"),
    "message": Value("int32"),
}
MESSAGE = {
    "role": Value("string"),
    "content": Value("string"),
    "name": Value("string"),
    "tool_call_id": Value("string"),
    "reasoning": Value("string"),
    "tool_calls": List(Json()),
}
FEATURES = {
    "schema_version": Value("int32"),
    "episode_id": Value("string"),
    "attempt": Value("int32"),
    "trajectory_id": Value("string"),
    "trajectory_index": Value("int32"),
    "num_trajectories": Value("int32"),
    "parent_trajectory_id": Value("string"),
    "fork_position": Value("int32"),
    "kind": Value("string"),
    "kind_reason": Value("string"),
    "group_id": Value("string"),
    "task_id": Value("string"),
    "model": Value("string"),
    "tokenizer_fingerprint": Value("string"),
    "input_ids": List(Value("int32")),
    "loss_mask": List(Value("int8")),
    "logprobs": List(Value("float32")),
    "logprob_kind": Value("string"),
    "versions": List(Value("int32")),
    "prompt_len": Value("int32"),
    "turns": List(TURN),
    "policy_version_min": Value("int64"),
    "policy_version_max": Value("int64"),
    "mixed_versions": Value("bool"),
    "staleness": Value("int64"),
    "reward": Value("float64"),
    "trajectory_reward": Value("float64"),
    "token_rewards": List(Value("float64")),
    "advantage": Value("float64"),
    "group_size": Value("int64"),
    "group_scored": Value("int64"),
    "group_reward_mean": Value("float64"),
    "group_reward_std": Value("float64"),
    "rewards": Json(),
    "row_weight": Value("float64"),
    "fidelity": Value("string"),
    "verdict": Value("string"),
    "reasons": List(Value("string")),
    "episode_verdict": Value("string"),
    "status": Value("string"),
    "prompt": List(MESSAGE),
    "completion": List(MESSAGE),
    "tools": List(Json()),
    "metadata": Json(),
    "unread_parts": Json(),
    "top_logprob_ids": List(List(Value("int32"))),
    "top_logprob_tokens": List(List(Value("string"))),
    "top_logprobs": List(List(Value("float32"))),
    "kept_token_ids": List(List(Value("int32"))),
    "routed_experts": List(List(Value("uint16"))),
    "routed_experts_shape": List(Value("int32")),
    "routed_experts_mask": List(Value("int8")),
    "annotations": List(
        {"name": Value("string"), "version": Value("string"), "values": List(Value("float32"))}
    ),
    "kv_cache": Value("string"),
}
FREE_TEXT = re.compile(r"^\| `(\w+)` \| `([\w<>]+)`(, nullable)? \| ", re.MULTILINE)


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "streamed"])
def loaded(request, played, tmp_path_factory):
    """The export as `datasets` reads it, in both of its manners."""
    options = {"split": "train", "streaming": request.param}
    cache = str(tmp_path_factory.mktemp("cache"))
    return datasets.load_dataset("parquet", data_files=played.parquet, cache_dir=cache, **options)


def test_every_column_has_its_type(loaded):
    assert list(loaded.features) == list(FEATURES)
    assert dict(loaded.features) == FEATURES


def test_the_user_page_names_the_same_columns():
    page = (harness.ROOT / "docs" / "export.md").read_text()
    columns = page.split("## Columns")[1].split("## Verdicts")[0]
    assert [name for name, _, _ in FREE_TEXT.findall(columns)] == list(FEATURES)


def test_rows_are_those_of_the_file(loaded, played):
    rows, of_file = list(loaded), played.rows()
    assert len(rows) == len(of_file)
    for name in ("trajectory_id", "input_ids", "loss_mask", "logprobs", "versions", "turns"):
        assert [row[name] for row in rows] == [row[name] for row in of_file], name


def test_json_columns_are_objects(loaded, played):
    for row in loaded:
        secret = played.games.get(row["episode_id"])
        labels = {"secret": str(secret.secret)} if secret else {}
        assert row["metadata"]["labels"] == labels
        assert row["metadata"]["source"] in ("path", "header")
        assert isinstance(row["rewards"], list)
        if row["episode_id"] != "ids":
            (tool,) = row["tools"] or [None]
            assert tool is None or tool["function"]["name"] == "guess"


def test_reward_statements_keep_their_history(loaded):
    rows = {row["episode_id"]: row["rewards"] for row in loaded}
    said = [(r["name"], r["value"], r["scope"]) for r in rows["branch"]]
    assert said == [("reward", None, "episode"), ("style", 0.25, "episode")]
    early = [r for r in rows["streamed-1"] if r["source"] == "too-early"]
    assert [r["value"] for r in early] == [0.5]


def test_tool_calls_are_objects_with_object_arguments(loaded):
    calls = [
        call
        for row in loaded
        for message in row["completion"]
        for call in message["tool_calls"] or []
    ]
    assert calls
    for call in calls:
        assert call["function"]["name"] == "guess"
        assert isinstance(call["function"]["arguments"]["n"], int), json.dumps(call)


def test_tokens_turn_into_arrays(played, tmp_path):
    """As trainers read them, without a conversion of their own."""
    options = {"split": "train", "cache_dir": str(tmp_path)}
    rows = datasets.load_dataset("parquet", data_files=played.parquet, **options)
    for row in rows.with_format("numpy"):
        trained = row["logprobs"][row["loss_mask"] == 1]
        assert trained.dtype.name == "float32"
        assert trained.size and (trained <= 0).all() and (trained > -50).all()
        assert row["input_ids"].dtype.kind == row["versions"].dtype.kind == "i"
