"""The forms in which a secret could lie somewhere: as it is, for URLs, in JSON, UTF-16, hexadecimal and base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from urllib.parse import quote, quote_plus

_STARTS = (0, 2, 3)
"""The first characters of base64 that a secret alone decides, if 0, 1 or 2 bytes stand before it in its group."""


def forms(secret: str) -> set[bytes]:
    """Returns the forms of a secret as bytes that a file would contain."""
    raw = secret.encode()
    texts = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], raw.hex()}
    for before, start in enumerate(_STARTS):
        whole = len(raw) + before - (len(raw) + before) % 3  # what follows decides the last group
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            texts.add(encode((bytes(before) + raw)[:whole])[start:].decode())
    return {text.encode() for text in texts} | {secret.encode("utf-16-le"), secret.encode("utf-16-be")}


def found_in(content: bytes, secrets: Mapping[str, bytes]) -> list[str]:
    """Returns the names of the secrets that stand in the content in any form."""
    return [name for name, secret in secrets.items() if any(form in content for form in forms(secret.decode()))]
