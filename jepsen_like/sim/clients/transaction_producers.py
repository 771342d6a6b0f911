"""Producers of transactions: half messages that are committed, rolled back, ended twice, or left for the broker to
check.

Each message's fate (commit, rollback or either) is drawn with its key (FATES), and any producer of the group that the
broker asks answers accordingly. A producer ends its transaction with or without waiting for an answer, or vanishes
before that. Sometimes it first sends the wrong key, offset or group, which must have no effect. In the end one producer
stays until no transaction is open on any node.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.client_kit.fields import send_fields, topic_fields
from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import SEND_CODE, Client, ClientHost, id_of
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import ask, connects
from jepsen_like.sim.clients.stored_messages import stored_on
from raftmq_wire.codec import FLAG_RESPONSE, Header, ext_of
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.message_format import decode_message, decode_message_id

if TYPE_CHECKING:
    from jepsen_like.sim.machines.machine import Machine

GROUP, TOPIC, QUEUES = "transactors", "transactions", 2
PRODUCERS = 2
FATES = ("commit", "rollback", "either")
"""Fates of a transaction. `either`: each producer that is asked says commit or rollback at random; the first answer
counts."""
COMMIT, ROLLBACK = 8, 12
ASKED_LATE_S = 20.0
"""Longest time in seconds that a check of a transaction may still be in flight after the transaction has ended."""


class Transaction:
    """A half message and its fate, as its producers know them."""

    __slots__ = ("acked", "ended_s", "fate", "may_commit")

    def __init__(self, fate: str) -> None:
        self.fate = fate
        self.acked = False
        self.may_commit = False
        """True once a producer has committed it, or is about to."""
        self.ended_s: float | None = None
        """Time in seconds at which a producer was told that it has ended; None before."""


class TransactionJudge:
    """Knows what producers have said and learnt about each transaction, as far as they tell it. Reports a wrong
    question of the broker under `transactions`; `wrong` yields what the caller must report."""

    def __init__(self, report: Report, now: Callable[[], float]) -> None:
        self._report, self._now = report, now
        self.known: dict[str, Transaction] = {}

    def begins(self, key: str, fate: str) -> None:
        """Records that a half message with this key is about to be sent."""
        self.known[key] = Transaction(fate)

    def says(self, key: str, wish: int) -> None:
        """Records that a producer is about to commit or roll back the transaction."""
        self.known[key].may_commit |= wish == COMMIT

    def ended(self, key: str) -> None:
        """Records that a producer got the answer that the transaction has ended."""
        one = self.known[key]
        one.ended_s = self._now() if one.ended_s is None else one.ended_s

    def asked(self, key: str) -> None:
        """Records that the broker asked a producer about the transaction; reports a transaction that no producer sent,
        and one that ended long ago."""
        one = self.known.get(key)
        if one is None:
            self._report("transactions", f"a producer was asked about {key!r}, which nobody sent")
        elif one.ended_s is not None and self._now() - one.ended_s > ASKED_LATE_S:
            since = self._now() - one.ended_s
            self._report("transactions", f"a producer was asked about {key}, {since:.1f} s after it had ended")

    def wrong(self, copies: Counter[str], *, trimmed: bool) -> Iterator[str]:
        """Yields a line for everything that is wrong with the messages that consumers can see when no transaction is
        open. `trimmed`: messages may have been removed."""
        for key, count in copies.items():
            one = self.known.get(key)
            if one is None or not one.may_commit:
                yield f"{key} is delivered, and nobody committed it"
            elif count > 1:
                yield f"{key} is delivered {count} times"
        for key, one in self.known.items():
            if one.acked and one.fate == "commit" and not trimmed and key not in copies:
                yield f"{key} was committed, and is not delivered"


class ProducerConnection(RawConnection):
    """A connection over which the broker checks transactions (asks a producer about them)."""

    on_check: Callable[[dict[str, str], bytes], None] | None = None

    def on_frame(self, header: Header, body: bytes) -> None:
        """Handles a frame from the node: checks of transactions go to `on_check`."""
        if not header.flag & FLAG_RESPONSE and header.code == RequestCode.CHECK_TRANSACTION_STATE:
            if self.on_check is not None:
                self.on_check(ext_of(header), body)
            return
        super().on_frame(header, body)


class Transactors(Client):
    """PRODUCERS producers of one group. After `stopped` is set, they end once no transaction is open."""

    def __init__(self, host: ClientHost, report: Report, open_count: Callable[[], int]) -> None:
        """`open_count`: returns how many half messages any node knows of."""
        super().__init__(host)
        self.report, self._open_count = report, open_count
        self.judge = TransactionJudge(report, lambda: host.loop.now)
        self._keys = 0

    def start(self) -> None:
        """Starts the producers as tasks."""
        for number in range(PRODUCERS):
            self._spawn(partial(self._produce, random.Random(self.rng.random()), number == 0))

    async def _produce(self, rng: random.Random, last: bool) -> None:
        """Runs one session after the other; the `last` producer answers the broker until no transaction is open."""
        while not self.stopped or (last and self._open_count()):
            session = ProducerSession(self, rng)
            if await session.connect(rng.choice(self.host.nodes)):
                await session.run(rng.randint(2, 10))
            session.vanish()
            await asyncio.sleep(rng.uniform(0.05, 0.3))

    # --- for sessions ------------------------------------------------------------------------------------------------

    def next_key(self, rng: random.Random) -> str:
        """Returns the key of a new transaction, and draws its fate."""
        self._keys += 1
        key = f"transaction-{self._keys}"
        self.judge.begins(key, rng.choice(FATES))
        return key

    def wish(self, key: str, rng: random.Random) -> int:
        """Returns the decision (COMMIT or ROLLBACK) that a producer sends for the message."""
        fate = self.judge.known[key].fate
        return {"commit": COMMIT, "rollback": ROLLBACK}.get(fate) or rng.choice((COMMIT, ROLLBACK))


class ProducerSession:
    """One producer on one connection: it runs transactions and answers the broker's checks."""

    def __init__(self, transactors: Transactors, rng: random.Random) -> None:
        self._all, self._rng = transactors, rng
        self._host, self._judge = transactors.host, transactors.judge
        self._connection: ProducerConnection | None = None

    async def connect(self, node: str) -> bool:
        """Connects, sends a heartbeat with the producer group, and creates the topic. Returns False if the connection
        or the heartbeat fails, or if the creation gets no answer."""
        made = ProducerConnection(
            f"a producer of transactions at {node}", self._host.loop, self._all.report, self._host.credentials
        )
        if not await connects(made, node):
            return False
        made.on_check = self._on_check
        self._connection = made
        body = {"clientID": f"transactor-{self._rng.random()}", "producerDataSet": [{"groupName": GROUP}]}
        answer = await self._ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
        fields = topic_fields(TOPIC, QUEUES)
        if answer is None or (await self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)) is None:
            return False
        return answer.code == ResponseCode.SUCCESS

    def vanish(self) -> None:
        """Aborts the connection without unregistering."""
        if self._connection is not None:
            self._connection.transport.abort()

    async def run(self, rounds: int) -> None:
        """Runs up to `rounds` rounds, and ends early if the connection is closed. In each round the producer runs one
        transaction, unless the load is stopped, and pauses. It answers the broker's checks all the time."""
        for _ in range(rounds):
            if self._connection is None or self._connection.closed:
                return
            if not self._all.stopped:
                await self._transaction()
            await asyncio.sleep(self._rng.uniform(0.02, 0.3))

    async def _ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Answer | None:
        return None if self._connection is None else await ask(self._host, self._connection, code, ext, body)

    async def _transaction(self) -> None:
        rng, key = self._rng, self._all.next_key(self._rng)
        level = "" if self._host.options.plain else "ACK_LEVEL\x01quorum+fsync\x02"
        properties = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02{level}"
        ext = send_fields(TOPIC, properties) | {"a": GROUP, "e": str(rng.randrange(QUEUES))}
        answer = await self._ask(SEND_CODE, ext, self._host.marked(TOPIC, key))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        self._judge.known[key].acked = True
        position, offset = decode_message_id(answer.ext["msgId"])[1], int(answer.ext["queueOffset"])
        how = rng.choice(("oneway", "at once", "answered", "twice", "left", "mistaken"))
        if how == "mistaken":
            wrong = rng.choice(({"msgId": "K"}, {"tranStateTableOffset": str(offset + 1)}, {"producerGroup": "other"}))
            self._end_oneway({**self._fields(key, position, offset, COMMIT), **wrong})
        if how == "left":
            return
        for _ in range(2 if how in ("at once", "twice") else 1):
            wish = self._all.wish(key, rng)
            self._judge.says(key, wish)
            fields = self._fields(key, position, offset, wish)
            if how in ("oneway", "at once"):
                self._end_oneway(fields)
            else:
                ended = await self._ask(RequestCode.END_TRANSACTION, fields)
                if ended is not None and ended.code == ResponseCode.SUCCESS:
                    self._judge.ended(key)

    def _on_check(self, ext: dict[str, str], body: bytes) -> None:
        key = ext["msgId"]
        self._judge.asked(key)
        message, _ = decode_message(body)
        if key not in self._judge.known or id_of(message.body) != key or message.topic != TOPIC:
            self._all.report("transactions", f"a question about {key} comes with {message.body[:40]!r}")
            return
        if self._rng.random() < 0.2:
            return
        wish = self._all.wish(key, self._rng)
        self._judge.says(key, wish)
        position, offset = int(ext["commitLogOffset"]), int(ext["tranStateTableOffset"])
        self._end_oneway(self._fields(key, position, offset, wish))

    def _end_oneway(self, fields: dict[str, str]) -> None:
        if self._connection is not None:
            self._connection.write(self._connection.frame(RequestCode.END_TRANSACTION, fields, oneway=True))

    @staticmethod
    def _fields(key: str, position: int, offset: int, wish: int) -> dict[str, str]:
        return {
            "producerGroup": GROUP,
            "tranStateTableOffset": str(offset),
            "commitLogOffset": str(position),
            "commitOrRollback": str(wish),
            "msgId": key,
        }


def visible(machine: Machine) -> tuple[Counter[str], bool]:
    """Returns key -> number of copies of the topic's messages that consumers can see at this node, and True if some may
    have been trimmed."""
    messages, trimmed = stored_on(machine, TOPIC)
    return Counter(id_of(message.body) for message in messages), trimmed
