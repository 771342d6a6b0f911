"""The side workload runs beside the log workload. It has a consumer per queue that commits what it read, uses topics as
registers, and repeats sends.

Each register has one writer, because a request of RaftMQ's client may be carried out twice before it is answered.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import random
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from jepsen_like.history import HistoryWriter
from jepsen_like.live.probes.lanes import ANSWER_S, PAUSE_S, Lanes
from jepsen_like.live.probes.repeating_producer import PAUSE_S as REPEAT_PAUSE_S
from jepsen_like.live.probes.repeating_producer import Repeats
from jepsen_like.live.subjects.load_user import REGISTERS as META
from jepsen_like.live.subjects.raftmq_subject import GROUP
from raftlog.types import FIRST_GROUP
from raftmq.client.environment import REAL, with_credentials, with_tls
from raftmq.local.http.http_exchange import exchange

if TYPE_CHECKING:
    from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject

PROCESSES_FROM = 3_000_000
REGISTERS = 2
EPOCH_OPS = 150
"""Operations on one register before the next one is used, which keeps the search for an order short."""


class SideWorkload(Lanes):
    """The lanes of the side workload. `start` and `stop` are called in the main thread."""

    def __init__(self, subject: RaftMQSubject, history: HistoryWriter, seed: int) -> None:
        super().__init__(history, random.Random(f"side-{seed}"), PROCESSES_FROM)
        self._subject = subject
        self._epochs = [0] * REGISTERS

    def start(self) -> None:
        """Starts the lanes."""
        self._connect(self._subject.servers, self._subject.load_options)
        self.add(
            *(self.consume(GROUP, self._subject.topic, queue_id) for queue_id in range(self._subject.queues)),
            *(self._write_register(number) for number in range(REGISTERS)),
            *(self._read_register(number) for number in range(REGISTERS)),
            self._repeat(),
        )

    # --- sends that come again ---------------------------------------------------------------------------------------

    async def _repeat(self) -> None:
        """Sends messages, cuts the connection after each send, and repeats the send (`Repeats`)."""
        assert self._client is not None
        options = self._subject.load_options
        signs = with_credentials(REAL, options.get("access_key", ""), options.get("secret_key", ""))
        environment = with_tls(signs, options.get("tls"))
        repeats = Repeats(
            environment, self._subject.topic, self._subject.queues, self._history, self._numbers, self._rng
        )
        while not self._stopping:
            await asyncio.sleep(REPEAT_PAUSE_S)
            if self.held or not self._client.view.brokers:
                continue
            self._busy += 1
            try:
                self.answered += await repeats.send(self._client.view.brokers)
            finally:
                self._busy -= 1

    # --- topics as registers -----------------------------------------------------------------------------------------

    def _key(self, number: int) -> str:
        return f"{META}-{number}-{self._epochs[number]}"

    async def _write_register(self, number: int) -> None:
        """Sets the number of queues of the register's topic again and again, and sometimes deletes the topic. The topic
        is in one group of brokers, because in two a change would be two requests.
        """
        assert self._client is not None
        admin = self._client.admin
        process, exists = next(self._numbers), False
        for count in itertools.count(1):
            key, before = self._key(number), process
            if exists and self._rng.random() < 0.2:
                process, answer = await self._do(
                    process, "delete", {"key": key}, self._void(admin.delete_topic(key)), writes=True
                )
                exists = answer is None
            else:
                queues = self._rng.randrange(1, 9)
                process, answer = await self._do(
                    process,
                    "put",
                    {"key": key, "value": queues},
                    self._void(admin.create_topic(key, queues, groups=[FIRST_GROUP])),
                    writes=True,
                )
                exists = exists or answer is not None
            if self._stopping:
                return
            # The client repeats a request that is not answered, and a late attempt may be carried out a second time,
            # after a later change. So the next register is used when an outcome is unknown.
            if count % EPOCH_OPS == 0 or process != before:
                self._epochs[number] += 1
                exists = False
            await asyncio.sleep(PAUSE_S * self._rng.uniform(0.5, 2.0))

    @staticmethod
    async def _void(work: Awaitable[None]) -> dict[str, Any]:
        await work
        return {}

    async def _read_register(self, number: int) -> None:
        """Reads the register through any node. The answer is linearizable: it comes from the leader after a majority
        has confirmed its leadership.
        """
        process = next(self._numbers)
        while not self._stopping:
            key = self._key(number)
            node = self._rng.choice(self._subject.nodes)
            process, _ = await self._do(
                process,
                "get",
                {"key": key},
                _get(self._subject.load_address(node), key),
                writes=False,
            )
            await asyncio.sleep(PAUSE_S)


async def _get(address: str, name: str) -> dict[str, Any]:
    return await asyncio.get_running_loop().run_in_executor(None, get_topic, address, name)


def get_topic(address: str, name: str) -> dict[str, Any]:
    """Returns {"value": number of queues}, or {"value": None} if there is no such topic. Raises OSError for any other
    answer."""
    path = f"/v1/topics/{name}?consistency=linearizable"
    try:
        status, body = exchange(address, "GET", path, timeout_s=ANSWER_S, is_page=True)  # one page of queues is enough
        answer = json.loads(body)
        if status == 404 and answer["error"]["code"] == "not_found":
            return {"value": None}
        if status != 200:
            raise OSError(f"status {status}: {answer['error']['message']}")
        return {"value": answer["topic"]["write_queues"]}
    except (http.client.HTTPException, ValueError, KeyError) as error:
        raise OSError(f"not understood: {error}") from None
