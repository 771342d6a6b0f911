"""Sends whose acknowledgement promised less: `value["level"]` of the invocation is `leader` or `quorum`.

What one of them promises (docs/guarantees.md):

    acknowledged, found       full promise: once, in its acknowledged place, on every replica, in order
    acknowledged, nowhere     lost, unless what the level names took it (`may_vanish`)
    other outcomes            as for any send: failed is nowhere, unknown at most once

Its place may be another message's then, for who was lost takes no place. A history is cleared of what was lost by
right; the rest is judged as ever (`checkers.log`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from jepsen_like.history import Op

WEAK = frozenset(("leader", "quorum"))
"""Levels at which an acknowledged message may be lost."""


class Cleared(NamedTuple):
    """A history without what was lost by right."""

    ops: list[Op]
    vanished: frozenset[str]
    """Ids of the messages whose sends are left out."""


def cleared(ops: Sequence[Op], may_vanish: Callable[[Op, Op], bool]) -> Cleared:
    """Leaves out sends that may be lost: `may_vanish(invocation, completion)` says whether the events since take such a
    message.

    Weak sends are told by their invocation; a history without any comes back as it is. Indexes are made new.
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
