"""Exported files become tables of Delta Lake and Iceberg in place, one commit an increment."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from datasets import load_dataset

deltalake = pytest.importorskip("deltalake", reason="needs the environment of lake/install.sh")
pytest.importorskip("pyiceberg", reason="needs the environment of lake/install.sh")

from pyiceberg.catalog.sql import SqlCatalog  # noqa: E402

import buckets  # noqa: E402
import harness  # noqa: E402
from package import PYTHON  # noqa: E402
from test_segments import announce, by_name, export, files, rows  # noqa: E402
from test_show import talk  # noqa: E402

from rolltape import table  # noqa: E402

pytestmark = pytest.mark.timeout(120)
INCREMENTS = 3


@pytest.fixture(scope="module")
def increments(tmp_path_factory):
    """A folder of an export with three increments, and copies of it as it was after each."""
    folder = tmp_path_factory.mktemp("increments")
    copies = []
    with harness.serve(folder, "--model", harness.MODEL) as proxy:
        for step in range(INCREMENTS):
            for member in range(2):
                name = f"g{step}-{member}"
                announce(proxy, name, f"g{step}")
                talk(proxy, name, [f"Begin {name}. " + "Say it. " * 30, "Go on."])
                proxy.command("reward", name, member)
                proxy.command("close", name)
            export(folder / "rows", "--new", "--store", proxy.store)
            copies.append(shutil.copytree(folder / "rows", folder / f"after-{step}"))
    return copies


@pytest.fixture
def grow(increments, tmp_path):
    """Gives a folder, one increment longer at each step."""

    def steps():
        for copy in increments:
            yield shutil.copytree(copy, tmp_path / "rows", dirs_exist_ok=True)

    return steps()


def bounds(found):
    """Bounds of group_id and the number of rows, by file."""
    told = pa.table(found.get_add_actions(flatten=True))
    names = ("num_records", "min.group_id", "max.group_id", "null_count.task_id")
    return sorted(zip(*(told[name].to_pylist() for name in names)))


def test_each_increment_is_a_commit_of_a_delta_table(grow):
    for step, folder in enumerate(grow):
        before = files(folder)
        added = table.delta(folder)
        assert (len(added.files), added.rows) == (1, 2)
        assert table.delta(folder) == table.Added([], 0)
        found = deltalake.DeltaTable(folder)
        assert found.version() == step
        assert files(folder) == before

    assert by_name(found.to_pyarrow_table().to_pylist()) == rows(folder)
    assert bounds(found) == [(2, f"g{step}", f"g{step}", 2) for step in range(INCREMENTS)]
    lake = found.to_pyarrow_dataset()  # noqa: F841
    assert duckdb.sql("SELECT count(*), avg(reward) FROM lake").fetchall() == [(6, 0.5)]
    assert pl.scan_delta(folder).select("reward", "input_ids").collect().height == 6
    assert pl.read_delta(str(folder), use_pyarrow=True).height == 6


def test_each_increment_is_a_snapshot_of_an_iceberg_table(grow):
    for step, folder in enumerate(grow):
        before = files(folder)
        added = table.iceberg(folder)
        assert (len(added.files), added.rows) == (1, 2)
        assert table.iceberg(folder) == table.Added([], 0)
        found = catalog_of(folder).load_table("rolltape.trajectories")
        assert len(found.metadata.snapshots) == step + 1
        assert files(folder) == before

    with table.json_as_text():
        assert of_iceberg(found) == rows(folder)
        few = found.scan("group_id == 'g1'", selected_fields=("reward", "rewards"))
        assert len(list(few.plan_files())) == 1
        assert sorted(few.to_arrow()["reward"].to_pylist()) == [0.0, 1.0]


def of_iceberg(found):
    """Rows of a table; pyiceberg gives a list of structs that is null as one without elements."""
    told = found.scan().to_arrow().to_pylist()
    return by_name(row | {"annotations": row["annotations"] or None} for row in told)


def catalog_of(folder):
    return SqlCatalog("rolltape", uri=f"sqlite:///{folder}/_iceberg/catalog.db")


def test_the_export_goes_on_beside_its_tables(grow, increments, tmp_path):
    folder = next(grow)
    assert table.delta(folder) == table.iceberg(folder)
    store = shutil.copy(increments[0].parent / "recorded.db", tmp_path / "rolltape.db")
    export(folder, "--new", "--store", store)
    run = [sys.executable, "-m", "rolltape.table"]
    env = harness.environment(PYTHONPATH=str(PYTHON))
    for kind in ("delta", "iceberg"):
        words = [*run, kind, str(folder)]
        told = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout
        assert told == "1 files with 4 rows added\n  trajectories.1.parquet\n", told
    whole = load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(whole) == 6


def test_partitions_are_added_whatever_their_names(increments, tmp_path):
    store = increments[0].parent / "recorded.db"
    out = tmp_path / "rows"
    copied = shutil.copy(store, tmp_path / "rolltape.db")
    export(out, "--partition-by", "group", "--store", copied)
    (out / "group=g0").rename(out / "group=a%3Ab")
    manifest = out / "manifest.json"
    manifest.write_text(manifest.read_text().replace("group=g0", "group=a%3Ab"))
    for add in (table.delta, table.iceberg):
        assert len(add(out).files) == INCREMENTS
        assert add(out) == table.Added([], 0)
    assert deltalake.DeltaTable(out).to_pyarrow_table().num_rows == 6


@pytest.mark.parametrize("add", [table.delta, table.iceberg])
def test_a_table_of_another_export_is_refused(grow, add):
    first, *_, folder = map(str, grow)
    assert first == folder
    add(folder)
    with pytest.raises(FileNotFoundError, match="sft"):
        add(folder, format="sft")
    manifest = Path(folder, "manifest.json")
    manifest.write_text(manifest.read_text().replace("trajectories.1.parquet", "other.parquet"))
    with pytest.raises(table.TableError, match="trajectories.1.parquet"):
        add(folder)


def test_a_table_in_a_bucket(grow, bucket, tmp_path):
    catalog = SqlCatalog(
        "test",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        **{"s3.endpoint": os.environ["AWS_ENDPOINT"], "s3.region": "us-east-1"},
    )
    url = f"s3://{buckets.NAME}/rows"
    for folder in grow:
        buckets.upload(bucket, folder, "rows")
        for add, more in ((table.delta, {}), (table.iceberg, {"catalog": catalog})):
            assert add(url, **more).rows == 2
            assert add(url, **more) == table.Added([], 0)
    found = deltalake.DeltaTable(url)
    assert found.version() == INCREMENTS - 1
    assert by_name(found.to_pyarrow_table().to_pylist()) == rows(folder)
    with table.json_as_text():
        assert of_iceberg(catalog.load_table("rolltape.trajectories")) == rows(folder)
    with pytest.raises(ValueError, match="needs a catalog"):
        table.iceberg(url)


@pytest.mark.parametrize("add", [table.delta, table.iceberg])
def test_of_two_at_once_one_fails(grow, monkeypatch, add):
    folder = next(grow)
    add(folder)
    assert next(grow) == folder
    lacking = table._lacking

    def overtaken(*told):
        files = lacking(*told)
        monkeypatch.setattr(table, "_lacking", lacking)
        assert len(add(folder).files) == 1
        return files

    monkeypatch.setattr(table, "_lacking", overtaken)
    with pytest.raises(Exception, match="(?i)commit|requirement"):
        add(folder)
    assert add(folder) == table.Added([], 0)
