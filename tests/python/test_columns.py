"""Derived columns stand beside an export, and each reader joins them in one line."""

import shutil

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import concatenate_datasets, load_dataset

import buckets
from package import PYTHON  # noqa: F401
from test_segments import export, files, recorded, rows  # noqa: F401

from rolltape.columns import add_column

SHARDS = 2
NAMES = [f"trajectories-0000{shard}-of-0000{SHARDS}" for shard in range(SHARDS)]


@pytest.fixture
def folder(recorded, tmp_path):  # noqa: F811
    """An export in two files."""
    store = shutil.copy(recorded, tmp_path / "rolltape.db")
    for shard in range(SHARDS):
        export(tmp_path / "rows", "--shard", f"{shard}/{SHARDS}", "--store", store)
    return tmp_path / "rows"


def scores(folder):
    """A number for each row."""
    return {id: float(sum(map(ord, id))) for id in rows(folder)}


def groups(path):
    """The ids of each row group."""
    file = pq.ParquetFile(path)
    every = range(file.num_row_groups)
    return [file.read_row_group(group, ["trajectory_id"]).to_pylist() for group in every]


def test_a_column_has_the_row_groups_of_its_export(folder):
    before = files(folder)
    paths = [f"_columns/judge/{name}.pq" for name in NAMES]
    assert sorted(add_column(folder, "judge", scores(folder))) == paths
    assert files(folder) == before
    for name, path in zip(NAMES, paths):
        assert groups(folder / path) == groups(folder / f"{name}.parquet")
        assert pq.read_schema(folder / path).names == ["trajectory_id", "judge"]
        assert (folder / path).stat().st_mode == (folder / f"{name}.parquet").stat().st_mode


def test_each_reader_joins_a_column_in_one_line(folder, monkeypatch):
    told = scores(folder)
    add_column(folder, "judge", told)
    monkeypatch.chdir(folder.parent)

    beside = "read_parquet('rows/_columns/judge/*.pq')"
    found = duckdb.sql(f"SELECT * FROM 'rows/*.parquet' JOIN {beside} USING (trajectory_id)").pl()
    assert dict(found.select("trajectory_id", "judge").iter_rows()) == told

    whole, judge = (pl.scan_parquet(f"rows/{n}") for n in ("*.parquet", "_columns/judge/*.pq"))
    found = whole.join(judge, on="trajectory_id").select("trajectory_id", "judge").collect()
    assert dict(found.iter_rows()) == told

    options = {"split": "train", "cache_dir": "cache"}
    whole = load_dataset("rows", **options)
    beside = load_dataset("parquet", data_files="rows/_columns/judge/*.pq", **options)
    assert whole["trajectory_id"] == beside["trajectory_id"]
    found = concatenate_datasets([whole, beside.select_columns("judge")], axis=1)
    assert dict(zip(found["trajectory_id"], found["judge"])) == told


def test_only_files_that_lack_a_column_are_written(folder):
    told = scores(folder)
    kind = pa.list_(pa.float32())
    values = {id: [score, 0.5] for id, score in told.items()}
    assert len(add_column(folder, "weights", values, type=kind)) == SHARDS
    assert add_column(folder, "weights", {}, type=kind) == []

    # The export was made again, and one file has other rows.
    path = folder / f"{NAMES[0]}.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    written = add_column(folder, "weights", {}, type=kind)
    assert written == [f"_columns/weights/{NAMES[0]}.pq"]
    found = pq.read_table(folder / written[0])
    assert set(found["weights"].to_pylist()) == {None}
    assert found.schema.field("weights").type == kind


def test_what_cannot_be_a_column_is_refused(folder):
    for name in ("", "a/b", "trajectory_id"):
        with pytest.raises(ValueError, match="cannot be the name"):
            add_column(folder, name, {})
    with pytest.raises(FileNotFoundError, match="sft"):
        add_column(folder, "judge", {}, format="sft")


def test_a_column_stands_in_a_bucket_too(folder, bucket):
    told = scores(folder)
    buckets.upload(bucket, folder, "rows")
    url = f"s3://{buckets.NAME}/rows"
    assert len(add_column(url, "judge", told)) == SHARDS
    assert add_column(url, "judge", told) == []
    found = {}
    for name in NAMES:
        path = folder / f"{name}.pq"
        bucket.download_file(buckets.NAME, f"rows/_columns/judge/{name}.pq", str(path))
        table = pq.read_table(path)
        found |= zip(table["trajectory_id"].to_pylist(), table["judge"].to_pylist())
    assert found == told
