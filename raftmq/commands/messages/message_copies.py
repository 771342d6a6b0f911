"""Copies of messages: each carries its origin as a property, so that a second run recognises the copies that the first
one sent.

The origin is `TOPIC/QUEUE/OFFSET@POSITION`. The position is needed because offsets restart when a topic is deleted and
created again, while positions in the log never repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import click

from raftmq.commands.messages.start_positions import walk
from raftmq.commands.shared_options import plain
from raftmq_wire.codes import ResponseCode
from raftmq_wire.errors import ExitCode

if TYPE_CHECKING:
    from raftmq.client import Client, Message, Producer

ORIGIN = "RAFTMQ_ORIGIN"
NOT_COPIED = frozenset(
    ("UNIQ_KEY", "WAIT", "DELAY", "MSG_REGION", "TRACE_ON", "CLUSTER", "REAL_TOPIC", "REAL_QID", ORIGIN)
)
"""Properties that are not copied, because the client or the broker sets them anew."""
TIMERS = "TIMER_"
_CLOCKS_MS = 60_000
"""Milliseconds subtracted from the time of the oldest original when copies are searched. Log time never goes back, but
the times of two messages may be equal; a minute costs nothing."""


class LeftOut(NamedTuple):
    """A message that cannot be copied, and the reason."""

    original: Message
    why: str


class Copied(NamedTuple):
    """The result of `send_copies`: how many copies were sent, and what was left out."""

    sent: int
    left_out: list[LeftOut]

    def to_json(self) -> dict[str, int]:
        """Returns the field of the command's JSON that counts what was left out."""
        return {"left_out": len(self.left_out)}

    def tell(self) -> int:
        """Names on stderr each message that was left out; returns the command's exit code."""
        for original, why in self.left_out:
            click.echo(f"{original.place} was not sent: {plain(why)}", err=True)
        return ExitCode.FAILED if self.left_out else ExitCode.OK


def origin_of(one: Message) -> str:
    """Returns the place of the message, in the form in which its copies name it."""
    return f"{one.topic}/{one.queue_id}/{one.queue_offset}@{one.position}"


def copied_before(mq: Client, to: str, originals: Iterable[Message]) -> set[str]:
    """Returns the origins that messages of the topic `to` name, and reads only messages that may be copies of these
    originals, because a copy is stored after its original. Empty if the topic does not exist."""
    import datetime

    from raftmq.client.errors import NotFound

    oldest = min((one.store_ms for one in originals), default=None)
    if oldest is None:
        return set()
    start = datetime.datetime.fromtimestamp(max(0, oldest - _CLOCKS_MS) / 1000, datetime.UTC)
    try:
        return {one.properties[ORIGIN] for one in walk(mq, to, start) if ORIGIN in one.properties}
    except NotFound:
        return set()


def send_copies(
    mq: Client,
    producer: Producer,
    to: str,
    originals: list[Message],
    *,
    again: bool,
    queue_of: Callable[[Message], int | None] = lambda one: None,
) -> Copied:
    """Sends copies of the originals that have none in the topic `to` yet, or of all with `again`; returns the number of
    copies, and the originals that no copy can be made of. Bodies are sent as they are stored. `queue_of`: the queue for
    the copy of an original; None for any. Raises RaftMQError; a repetition then sends the rest."""
    from raftmq.client.errors import Refused

    known = set() if again else copied_before(mq, to, originals)
    sent, left_out = 0, []
    for one in originals:
        origin = origin_of(one)
        if origin in known:
            continue
        kept = {name: value for name, value in one.properties.items() if is_copied(name)}
        try:
            producer.send_copy(to, one, kept | {ORIGIN: origin}, queue_id=queue_of(one))
        except Refused as error:
            if error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            left_out.append(LeftOut(one, str(error)))  # only this message is at fault, so the others are still sent
            continue
        sent += 1
    return Copied(sent, left_out)


def is_copied(name: str) -> bool:
    """Returns True for a property that belongs to the message itself, not to its delivery."""
    return name not in NOT_COPIED and not name.startswith(TIMERS)
