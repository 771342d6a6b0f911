"""A writer of batches whose rows lie in both groups. The first group decides once about each batch (docs/adr/0109).

The writer sends the requests that Spark's sink sends. Its driver dies at any step and runs the batch again, with rows
in other groups than before. Sometimes the driver is only believed dead, and its commit runs at the same time as that of
the next driver. Some batches are aborted, at a node of either group.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.clients.client_machines import ClientHost, id_of
from jepsen_like.sim.clients.staged_writers import AGAIN, Try, WriteJudge
from jepsen_like.sim.clients.stored_messages import stored_on
from jepsen_like.sim.groups.placed_clients import ACT_PATIENCE_S, Hosts, PlacedClient
from raftlog.types import FIRST_GROUP
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.message_format import BatchItem, build_batch

if TYPE_CHECKING:
    from jepsen_like.sim.callbacks import Report
    from jepsen_like.sim.machines.machine import Machine

TOPIC, QUEUES = "placed-written", 2
"""TOPIC: the topic of the batches. QUEUES: number of its queues in each group."""
CHECKER = "writes"
NAME = "placed-query"
SECOND = FIRST_GROUP + 1
TRIES = 30
PAUSE_S, SLOW_S = (0.0, 0.2), (0.0, 0.8)
"""Shortest and longest pause in seconds before a step of a commit: PAUSE_S for a driver alone, SLOW_S if a driver that
is thought dead commits too, so that the steps of both mix.
"""
DEATHS = 0.12
"""Probability that the driver dies at a step."""

Winners = dict[int, list[Try]]
"""Group -> the tries that count there."""


class PlacedWriter(PlacedClient):
    """The writer of one streaming query: it stages, commits and aborts batches. After `stopped` is set it finishes its
    last batch."""

    def __init__(self, host: ClientHost, report: Report, hosts: Hosts) -> None:
        super().__init__(FIRST_GROUP, host, report, hosts)
        self.judge = WriteJudge()
        self._thought_dead = 0
        """Number of commits that go on although their driver is thought dead."""
        self.counts: Counter[str] = Counter()
        """Counts of the steps of commits, and of aborts."""

    async def _work(self) -> None:
        rng = random.Random(self.rng.random())
        batch = 0
        given_up: list[int] = []
        while not self.stopped:
            batch += rng.choice((1, 1, 1, 3))
            rows = [f"{NAME}/{batch}/{row}" for row in range(rng.randint(2, 8))]
            self.judge.rows[NAME, batch] = frozenset(rows)
            while not await self._driver(rng, batch, rows):
                if not self.stopped and rng.random() < 0.1 and await self._abort(rng, batch):
                    given_up.append(batch)
                    break
                await asyncio.sleep(rng.uniform(0.02, 0.2))
            else:
                given_up.clear()  # a commit ends all earlier batches
            await asyncio.sleep(rng.uniform(0.02, 0.2))
        await self._leave(rng, given_up)

    async def _leave(self, rng: random.Random, given_up: Sequence[int]) -> None:
        """Aborts given-up batches once more, as an operator is asked to do about undecided writes. A driver that was
        thought dead may have prepared one of the batches since (seed 996000103).
        """
        while self._thought_dead:  # noqa: ASYNC110 - they count down as they end
            await asyncio.sleep(0.1)
        for batch in given_up:
            while not await self._abort(rng, batch, FIRST_GROUP):  # noqa: ASYNC110 - until a node answers
                await asyncio.sleep(rng.uniform(0.02, 0.2))

    async def _driver(self, rng: random.Random, batch: int, rows: Sequence[str]) -> bool:
        """Runs the driver for one batch. Returns True if the batch is known to be committed. Returns False if that is
        not known, or if the driver dies or is thought dead, even after a commit: the batch is then to be run again."""
        only = rng.choice((*[None] * 6, FIRST_GROUP, SECOND))
        parts: dict[int, list[str]] = {}
        for row in rng.sample(rows, len(rows)):
            parts.setdefault(only or rng.choice((FIRST_GROUP, SECOND)), []).append(row)
        winners: Winners = {}
        for group, part in parts.items():
            tried = await self._task(rng, group, batch, part)
            if tried is None:
                return False
            if tried:
                winners[group] = tried
        if rng.random() < DEATHS:
            return False
        if rng.random() < 0.3:
            self._thought_dead += 1
            self._spawn(partial(self._goes_on, random.Random(rng.random()), batch, winners))
            return False
        return await self._commit(rng, batch, winners) and rng.random() >= DEATHS

    async def _goes_on(self, rng: random.Random, batch: int, winners: Winners) -> None:
        await self._commit(rng, batch, winners)
        self._thought_dead -= 1

    async def _task(self, rng: random.Random, group: int, batch: int, rows: Sequence[str]) -> list[Try] | None:
        """Stages rows in a group as one task. Returns a list with the task's try; [] if the batch is already committed
        there; None if a request was refused or its outcome is unknown."""
        answer = await self._until(rng, group, RequestCode.OPEN_ATTEMPT, self._write(batch))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return None
        if "attempt" not in answer.ext:
            return []
        attempt, left, sequence = int(answer.ext["attempt"]), list(rows), 0
        while left:
            size = rng.randint(1, min(3, self.host.options.batch_messages_max))
            part, left = left[:size], left[size:]
            sequence += 1
            ext = {"attempt": str(attempt), "sequence": str(sequence), "topic": TOPIC}
            if rng.random() < 0.5:
                ext["queueId"] = str(rng.randrange(QUEUES))
            body = build_batch([BatchItem(0, self.host.marked(TOPIC, row), b"") for row in part])
            answer = await self._until(rng, group, RequestCode.STAGE_MESSAGES, ext, body)
            if answer is None or answer.code != ResponseCode.SUCCESS:
                return None
        return [(attempt, len(rows))]

    async def _commit(self, rng: random.Random, batch: int, winners: Winners) -> bool:
        """Commits the batch as the sink does; returns True if it is known to be committed."""
        of_first, of_second = winners.get(FIRST_GROUP, []), winners.get(SECOND)
        if not of_second:
            await self._pause(rng)
            return await self._decide(rng, batch, RequestCode.COMMIT_WRITE, {}, of_first)
        await self._pause(rng)
        answer = await self._until(rng, FIRST_GROUP, RequestCode.OPEN_ATTEMPT, self._write(batch))
        if answer is None or answer.code != ResponseCode.SUCCESS or rng.random() < DEATHS:
            return False
        if "attempt" not in answer.ext:
            self._committed(answer, batch)
            return True
        decider = {"decider": answer.ext["attempt"]}
        for _ in range(rng.choice((1, 1, 2))):
            await self._pause(rng)
            ext = self._write(batch) | decider
            answer = await self._until(rng, SECOND, RequestCode.PREPARE_WRITE, ext, json.dumps(of_second).encode())
        if answer is None or answer.code != ResponseCode.SUCCESS or rng.random() < DEATHS:
            return False
        self.counts["prepared"] += 1
        await self._pause(rng)
        return await self._decide(rng, batch, RequestCode.COMMIT_GROUPS, decider | {"groups": str(SECOND)}, of_first)

    async def _decide(
        self, rng: random.Random, batch: int, code: RequestCode, ext: dict[str, str], of_first: Sequence[Try]
    ) -> bool:
        self.judge.wanted.add((NAME, batch))
        answer = None
        for _ in range(rng.choice((1, 1, 2))):
            body = json.dumps(of_first).encode()
            answer = await self._until(rng, FIRST_GROUP, code, self._write(batch) | ext, body)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return False
        self._committed(answer, batch)
        self.counts[code.name] += 1
        return True

    def _committed(self, answer: Answer, batch: int) -> None:
        """Records that the batch is committed. An answer that names a later batch says nothing about this one, which
        may have been given up before."""
        if answer.ext["committed"] == str(batch):
            self.judge.acked.add((NAME, batch))

    async def _abort(self, rng: random.Random, batch: int, group: int | None = None) -> bool:
        """Aborts a batch that no driver runs again, at a node of `group` or, if that is None, of a random group.
        Returns True if the node answers that the batch is aborted."""
        group = group or rng.choice((FIRST_GROUP, SECOND))
        alone = not self._thought_dead
        answer = await self._until(rng, group, RequestCode.ABORT_WRITE, self._write(batch))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return False
        if alone and group == FIRST_GROUP and int(answer.ext["attempts"]):
            # The abort ended open attempts there, so no commit came before it, and no driver is left that could send
            # one.
            self.judge.aborted.add((NAME, batch))
            self.counts["aborted"] += 1
        return True

    async def _pause(self, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(*(SLOW_S if self._thought_dead else PAUSE_S)))

    def _write(self, batch: int) -> dict[str, str]:
        return {"name": NAME, "write": str(batch)}

    async def _until(
        self, rng: random.Random, group: int, code: RequestCode, ext: dict[str, str], body: bytes = b""
    ) -> Answer | None:
        """Asks one node of the group after the other until there is a final answer, and returns it. Returns None if
        there is none after TRIES tries."""
        for _ in range(TRIES):
            link = await self._link(rng.choice(self._hosts()[group]))
            if link is not None:
                answer = await self._asked(link, code, ext, body, ACT_PATIENCE_S)
                if answer is not None and answer.code not in AGAIN:
                    return answer
            await asyncio.sleep(rng.uniform(0.02, 0.3))
        return None


def rows_of(machines: Iterable[Machine]) -> tuple[Counter[str], bool]:
    """Returns row -> number of copies that consumers can see at one node of each group, and True if some may have been
    trimmed."""
    found = Counter[str]()
    any_trimmed = False
    for machine in machines:
        messages, trimmed = stored_on(machine, TOPIC)
        found.update(id_of(message.body) for message in messages)
        any_trimmed |= trimmed
    return found, any_trimmed
