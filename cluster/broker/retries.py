"""How messages that failed come again to their group: after which time, and through how many queues.

Source: RocketMQ's GroupRetryPolicy, whose delays its gRPC proxy uses, and AbstractSendMessageProcessor, which chooses
the queue among the first `retryQueueNums`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from cluster.broker.name_rules import PERM_READ, PERM_WRITE
from cluster.broker.refusal import Reason, Refused
from raftlog.work import charge_text
from raftmq_wire.json_text import MALFORMED
from statemachine.commands import CREATE_TOPIC

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command
    from statemachine.consuming.groups import GroupConfig

RETRY_QUEUES_MAX = 1024
"""The most queues of a group's %RETRY% topic, as of any topic."""
DELAYS_MAX = 1024
EXPONENT_MAX = 32
FIRST_DELAY = 2
"""The place in a list of delays that counts for the first failure: the list stands for the delay levels, of which the
first failure has the third."""

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
        """Returns the time until a message that failed that often before comes again; None if the delay levels say
        it."""
        exponential = self.type == "EXPONENTIAL"
        chosen = self.exponential_retry_policy if exponential else self.customized_retry_policy
        return None if chosen is None else chosen.delay_ms(max(failures, 0))


_decode = msgspec.json.Decoder(RetryPolicy).decode


def policy_of(text: str) -> RetryPolicy:
    """Decodes a policy as it is stored. Raises Refused (INVALID)."""
    if not text:
        return RetryPolicy()
    charge_text(len(text))
    try:
        return _decode(text)
    except MALFORMED as error:
        raise Refused(Reason.INVALID, f"groupRetryPolicy: {error}") from None


def delay_ms_of(group: GroupConfig, failures: int) -> int | None:
    """Returns `RetryPolicy.delay_ms` of the group. A text that is no policy, which a build before level 13 stored, is
    none."""
    try:
        return policy_of(group.group_retry_policy).delay_ms(failures)
    except Refused:
        return None


def own_topic(state: BrokerState, name: str, queues: int) -> list[Command]:
    """Returns the command that makes a group's topic (%RETRY% or %DLQ%) with that many queues, or lets it grow to them;
    none if it has them. It never shrinks, since messages may wait in any of its queues."""
    topic = state.topics.get(name)
    queues = min(max(queues, 1), RETRY_QUEUES_MAX)
    wanted = {"name": name, "read_queues": queues, "write_queues": queues}
    if topic is None:
        return [[CREATE_TOPIC, {**wanted, "perm": PERM_READ | PERM_WRITE}, True]]
    if topic.write_queues >= queues:
        return []
    return [[CREATE_TOPIC, {**wanted, "read_queues": max(topic.read_queues, queues)}, False]]
