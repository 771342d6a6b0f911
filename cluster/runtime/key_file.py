"""Files that hold keys: the secret of a cluster, and the keys that seal the secrets of its users.

A key file is text: one key per line, base64 of 32 bytes or more, newest first. Lines that begin with # are comments.
Several keys exist only while one replaces another. A key is named by its id, which is a hash; nothing here prints a
key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

KEY_BYTES = 32
KEY_ID_BYTES = 8
KEYS_MAX = 4
FILE_MAX = 16 << 10
"""The most bytes of a key file."""


class KeyFileError(ValueError):
    """The file is no key file. The text gives the reason and contains no part of the file."""


def key_id(key: bytes) -> bytes:
    """Returns the id of a key, a hash from which the key cannot be derived."""
    return hashlib.sha256(b"raftmq key id\0" + key).digest()[:KEY_ID_BYTES]


def parse(data: bytes) -> tuple[bytes, ...]:
    """Returns the keys in a key file, newest first. Raises KeyFileError if the file is too long, has a malformed or
    repeated key, or has not 1 to KEYS_MAX keys."""
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
