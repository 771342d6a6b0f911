"""One committed offset that goes up and down: commits of every kind on one connection, and queries that must see them
in order.

Oneway commits, commits in pulls, commits with an answer, and deletions of the group with its offsets all follow each
other without waiting. The promise (docs/guarantees.md) is about one connection, also through a follower: once a commit
is answered, no query shows a change that was sent before this commit. A client that asks the leader itself sees its own
oneway commits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from jepsen_like.client_kit.fields import group_body, place_of, pull_fields
from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import TOPIC, Client, ClientHost
from jepsen_like.sim.clients.history_recorder import Recorder
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.options import stream
from raftmq_wire.codes import RequestCode, ResponseCode

KINDS = ("oneway", "oneway", "oneway", "commit", "commit", "pull", "query", "query")
TALES = (("oneway", "delete", "make"), ("commit", "delete", "make"), ("pull", "delete", "make"), ("oneway", "commit"))
"""Sequences of steps without a pause between them. Only queries follow, so that a delayed change has time to take
effect.
"""
STALE_S = 3.0
"""Longest time in seconds that a connection's oldest request may wait before the client gives the connection up."""


class OffsetChange(NamedTuple):
    """One change of the offset that was sent, and the number of its connection."""

    kind: str
    """Kind of the change: oneway, commit, pull or delete."""
    value: int | None
    """Offset that the step sets; None for a deletion."""
    connection: int


class Question(NamedTuple):
    """A query that was sent, with the steps that its answer must reflect at least, as indexes into `steps`."""

    low: int
    """The newest step that was answered, or read, before the query was sent; -1: none."""
    own: int
    """The answer must show this step or a newer one if the same leader answers; -1: none."""
    reign: object
    """Term of the leader to which the step `own` was sent; None without such a step."""


class OffsetCommits(Client):
    """The client that commits and queries one group's offset. `reign(host)` reads the nodes' state: it returns the term
    if the node at that host leads and takes writes, else None.
    """

    def __init__(
        self, name: str, host: ClientHost, recorder: Recorder, report: Report, reign: Callable[[str], object]
    ) -> None:
        super().__init__(host)
        self.group, self._recorder, self._report, self._reign = name, recorder, report, reign
        self.steps: list[OffsetChange] = []
        self._index: dict[int, int] = {}
        """Committed value -> index of the step that set it."""
        self._answered: set[int] = set()
        self._low = -1
        self._exists = False
        """True if the group exists, by the last answer about it."""
        self._own = (-1, None, 0)
        """The newest step sent directly to a leader, as (index of the step, the leader's term, connection number)."""
        self.connection: RawConnection | None = None
        self._number = 0
        self._node = ""

    # --- by itself ---------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        rng, tales = random.Random(self.rng.random()), stream(self.host.options.seed, f"tales of {self.group}")
        while not self.stopped:
            if not await self._stands(rng):
                await asyncio.sleep(0.1)
                continue
            if not self._exists:
                self.step("make")
            if tales.random() < self.host.options.tales:
                await self._tale(tales)
                continue
            for _ in range(rng.randint(1, 6)):
                self.step("delete" if rng.random() < 0.03 else rng.choice(KINDS))
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.uniform(0.0, 0.03))
            await asyncio.sleep(rng.uniform(0.02, 0.25))
        if self.connection is not None:
            self.connection.transport.close()

    async def _tale(self, rng: random.Random) -> None:
        for kind in rng.choice(TALES):
            self.step(kind)
        await asyncio.sleep(rng.uniform(0.1, 0.4))
        if self.connection is not None:
            self.step("query")
            await asyncio.sleep(0.1)

    async def _stands(self, rng: random.Random) -> bool:
        """Returns True if there is a working connection; now and then opens another one."""
        connection, before_s = self.connection, self.host.loop.now - STALE_S
        lives = connection is not None and not connection.closed and not connection.overdue(before_s)
        if lives and rng.random() < 0.97:
            return True
        if connection is not None:
            connection.transport.abort()
        try:
            await self.connect(rng.choice(self.host.nodes))
        except OSError:
            self.connection = None
            return False
        return True

    async def connect(self, node: str) -> None:
        """Opens a new connection; only the steps on it are ordered among each other. Raises OSError."""
        self._number += 1
        self._node, self._own = node, (-1, None, 0)
        made = RawConnection(f"{self.group} at {node}", self.host.loop, self._report, self.host.credentials)
        self.connection = await made.reach(node)

    # --- steps -------------------------------------------------------------------------------------------------------

    def step(self, kind: str) -> None:
        """Sends the next step or query. Raises KeyError for an unknown kind."""
        sends = {
            "oneway": self._change,
            "commit": self._change,
            "pull": self._change,
            "delete": self._delete,
            "make": self._make,
            "query": self._query,
        }
        send = sends[kind]
        self.host.process.run(send, kind)

    def _sent(self, kind: str, value: int | None) -> int:
        self.steps.append(OffsetChange(kind, value, self._number))
        at = len(self.steps) - 1
        if value is not None:
            self._index[value] = at
        reign = self._reign(self._node)
        if kind in ("oneway", "pull") and reign is not None and self._exists:
            self._own = (at, reign, self._number)  # type: ignore[assignment]
        return at

    def _change(self, kind: str) -> None:
        assert self.connection is not None
        value = (len(self.steps) * 7919 + 13) % 1_000_003
        at = self._sent(kind, value)
        commits = {"commitOffset": str(value)}
        fields = place_of(self.group, TOPIC, 0) | commits
        if kind == "pull":
            along = {"sysFlag": "5"} | commits
            self._write(RequestCode.PULL_MESSAGE, pull_fields(self.group, TOPIC, count=1) | along)
        elif kind == "oneway":
            self._write(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=True)
        else:
            op = self._recorder.invoke("tide", value)
            self._write(RequestCode.UPDATE_CONSUMER_OFFSET, fields, heard=partial(self._on_changed, at, op))

    def _delete(self, kind: str) -> None:
        at = self._sent(kind, None)
        self._exists = False
        op = self._recorder.invoke("tide", None)
        fields = {"groupName": self.group, "cleanOffset": "true"}
        self._write(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields, heard=partial(self._on_changed, at, op))

    def _make(self, kind: str) -> None:
        number = len(self.steps)

        def made(answer: Answer) -> None:
            deleted = any(step.kind == "delete" for step in self.steps[number:])
            self._exists = answer.code == ResponseCode.SUCCESS and not deleted

        self._write(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group_body(self.group), heard=made)

    def _query(self, kind: str) -> None:
        fields = place_of(self.group, TOPIC, 0) | {"setZeroIfNotFound": "false"}
        at, reign, number = self._own
        asked = Question(self._low, at if number == self._number else -1, reign)
        self._write(RequestCode.QUERY_CONSUMER_OFFSET, fields, heard=partial(self._on_found, asked))

    def _write(
        self,
        code: int,
        fields: dict[str, str],
        body: bytes = b"",
        *,
        oneway: bool = False,
        heard: Callable[[Answer], None] | None = None,
    ) -> None:
        assert self.connection is not None
        self.connection.write(self.connection.frame(code, fields, body, oneway=oneway, heard=heard))

    # --- answers -----------------------------------------------------------------------------------------------------

    def _on_changed(self, at: int, op: object, answer: Answer) -> None:
        ok = answer.code == ResponseCode.SUCCESS
        self._recorder.end(op, "ok" if ok else "info", self.steps[at].value)  # type: ignore[arg-type]
        if ok:
            self._answered.add(at)
            self._low = max(self._low, at)

    def _on_found(self, asked: Question, answer: Answer) -> None:
        if answer.code == ResponseCode.SUCCESS:
            value = int(answer.ext["offset"])
            at = surely = self._index.get(value, -2)
        elif answer.code == ResponseCode.QUERY_NOT_FOUND:
            value = None
            deletions = [n for n, step in enumerate(self.steps) if step.kind == "delete"]
            at = max(deletions, default=-1)
            surely = min((n for n in deletions if n >= asked.low), default=-1)  # any of them explains the answer
        else:
            return
        if at == -2:
            self._report("order", f"{self.group}: {value} was read, which nobody committed")
        elif at < asked.low and not self._may_come_late(at, asked.low):
            what, newer = self._named(at), self._named(asked.low)
            self._report("order", f"{self.group}: {what} is read although {newer} was answered or read before")
        elif at < asked.own and asked.reign == self._reign(self._node) and not self._may_come_late(at, asked.own):
            what, own = self._named(at), self._named(asked.own)
            self._report("order", f"{self.group}: {what} is read behind {own}, sent to the leader just before")
        elif surely > self._low:
            self._low = surely

    def _may_come_late(self, at: int, newer: int) -> bool:
        """Returns True if an older step may take effect after a newer one: it was not answered, and came over another
        connection."""
        read = self.steps[at].value if at >= 0 else None
        late = [at] if read is not None else [n for n, step in enumerate(self.steps) if step.kind == "delete"]
        return any(n not in self._answered and self.steps[n].connection != self.steps[newer].connection for n in late)

    def _named(self, at: int) -> str:
        if at < 0:
            return "no offset"
        step = self.steps[at]
        return f"{step.kind} {step.value} (step {at}, connection {step.connection})"
