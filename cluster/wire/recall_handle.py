"""The handle of a message that waits for its time: what the answer to its send gives, and RECALL_MESSAGE names.

RocketMQ's version 1 with one more field: base64url of `v1 topic brokerName timestamp uniqKey position`, separated by
spaces. Clients read the broker's name and send the rest back as it is; RocketMQ's own parser leaves what follows the
fifth field alone. Source: RecallMessageHandle.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

_VERSION = "v1"
_NUMBERS_MAX = 1 << 63


class RecallHandle(NamedTuple):
    """What a handle says."""

    topic: str
    broker_name: str
    due_ms: int
    """Log time."""
    unique_key: str
    position: int
    """At which the message was stored."""

    def encode(self) -> str:
        """As clients get it."""
        text = f"{_VERSION} {self.topic} {self.broker_name} {self.due_ms} {self.unique_key} {self.position}"
        return base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()


def decode_recall_handle(handle: str) -> RecallHandle:
    """Raises ValueError if it is not a handle of ours."""
    try:
        text = base64.b64decode(handle.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise ValueError("recall handle is invalid") from error
    fields = text.split(" ")
    if fields[0] != _VERSION or len(fields) < 6 or not (_is_number(fields[3]) and _is_number(fields[-1])):
        raise ValueError("recall handle is invalid")
    # A unique key of a client's own may contain spaces.
    return RecallHandle(fields[1], fields[2], int(fields[3]), " ".join(fields[4:-1]), int(fields[-1]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < _NUMBERS_MAX
