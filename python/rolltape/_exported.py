"""An exported folder, here or in a bucket: the files that its manifests list."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pyarrow.fs
import pyarrow.parquet


@dataclass(frozen=True)
class File:
    """A Parquet file with rows."""

    path: str
    """In the folder, with `/` between folders."""
    rows: int
    bytes: int


class Folder:
    """The exports of one format in a folder. Raises FileNotFoundError if there is none.

    What no manifest lists is not in it, such as a file whose export did not finish.
    """

    def __init__(self, target: str | os.PathLike[str], format: str) -> None:
        text = os.fspath(target)
        self.url = (text if "://" in text else Path(text).absolute().as_uri()).rstrip("/")
        self.storage, self.root = pyarrow.fs.FileSystem.from_uri(_with_endpoint(self.url))
        self.files: dict[str, File] = {}
        for manifest in self._manifests(format):
            for told in manifest["files"]:
                if told["path"].endswith(".parquet"):
                    self.files[told["path"]] = File(told["path"], told["rows"], told["bytes"])
        if not self.files:
            raise FileNotFoundError(f"`{text}` has no Parquet files of an export of `{format}`")

    @property
    def is_here(self) -> bool:
        """Whether it is a folder of this machine."""
        return self.url.startswith("file://")

    def parquet(self, path: str) -> pyarrow.parquet.ParquetFile:
        """A file of it."""
        return pyarrow.parquet.ParquetFile(f"{self.root}/{path}", filesystem=self.storage)

    def schema(self) -> pyarrow.Schema:
        """The columns of its rows."""
        return self.parquet(next(iter(self.files))).schema_arrow

    def _manifests(self, format: str) -> Iterator[dict[str, Any]]:
        """Those of this format: one, or one of each shard."""
        listed = self.storage.get_file_info(pyarrow.fs.FileSelector(self.root))
        for info in sorted(listed, key=lambda info: info.base_name):
            if "manifest" in info.base_name and info.base_name.endswith(".json"):
                with self.storage.open_input_stream(info.path) as stream:
                    manifest = json.loads(stream.read())
                if manifest.get("format") == f"rolltape-{format}":
                    yield manifest


def _with_endpoint(url: str) -> str:
    """The URL with what the environment says of S3, under the names that `rolltape` reads."""
    told = {}
    if endpoint := os.environ.get("AWS_ENDPOINT"):
        place = urlsplit(endpoint)
        told |= {"endpoint_override": place.netloc, "scheme": place.scheme}
    if region := os.environ.get("AWS_REGION"):
        told["region"] = region
    return f"{url}?{urlencode(told)}" if told and url.startswith("s3://") else url
