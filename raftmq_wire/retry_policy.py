"""RocketMQ's GroupRetryPolicy, JSON in a SubscriptionGroupConfig: the delay after which a message that a consumer could
not process is delivered again.

Source: ExponentialRetryPolicy and CustomizedRetryPolicy. RocketMQ's gRPC proxy uses these delays.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from raftmq_wire.json_text import MALFORMED

DELAYS_MAX = 1024
EXPONENT_MAX = 32
FIRST_DELAY = 2
"""The index of the delay for the first failure in a list of delays. The list corresponds to the delay levels, and the
first failure has the third level."""

_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Exponential(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    initial: _Milliseconds = 5_000
    max: _Milliseconds = 7_200_000
    multiplier: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)] = 2

    def delay_ms(self, failures: int) -> int:
        factor: int = self.multiplier ** min(failures, EXPONENT_MAX)
        return min(self.max, self.initial * factor)


class _Listed(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    next: Annotated[list[_Milliseconds], msgspec.Meta(min_length=1, max_length=DELAYS_MAX)]

    def delay_ms(self, failures: int) -> int:
        return self.next[min(failures + FIRST_DELAY, len(self.next) - 1)]


class RetryPolicy(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A group's groupRetryPolicy. Delays are in milliseconds."""

    type: Literal["EXPONENTIAL", "CUSTOMIZED"] = "CUSTOMIZED"
    exponential_retry_policy: _Exponential | None = None
    customized_retry_policy: _Listed | None = None

    def delay_ms(self, failures: int) -> int | None:
        """Returns the delay in milliseconds before a message is delivered again; None if the broker's delay levels
        apply. `failures`: the number of times that the message failed before."""
        exponential = self.type == "EXPONENTIAL"
        chosen = self.exponential_retry_policy if exponential else self.customized_retry_policy
        return None if chosen is None else chosen.delay_ms(max(failures, 0))


_decode = msgspec.json.Decoder(RetryPolicy).decode


def decode_policy(text: str) -> RetryPolicy:
    """Decodes the JSON text of a policy; "" gives the default policy. Raises ValueError, whose text says what is
    wrong."""
    try:
        return _decode(text) if text else RetryPolicy()
    except MALFORMED as error:
        raise ValueError(str(error)) from None
