"""The order of one client connection on a node that passes its requests on (docs/guarantees.md, "Consumer offsets").

What moves offsets, topics or groups goes to a leader in the order in which it came, one behind the other on the same
connection between the nodes, which keeps that order. None is handed on a second time, unless the leader said that it
did nothing, and no later one has been handed on, or carried out by this node, since.
"""

from __future__ import annotations

from cluster.wire.codes import RequestCode

ONE_TRY = frozenset(
    {
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
    }
)
"""Writes that the log cannot recognise when they come again: carried out twice, the second could undo a later one."""
IN_LINE = ONE_TRY | {RequestCode.QUERY_CONSUMER_OFFSET}
"""Who keeps the order: a query answers after the commits before it."""


class OrderLine:
    """The requests of one connection that keep their order, by the numbers under which they are held."""

    __slots__ = ("_newest", "_newest_sent", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, None] = {}
        """In nobody's hands, oldest first."""
        self._newest = self._newest_sent = 0

    @property
    def waits(self) -> bool:
        """Whether any of them is in nobody's hands."""
        return bool(self._waiting)

    def join(self, number: int) -> None:
        """It came, or comes back from a leader that did nothing with it."""
        self._waiting[number] = None
        self._newest = max(self._newest, number)
        if len(self._waiting) > 1:
            self._waiting = dict(sorted(self._waiting.items()))

    def may_go(self, number: int) -> bool:
        """Whether none before it waits."""
        return next(iter(self._waiting), number) >= number

    def sent(self, number: int, code: int) -> None:
        """A leader, which may be this node, has it in hand."""
        self._waiting.pop(number, None)
        if code in ONE_TRY:
            self._newest_sent = max(self._newest_sent, number)

    def served(self, code: int) -> None:
        """This node carries out a later one itself: what a former leader gives back now was overtaken."""
        if code in ONE_TRY:
            self._newest_sent = self._newest + 1

    def leave(self, number: int) -> None:
        """It is answered or given up."""
        self._waiting.pop(number, None)

    def overtaken(self, number: int, code: int) -> bool:
        """Whether a later one has been handed on: then it must not go any more."""
        return code in ONE_TRY and self._newest_sent > number
