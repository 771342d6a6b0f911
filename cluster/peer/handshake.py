"""Builds and checks the first messages between two nodes. `connections` sends and receives them.

    dialler   HELLO      its identity, the node it looks for, a nonce, the ids of its keys
    acceptor  CHALLENGE  a nonce, the id of the key that both have
    dialler   PROOF      HMAC-SHA256(key, dialler, HELLO, CHALLENGE)
    acceptor  WELCOME    its identity, HMAC-SHA256(key, acceptor, HELLO, CHALLENGE, identity)

The proofs cover the bytes of the frames as they were sent, each preceded by its length. They contain both nonces, both
nodes' ids and uuids, the cluster's uuid, the channel and the address in HELLO, so they cannot be reused for another
node or connection. The name of the side prevents a proof from being reflected to its sender. Before PROOF the acceptor
reveals only its nonce.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any

import msgpack

from cluster.runtime.key_file import KEY_ID_BYTES, KEYS_MAX

NONCE_BYTES = 32
PROOF_BYTES = 32
DIALLER, ACCEPTOR = b"raftmq peer 10 dialler", b"raftmq peer 10 acceptor"
NONCE, KEYS, LEVEL, FLOOR = 9, 10, 11, 12
"""Indexes of the nonce, the key ids, and the two levels (`level`, `floor`) in the header of a HELLO."""


def with_keys(hello: Sequence[Any], nonce: bytes, ids: list[bytes]) -> list[Any]:
    """Returns the HELLO `hello` with the nonce and the ids of the sender's keys added. If the node gave no address, an
    empty one is inserted, because the later fields have fixed places."""
    address = [] if len(hello) == NONCE else ["", 0]
    return [*hello, *address, nonce, ids]


def offered(hello: Sequence[Any]) -> list[bytes]:
    """Returns the ids of the keys that a HELLO names; an empty list if the sender has no secret or the HELLO is
    malformed."""
    if len(hello) <= KEYS or type(hello[NONCE]) is not bytes or len(hello[NONCE]) != NONCE_BYTES:
        return []
    ids = hello[KEYS]
    if type(ids) is not list or not 1 <= len(ids) <= KEYS_MAX:
        return []
    return [each for each in ids if type(each) is bytes and len(each) == KEY_ID_BYTES]


def level(hello: Sequence[Any]) -> int:
    """Returns the level of commands that the sender can apply; 0 if its HELLO announces none."""
    return _level_at(hello, LEVEL)


def floor(hello: Sequence[Any]) -> int:
    """Returns the level of the cluster as of the log that the sender has applied; 0 if its HELLO announces none."""
    return _level_at(hello, FLOOR)


def _level_at(hello: Sequence[Any], place: int) -> int:
    value = hello[place] if len(hello) > place else 0
    return value if type(value) is int and 0 <= value < 1 << 31 else 0


def dialler_proof(key: bytes, hello: bytes, challenge: bytes) -> bytes:
    """Returns the proof of the node that dialled. `hello` and `challenge` are the frames without their length
    prefix."""
    return _prove(key, DIALLER, hello, challenge)


def acceptor_proof(key: bytes, hello: bytes, challenge: bytes, who: Sequence[Any]) -> bytes:
    """Returns the proof of the node that was dialled. `who` is its own identity: [cluster uuid, node id, node uuid]."""
    return _prove(key, ACCEPTOR, hello, challenge, msgpack.packb(list(who), use_bin_type=True))


def fits(proof: object, expected: bytes) -> bool:
    """Returns True if the received proof equals the expected one. Compares in constant time."""
    return isinstance(proof, bytes) and hmac.compare_digest(proof, expected)


def _prove(key: bytes, *parts: bytes) -> bytes:
    mac = hmac.new(key, digestmod="sha256")
    for part in parts:
        mac.update(len(part).to_bytes(4, "big"))
        mac.update(part)
    return mac.digest()
