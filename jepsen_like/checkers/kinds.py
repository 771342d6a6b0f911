"""Every kind of anomaly with its meaning, the gravest first: what tends to be the cause stands before what follows."""

from __future__ import annotations

from typing import Final

KINDS: Final = {
    "lost-write": "acknowledged, or seen by a reader, and on no replica",
    "lost-on-node": "acknowledged, or seen by a reader, and missing on one replica that was read past its place",
    "nonlinearizable": "no order of the operations on one key explains every answer",
    "digest-divergence": "two replicas that applied the same entries hold different states",
    "aborted-read": "visible, although its send was answered with a failure that promises it was not stored",
    "phantom": "visible, and nobody sent it",
    "future-read": "read before it was sent",
    "duplicate": "one message in more than one place",
    "misplaced": "in another topic than it was sent to",
    "offset-regress": "a group's offset is lower than one committed before, without a reset",
    "offset-stale": "a group's offset is one that had been replaced",
    "offset-phantom": "a group's offset is one that nobody committed",
    "commit-beyond-read": "an offset was committed beyond everything the group had read",
    "realtime-order": "acknowledged before the other was sent, and behind it in the queue",
    "producer-order": "sends of one producer stand in another order than they were made in",
    "stale-read": "the end of a queue was said to lie before a message that had been acknowledged",
    "unseen": "acknowledged, and a group that polled to the end never saw it",
    "no-recovery": "nothing succeeded after the last fault was lifted",
    "int-poll-skip": "a message is left out inside one poll",
    "int-poll-nonmonotonic": "a poll repeats or goes back inside itself",
    "poll-skip": "a message is left out from one poll to the next",
    "poll-nonmonotonic": "a consumer goes back from one poll to the next; after a rebalance: behind the commit",
    "replica-skip": "the final read of a replica leaves out an offset",
    "replica-nonmonotonic": "the final read of a replica repeats or goes back",
    "inconsistent-offset": "one place in a queue holds, or was acknowledged for, different messages",
    "offset-mismatch": "a message stands in another place than it was acknowledged at",
}

_GRAVITY: Final = {kind: i for i, kind in enumerate(KINDS)}


def gravity(kind: str) -> int:
    """Place in the order above. Raises KeyError for a kind that is not declared there."""
    return _GRAVITY[kind]
