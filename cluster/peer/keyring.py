"""The keys with which nodes prove to each other that they belong to one cluster, and the file that holds them.

The file is text: one key per line, base64 of 32 bytes or more, newest first; lines with # are comments. Several keys
exist only during a rotation. A key never leaves the node: HELLO names keys by their ids, which are hashes, and the only
other data sent is an HMAC (`handshake`). Nothing here prints a key, and `repr` shows ids.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Sequence

KEY_BYTES = 32
KEY_ID_BYTES = 8
KEYS_MAX = 4
FILE_MAX = 16 << 10
"""Longest secret file, bytes."""
HEAD = """\
# The secret of RaftMQ cluster {cluster}: its nodes prove to each other that they have it.
# Any process that has it may vote and write the log: keep it as you keep a password.
# See the page "Add, remove and replace nodes" of the docs, "The secret".
# One key per line, newest first; `raftmq secret rotate` changes them.
"""


class KeyFileError(ValueError):
    """The file is no secret file. The text gives the reason and contains no part of the file."""


class Keyring:
    """An immutable set of accepted keys, newest first, and a flag that refuses peers without a key."""

    __slots__ = ("demanded", "keys")

    def __init__(self, keys: Sequence[bytes] = (), *, demanded: bool = False) -> None:
        """`demanded`: True to refuse a peer that proves none of `keys`."""
        self.keys = tuple(keys)
        self.demanded = demanded and bool(keys)

    @property
    def ids(self) -> list[bytes]:
        """Ids of the keys, newest first."""
        return [key_id(key) for key in self.keys]

    @property
    def newest(self) -> bytes:
        """Id of the newest key; b"" if there is none."""
        return key_id(self.keys[0]) if self.keys else b""

    def pick(self, offered: Iterable[object]) -> bytes | None:
        """Returns the newest own key whose id is among `offered`, ids from the wire; None if there is none."""
        wanted = {each for each in offered if isinstance(each, bytes)}
        return next((key for key in self.keys if key_id(key) in wanted), None)

    def key(self, wanted: object) -> bytes | None:
        """Returns the key with that id; None if there is none."""
        return self.pick((wanted,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyring) and (self.keys, self.demanded) == (other.keys, other.demanded)

    def __hash__(self) -> int:
        return hash((self.keys, self.demanded))

    def __repr__(self) -> str:
        return f"Keyring({', '.join(each.hex() for each in self.ids)}, demanded={self.demanded})"


OPEN = Keyring()
"""The keyring without keys: any peer that knows the cluster's uuid is accepted."""


def key_id(key: bytes) -> bytes:
    """Returns the id of a key, a hash from which the key cannot be derived."""
    return hashlib.sha256(b"raftmq key id\0" + key).digest()[:KEY_ID_BYTES]


def parse(data: bytes) -> tuple[bytes, ...]:
    """Returns the keys in a secret file, newest first. Raises KeyFileError."""
    if len(data) > FILE_MAX:
        raise KeyFileError(f"it has {len(data)} bytes, which is no list of keys")
    lines = [(number, line.strip()) for number, line in enumerate(data.split(b"\n"), 1)]
    keys = tuple(_key(number, line) for number, line in lines if line and not line.startswith(b"#"))
    if not 1 <= len(keys) <= KEYS_MAX:
        raise KeyFileError(f"it holds {len(keys)} keys, and 1 to {KEYS_MAX} are possible")
    if len(set(keys)) < len(keys):
        raise KeyFileError("it holds the same key twice")
    return keys


def _key(number: int, line: bytes) -> bytes:
    try:
        key = base64.b64decode(line, validate=True)
    except (binascii.Error, ValueError):
        raise KeyFileError(f"line {number} is no base64") from None
    if len(key) < KEY_BYTES:
        raise KeyFileError(f"the key in line {number} has {len(key)} bytes, and needs {KEY_BYTES}")
    return key


def encode(keys: Sequence[bytes], cluster: str) -> bytes:
    """Returns the contents of a secret file. `cluster` is the cluster's uuid, written as a comment for people."""
    return HEAD.format(cluster=cluster).encode() + b"".join(base64.b64encode(key) + b"\n" for key in keys)
