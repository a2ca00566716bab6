"""The path of the `rolltape` binary."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

VARIABLE = "ROLLTAPE_BIN"


def binary() -> str:
    """The binary: the one that ROLLTAPE_BIN names, else that of this installation, else PATH's.

    Raises FileNotFoundError if there is none.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return named
    name = "rolltape.exe" if os.name == "nt" else "rolltape"
    own = Path(sysconfig.get_path("scripts")) / name
    found = str(own) if own.is_file() else shutil.which("rolltape")
    if found is None:
        raise FileNotFoundError("no `rolltape` here: set ROLLTAPE_BIN, or install the wheel")
    return found
