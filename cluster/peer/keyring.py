"""The keys with which nodes prove to each other that they belong to one cluster.

Several keys exist only during a rotation. A key never leaves the node: HELLO names keys by their ids, which are hashes,
and the only other data sent is an HMAC (`handshake`). Nothing here prints a key, and `repr` shows ids.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

from cluster.runtime.key_file import key_id

HEAD = """\
# The secret of RaftMQ cluster {cluster}: its nodes prove to each other that they have it.
# Any process that has it may vote and write the log: keep it as you keep a password.
# See the page "Add, remove and replace nodes" of the docs, "The secret".
# One key per line, newest first; `raftmq secret rotate` changes them.
"""


class Keyring:
    """An immutable set of accepted keys, newest first, and a flag that refuses peers without a key."""

    __slots__ = ("demanded", "keys")

    def __init__(self, keys: Sequence[bytes] = (), *, demanded: bool = False) -> None:
        """`demanded`: True to refuse a peer that proves none of `keys`."""
        self.keys = tuple(keys)
        self.demanded = demanded and bool(keys)

    @property
    def ids(self) -> list[bytes]:
        """The ids of all keys, newest first."""
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


def encode(keys: Sequence[bytes], cluster: str) -> bytes:
    """Returns the contents of a secret file. `cluster` is the cluster's uuid, written as a comment for people."""
    return HEAD.format(cluster=cluster).encode() + b"".join(base64.b64encode(key) + b"\n" for key in keys)
