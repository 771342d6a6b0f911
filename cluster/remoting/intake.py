"""The short way of plain sends: from the bytes of a read into the queue, by the kernel.

A send is plain if nothing about it needs a decision of this node beyond the checks of `Sends`: a JSON header of the
usual form, an existing topic, no delay, transaction, identity or level of its own. Everything else, and everything that
is to be refused, goes the long way through `Router.on_request`, which decides what is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.broker.names import PERM_WRITE
from cluster.broker.sends import FORBIDDEN_TOPICS, Sends
from cluster.kernel import twin
from cluster.remoting.frame import Frame
from cluster.wire.codec import JSON, decode_header

if TYPE_CHECKING:
    from cluster.config.config import LimitsSection
    from cluster.remoting.reply_path import ReplyPath
    from cluster.replication.identity import RetryMemory
    from cluster.replication.message_batch import TopicSlot
    from cluster.replication.proposals import Proposals
    from cluster.replication.send_queue import SendQueue


@twin
class Intake:
    """Takes plain sends. In Python there is no shorter way than the long one: it takes none."""

    def __init__(
        self,
        proposals: Proposals,
        queue: SendQueue,
        retries: RetryMemory,
        limits: LimitsSection,
        suffix: bytes,
        slot_of: Callable[[bytes], TopicSlot | None],
        new_key: Callable[[], bytes],
        origin_of: Callable[[ReplyPath, bytes, bytes, int], Frame],
    ) -> None:
        """`suffix`: properties that the broker adds to every message; `slot_of`: a topic that `Proposals.plain` does
        not name, None if its sends are not plain; `new_key` makes a UNIQ_KEY; `origin_of` makes the request of a send
        again, from its path, header, body and size."""

    def take(self, path: ReplyPath, data: bytes, frames: list[tuple[int, int]], at: int) -> int:
        """Queues the plain sends among the frames of a read, from `at` on; returns the first that is none."""
        return at


def make_intake(proposals: Proposals, sends: Sends[Frame], retries: RetryMemory, limits: LimitsSection) -> Intake:
    """The intake of a node."""

    def slot_of(name: bytes) -> TopicSlot | None:
        topic = name.decode()
        if topic[:1] == "%" or topic in FORBIDDEN_TOPICS:
            return None
        slot = proposals.slot(topic)
        if slot is None or not slot.perm & PERM_WRITE or slot.ack or slot.dedup != "retry":
            return None
        proposals.plain[name] = slot
        return slot

    return Intake(proposals, proposals.queue, retries, limits, sends.suffix, slot_of, sends.new_key, _origin_of)


def _origin_of(path: ReplyPath, header: bytes, body: bytes, size: int) -> Frame:
    return Frame(path, JSON, decode_header(JSON, header), header, body, size)
