"""Sealed segments as Arrow, shard by shard: what `rolltape.ray` and `rolltape.spark` share."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rolltape._binary import binary

if TYPE_CHECKING:
    import pyarrow

# The command takes no more.
SHARDS_MAX = 65_536


class ExportError(RuntimeError):
    """`rolltape export` failed; the text has what it said."""


def read_shard(
    url: str, shard: int, shards: int, options: Mapping[str, object]
) -> Iterator[pyarrow.Table]:
    """Rows of one shard of the segments at `url`, as `rolltape export` gives them: at least one
    table, which is empty if the shard is.

    An option is one of the command's, with `_` for `-`: `{"kind": "main", "group_stats": True}`.
    `columns` names the columns to keep, all without it. The same segments and options give the same
    tables, so what died half-way is run again. Raises ExportError at the end if the command
    failed, and FileNotFoundError if there is none.
    """
    flags = dict(options)
    columns = _names(flags.pop("columns", None))
    words = [binary(), "--quiet", "export", "--segments", url, "--shard", f"{shard}/{shards}"]
    words += ["--out", "-", "--encoding", "arrow", *_words(flags)]
    scratch = tempfile.TemporaryDirectory(prefix="rolltape-")
    with scratch as folder, tempfile.TemporaryFile() as said:
        # Copies of a bucket's segments go with the folder, even if the command is killed.
        env = os.environ | {"TMPDIR": folder}
        run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said, env=env)
        try:
            for table in _tables(run):
                yield table.select(columns) if columns else table
            if run.wait() != 0:
                said.seek(0)
                told = said.read().decode(errors="replace").strip()
                raise ExportError(f"`{shlex.join(words)}` ended with {run.returncode}: {told}")
        finally:
            run.stdout.close()
            run.kill()
            run.wait()


def schema(url: str, options: Mapping[str, object]) -> pyarrow.Schema:
    """The columns of what `read_shard` gives.

    They are asked of the last shard that can be, in which no usual catalog has a segment.
    """
    rows = read_shard(url, SHARDS_MAX - 1, SHARDS_MAX, options)
    first = next(rows)
    rows.close()
    return first.schema


def _tables(run: subprocess.Popen[bytes]) -> Iterator[pyarrow.Table]:
    """What the command writes, batch by batch; ends early if the command does and fails."""
    import pyarrow

    try:
        reader = pyarrow.ipc.open_stream(run.stdout)
        batch = next(reader, None)
        yield reader.read_all() if batch is None else pyarrow.Table.from_batches([batch])
        for batch in reader:
            yield pyarrow.Table.from_batches([batch])
    except (pyarrow.ArrowInvalid, OSError):
        if run.wait() == 0:
            raise


def _names(value: object) -> list[str]:
    """Names in a list, or in a text with commas between."""
    if value is None:
        return []
    return value.split(",") if isinstance(value, str) else [str(name) for name in value]


def _words(flags: Mapping[str, object]) -> list[str]:
    """Options as words of a command; those that are false or None are left out."""
    words = []
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True or value == "true":
            words.append(flag)
        elif value not in (None, False, "false"):
            words += [flag, str(value) if isinstance(value, str | int | float) else ",".join(value)]
    return words
