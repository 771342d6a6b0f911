"""Writers that stage, commit, retry and crash, as Spark's sink does (docs/adr/0068), and a judge of the rows that
result.

A writer is a streaming query: one batch after the other, of a few tasks with a few rows each. Every try of a task
stages its rows in another order. Tasks fail after some of their rows, run twice, or stage rows when their batch is
already committed. The driver dies before or after the commit, and then runs the batch again. Commits give a wrong
number of rows, name an attempt that does not exist, or come a second time.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.sim.clients.client_machines import id_of
from jepsen_like.sim.clients.single_request import Asker
from jepsen_like.sim.clients.stored_messages import stored_on
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.message_format import BatchItem, build_batch

if TYPE_CHECKING:
    from jepsen_like.client_kit.frames import Answer
    from jepsen_like.sim.callbacks import Report
    from jepsen_like.sim.clients.client_machines import ClientHost
    from jepsen_like.sim.clients.raw_client import RawConnection
    from jepsen_like.sim.machines.machine import Machine

TOPIC, QUEUES = "written", 2
WRITERS, TASKS = 2, 2
CHECKER = "writes"

Try = tuple[int, int]
"""(attempt, number of rows) of a try of a task that staged all of its rows."""


class WriteJudge:
    """Finds wrong rows: it knows which batches a driver wanted to commit, and which were answered as committed."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], frozenset[str]] = {}
        """(query, batch) -> the rows of the batch."""
        self.wanted: set[tuple[str, int]] = set()
        """(query, batch) of batches for which a commit was sent that should count."""
        self.aborted: set[tuple[str, int]] = set()
        """(query, batch) of batches that were aborted before any commit of them counted."""
        self.acked: set[tuple[str, int]] = set()

    def wrong(self, copies: Counter[str], *, trimmed: bool) -> Iterator[str]:
        """Yields a line for everything that is wrong with the rows that consumers can see. `trimmed`: messages may have
        been removed."""
        for row, count in copies.items():
            if count > 1:
                yield f"{row} is there {count} times"
        for batch, rows in self.rows.items():
            there = rows & copies.keys()
            if there and batch not in self.wanted:
                yield f"{min(there)} is there, and nobody committed batch {batch[1]} of {batch[0]}"
            if there and batch in self.aborted:
                yield f"{min(there)} is there, and batch {batch[1]} of {batch[0]} was aborted"
            if batch in self.acked and there != rows and not trimmed:
                yield f"batch {batch[1]} of {batch[0]} is committed, and {min(rows - there)} is not there"
            if there and there != rows and not trimmed:
                yield f"batch {batch[1]} of {batch[0]} is there without {min(rows - there)}"
        unknown = copies.keys() - frozenset().union(*self.rows.values())
        if unknown:
            yield f"{min(unknown)} is there, and no batch has it"


class Writers(Asker):
    """WRITERS streaming queries. After `stopped` is set, each finishes its last batch and waits until committed rows
    are copied."""

    def __init__(self, host: ClientHost, report: Report, draining: Callable[[], int]) -> None:
        """`draining`: returns the number of attempts, as far as any node knows, whose messages are still being copied
        or removed."""
        super().__init__(host, report)
        self.judge = WriteJudge()
        self._draining = draining

    def start(self) -> None:
        """Starts the queries as tasks."""
        for number in range(WRITERS):
            self._spawn(partial(self._query, f"query-{number}", random.Random(self.rng.random())))

    async def _query(self, name: str, rng: random.Random) -> None:
        query = _Query(self, name, rng)
        batch = 0
        while not self.stopped:
            batch += rng.choice((1, 1, 1, 3))
            rows = {f"{name}/{batch}/{task}/{row}" for task in range(TASKS) for row in range(rng.randint(1, 6))}
            self.judge.rows[name, batch] = frozenset(rows)
            while not await query.run(batch, sorted(rows)):  # noqa: ASYNC110 - as often as its driver dies
                await asyncio.sleep(rng.uniform(0.02, 0.2))
            await asyncio.sleep(rng.uniform(0.02, 0.3))
        while self._draining():  # noqa: ASYNC110 - nothing tells the load
            await asyncio.sleep(0.1)

    def report_wrong(self, what: str) -> None:
        """Reports a violation on behalf of a query."""
        self._report(CHECKER, what)

    async def dial(self, rng: random.Random, name: str) -> RawConnection | None:
        """Opens a connection for a query; returns None if that fails."""
        return await self._dial(rng, name)

    async def ask(self, connection: RawConnection, code: int, ext: dict[str, str], body: bytes) -> Answer | None:
        """Sends a query's request and returns its answer, None if none came."""
        return await self._ask(connection, code, ext, body)


class _Query:
    def __init__(self, writers: Writers, name: str, rng: random.Random) -> None:
        self._all, self._name, self._rng = writers, name, rng
        self._connection: RawConnection | None = None
        self._stale: list[tuple[int, int]] = []
        """(attempt, sequence number that it stages next) of tasks whose batch went on without them."""

    async def run(self, batch: int, rows: list[str]) -> bool:
        """Runs the driver for one batch. Returns True if the batch is known to be committed, now or before. Returns
        False if that is not known or the driver dies, also if it dies after the commit: the batch is then to be run
        again."""
        rng = self._rng
        winners: list[Try] = []
        for task in range(TASKS):
            of_task = [row for row in rows if int(row.split("/")[2]) == task]
            done = await self._task(batch, of_task)
            if done == "committed":
                return await self._commit(batch, winners, replayed=True)
            if done is None:
                return False
            assert not isinstance(done, str)
            winners.append(done)
        if rng.random() < 0.15:
            return False  # the driver dies between the tasks and the commit
        if rng.random() < 0.2:
            await self._wrong_commit(batch, winners)
        committed = await self._commit(batch, winners)
        await self._zombies()
        return committed and rng.random() >= 0.15  # or the driver dies after the commit

    async def _task(self, batch: int, rows: list[str]) -> Try | str | None:
        """Runs one task and returns the try that wins; "committed" if the batch already was; None if the outcome of a
        try is unknown."""
        last: Try | str | None = None
        for _ in range(self._rng.choice((1, 1, 2))):
            tried = await self._try(batch, rows, fails=False)
            if isinstance(tried, str) or tried is None:
                return tried
            last = tried if last is None or self._rng.random() < 0.5 else last
        if self._rng.random() < 0.3:
            await self._try(batch, rows, fails=True)
        return last

    async def _try(self, batch: int, rows: list[str], *, fails: bool) -> Try | str | None:
        rng = self._rng
        answer = await self._until(RequestCode.OPEN_ATTEMPT, {"name": self._name, "write": str(batch)})
        if answer is None:
            return None
        if "attempt" not in answer.ext:
            return "committed" if answer.code == ResponseCode.SUCCESS else None
        attempt, sequence = int(answer.ext["attempt"]), 0
        shuffled = rng.sample(rows, len(rows))
        while shuffled:
            size = rng.randint(1, min(3, self._all.host.options.batch_messages_max))
            part, shuffled = shuffled[:size], shuffled[size:]
            sequence += 1
            for _ in range(rng.choice((1, 1, 1, 2))):
                answer = await self._stage(attempt, sequence, part)
                if answer is None or answer.code != ResponseCode.SUCCESS:
                    return None
            if fails and rng.random() < 0.5:
                break
        if rng.random() < 0.3:
            self._stale.append((attempt, sequence + 1))
        return attempt, len(rows)

    async def _stage(self, attempt: int, sequence: int, rows: list[str]) -> Answer | None:
        ext = {"attempt": str(attempt), "sequence": str(sequence), "topic": TOPIC}
        if self._rng.random() < 0.5:
            ext["queueId"] = str(self._rng.randrange(QUEUES))
        return await self._until(
            RequestCode.STAGE_MESSAGES,
            ext,
            build_batch([BatchItem(0, self._all.host.marked(TOPIC, row), b"") for row in rows]),
        )

    async def _commit(self, batch: int, winners: list[Try], *, replayed: bool = False) -> bool:
        """Commits the batch; returns True if it is known to be committed."""
        judge = self._all.judge
        if not replayed:
            judge.wanted.add((self._name, batch))
        answer = None
        for _ in range(self._rng.choice((1, 1, 2))):
            answer = await self._until(RequestCode.COMMIT_WRITE, self._write(batch), json.dumps(winners).encode())
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return False
        judge.acked.add((self._name, batch))
        return True

    async def _wrong_commit(self, batch: int, winners: list[Try]) -> None:
        """Sends a commit that must not count: with one row too many or too few, or with an attempt that does not exist.
        Reports it if it succeeds."""
        (attempt, count), *rest = winners
        wrong = self._rng.choice(([(attempt, count + 1), *rest], [(attempt, count - 1), *rest], [(1 << 40, 1), *rest]))
        answer = await self._until(RequestCode.COMMIT_WRITE, self._write(batch), json.dumps(wrong).encode())
        known = (self._name, batch) in self._all.judge.wanted  # an earlier run of the driver has committed the batch
        if answer is not None and answer.code == ResponseCode.SUCCESS and not known:
            self._all.report_wrong(f"batch {batch} of {self._name} was committed with {wrong}, it has {winners}")

    async def _zombies(self) -> None:
        """Stages further rows from abandoned tasks, for which no driver waits."""
        for attempt, sequence in self._stale:
            await self._stage(attempt, sequence, [f"{self._name}/zombie/{attempt}"])
        self._stale.clear()

    def _write(self, batch: int) -> dict[str, str]:
        return {"name": self._name, "write": str(batch)}

    async def _until(self, code: int, ext: dict[str, str], body: bytes = b"") -> Answer | None:
        """Sends the request through one node after the other and returns the final answer; None when the driver gives
        up, after 40 tries."""
        for _ in range(40):
            connection = self._connection
            if connection is None or connection.closed or self._rng.random() < 0.05:
                connection = self._connection = await self._all.dial(self._rng, f"writer {self._name}")
            if connection is not None:
                answer = await self._all.ask(connection, code, ext, body)
                if answer is not None and answer.code not in AGAIN:
                    return answer
            await asyncio.sleep(self._rng.uniform(0.02, 0.3))
        return None


AGAIN = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR)
"""Response codes after which any request here may be repeated: nothing was done, or the outcome is unknown."""


def visible(machine: Machine) -> tuple[Counter[str], bool]:
    """Returns row -> number of copies of the topic's rows that consumers can see at this node, and True if some may
    have been trimmed."""
    messages, trimmed = stored_on(machine, TOPIC)
    return Counter(id_of(message.body) for message in messages), trimmed
