"""Restricts access to the files that our processes make to the user who runs them.

Data directories, backups and logs contain every message. A node, the processes that it starts, and the `raftmq` command
therefore run with a umask of 0o077: folders have mode 0700, files 0600. A process that only imports our client keeps
its own umask.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

UMASK = 0o077
_given: list[int] = []
"""The umask that each `private` replaced, the user's own first."""


@contextlib.contextmanager
def private() -> Iterator[None]:
    """Makes files of this process and its children inaccessible to all other users. It is used at a program's entry,
    because threads share the umask."""
    _given.append(os.umask(UMASK))
    os.umask(_given[-1] | UMASK)
    try:
        yield
    finally:
        os.umask(_given.pop())


@contextlib.contextmanager
def as_the_user_has_it() -> Iterator[None]:
    """Restores the user's own umask, for a file without secrets that the user has named for output."""
    before = os.umask(UMASK)
    os.umask(_given[0] if _given else before)
    try:
        yield
    finally:
        os.umask(before)
