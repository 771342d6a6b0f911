"""Sends whose acknowledgement promises less: `value["level"]` of the invocation is `leader` or `quorum`.

The promise for such a send (docs/guarantees.md):

    acknowledged, found       full promise: once, in its acknowledged place, on every replica, in order
    acknowledged, nowhere     lost, unless an event took it that its level names (`may_vanish`)
    other outcomes            as for any send: failed is nowhere, unknown at most once

The offset of a lost message may be given to another message. So the sends whose loss is allowed are removed from a
history, and the log checker judges the rest as always (`checkers.log`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from jepsen_like.history import Op

WEAK = frozenset(("leader", "quorum"))
"""Levels at which an acknowledged message may be lost."""


class Cleared(NamedTuple):
    """A history without the messages whose loss is allowed."""

    ops: list[Op]
    vanished: frozenset[str]
    """Ids of the messages whose sends are left out."""


def cleared(ops: Sequence[Op], may_vanish: Callable[[Op, Op], bool]) -> Cleared:
    """Leaves out the acknowledged weak sends that no final read found and whose loss is allowed:
    `may_vanish(invocation, completion)` returns True if a later event is allowed to lose the message.

    Weak sends are recognized by their invocation; a history without any is returned as it is. Steps get new indexes.
    """
    weak = {op.process: op for op in ops if op.f == "send" and op.type == "invoke" and op.value.get("level") in WEAK}
    if not weak:
        return Cleared(list(ops), frozenset())
    there = frozenset(_read(ops))
    gone = {
        op.process: str(op.value["id"])
        for op in ops
        if op.type == "ok" and op.process in weak and op.value["id"] not in there and may_vanish(weak[op.process], op)
    }
    left = [op for op in ops if op.process not in gone]
    return Cleared([replace(op, index=number) for number, op in enumerate(left)], frozenset(gone.values()))


def _read(ops: Iterable[Op]) -> Iterable[str]:
    for op in ops:
        if op.f == "read" and op.type == "ok":
            yield from (message_id for _, message_id in op.value["messages"])
