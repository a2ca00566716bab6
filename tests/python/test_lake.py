"""Ray and Spark read segments of a bucket with many tasks, and give the rows of one export."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs the environment of lake/install.sh")
pytest.importorskip("pyspark", reason="needs the environment of lake/install.sh")

import pyarrow as pa  # noqa: E402
import ray  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

import buckets  # noqa: E402
import harness  # noqa: E402
from package import PYTHON  # noqa: E402
from test_segments import GROUPS, by_name, export, recorded, rows, seal  # noqa: E402, F401

import rolltape.ray  # noqa: E402
import rolltape.spark  # noqa: E402
from rolltape.columns import add_column  # noqa: E402
from rolltape.segments import ExportError  # noqa: E402

pytestmark = pytest.mark.timeout(300)
SHARDS = [1, 4, GROUPS + 2]
# Kills the process that started it where there is a file that says so, and removes that.
COMMAND = """#!/bin/sh
if rm {order} 2>/dev/null; then kill -9 $PPID; fi
exec {binary} "$@"
"""


@dataclass
class Lake:
    """Segments in a bucket, and the rows of one export of all of them."""

    url: str
    export: Path
    rows: dict
    order: Path
    """While this file is there, the next command kills the worker that started it."""


@pytest.fixture(scope="module")
def lake(recorded, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("lake")
    store = Path(shutil.copy(recorded, folder / "rolltape.db"))
    seal(store, "--segment-size", "1")
    whole = export(folder / "one", "--segments", folder / "segments")
    order, command = folder / "kill", folder / "rolltape"
    command.write_text(COMMAND.format(order=order, binary=harness.binary()))
    command.chmod(0o755)

    with buckets.emulated() as (client, variables), pytest.MonkeyPatch.context() as patch:
        buckets.upload(client, folder / "segments", "lab/segments")
        # Workers inherit this.
        env = {"ROLLTAPE_BIN": str(command), "PYSPARK_PYTHON": sys.executable}
        paths = [str(PYTHON), os.environ.get("PYTHONPATH", "")]
        env |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "RAY_USAGE_STATS_ENABLED": "0"}
        for name, value in (variables | env).items():
            patch.setenv(name, value)
        yield Lake("s3://runs/lab/segments", whole, rows(whole), order)


@pytest.fixture(scope="module")
def cluster(lake):
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def of_ray(dataset):
    tables = ray.get(dataset.to_arrow_refs())
    return by_name(pa.concat_tables(tables).to_pylist())


@pytest.mark.parametrize("shards", SHARDS)
def test_tasks_of_ray_give_the_rows_of_one_export(lake, cluster, shards):
    assert of_ray(rolltape.ray.read_segments(lake.url, shards=shards)) == lake.rows


def test_a_task_of_ray_that_is_killed_is_run_again(lake, cluster):
    lake.order.touch()
    assert of_ray(rolltape.ray.read_segments(lake.url, shards=4)) == lake.rows
    assert not lake.order.exists()


def test_ray_hands_on_options_and_what_the_command_says(lake, cluster):
    columns = ["trajectory_id", "group_size"]
    options = {"kind": ["main", "subagent"], "group_stats": True, "columns": columns}
    dataset = rolltape.ray.read_segments(lake.url, shards=4, **options)
    assert dataset.schema().names == columns
    assert {row["group_size"] for row in dataset.take_all()} == {2}
    with pytest.raises(ExportError, match="holds no segments"):
        rolltape.ray.read_segments("s3://runs/other", shards=2).take_all()


@pytest.fixture(scope="module")
def spark(lake):
    # A task may fail three times.
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    session = builder.getOrCreate()
    session.dataSource.register(rolltape.spark.SegmentsSource)
    yield session
    session.stop()


def frame(spark, url, shards, **options):
    options |= {"segments": url, "shards": shards}
    return spark.read.format("rolltape").options(**options).load()


def of_spark(frame):
    return by_name(row.asDict(recursive=True) for row in frame.collect())


@pytest.mark.parametrize("shards", SHARDS)
def test_partitions_of_spark_give_the_rows_of_one_export(lake, spark, shards):
    found = frame(spark, lake.url, shards)
    assert found.rdd.getNumPartitions() == shards
    assert of_spark(found) == lake.rows


def test_a_partition_of_spark_that_is_killed_is_run_again(lake, spark):
    found = frame(spark, lake.url, 4)
    lake.order.touch()
    assert of_spark(found) == lake.rows
    assert not lake.order.exists()


def test_spark_hands_on_options_and_what_the_command_says(lake, spark):
    columns = "trajectory_id,group_size"
    found = frame(spark, lake.url, 4, kind="main", group_stats=True, columns=columns)
    assert found.columns == columns.split(",")
    assert [row.group_size for row in found.select("group_size").distinct().collect()] == [2]
    with pytest.raises(Exception, match="holds no segments"):
        frame(spark, "s3://runs/other", 2).collect()


def test_spark_joins_a_derived_column_in_one_line(lake, spark):
    told = {id: float(len(id)) for id in lake.rows}
    add_column(lake.export, "judge", told)
    whole, beside = f"{lake.export}/*.parquet", f"{lake.export}/_columns/judge/*.pq"
    found = spark.read.parquet(whole).join(spark.read.parquet(beside), "trajectory_id")
    judged = of_spark(found)
    assert {id: row.pop("judge") for id, row in judged.items()} == told
    assert judged == lake.rows
