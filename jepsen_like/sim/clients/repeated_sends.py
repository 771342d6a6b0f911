"""A producer that repeats sends which may already be stored, as if an answer was lost or an old send arrived late.

Several sends are in flight at once, so that one entry holds them. The producer settles a send some time after its first
positive answer: from then on it neither repeats the send nor counts it among its open ones (`raftmqLow`). Until then it
repeats the send now and then, answered or not, through any node and for any queue. Each arrival must be answered with
the place of the one copy that is stored. Now and then the connection is cut while sends are in flight, and they are
repeated at every node at once.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

from jepsen_like.client_kit.fields import foreign_send
from jepsen_like.history import Op
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import SEND_CODE, TOPIC, ClientHost
from jepsen_like.sim.clients.history_recorder import Recorder, stored_at
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import Asker, dial
from raftmq_wire.codes import ResponseCode

UNSETTLED_MAX = 8
CUT_SHARE, CUT_AFTER_S = 0.2, 0.03
"""Share (0 to 1) of the rounds of sends whose connection is cut, and the most seconds until the cut: some sends are not
decided by then."""


class Repeater(Asker):
    """A producer that sends messages and repeats those that are not settled. Setting `stopped` ends it after its
    present operation."""

    def __init__(self, host: ClientHost, recorder: Recorder, report: Report) -> None:
        super().__init__(host, report)
        self._recorder = recorder
        self._pid = ""
        self._low = self._next = 1
        self._ops: dict[int, Op] = {}
        """Sequence number -> operation, for sends that are not settled."""
        self._places: dict[int, tuple[int, int]] = {}

    @property
    def session(self) -> tuple[bytes, int] | None:
        """The producer id with which the producer identifies its sends, and its next sequence; None before it has
        begun."""
        return (bytes.fromhex(self._pid), self._next) if self._pid else None

    async def _work(self) -> None:
        rng = random.Random(self.rng.random())
        self._pid = rng.randbytes(16).hex()
        await self._in_turns(rng, (0.01, 0.08), 0.2, "a producer that repeats", partial(self._round, rng))

    async def _round(self, rng: random.Random, connection: RawConnection) -> None:
        """Sends new messages, or some of the unsettled ones again; then settles some. If too many are unsettled, no new
        ones are sent."""
        again = [sequence for sequence in self._ops if rng.random() < 0.6]
        if len(self._ops) < UNSETTLED_MAX and (not again or rng.random() < 0.5):
            again = []
            for _ in range(rng.randint(1, 4)):
                value = {"id": f"repeat-{self._next}", "topic": TOPIC}
                self._ops[self._next] = self._recorder.invoke("send", value)
                again.append(self._next)
                self._next += 1
        cut = rng.random() < CUT_SHARE
        if cut:
            asyncio.get_running_loop().call_later(rng.uniform(0.0, CUT_AFTER_S), connection.transport.abort)
        await asyncio.gather(*(self._send(rng, connection, sequence) for sequence in again))
        if cut:
            await asyncio.gather(*(self._send_anew(rng, node, again) for node in self.host.nodes))
        while self._low in self._places and rng.random() < 0.5:
            del self._ops[self._low], self._places[self._low]
            self._low += 1

    async def _send_anew(self, rng: random.Random, node: str, again: list[int]) -> None:
        made = await dial(self.host, node, f"a producer that repeats at {node}", self._report)
        if made is None:
            return
        await asyncio.gather(*(self._send(rng, made, sequence) for sequence in again))
        made.transport.abort()

    async def _send(self, rng: random.Random, connection: RawConnection, sequence: int) -> None:
        op = self._ops[sequence]
        ext = foreign_send(TOPIC, op.value["id"], rng.randrange(self.host.options.queues))
        ext |= {"raftmqPid": self._pid, "raftmqSeq": str(sequence), "raftmqLow": str(self._low)}
        answer = await self._ask(connection, SEND_CODE, ext, self.host.body(TOPIC, op.value["id"], 10))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return  # another arrival of the send may be stored, so it is sent again
        place = stored_at(answer)
        if sequence not in self._places:
            self._places[sequence] = place
            self._recorder.stored(op, *place)
        else:
            again = self._recorder.invoke("repeat", op.value)
            self._recorder.end(again, "ok", {**op.value, "queue_id": place[0], "queue_offset": place[1]})
