"""Sealed segments as a dataset of Ray Data. Needs Ray and pyarrow."""

from __future__ import annotations

from collections.abc import Mapping

import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from rolltape.segments import read_shard


class SegmentsSource(Datasource):
    """The segments at a URL, read by as many tasks as there are shards."""

    def __init__(self, url: str, shards: int, options: Mapping[str, object]) -> None:
        super().__init__()
        self._url, self._shards, self._options = url, shards, dict(options)

    def estimate_inmemory_data_size(self) -> int | None:
        """Not known before it is read."""
        return None

    def get_read_tasks(self, parallelism: int, *_limits: object, **_more: object) -> list[ReadTask]:
        """A task a shard, however many Ray would have liked."""
        unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)

        def task(shard: int) -> ReadTask:
            url, shards, options = self._url, self._shards, self._options
            return ReadTask(lambda: read_shard(url, shard, shards, options), unknown)

        return [task(shard) for shard in range(self._shards)]


def read_segments(
    url: str,
    *,
    shards: int,
    ray_remote_args: dict[str, object] | None = None,
    concurrency: int | None = None,
    **options: object,
) -> ray.data.Dataset:
    """A dataset of the segments at `url`, a folder that all nodes see or a bucket.

    Each task runs `rolltape export` on its own shard. `options` are those of the command, such as
    `format`, `kind` and `advantage`, and `columns`; see `rolltape.segments.read_shard`.
    `ray_remote_args` and `concurrency` are those of `ray.data.read_datasource`. A task whose worker
    dies is run again by Ray; one whose command fails raises `rolltape.segments.ExportError`.
    """
    source = SegmentsSource(url, shards, options)
    return ray.data.read_datasource(
        source,
        ray_remote_args=ray_remote_args,
        concurrency=concurrency,
        override_num_blocks=shards,
    )
