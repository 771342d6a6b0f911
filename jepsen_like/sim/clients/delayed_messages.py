"""Sends delayed messages through every fault: each acknowledged one must be delivered once, and none early.

When all faults are healed and no message waits any more, the judge reads the topic on every node. A message that was
acknowledged is there once; one of unknown outcome at most once; one that was refused not at all. The log time at which
it was stored in its queue is not before the time that the message was due. A message whose property says that it was
delayed before is stored where its answer said: it is not delayed again. If retention has removed the beginning of a
queue, missing messages are not judged.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import FULL, Client, ClientHost, id_of, read_queue
from raftmq.client.client import AsyncClient
from raftmq.client.errors import RaftMQError, Unknown
from raftmq.client.message import Message, MessageOptions
from raftmq.client.producing.producer import AsyncProducer

LATER_TOPIC = "later"
QUEUES = 2
DELAYS_S = (0.0, 0.05, 0.4, 1.0, 1.0, 2.5, 4.0)
"""Delays in seconds from which one is drawn per message; some are equal, so that messages share rows."""
DELAYED_BEFORE = 0.15
"""Share (0 to 1) of the messages with a property that says that they were delayed before."""
LONG_S = (8.0, 8.0)
"""Delays in seconds of messages that still wait when retention reaches them."""
DUE = "TIMER_OUT_MS"
"""Name of the property in which a delivered message says when it was due."""


class DelayedSend(NamedTuple):
    """A message that was sent, its delay in seconds, and the outcome for its producer: ok, fail or unknown."""

    message_id: str
    delay_s: float
    outcome: str
    place: tuple[int, int] | None = None
    """(queue, offset) that the answer named, for a message that is not delayed because it was before; None
    otherwise."""


class Delayed(Client):
    """The producer of delayed messages. Setting `stopped` ends it after its present operation."""

    def __init__(self, host: ClientHost, report: Report) -> None:
        super().__init__(host)
        self._report = report
        self.sent: list[DelayedSend] = []
        self._delays_s = DELAYS_S + LONG_S * host.options.carried
        self._count = 0

    async def _work(self) -> None:
        rng = random.Random(self.rng.random())
        client = self.host.client()
        producer = client.producer()
        while not self.stopped:
            await asyncio.sleep(rng.uniform(0.02, 0.15))
            await asyncio.gather(*(self._send(rng, producer) for _ in range(rng.choice((1, 1, 3)))))
        await client.close()

    async def _send(self, rng: random.Random, producer: AsyncProducer) -> None:
        self._count += 1
        message_id, delay_s = f"later-{self._count}", rng.choice(self._delays_s)
        options: MessageOptions = {"queue_id": rng.randrange(QUEUES), "properties": {"ACK_LEVEL": FULL}}
        before = rng.random() < DELAYED_BEFORE
        if before:  # simulates a client that forwards a message with all its properties, including the delay
            options["properties"] = {"ACK_LEVEL": FULL, "TIMER_DELAY_MS": f"{delay_s * 1000 + 500:.0f}", DUE: "1"}
        else:
            options["delay"] = delay_s
        try:
            sent = await producer.send(
                LATER_TOPIC, self.host.body(LATER_TOPIC, message_id, rng.randrange(40)), **options
            )
        except RaftMQError as error:
            self.sent.append(DelayedSend(message_id, delay_s, "unknown" if isinstance(error, Unknown) else "fail"))
        else:
            place = (sent.queue_id, sent.queue_offset) if before else None
            self.sent.append(DelayedSend(message_id, delay_s, "ok", place))

    # --- the end -----------------------------------------------------------------------------------------------------

    async def judge(self, client: AsyncClient, addresses: Sequence[str]) -> None:
        """Reads every node's copy of the topic and reports what is wrong with it."""
        for address in addresses:
            messages: list[Message] = []
            trimmed = False
            for queue in range(QUEUES):
                found, lowest = await read_queue(client, LATER_TOPIC, queue, address)
                messages += found
                trimmed = trimmed or lowest > 0
            for what in found_wrong(self.sent, messages, trimmed):
                self._report("delayed", f"{what} (node {address})")


def found_wrong(sent: Sequence[DelayedSend], messages: Sequence[Message], trimmed: bool) -> Iterator[str]:
    """Yields a line for each sent message that was delivered too often, or not at all although it was acknowledged; for
    each that is not where its answer said; and for each that was delivered early. `trimmed`: messages may have been
    removed, so missing ones are right."""
    copies = Counter(id_of(message.body) for message in messages)
    least = {"ok": 0 if trimmed else 1}
    for one in sent:
        most, count = 0 if one.outcome == "fail" else 1, copies[one.message_id]
        if not least.get(one.outcome, 0) <= count <= most:
            what = f"{one.message_id}, delayed by {one.delay_s} s and answered {one.outcome}"
            yield f"{what}, was delivered {count} times"
    stand = {(message.queue_id, message.queue_offset): id_of(message.body) for message in messages}
    for one in sent:
        found = one.message_id if one.place is None else stand.get(one.place)
        if found != one.message_id and not (found is None and trimmed):
            yield f"{one.message_id} was stored at {one.place}, where {found} is"
    for message in messages:
        due = message.properties.get(DUE)
        if due is not None and message.store_ms < int(due):
            early = int(due) - message.store_ms
            yield f"{id_of(message.body)} was delivered {early} ms before it was due"
