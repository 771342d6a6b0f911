"""The signature of a request, as RocketMQ's ACL 1.0 has it: HMAC-SHA1 with the user's secret, in base64.

Signed are the values of the ext fields in the order of their names, without the signature itself, and then the body.
Neither a time nor a nonce is among them, nor the request's code: who can read a connection can send the same again.
"""

from __future__ import annotations

import binascii
import hmac
from collections.abc import Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
"""Ext field with the name of the user."""
SIGNATURE: Final = "Signature"
"""Ext field with the signature."""
V4_9_3: Final = 399
"""Version of the last clients that leave UNIQUE_QUERY out (MQVersion.V4_9_3)."""
UNIQUE_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Ext field that those clients add behind the signature."""


def content(ext: Mapping[str, str], body: bytes, *, version: int = V4_9_3 + 1) -> bytes:
    """The bytes that are signed; `version`: of the client's protocol."""
    left_out = {SIGNATURE, UNIQUE_QUERY} if version <= V4_9_3 else {SIGNATURE}
    values = [ext[name] for name in sorted(ext) if name not in left_out]
    return "".join(values).encode() + body


def sign(secret: bytes, signed: bytes) -> str:
    """The signature of that content."""
    return _signature(secret, signed).decode()


def is_right(secret: bytes, signed: bytes, signature: str) -> bool:
    """Returns True if that is the signature of the content; takes the same time if it is not."""
    return hmac.compare_digest(_signature(secret, signed), signature.encode())


def _signature(secret: bytes, signed: bytes) -> bytes:
    return binascii.b2a_base64(hmac.digest(secret, signed, "sha1"), newline=False)


class Credentials:
    """The name and the secret with which a client signs its requests."""

    __slots__ = ("_secret", "access_key")

    def __init__(self, access_key: str, secret_key: str) -> None:
        self.access_key = access_key
        self._secret = secret_key.encode()

    def signed(self, ext: Mapping[str, str], body: bytes) -> dict[str, str]:
        """The ext fields with the name and the signature."""
        named = {**ext, ACCESS_KEY: self.access_key}
        named[SIGNATURE] = sign(self._secret, content(named, body))
        return named

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"
