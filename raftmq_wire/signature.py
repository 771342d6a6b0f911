"""The signature of a request in RocketMQ's ACL 1.0: HMAC-SHA1 with the user's secret, in base64.

It covers the values of the ext fields, in the order of their names and without the signature itself, and then the body.
It covers neither a time nor a nonce, nor the request's code, nor the names of the fields: an attacker who can read a
connection can send the same request again, or reuse its signature for a request with another code. Therefore no node
passes a signature on to a client.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hashlib import _Hash

ACCESS_KEY: Final = "AccessKey"
"""Ext field with the name of the user."""
SIGNATURE: Final = "Signature"
"""Ext field with the signature."""
SECURITY_TOKEN: Final = "SecurityToken"
"""Ext field with the token of a temporary user, which RocketMQ's clients can send."""
V4_9_3: Final = 399
"""The newest protocol version whose clients leave UNIQUE_QUERY out of the signature (MQVersion.V4_9_3)."""
UNIQUE_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""The ext field that clients up to V4_9_3 add after signing."""

_BLOCK: Final = 64
_INNER: Final = bytes([byte ^ 0x36 for byte in range(256)])
_OUTER: Final = bytes([byte ^ 0x5C for byte in range(256)])


def content(ext: Mapping[str, str], body: bytes, *, version: int = V4_9_3 + 1) -> bytes:
    """Returns the bytes that the signature of a request covers. `version`: the client's protocol version."""
    left_out = {SIGNATURE, UNIQUE_QUERY} if version <= V4_9_3 else {SIGNATURE}
    values = [ext[name] for name in sorted(ext) if name not in left_out]
    return "".join(values).encode() + body


def unsigned(ext: Mapping[str, str]) -> dict[str, str]:
    """Returns the ext fields without the signature and the other fields that prove the sender. They must not reach
    others: neither the code of a request nor the names of its fields are signed, so the signature could be used for
    another request."""
    return {name: ext[name] for name in ext if name not in (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN)}


def sign(secret: bytes, signed: bytes) -> str:
    """Returns the signature, in base64, of the bytes `signed`."""
    return _signature(secret, signed).decode()


def is_right(secret: bytes, signed: bytes, signature: str) -> bool:
    """Returns True if `signature` is the signature of the bytes `signed`. Takes the same time in both cases."""
    return hmac.compare_digest(_signature(secret, signed), signature.encode())


def _signature(secret: bytes, signed: bytes) -> bytes:
    return binascii.b2a_base64(hmac.digest(secret, signed, "sha1"), newline=False)


def begun(secret: bytes) -> tuple[_Hash, _Hash]:
    """Returns the two SHA-1 objects of an HMAC with this secret, begun with the padded key: the inner one takes the
    content, the outer one the digest of the inner one. Copying them is quicker than starting again for each request."""
    key = (secret if len(secret) <= _BLOCK else hashlib.sha1(secret).digest()).ljust(_BLOCK, b"\0")
    return hashlib.sha1(key.translate(_INNER)), hashlib.sha1(key.translate(_OUTER))


class Credentials:
    """The name and the secret with which a client signs its requests."""

    __slots__ = ("_secret", "access_key")

    def __init__(self, access_key: str, secret_key: str) -> None:
        self.access_key = access_key
        self._secret = secret_key.encode()

    def signed(self, ext: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Returns the ext fields with the user's name and the signature added."""
        named = {**ext, ACCESS_KEY: self.access_key}
        named[SIGNATURE] = sign(self._secret, content(named, body))
        return named

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"
