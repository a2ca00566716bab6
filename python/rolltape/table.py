"""Exported Parquet files as tables of Delta Lake and Iceberg, in place.

    python -m rolltape.table delta DIR
    python -m rolltape.table iceberg DIR

Run it after each `rolltape export --out DIR --new`: it adds the files that the table lacks in one
commit. No file is rewritten. Needs pyarrow, and `deltalake` or `pyiceberg[sql-sqlite]`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow
import pyarrow.parquet

from rolltape._exported import File, Folder
from rolltape._types import json_paths, plain

if TYPE_CHECKING:
    from deltalake.transaction import AddAction
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_HELP = "Adds the files of an export that a table lacks, in one commit. No file is rewritten."


class TableError(RuntimeError):
    """The table and the export beside it do not agree."""


@dataclass(frozen=True)
class Added:
    """What a commit added; no file if there was nothing to add."""

    files: list[str]
    """Their paths in the folder."""
    rows: int


def delta(target: str | os.PathLike[str], *, format: str = "trajectories") -> Added:
    """Adds what a Delta table lacks of the export in a folder or bucket; makes the table if there
    is none.

    Raises TableError if the table has files that the export no longer has, and FileNotFoundError
    without an export.
    """
    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.exceptions import TableNotFoundError
    from deltalake.transaction import create_table_with_add_actions

    folder = Folder(target, format)
    schema = Schema.from_arrow(plain(folder.schema()))
    try:
        table = DeltaTable(folder.url)
    except TableNotFoundError:
        files = list(folder.files.values())
        create_table_with_add_actions(folder.url, schema, [_action(folder, f) for f in files])
        return _added(files)

    held = pyarrow.table(table.get_add_actions())
    paths = (unquote(path) for path in held["path"].to_pylist())
    files = _lacking(folder, dict(zip(paths, held["size_bytes"].to_pylist())))
    if files:
        actions = [_action(folder, file) for file in files]
        # Who comes second fails, and does not add the same files again.
        once = CommitProperties(max_commit_retries=0)
        table.create_write_transaction(actions, "append", schema, commit_properties=once)
    return _added(files)


def _lacking(folder: Folder, held: Mapping[str, int]) -> list[File]:
    """The files that a table lacks which holds `held`: bytes by path.

    Raises TableError if the export no longer has a file, or another one under its name.
    """
    for path, size in held.items():
        if path not in folder.files or folder.files[path].bytes != size:
            raise TableError(f"`{path}` of the table is not in the export any more")
    return [file for path, file in folder.files.items() if path not in held]


def _added(files: list[File]) -> Added:
    return Added([file.path for file in files], sum(file.rows for file in files))


def _action(folder: Folder, file: File) -> AddAction:
    from deltalake.transaction import AddAction

    stats = json.dumps(_statistics(folder.parquet(file.path).metadata))
    now = int(time.time() * 1000)
    return AddAction(file.path, file.bytes, {}, now, True, stats)


def _statistics(footer: pyarrow.parquet.FileMetaData) -> dict[str, Any]:
    """The bounds of a file's columns, as its footer has them, in the form of Delta Lake."""
    least, most, nulls = {}, {}, {}
    for place in range(footer.num_columns):
        groups = [footer.row_group(group).column(place) for group in range(footer.num_row_groups)]
        told = [group.statistics for group in groups]
        name = footer.schema.column(place).path
        if "." in name or not told or not all(told) or told[0].logical_type.type == "JSON":
            continue
        if all(one.has_null_count for one in told):
            nulls[name] = sum(one.null_count for one in told)
        bounds = [(one.min, one.max) for one in told if one.has_min_max]
        if len(bounds) == len(told) and all(_is_bound(value) for pair in bounds for value in pair):
            least[name] = min(low for low, _ in bounds)
            most[name] = max(high for _, high in bounds)
    bounds_of_all = {"minValues": least, "maxValues": most, "nullCount": nulls}
    return {"numRecords": footer.num_rows} | bounds_of_all


def _is_bound(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int | str) and not isinstance(value, bool)


def iceberg(
    target: str | os.PathLike[str],
    *,
    format: str = "trajectories",
    catalog: Catalog | None = None,
    name: str | None = None,
) -> Added:
    """Adds what an Iceberg table lacks of the export in a folder or bucket; makes the table if
    there is none.

    Without `catalog`, a catalog in a SQLite file of the folder is used, `_iceberg/catalog.db`; a
    bucket needs one. The table's name is `rolltape.FORMAT`, with `_` for `-`, unless `name` is
    another. Raises as `delta` does, and ValueError if a bucket has no catalog.
    """
    from pyiceberg.exceptions import NoSuchTableError

    folder = Folder(target, format)
    catalog = catalog or _own_catalog(folder)
    name = name or f"rolltape.{format.replace('-', '_')}"
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        table = _new_table(folder, catalog, name)

    listed = table.inspect.files()
    paths = (path.removeprefix(f"{folder.url}/") for path in listed["file_path"].to_pylist())
    files = _lacking(folder, dict(zip(paths, listed["file_size_in_bytes"].to_pylist())))
    if files:
        with json_as_text():
            table.add_files([f"{folder.url}/{file.path}" for file in files])
    return _added(files)


def _new_table(folder: Folder, catalog: Catalog, name: str) -> Table:
    # Who comes second fails, and does not add the same files again.
    properties = {"commit.retry.num-retries": "0"}
    # pyiceberg fails on bounds of JSON.
    for path in json_paths(folder.schema()):
        properties[f"write.metadata.metrics.column.{path}"] = "counts"
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    place = f"{folder.url}/_iceberg/{name}"
    schema = plain(folder.schema())
    return catalog.create_table(name, schema, location=place, properties=properties)


@contextmanager
def json_as_text() -> Iterator[None]:
    """Makes pyarrow read JSON columns as text, in this whole process, while the block runs.

    pyiceberg needs it to add and to read our files: it has no type for `arrow.json`.
    """
    pyarrow.unregister_extension_type("arrow.json")
    try:
        yield
    finally:
        pyarrow.register_extension_type(pyarrow.json_())


def _own_catalog(folder: Folder) -> Catalog:
    """The catalog beside an export."""
    from pyiceberg.catalog.sql import SqlCatalog

    if not folder.is_here:
        raise ValueError(f"`{folder.url}` is a bucket: an Iceberg table there needs a catalog")
    place = Path(folder.root) / "_iceberg"
    place.mkdir(exist_ok=True)
    return SqlCatalog("rolltape", uri=f"sqlite:///{place}/catalog.db", warehouse=place.as_uri())


def main() -> None:
    """`python -m rolltape.table delta|iceberg DIR`."""
    parser = argparse.ArgumentParser(prog="python -m rolltape.table", description=_HELP)
    parser.add_argument("kind", choices=["delta", "iceberg"])
    parser.add_argument("target", help="an exported folder, here or in a bucket")
    parser.add_argument("--format", default="trajectories", help="format of the rows")
    parser.add_argument("--catalog", help="Iceberg: name of a catalog in pyiceberg's configuration")
    parser.add_argument("--name", help="Iceberg: name of the table, NAMESPACE.TABLE")
    given = parser.parse_args()

    if given.kind == "delta":
        added = delta(given.target, format=given.format)
    else:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(given.catalog) if given.catalog else None
        names = {"format": given.format, "catalog": catalog, "name": given.name}
        added = iceberg(given.target, **names)
    print(f"{len(added.files)} files with {added.rows} rows added", *added.files, sep="\n  ")


if __name__ == "__main__":
    main()
