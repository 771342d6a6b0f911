"""A producer that cuts its connection after each send, and then sends the same message again to every node and to any
queue.

The message must be stored once, and every answer must give its place. The history records the first answer as the
outcome of the `send`, and the later ones as `repeat`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jepsen_like.client_kit.fields import foreign_send
from jepsen_like.live.subjects.payload import body_of
from raftmq.client.connection import Connection, dial
from raftmq_wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from jepsen_like.history import HistoryWriter
    from raftmq.client.environment import Environment

ANSWER_S, CUT_AFTER_S, PAUSE_S = 5.0, 0.02, 0.2

QueuePlace = tuple[int, int]
"""A place: (queue id, offset)."""


class Repeats:
    """Sends one message at a time, each with its own identity, several times."""

    def __init__(
        self,
        environment: Environment,
        topic: str,
        queues: int,
        history: HistoryWriter,
        numbers: Iterator[int],
        rng: random.Random,
    ) -> None:
        """`environment` dials, and signs requests. `numbers`: numbers for the producer's processes in the history."""
        self._environment = environment
        self._topic, self._queues = topic, queues
        self._history, self._numbers, self._rng = history, numbers, rng
        self._producer_id = rng.randbytes(16).hex()
        self._sequences = itertools.count(1)
        self._process = next(numbers)

    @staticmethod
    def message_id(producer_id: str, sequence: int) -> str:
        """Returns the id of a message. No writer of the load uses such an id."""
        return f"again-{producer_id[:8]}-{sequence}"

    async def send(self, nodes: tuple[str, ...]) -> bool:
        """Sends one message to one node, cuts the connection, and sends it again to all nodes. Returns True if any
        answer gave its place.
        """
        sequence = next(self._sequences)
        value = {"topic": self._topic, "id": self.message_id(self._producer_id, sequence)}
        invoked = self._history.invoke(self._process, "send", value)
        first = self._arrive(self._rng.choice(nodes), value["id"], sequence, self._rng.uniform(0.0, CUT_AFTER_S))
        places = [await first, *await asyncio.gather(*(self._arrive(node, value["id"], sequence) for node in nodes))]
        told = [place for place in places if place is not None]
        if not told:
            self._history.info(invoked, value)
            self._process = next(self._numbers)
            return False
        self._history.ok(invoked, value | _fields(told[0]))
        for place in told[1:]:
            self._history.ok(self._history.invoke(self._process, "repeat", value), value | _fields(place))
        return True

    async def _arrive(self, node: str, message_id: str, sequence: int, cut_s: float | None = None) -> QueuePlace | None:
        """Sends the message once more; returns its place, None unless it was answered as stored. `cut_s`: seconds after
        which the connection is cut; None: after the answer.
        """
        ext = foreign_send(self._topic, message_id, self._rng.randrange(self._queues), group="chaos") | {
            "raftmqPid": self._producer_id,
            "raftmqSeq": str(sequence),
            "raftmqLow": str(sequence),
        }
        try:
            connection = await dial(self._environment, Connection(node, credentials=self._environment.credentials))
        except OSError:
            return None
        if cut_s is not None:
            asyncio.get_running_loop().call_later(cut_s, connection.abort)
        try:
            reply = await connection.call(RequestCode.SEND_MESSAGE_V2, ext, body_of(message_id), timeout_s=ANSWER_S)
        except OSError:
            return None
        finally:
            connection.abort()
        if reply.code != ResponseCode.SUCCESS:
            return None
        return int(reply.ext["queueId"]), int(reply.ext["queueOffset"])


def _fields(place: QueuePlace) -> dict[str, int]:
    return {"queue_id": place[0], "queue_offset": place[1]}
