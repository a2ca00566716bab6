"""The folder of an export is read as it is, by its name or by a glob, whatever else lies in it."""

import json

import datasets
import duckdb
import polars
import pytest

import harness

LAYOUTS = ("whole", "group", "task", "episode-hash:3", "shards", "jsonl")


@pytest.fixture(scope="module", params=LAYOUTS)
def folder(request, played, tmp_path_factory):
    """A folder with an export of all rows, and what its files end in."""
    out = tmp_path_factory.mktemp("folder") / "out"
    encoding = "jsonl" if request.param == "jsonl" else "parquet"
    store = ("--store", played.world.proxy.store)
    words = ["export", *store, "--out", out, "--encoding", encoding, "--json"]
    if request.param == "shards":
        runs = [[*words, "--shard", f"{index}/3"] for index in range(3)]
    elif request.param in ("whole", "jsonl"):
        runs = [words]
    else:
        runs = [[*words, "--partition-by", request.param]]
    for run in runs:
        json.loads(harness.done(*run, folder=out.parent))
    return out, encoding


def rows(found):
    """What is compared: each row's name, ids and mask, in one order."""
    names = ("trajectory_id", "input_ids", "loss_mask")
    return sorted(tuple(row[name] for name in names) for row in found)


@pytest.fixture
def expected(played):
    return rows(played.rows())


@pytest.mark.parametrize("streaming", [False, True], ids=["loaded", "streamed"])
def test_datasets_loads_the_folder(folder, expected, streaming, tmp_path):
    options = {"cache_dir": str(tmp_path), "streaming": streaming}
    found = datasets.load_dataset(str(folder[0]), **options)
    assert list(found) == ["train"], "a partition is taken for a split"
    assert rows(found["train"]) == expected


def globs(folder):
    out, encoding = folder
    flat = list(out.glob(f"*.{encoding}"))
    return [f"{out}/*.{encoding}"] * bool(flat) + [f"{out}/**/*.{encoding}"]


def test_duckdb_reads_its_globs(folder, expected):
    for glob in globs(folder):
        found = duckdb.sql(f"SELECT trajectory_id, input_ids, loss_mask FROM '{glob}'")
        names = found.columns
        assert rows(dict(zip(names, row)) for row in found.fetchall()) == expected, glob


def test_polars_reads_its_globs(folder, expected):
    for glob in globs(folder):
        if folder[1] == "parquet":
            read, scanned = polars.read_parquet(glob), polars.scan_parquet(glob).collect()
        else:
            scanned = polars.scan_ndjson(glob, infer_schema_length=None).collect()
            read = scanned
        assert rows(read.to_dicts()) == rows(scanned.to_dicts()) == expected, glob


def test_formats_of_one_folder_are_loaded_by_name(played, tmp_path):
    store = ("--store", played.world.proxy.store)
    for format in ("sft", "trl", "trl-async", "art"):
        harness.done("export", *store, "--out", "out", "--format", format, folder=tmp_path)
    load = {"path": str(tmp_path / "out"), "split": "train", "cache_dir": str(tmp_path / "cache")}
    for name in ("sft", "trl", "trl-async"):
        counted = json.loads((tmp_path / "out" / f"{name}.manifest.json").read_text())["rows"]
        assert len(datasets.load_dataset(name=name, **load)) == counted
    assert "messages" in datasets.load_dataset(**load).features, "the first is the default"


def test_a_card_that_somebody_wrote_stays(played, tmp_path):
    (tmp_path / "out").mkdir()
    card = tmp_path / "out" / ".huggingface.yaml"
    card.write_text("license: mit\n")
    harness.done("export", "--store", played.world.proxy.store, "--out", "out", folder=tmp_path)
    assert card.read_text() == "license: mit\n"
