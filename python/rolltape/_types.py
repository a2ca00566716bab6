"""Columns in types that other systems have."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow


def plain(schema: pyarrow.Schema) -> pyarrow.Schema:
    """These columns with JSON as text and `uint16` as `int32`."""
    return pyarrow.schema([field.with_type(_plain(field.type)) for field in schema])


def _plain(kind: pyarrow.DataType) -> pyarrow.DataType:
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _plain(kind.storage_type)
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([field.with_type(_plain(field.type)) for field in kind])
    return pyarrow.int32() if pyarrow.types.is_uint16(kind) else kind


def json_paths(schema: pyarrow.Schema) -> Iterator[str]:
    """Where these columns are JSON, with dots between, such as `tools.element`."""
    for field in schema:
        yield from _json_paths(field.name, field.type)


def _json_paths(path: str, kind: pyarrow.DataType) -> Iterator[str]:
    if isinstance(kind, pyarrow.JsonType):
        yield path
    elif pyarrow.types.is_list(kind):
        yield from _json_paths(f"{path}.element", kind.value_type)
    elif pyarrow.types.is_struct(kind):
        for field in kind:
            yield from _json_paths(f"{path}.{field.name}", field.type)
