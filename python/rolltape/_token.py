"""The token of a server's control listener, found where the command line finds it."""

from __future__ import annotations

import os
import stat

from rolltape import _servers

VARIABLE = "ROLLTAPE_CONTROL_TOKEN"
NAMING_VARIABLE = "ROLLTAPE_CONTROL_TOKEN_ENV"
"""Holds the name of the variable that holds the token."""
FILE_VARIABLE = "ROLLTAPE_CONTROL_TOKEN_FILE"
STORE_VARIABLE = "ROLLTAPE_STORE"
CHARS_MIN = 16
BYTES_MAX = 1 << 16
OF_OTHERS = 0o077
FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class UnusableToken(ValueError):
    """A token that can be guessed, or a file that others could have written or read."""


class Token:
    """A token that was given, or that is read from its file whenever it is needed.

    The server may start later, and makes the file then. Looked for in the order of the command
    line: `token`, `file`, the variable that ROLLTAPE_CONTROL_TOKEN_ENV names,
    ROLLTAPE_CONTROL_TOKEN, the file that ROLLTAPE_CONTROL_TOKEN_FILE names, that of the server
    here whose control listener is at `control`, the one beside the store (`store`, else
    ROLLTAPE_STORE, else rolltape.db in this folder).
    """

    def __init__(
        self,
        token: str | None = None,
        file: str | os.PathLike[str] | None = None,
        store: str | os.PathLike[str] | None = None,
        control: str = "",
    ) -> None:
        self._variable: str | None = None
        if token is None and file is None:
            self._variable = os.environ.get(NAMING_VARIABLE) or VARIABLE
            token = os.environ.get(self._variable)
            if token is None and self._variable != VARIABLE:
                raise UnusableToken(f"{self._variable}, which {NAMING_VARIABLE} names, is not set")
            file = os.environ.get(FILE_VARIABLE) or None
        self._given = None if token is None else checked(token, self._variable or "this")
        self._named = None if file is None else os.path.abspath(file)
        self._beside = os.path.abspath(_beside(store))
        self._control = control

    @property
    def file(self) -> str:
        """Where the token is looked for."""
        return self._named or _servers.token_file(self._control) or self._beside

    def read(self) -> str | None:
        """The token, or None if there is no file yet. Raises UnusableToken."""
        return self._given if self._given is not None else _read(self.file)

    def why_refused(self) -> str:
        """What to do where the server did not take it."""
        if self._given is not None:
            place = f"in {self._variable}" if self._variable else "that was given"
            return f"the token {place} is another server's"
        file = self.file
        if os.path.lexists(file):
            return f"the token in {file} is another server's"
        return (
            f"no token was found at {file}: give token_file= or set {FILE_VARIABLE}; "
            "`rolltape serve` says at its start which file it is"
        )


def checked(token: str, where: str) -> str:
    """A token without its line's end. Raises UnusableToken if it is short or no header's text."""
    token = token.rstrip("\r\n")
    if len(token) < CHARS_MIN or not all("!" <= letter <= "~" for letter in token):
        raise UnusableToken(f"{where} is no token: {CHARS_MIN} or more characters without a space")
    return token


def _beside(store: str | os.PathLike[str] | None) -> str:
    name = os.fspath(store if store is not None else os.environ.get(STORE_VARIABLE) or _servers.STORE)
    if not name.startswith(("postgres://", "postgresql://")):
        # A store has the same token under all of its names.
        return f"{os.path.realpath(name) if os.path.islink(name) else name}-token"
    return os.path.join(_servers.states(), "control-token")


def _read(file: str) -> str | None:
    try:
        opened = os.open(file, FLAGS)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnusableToken(f"the token file cannot be read: {error}") from error
    with open(opened, encoding="utf-8", errors="replace") as content:
        about = os.fstat(opened)
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in (os.geteuid(), 0):
            raise UnusableToken(f"{file} is another user's, or no file")
        if about.st_mode & OF_OTHERS:
            raise UnusableToken(f"{file} can be read or written by others: chmod 600 {file}")
        return checked(content.read(BYTES_MAX), file)
