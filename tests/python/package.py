"""The package `rolltape`, as it is in this repository, with the binary that is under test."""

import os
import sys

import harness

PYTHON = harness.ROOT / "python"

os.environ.setdefault("ROLLTAPE_BIN", harness.binary())
sys.path.insert(0, str(PYTHON))

import rolltape  # noqa: E402, F401
import rolltape.http  # noqa: E402, F401
import rolltape.openenv  # noqa: E402, F401
import rolltape.sessions  # noqa: E402, F401
import rolltape.trl  # noqa: E402, F401
