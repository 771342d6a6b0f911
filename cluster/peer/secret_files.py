"""Makes secret files for commands: a key for a new cluster, another key for a running cluster, a copy for a new node.

Files are written with mode 0600 under another name, synced, and renamed. `cluster.peer.secret` describes how a running
node uses them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cluster.config.config import Config
from cluster.config.local_layout import replace_file
from cluster.peer.keyring import encode
from cluster.peer.secret import mark_of, mark_path, path_of
from cluster.runtime.key_file import FILE_MAX, KEY_BYTES, KEYS_MAX, KeyFileError, key_id, parse
from raftmq_wire.errors import ExitCode, LocalError


def new_key() -> bytes:
    """Returns a new random key."""
    return os.urandom(KEY_BYTES)


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Returns the keys in the file, newest first; an empty tuple if the file does not exist. Raises LocalError."""
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
    """Replaces the file by one with these keys, which only its owner may read. `cluster` is the cluster's uuid. Raises
    LocalError."""
    _replace(path, encode(keys, cluster), 0o600)


def _replace(path: Path, data: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data, mode)
    except OSError as error:
        raise LocalError(
            f"{path} cannot be written",
            error.strerror or str(error),
            f"ls -ld {path.parent}    (owner, space)",
            ExitCode.REFUSED,
        ) from error


def keys_of_new(configs: Sequence[Config]) -> tuple[bytes, ...]:
    """Returns the secret for a cluster that is being made: the keys in the files that its configurations name, else one
    new key. Raises LocalError if the files differ."""
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
    """Writes the secret for a node of a new cluster, unless it has one, and the mark that requires proofs from the
    beginning. Raises LocalError."""
    if not read_keys(path_of(config)):
        write_keys(path_of(config), keys, cluster)
    _replace(mark_path(config), mark_of(keys[0]), 0o644)


def complete(configs: Sequence[Config], cluster: str) -> None:
    """Completes an interrupted creation of a cluster: a node without a secret gets that of the others. Does nothing if
    no node has a secret, as in clusters of releases without secrets."""
    having = [config for config in configs if read_keys(path_of(config))]
    for config in configs:
        if having and config not in having:
            copy(having[0], config, cluster)


def copy(source: Config, target: Config, cluster: str) -> None:
    """Copies the secret from one node to another, and the mark if the target has none. A target that has one of the
    source's keys keeps its file; any other file is replaced. Does nothing if the source has no secret. Raises
    LocalError."""
    keys = read_keys(path_of(source))
    if not keys:
        return
    if not {*read_keys(path_of(target))} & {*keys}:
        write_keys(path_of(target), keys, cluster)
    mark = mark_path(source)
    if mark.exists() and not mark_path(target).exists():
        _replace(mark_path(target), mark.read_bytes(), 0o644)


def copy_from_any(sources: Sequence[Config], target: Config, wanted: str, cluster: str) -> None:
    """Copies the secret and its mark to a joining node, as `copy` does, from the first of these nodes that has the
    secret. Does nothing if the cluster has no secret, or if only the joining node has it.

    `wanted` is the id of the cluster's newest key, in hex, or "" if the cluster has none. Raises LocalError if neither
    any of `sources` nor the joining node has that key.
    """
    for source in sources:
        if wanted and _has_readable(source, wanted):
            copy(source, target, cluster)
            return
    if wanted and not has(target, wanted):
        raise LocalError(
            "no node on this machine has the secret of the cluster",
            f"a new node must prove it; none of {', '.join(str(path_of(source)) for source in sources)} holds the key "
            f"{wanted}",
            "raftmq secret status    (put the file of a running node back, then repeat the command)",
            ExitCode.REFUSED,
        )


def _has_readable(config: Config, wanted: str) -> bool:
    """Returns True if the node has the key whose id is `wanted`, in hex. Returns False if not, or if its file cannot be
    read."""
    try:
        return has(config, wanted)
    except LocalError:
        return False


def take(file: Path, target: Config, wanted: str, cluster: str) -> bool:
    """Copies the secret from `file`, which was brought from another machine, to a joining node; returns False, and
    changes nothing, if the node has it already.

    `wanted` is the id of the cluster's newest key, in hex. Raises LocalError if there is no such file, or if it lacks
    that key.
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
    """Returns the keys with a new random key in front. Raises LocalError while an earlier change is not complete."""
    if len(keys) >= KEYS_MAX:
        raise LocalError(
            f"there are {len(keys)} keys already",
            "one change of the secret must finish before the next one starts",
            "raftmq secret status",
            ExitCode.REFUSED,
        )
    return (new_key(), *keys)
