"""A file with one user: its name in the first line and its secret in the second, mode 0600."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

USER_FILE_MAX: Final = 1_024
"""The most bytes of a user's file that are read."""
USER_VARIABLES: Final = ("RAFTMQ_ACCESS_KEY", "RAFTMQ_SECRET_KEY")
"""The environment variables with name and secret of the user in whose name a client signs its requests."""


def read_user_file(path: Path) -> tuple[str, str]:
    """Returns (name, secret). Raises OSError, and ValueError for a file that others may read or that holds no user;
    the messages contain no text of the file."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise ValueError(f"its mode is {mode:04o}, so others may read it: chmod 600 {path}")
        words = file.read(USER_FILE_MAX).decode("utf-8", "replace").split()
    if len(words) != 2:
        raise ValueError(f"it has {len(words)} words, and needs two lines: a name and a secret")
    return words[0], words[1]
