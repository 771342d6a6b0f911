"""A producer's answers to transaction checks: the cluster asks for the outcome of a transaction (request 39), the
user's check function decides, and the producer ends the transaction (request 37).

Requests arrive on the connections that this producer's heartbeats keep open to every node. One check runs at a time, as
in RocketMQ; while HOLD_MAX checks wait, a further request is dropped, because the cluster asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from raftmq.client.cluster_view import Backoff, ClusterView
from raftmq.client.connection import Reply
from raftmq.client.consuming.heartbeat import Heartbeats
from raftmq.client.errors import Failed, RaftMQError, Unreachable, error_of
from raftmq.client.message import Message, decode_messages
from raftmq.client.producing.transaction_end import Half, Resolution, TransactionEnds
from raftmq_wire.codec import Header, ext_of
from raftmq_wire.codes import RequestCode
from raftmq_wire.queue_numbers import number_of

HOLD_MAX = 2000
"""The most checks that one producer holds (RocketMQ's checkRequestHoldMax)."""

Decide = Callable[[Message], Awaitable[Resolution]]

_log = logging.getLogger("raftmq")


class _Check(NamedTuple):
    half: Half
    message: Message


class CheckBack:
    """Answers the checks for one producer of a group. Lifecycle: `open`, then the cluster may ask at any time until
    `close`."""

    def __init__(self, view: ClusterView, group: str, decide: Decide, ends: TransactionEnds) -> None:
        self._view = view
        self._group = group
        self._decide = decide
        self._ends = ends
        self._heartbeats = Heartbeats(view, consumers=[], producers=[{"groupName": group}], ask=self._on_request)
        self._waiting: deque[_Check] = deque()
        self._in_hand: set[str] = set()
        """Ids of messages whose check waits or runs, or whose answer is in flight."""
        self._asked = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, timeout_s: float) -> None:
        """Registers the producer; returns when a node knows it and can ask it. Raises Refused for an invalid group
        name, and Unreachable."""
        backoff = Backoff(self._view.jitter)
        what = f"producer group {self._group}"
        try:
            async with asyncio.timeout(timeout_s):
                while not (replies := await self._beat()):
                    await backoff.pause()
        except TimeoutError:
            self._heartbeats.close()
            servers = ", ".join(self._view.servers)
            raise Unreachable(f"{what}: no server took its heartbeat ({servers})", retryable=True) from None
        if all(reply.code for reply in replies):
            self._heartbeats.close()
            raise error_of(replies[0].code, replies[0].remark, what)
        self._spawn(self._keep_known())
        self._spawn(self._work())

    async def _beat(self) -> list[Reply]:
        """Sends heartbeats to all groups of brokers: any may have messages of a transaction."""
        return await self._heartbeats.beat(self._view.groups.numbers())

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_known(self) -> None:
        while True:
            every_s = self._view.environment.patience.heartbeat_every_s
            await asyncio.sleep(every_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s * 2):
                    await self._beat()

    def _on_request(self, group_of_brokers: int, header: Header, body: bytes) -> None:
        if header.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        try:
            check = _parse(group_of_brokers, header, body)
        except (KeyError, ValueError, RaftMQError) as error:
            _log.warning("group %s: a check is not understood: %r", self._group, error)
            return
        if check.message.properties.get("PGROUP") != self._group:
            return
        if check.half.message_id in self._in_hand or len(self._in_hand) >= HOLD_MAX:
            return
        self._in_hand.add(check.half.message_id)
        self._waiting.append(check)
        self._asked.set()

    async def _work(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._waiting:
                check = self._waiting.popleft()
                resolution = await self._resolve(check)
                if resolution is Resolution.UNDECIDED:
                    self._in_hand.discard(check.half.message_id)
                else:  # sent in the background, so that a slow answer delays no other check
                    self._spawn(self._answer(check.half, resolution))

    async def _resolve(self, check: _Check) -> Resolution:
        try:
            return _resolution(await self._decide(check.message))
        except Exception:  # noqa: BLE001 - the program's own function
            _log.exception("group %s: the check of %s failed", self._group, check.half.message_id)
            return Resolution.UNDECIDED

    async def _answer(self, half: Half, resolution: Resolution) -> None:
        what = f"check of transaction {half.message_id}"
        try:
            await self._ends.ask(half, resolution, what=what, from_check=True)
        except RaftMQError as error:
            _log.warning("group %s: %s", self._group, error)  # no retry: the cluster asks again
        finally:
            self._in_hand.discard(half.message_id)

    async def close(self) -> None:
        """Cancels the checks and unregisters the producer: the cluster then asks other producers of the group."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._heartbeats.leave(producer_group=self._group)


def _resolution(answer: object) -> Resolution:
    """Returns the answer of the user's check function. Raises TypeError if it is no Resolution."""
    if not isinstance(answer, Resolution):
        raise TypeError(f"the check answered {answer!r}, which is no Resolution")
    return answer


def _parse(group: int, header: Header, body: bytes) -> _Check:
    """Decodes a check request. Raises KeyError, ValueError or Failed for a malformed one."""
    ext = ext_of(header)
    (message,) = decode_messages(body, first_queue=number_of(group, 0))
    if message.undecoded:  # the user's function decides by the body, so the body must be readable
        raise Failed(f"{message.place} {message.undecoded}")
    half = Half(message.topic, ext["msgId"], int(ext["tranStateTableOffset"]), int(ext["commitLogOffset"]), group)
    return _Check(half, message)
