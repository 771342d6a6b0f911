"""Secret files as commands make them: a key for a new cluster, one more for a running one, the same for a new node.

Files are written with mode 0600 under another name, synced, and renamed. What a running node makes of them is in
`cluster.peer.secret`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cluster.config.config import Config
from cluster.config.local_layout import sync_folder
from cluster.peer.keyring import FILE_MAX, KEY_BYTES, KEYS_MAX, KeyFileError, encode, key_id, parse
from cluster.peer.secret import mark_of, mark_path, path_of
from raftmq_wire.errors import ExitCode, LocalError


def new_key() -> bytes:
    """A key that nobody else has."""
    return os.urandom(KEY_BYTES)


def read_keys(path: Path) -> tuple[bytes, ...]:
    """The keys in the file, newest first; none if it is not there. Raises LocalError."""
    try:
        with path.open("rb") as file:
            return parse(file.read(FILE_MAX + 1))
    except FileNotFoundError:
        return ()
    except (OSError, KeyFileError) as error:
        why = str(error) if isinstance(error, KeyFileError) else error.strerror or str(error)
        raise LocalError(
            f"{path} cannot be read as a secret", why, f"ls -l {path}    (owner, mode)", ExitCode.REFUSED
        ) from None


def write_keys(path: Path, keys: Sequence[bytes], cluster: str) -> None:
    """Replaces the file; nobody but its owner may read it. Raises LocalError."""
    _replace(path, encode(keys, cluster), 0o600)


def _replace(path: Path, data: bytes, mode: int) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise LocalError(
            f"{path} cannot be written",
            error.strerror or str(error),
            f"ls -ld {path.parent}    (owner, space)",
            ExitCode.REFUSED,
        ) from error


def keys_of_new(configs: Sequence[Config]) -> tuple[bytes, ...]:
    """The secret for a cluster that is being made: what lies where its configurations say, else a new one. Raises
    LocalError if there are several."""
    found = {keys for config in configs if (keys := read_keys(path_of(config)))}
    if len(found) > 1:
        raise LocalError(
            "the nodes have different secrets",
            f"the files {', '.join(str(path_of(config)) for config in configs)} are not equal",
            "copy one of them over the others, or remove them all: a new one is then created",
            ExitCode.USAGE,
        )
    return found.pop() if found else (new_key(),)


def give(config: Config, keys: Sequence[bytes], cluster: str) -> None:
    """Gives a node of a new cluster the secret, demanded from the beginning. Raises LocalError."""
    if not read_keys(path_of(config)):
        write_keys(path_of(config), keys, cluster)
    _replace(mark_path(config), mark_of(keys[0]), 0o644)


def complete(configs: Sequence[Config], cluster: str) -> None:
    """Completes an interrupted creation of a cluster: a node without a secret gets that of the others. Nothing if none
    has one, which is so in clusters of releases that knew no secret."""
    having = [config for config in configs if read_keys(path_of(config))]
    for config in configs:
        if having and config not in having:
            copy(having[0], config, cluster)


def copy(source: Config, target: Config, cluster: str) -> None:
    """Gives a node that joins the secret of another one, and what that demands. Nothing if there is none, or the new
    node has it."""
    keys = read_keys(path_of(source))
    if not keys:
        return
    if not {*read_keys(path_of(target))} & {*keys}:
        write_keys(path_of(target), keys, cluster)
    mark = mark_path(source)
    if mark.exists() and not mark_path(target).exists():
        _replace(mark_path(target), mark.read_bytes(), 0o644)


def take(file: Path, target: Config, wanted: str, cluster: str) -> bool:
    """Gives a node that joins the secret in `file`, brought from another machine; whether it was not there yet.

    `wanted`: what the cluster's newest key is called, in hex. Raises LocalError if that is not in it.
    """
    keys = read_keys(file)
    if not keys:
        raise LocalError(
            f"there is no file {file}",
            "--secret names a copy of the cluster's secret",
            f"scp NODE:DATA/{path_of(target).name} {file}    (from the data directory of a running node)",
            ExitCode.USAGE,
        )
    if not _holds(keys, wanted):
        raise LocalError(
            f"{file} is not the secret of this cluster",
            f"the cluster's is called {wanted or 'nothing: it has none'}",
            "copy the file of a running node; raftmq secret status shows what each node has",
            ExitCode.REFUSED,
        )
    if has(target, wanted):
        return False
    write_keys(path_of(target), keys, cluster)
    return True


def has(target: Config, wanted: str) -> bool:
    """Returns True if the node has the key with that id, in hex."""
    return _holds(read_keys(path_of(target)), wanted)


def _holds(keys: Sequence[bytes], wanted: str) -> bool:
    return wanted in [key_id(key).hex() for key in keys]


def add_key(keys: Sequence[bytes]) -> tuple[bytes, ...]:
    """Returns the same keys with a new one in front. Raises LocalError while an earlier change is not over."""
    if len(keys) >= KEYS_MAX:
        raise LocalError(
            f"there are {len(keys)} keys already",
            "one change of the secret must finish before the next one starts",
            "raftmq secret status",
            ExitCode.REFUSED,
        )
    return (new_key(), *keys)
