"""Every kind of anomaly with its meaning, the gravest first. A kind that is likely to cause another one comes before
it.
"""

from __future__ import annotations

from typing import Final

KINDS: Final = {
    "lost-write": "acknowledged, or seen by a reader, and on no replica",
    "lost-on-node": "acknowledged, or seen by a reader, and missing on one replica that was read beyond its offset",
    "nonlinearizable": "no order of the operations on one key explains every answer",
    "digest-divergence": "two replicas that applied the same entries have different states",
    "aborted-read": "visible, although its send was answered with a failure that guarantees that it was not stored",
    "phantom": "visible, but never sent",
    "future-read": "read before it was sent",
    "duplicate": "one message stored in more than one place",
    "misplaced": "stored in another topic than it was sent to",
    "offset-regress": "a group's offset is lower than one committed before, without a reset",
    "offset-stale": "a group's offset has a value that had already been replaced",
    "offset-phantom": "a group's offset has a value that was never committed",
    "commit-beyond-read": "an offset beyond everything that the group had read was committed",
    "realtime-order": "acknowledged before another message was sent, but behind it in the queue",
    "producer-order": "the sends of one producer are stored in another order than they were made",
    "stale-read": "the reported end of a queue was before a message that had been acknowledged",
    "unseen": "acknowledged, but never delivered to a group that polled to the end",
    "no-recovery": "nothing succeeded after the last fault was lifted",
    "int-poll-skip": "a message is missing inside one poll",
    "int-poll-nonmonotonic": "one poll repeats offsets or goes back",
    "poll-skip": "a message is missing between two polls",
    "poll-nonmonotonic": "a consumer goes back between two polls; after a rebalance: behind the commit",
    "replica-skip": "the final read of a replica skips an offset",
    "replica-nonmonotonic": "the final read of a replica repeats offsets or goes back",
    "inconsistent-offset": "one offset of a queue holds, or was acknowledged for, different messages",
    "offset-mismatch": "a message is stored at another offset than was acknowledged",
}

_GRAVITY: Final = {kind: i for i, kind in enumerate(KINDS)}


def gravity(kind: str) -> int:
    """Returns the position of a kind in KINDS; 0 is the gravest. Raises KeyError for a kind that is not in KINDS."""
    return _GRAVITY[kind]
