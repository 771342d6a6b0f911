"""Collects the sends that nodes refused for now, or gave up with an unknown outcome because no leader answered in time,
including those whose client had closed its connection before the answer.

Such a client sends the message again, after later ones that were accepted. The order of its calls is then lost, as
docs/client.md says, and the client cannot notice the loss.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from cluster.node.node import Node


class Refusals:
    """The ids of the simulated producers' messages that a node refused for now, or gave up, at least once."""

    def __init__(self, own: re.Pattern[bytes]) -> None:
        """`own`: pattern that finds the ids in a message body."""
        self._own = own
        self.ids: set[str] = set()
        self._watched: WeakSet[Node] = WeakSet()

    def watch(self, node: Node) -> None:
        """Hooks into a node that has started, to see the sends that the node refuses or gives up, among them those that
        it has forwarded to the leader. A second call for the same node does nothing."""
        if node in self._watched:
            return
        self._watched.add(node)
        fates: Any = node.serving.proposals._replies
        fates.refused = self._before(fates.refused, lambda send, remark: [send.body, *(one.body for one in send.batch)])
        fates.crowded = self._before(fates.crowded, lambda send, remark: [send.body, *(one.body for one in send.batch)])
        fates.limited = self._before(fates.limited, lambda send, remark: [send.body, *(one.body for one in send.batch)])
        router: Any = node.serving.remoting.router
        for refusing, name in ((router._replies, "refuse"), (router._sends._sends, "_refuse")):  # before it was queued
            setattr(refusing, name, self._before(getattr(refusing, name), lambda frame, refused: [frame.body]))
        forwarder: Any = node.serving.remoting.forwarder
        forwarder._refuse_busy = self._before(forwarder._refuse_busy, lambda frame, why: [frame.body])
        forwarder._answer_expired = self._before(forwarder._answer_expired, lambda held: [held.frame.body])
        forwarder._answer_unknown = self._before(forwarder._answer_unknown, lambda frame, why: [frame.body])
        handed_back = forwarder._on_handed_back

        def on_handed_back(forward_id: int, held: Any) -> None:
            handed_back(forward_id, held)
            if forward_id not in forwarder._held:  # refused, because a later request has overtaken this one
                self._note([held.frame.body])

        forwarder._on_handed_back = on_handed_back

    def _before(self, call: Callable[..., None], bodies: Callable[..., list[bytes]]) -> Callable[..., None]:
        def noted(*arguments: Any) -> None:
            self._note(bodies(*arguments))
            call(*arguments)

        return noted

    def _note(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self.ids.update(found.decode() for found in self._own.findall(body))
