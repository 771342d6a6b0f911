"""The access files that a new cluster's configuration names: the key that encrypts users' secrets, and the first user
of type Super.

They are made once, with the cluster. With another key, the secrets in the log could not be read any more.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from cluster.config.config import Config
from cluster.config.local_layout import sync_folder
from raftmq_wire.errors import ExitCode, LocalError

KEY_BYTES = 32
FIRST_USER = "admin"


def make_access_files(configs: Iterable[Config]) -> list[Path]:
    """Makes the access files that are named and missing, with mode 0600; returns their paths. Their content is not
    printed. Raises LocalError."""
    made = []
    for config in configs:
        for name, text in (
            (config.auth.key_file, base64.b64encode(os.urandom(KEY_BYTES)).decode() + "\n"),
            (config.auth.first_user_file, _first_user()),
        ):
            if name and not Path(name).exists():
                _make(Path(name), text)
                made.append(Path(name))
    return made


def make_first_user(path: Path) -> Path:
    """Makes the file of a first user, with mode 0600, unless it exists; returns its path. Raises LocalError."""
    if not path.exists():
        _make(path, _first_user())
    return path


def _first_user() -> str:
    return f"{FIRST_USER}\n{secrets.token_urlsafe(24)}\n"


def _make(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    except OSError as error:
        raise LocalError(
            f"{path} cannot be made",
            error.strerror or str(error),
            f"ls -ld {path.parent}    (owner, space)",
            ExitCode.FAILED,
        ) from error


def hand_over(config: Config, tls_dir: Path | None = None) -> str:
    """Returns the command with which root hands a new node's files over to the user of its service; "" if this process
    is not root, or if root owns none of them. The user is the owner of the folder that contains the data directory.
    `tls_dir`: the folder of certificates that the command named; None for none."""
    directory = Path(config.node.data_dir)
    folder = directory.parent.stat()
    if os.geteuid() or not folder.st_uid:
        return ""
    files = (config.peer.secret_file, config.auth.key_file, config.auth.first_user_file)
    needed = [directory, *([tls_dir] if tls_dir is not None else []), *(Path(file) for file in files if file)]
    ours = [str(path) for path in needed if path.exists() and not path.stat().st_uid]
    return f"chown -R {folder.st_uid}:{folder.st_gid} {' '.join(ours)}" if ours else ""
