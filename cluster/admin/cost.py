"""What an answer of the HTTP API may come to. Every route says it (`cluster.admin.route`), and the server holds room
for so much before the handler begins (`cluster.admin.guard`).

A route that grows with what is stored, or with who is connected, answers in pages. A page ends with its `items_max`th
item, or before the item with which its JSON, after escaping, would be larger than PAGE_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cluster.config.config import LimitsSection

PAGE_BYTES_MAX: Final = 1 << 20
"""JSON of the items of one page, after escaping."""
PAGE_ITEMS_MAX: Final = 1_000
"""Items of one page, unless its route says less."""
CONSTANT_BYTES_MAX: Final = 1 << 20
"""An answer that does not grow is smaller than this, by far; so much is read of one that is passed on."""
ESCAPED: Final = 6
"""Bytes of JSON that one byte of a text may become: \\u0001."""


class Cost(NamedTuple):
    """The most that one answer of a route has and takes."""

    items_max: int
    """Things in the answer of which there may be any number elsewhere; 0: the answer does not grow."""
    bytes_max: Callable[[LimitsSection], int]
    """Memory that the answer takes while it is made and sent, for a route that grows; else 0."""

    @property
    def grows(self) -> bool:
        """Whether there is more of it the more is stored or connected."""
        return self.items_max > 0


def page(items_max: int = PAGE_ITEMS_MAX, bytes_max: int = PAGE_BYTES_MAX) -> Cost:
    """Of a page."""
    return Cost(items_max, lambda limits: bytes_max)


def messages(items_max: int) -> Cost:
    """Of a page of messages, which are read one by one."""
    return Cost(items_max, lambda limits: PAGE_BYTES_MAX + limits.message_bytes_max)


def whole_message(limits: LimitsSection) -> int:
    """Of one message with all of its body."""
    return (1 + ESCAPED) * (limits.message_bytes_max + limits.properties_bytes_max)


CONSTANT: Final = Cost(0, lambda limits: 0)
"""Of an answer whose size follows from the configuration and the number of nodes."""
WHOLE_MESSAGE: Final = Cost(1, whole_message)
