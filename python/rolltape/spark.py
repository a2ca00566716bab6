"""Sealed segments as a data source of Spark 4. Needs PySpark and pyarrow.

    spark.dataSource.register(SegmentsSource)
    spark.read.format("rolltape").option("segments", URL).option("shards", 64).load()
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from rolltape._types import plain
from rolltape.segments import read_shard, schema


class SegmentsSource(DataSource):
    """The segments at a URL.

    The options are `segments`, a folder that all nodes see or a bucket; `shards`, into how many
    partitions they are read; and those of `rolltape.segments.read_shard`.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "rolltape"

    def _told(self) -> tuple[str, int, dict[str, object]]:
        options: dict[str, object] = dict(self.options)
        return str(options.pop("segments")), int(str(options.pop("shards"))), options

    def schema(self) -> StructType:
        """The columns, in types that Spark has."""
        url, _, options = self._told()
        return from_arrow_schema(plain(schema(url, options)))

    def reader(self, schema: StructType) -> SegmentsReader:
        """A reader of all shards."""
        return SegmentsReader(*self._told())


class SegmentsReader(DataSourceReader):
    """A partition for each shard; a partition that fails is run again by Spark."""

    def __init__(self, url: str, shards: int, options: dict[str, object]) -> None:
        self._url, self._shards, self._options = url, shards, options

    def partitions(self) -> list[InputPartition]:
        """The numbers of the shards."""
        return [InputPartition(shard) for shard in range(self._shards)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The rows of one shard. Raises ExportError if the command failed."""
        for table in read_shard(self._url, partition.value, self._shards, self._options):
            yield from table.cast(plain(table.schema)).to_batches()
