"""Manages this node's secret: loads its file, decides from when on peers must prove it, and raises an alarm until then.

    no file             any peer that knows the cluster's uuid is accepted; there is an alarm
    a file, no mark     nodes prove it to each other; those that cannot are accepted, since they may not have it yet
    a mark              every member has proven the key that it names: from then on every peer must prove one

Each node advances on its own, once all members have proven the newest key to it on every connection. This excludes no
node that has the file. Once there is a mark, keys older than the one that it names are no longer accepted. So a
rotation takes the same steps: the node accepts first the old key, then the old and the new one, then only the new one.
A node that has the mark but not the file does not start, because it would no longer require a secret.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, Protocol

from cluster.config.config import Config
from cluster.config.local_layout import names_of
from cluster.config.source import ConfigError
from cluster.peer.keyring import Keyring
from cluster.runtime.alarms import Alarms
from cluster.runtime.findings import Code
from cluster.runtime.key_file import KeyFileError, key_id, parse
from cluster.runtime.service_lifecycle import Part
from raftlog.storage.files.fs import FileSystem, read_file, storage_error, write_file
from raftlog.types import NodeId

logger = logging.getLogger(__name__)

SECRET = "SECRET"
"""Name of the secret file in the data directory, unless peer.secret_file names another file."""
MARK = "SECRET_REQUIRED"
"""Name of the mark in the data directory. Its text is "raftmq secret required 10", a blank, and the id of the key in
hex."""
MARK_HEAD = b"raftmq secret required 10 "
ALARM = Code("peer_secret", "warning", "raftmq secret status")
LOOK_EVERY_MS = 500
RENEW_EVERY_MS = 5000


class Proofs(Protocol):
    """The part of PeerTransport that proves keys and checks proofs."""

    keyring: Keyring

    def set_keyring(self, keyring: Keyring) -> None:
        """Uses these keys, and their `demanded` flag, from now on."""

    def proven_by(self) -> set[NodeId]:
        """Returns the peers that have proven the newest key on every connection to this node."""

    def renew(self) -> None:
        """Tries to prove the newest key on connections that have not proven it."""


def path_of(config: Config) -> Path:
    """Returns the path of the node's secret file."""
    return Path(config.peer.secret_file) if config.peer.secret_file else Path(config.node.data_dir) / SECRET


def mark_path(config: Config) -> Path:
    """Returns the path of the node's file MARK."""
    return Path(config.node.data_dir) / MARK


def mark_of(key: bytes) -> bytes:
    """Returns the contents of the file MARK that names this key."""
    return MARK_HEAD + key_id(key).hex().encode() + b"\n"


def load(fs: FileSystem, config: Config) -> Keyring:
    """Returns the keys that this node proves and requires. Raises ConfigError if the secret file cannot be used, or is
    missing although peer.secret_file names it or there is a mark."""
    keys, mark = _keys(fs, config), _mark(fs, config)
    if mark is None:
        return Keyring(keys)
    if not keys:
        raise ConfigError(
            f"{path_of(config)}: the secret of this node is gone",
            "the cluster demands it: without it this node reaches no other, and would let anybody in",
            f"copy the file from another node, with mode 0600: scp NODE:.../{SECRET} {path_of(config)}",
        )
    ids = [key_id(key) for key in keys]
    return Keyring(keys[: ids.index(mark) + 1] if mark in ids else keys, demanded=True)


def _keys(fs: FileSystem, config: Config) -> tuple[bytes, ...]:
    path = path_of(config)
    try:
        if fs.exists(path):
            return parse(read_file(fs, path))
    except (OSError, KeyFileError) as error:
        why = str(error) if isinstance(error, KeyFileError) else error.strerror or str(error)
        raise ConfigError(
            f"{path}: cannot be read as the secret of this node",
            why,
            f"copy the file from another node, or: ls -l {path}    (owner, mode)",
        ) from None
    if config.peer.secret_file:
        raise ConfigError(
            f"peer.secret_file: there is no file {path}",
            "it holds the secret by which the nodes of a cluster know each other",
            f"copy it from another node, with mode 0600, or leave peer.secret_file out and use {SECRET} in data_dir",
        )
    return ()


def _mark(fs: FileSystem, config: Config) -> bytes | None:
    """Returns the id of the key that the mark names; None if there is no mark. Returns b"" if the mark cannot be read;
    a proof is required then too."""
    path = mark_path(config)
    if not fs.exists(path):
        return None
    try:
        data = read_file(fs, path)
        return bytes.fromhex(data.removeprefix(MARK_HEAD).decode().strip()) if data.startswith(MARK_HEAD) else b""
    except (OSError, ValueError):
        return b""


def readable_by_others(path: Path) -> bool:
    """Returns True if every account of the machine may read the file. Returns False if its mode cannot be read."""
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


class SecretKeeper:
    """Moves this node's secret from one state of the table at the top of this file to the next. Event loop only."""

    def __init__(
        self,
        config: Config,
        fs: FileSystem,
        alarms: Alarms,
        members: Callable[[], Iterable[NodeId]],
        transport: Proofs,
    ) -> None:
        """`members` returns the ids of all present members, this node included. `transport` already uses the keyring
        that `load` returned."""
        self._config = config
        self._fs = fs
        self._alarms = alarms
        self._members = members
        self._due_ms = 0
        self._renew_due_ms = 0
        self._transport = transport
        self.keyring = transport.keyring

    @property
    def state(self) -> Literal["none", "admitting", "changing", "required"]:
        """The state of the secret: "none", "admitting" (peers without it are accepted), "changing" (an older key is
        still accepted), or "required"."""
        keyring = self.keyring
        if not keyring.keys:
            return "none"
        return "admitting" if not keyring.demanded else "changing" if len(keyring.keys) > 1 else "required"

    @property
    def missing(self) -> list[NodeId]:
        """Members that have not proven the newest key to this node, ascending."""
        if not self.keyring.keys:
            return []
        proven = self._transport.proven_by()
        return sorted(set(self._members()) - proven - {NodeId(self._config.node.id)})

    def read(self) -> Keyring:
        """Returns the keys that the secret file holds now, and changes nothing. Raises ConfigError if the file cannot
        be used."""
        return load(self._fs, self._config)

    def use(self, keyring: Keyring) -> bool:
        """Uses keys that `read` returned; returns True if they are others than before."""
        if keyring == self.keyring:
            return False
        self._use(keyring)
        return True

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="secret", tick=self.tick)

    def tick(self, now_ms: int) -> None:
        """Requires the newest key once every member has proven it. Until then, tries from time to time to prove it on
        more connections. Called several times a second."""
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + LOOK_EVERY_MS
        if self.state in ("admitting", "changing") and not self.missing:
            self._demand()
        elif self.missing and now_ms >= self._renew_due_ms:
            self._renew_due_ms = now_ms + RENEW_EVERY_MS
            self._transport.renew()
        self._tell()

    def _demand(self) -> None:
        newest, path = self.keyring.keys[0], mark_path(self._config)
        try:
            write_file(self._fs, path, mark_of(newest))
        except OSError as error:  # the next `tick` that is due tries again; a failing disk has an alarm of its own
            logger.warning("%s", storage_error(self._fs, "writing", path, error))
            return
        logger.warning("every member has proven the secret %s: from now on it is required", key_id(newest).hex())
        self._use(Keyring((newest,), demanded=True))

    def _use(self, keyring: Keyring) -> None:
        self.keyring = keyring
        self._transport.set_keyring(keyring)
        self._due_ms = 0

    def _tell(self) -> None:
        text = self._text()
        if text:
            self._alarms.raise_alarm(ALARM, text)
        elif self._alarms.raised(ALARM):
            self._alarms.clear(ALARM)

    def _text(self) -> str:
        waiting = names_of(self._config.cluster.group, self.missing)
        path = path_of(self._config)
        if self.state == "none":
            return (
                "this node has no secret: anyone who can reach a peer port can vote and change the log. Create one "
                "while the nodes are running: raftmq secret create"
            )
        if self.state == "admitting":
            return f"peers without the secret are still admitted, because node {waiting} has not proven that it has it"
        if self.state == "changing":
            return f"the old secret is still accepted, because node {waiting} has not proven that it has the new one"
        if readable_by_others(path):
            return f"every account of this machine can read the secret: chmod 600 {path}"
        return ""
