"""Asks producers what is to become of half messages that nobody has ended (docs/adr/0050).

The number of checks is part of the log's state, so it goes on with the next leader, and a check counts whether or not
a producer of the group is connected anywhere. After `transaction.check_max` of them the message is parked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.broker.half_send import producer_group_of
from cluster.broker.transactions import Transactions
from cluster.replication.outcome import Outcome, ProposeResult
from statemachine.commands import CHECK_HALVES

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.wire.message_format import Message
    from statemachine.half_messages import HalfMessage

BATCH_MAX = 256
"""Half messages of one command, and of one turn."""

AskProducer = Callable[[str, "HalfMessage", "Message"], None]
"""Asks one producer of the group, on whichever node it is connected; the answer is a request of its own."""


class CheckBack:
    """Runs on every node; does something on the one that leads."""

    def __init__(self, node: Services, transactions: Transactions, ask: AskProducer) -> None:
        self._node = node
        self._transactions = transactions
        self._ask = ask
        self._proposed = False
        """Checks are on their way into the log: what they are about is still due in the state."""

    def tick(self, now_ms: int) -> None:
        """Called all the time: one comparison while nothing is due.

        While sends are refused because the disk is full, no commit can be stored: the checks would only run out.
        """
        check_ms = self._node.state.halves.check_ms
        if check_ms is None or self._proposed or not self._node.writes_open() or self._transactions.refusing:
            return
        log_ms = self._node.log_time_ms()
        if check_ms <= log_ms:
            self._look(log_ms)

    def _look(self, log_ms: int) -> None:
        node, transactions = self._node, self._transactions
        due = [half for half in node.state.halves.due(log_ms, BATCH_MAX) if not transactions.is_ending(half.position)]
        topics = node.state.topics_by_id
        deleted = [half for half in due if half.topic_id not in topics]
        if deleted:
            transactions.drop_deleted(deleted)
        asked = []
        for half in due:
            if half.topic_id not in topics:
                continue
            if half.checks < node.config.transaction.check_max:
                asked.append(half.position)
            elif (message := transactions.read(half)) is not None:
                transactions.park(half, message)
        if asked:
            self._proposed = True
            node.propose([[CHECK_HALVES, log_ms + node.config.transaction.check_interval_ms, asked]], self._counted)

    def _counted(self, result: ProposeResult) -> None:
        """The checks count, and a later leader knows of them: now the producers are asked."""
        self._proposed = False
        if result.outcome is not Outcome.OK or not result.results[0].ok:
            return
        for position in result.results[0].value:
            half = self._node.state.halves.get(position)
            if half is None or self._transactions.is_ending(position):
                continue  # its producer has decided meanwhile
            message = self._transactions.read(half)
            if message is not None:
                self._transactions.metrics.asked()
                self._ask(producer_group_of(message.properties), half, message)
