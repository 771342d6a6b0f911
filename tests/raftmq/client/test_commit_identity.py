"""Commits of the client: every attempt under one identity, and what is settled is said with the next one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftmq.client.consuming.offsets import Offsets
from raftmq.client.errors import Unknown


class View:
    """Keeps what is asked for; the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, str], asyncio.Future[None]]] = []
        self.group, self.groups = 1, self

    async def at(self, queue: int) -> View:
        return self

    def new_session(self) -> bytes:
        return bytes(range(16))

    async def call(self, code: int, ext: dict[str, str], **_: Any) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.append((ext, answer))
        await answer

    def identities(self) -> list[tuple[str, str]]:
        assert {ext["raftmqPid"] for ext, _ in self.asked} == {bytes(range(16)).hex()}
        return [(ext["raftmqSeq"], ext["raftmqLow"]) for ext, _ in self.asked]


async def test_what_is_settled_is_said_with_the_next_commit() -> None:
    view = View()
    offsets = Offsets(view)  # type: ignore[arg-type]

    def commit(queue: int) -> asyncio.Task[None]:
        return asyncio.ensure_future(offsets.commit("g", "T", queue, 5))

    first, second = commit(0), commit(1)
    await asyncio.sleep(0)
    view.asked[1][1].set_result(None)
    await second
    third = commit(1)
    await asyncio.sleep(0)
    assert view.identities() == [("1", "1"), ("2", "1"), ("3", "1")], "the first is not settled"
    view.asked[0][1].set_exception(Unknown("nobody answered"))
    with pytest.raises(Unknown):
        await first
    fourth = commit(0)
    await asyncio.sleep(0)
    assert view.identities()[3] == ("4", "3"), "given up is settled too: it must not come any more"
    for _, answer in view.asked[2:]:
        answer.set_result(None)
    await asyncio.gather(third, fourth)
