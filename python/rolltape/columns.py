"""Derived columns beside an export: advantages, a teacher's scores, audits. Needs pyarrow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow
import pyarrow.fs
import pyarrow.parquet

from rolltape._exported import Folder

KEY = "trajectory_id"


def add_column(
    target: str | os.PathLike[str],
    name: str,
    values: Mapping[str, object],
    *,
    type: pyarrow.DataType | None = None,
    format: str = "trajectories",
) -> list[str]:
    """Writes a column of the rows in an exported folder, here or in a bucket, to files of its own.

    `values` has the value of each row by its `trajectory_id`; a row without one has null. `type` is
    that of the values, inferred if it is not given. Beside `trajectories.1.parquet` stands
    `_columns/NAME/trajectories.1.pq`, with the columns `trajectory_id` and NAME and the same row
    groups; the export stays as it is. Files that have the column for the same rows already are left
    alone, so after `export --new` only the new rows need values. Returns the paths that were
    written. Raises FileNotFoundError without an export, ValueError if its rows have no id.
    """
    if not name or "/" in name or name == KEY:
        raise ValueError(f"`{name}` cannot be the name of a column")
    folder = Folder(target, format)
    if KEY not in folder.schema().names:
        raise ValueError(f"rows of `{format}` have no `{KEY}`")

    kind = type or pyarrow.array(list(values.values())).type
    columns = pyarrow.schema([pyarrow.field(KEY, pyarrow.string(), False), (name, kind)])
    written = []
    for path in folder.files:
        beside = f"_columns/{name}/{path.removesuffix('.parquet')}.pq"
        if not _is_current(folder, path, beside):
            _write(folder, path, beside, columns, values)
            written.append(beside)
    return written


def _is_current(folder: Folder, path: str, beside: str) -> bool:
    """Whether a file beside the export is about the rows that it has now."""
    if folder.storage.get_file_info(f"{folder.root}/{beside}").type is pyarrow.fs.FileType.NotFound:
        return False
    both = (folder.parquet(name).read(columns=[KEY]) for name in (path, beside))
    return next(both).equals(next(both))


def _write(
    folder: Folder, path: str, beside: str, columns: pyarrow.Schema, values: Mapping[str, object]
) -> None:
    """Writes one file, which appears when it is whole."""
    whole = partial = f"{folder.root}/{beside}"
    if folder.is_here:
        folder.storage.create_dir(os.path.dirname(whole))
        partial = f"{whole}.tmp"
    rows = folder.parquet(path)
    with (
        folder.storage.open_output_stream(partial) as stream,
        pyarrow.parquet.ParquetWriter(stream, columns, compression="zstd") as writer,
    ):
        for group in range(rows.num_row_groups):
            ids = rows.read_row_group(group, columns=[KEY])[KEY].combine_chunks()
            told = pyarrow.array([values.get(id) for id in ids.to_pylist()], columns.types[1])
            writer.write_table(pyarrow.table([ids, told], schema=columns), max(len(ids), 1))
    if folder.is_here:
        os.chmod(partial, Path(folder.root, path).stat().st_mode)
        os.replace(partial, whole)
