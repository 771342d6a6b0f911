"""Each part of a real node fails, at start and at close: what is open is closed, and the directory opens again."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cluster.config.config import Config
from cluster.config.loading import load
from cluster.node.node import Node
from cluster.runtime.service_lifecycle import Part, Parts, codes_of
from raftmq.local.init import create_data_dirs
from raftmq.local.process import free_base_port
from tests.support.small_segments import LOG


class BrokenError(Exception):
    """Raised by the step that is made to fail."""


class Watched(Parts):
    """The real parts; one step of one of them fails after it has done its work, or instead of it."""

    def __init__(self, parts: Iterable[Part], broken: tuple[str, str] = ("", "")) -> None:
        """`broken`: name of a part, and of its hook."""
        self.broken = broken
        self.called: list[tuple[str, str]] = []
        super().__init__([self._watched(part) for part in parts])

    def _watched(self, part: Part) -> Part:
        steps = {hook: self._step(part, hook) for hook in ("start", "close") if getattr(part, hook) is not None}
        changed: Any = steps
        return dataclasses.replace(part, **changed)

    def _step(self, part: Part, hook: str) -> Any:
        real = getattr(part, hook)

        async def step() -> None:
            self.called.append((hook, part.name))
            if self.broken == (part.name, hook) and hook == "start":
                raise BrokenError
            waits = real()
            if waits is not None:
                await waits
            if self.broken == (part.name, hook):
                raise BrokenError

        return step


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A lone node with every port."""
    base = free_base_port(4)
    path = tmp_path / "n1.toml"
    path.write_text(
        f'[node]\nid = 1\ndata_dir = "{tmp_path}/n1"\n[[peers]]\nid = 1\nport = {base}\n'
        f'listeners = {{broker = "127.0.0.1:{base + 1}"}}\n[peer]\nport = {base}\n'
        f'[[listeners]]\nname = "broker"\nport = {base + 1}\n[admin]\nport = {base + 2}\n{LOG}'
    )
    create_data_dirs([path])
    return load(path)


def ports_are_free(config: Config) -> bool:
    for port in (config.peer.port, config.listeners[0].port, config.admin.port):
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port))
    return True


async def ended(node: Node) -> None:
    """Closes the node without waiting for clients."""
    node.hurried = True
    await node.close()


def watched(config: Config, broken: tuple[str, str] = ("", "")) -> tuple[Node, Watched]:
    """A node, and its parts."""
    made: list[Watched] = []

    def parts(given: Iterable[Part]) -> Watched:
        made.append(Watched(given, broken))
        return made[-1]

    node = Node(config, parts=parts)
    return node, made[-1]


async def test_the_codes_of_all_parts_are_those_that_the_router_serves(config: Config) -> None:
    node, parts = watched(config)
    await node.start()
    assert parts.codes == codes_of(node.serving.remoting.serving)
    await ended(node)


async def test_each_part_fails_at_start_and_those_before_it_are_closed(config: Config) -> None:
    whole, parts = watched(config)
    await whole.start()
    await ended(whole)
    started = [name for hook, name in parts.called if hook == "start"]
    closes = {name for hook, name in parts.called if hook == "close"}
    assert len(started) > 10
    for at, name in enumerate(started):
        node, parts = watched(config, broken=(name, "start"))
        with pytest.raises(BrokenError):
            await node.start()
        never = set(started[at:])
        assert [each for hook, each in parts.called if hook == "start"] == started[: at + 1]
        assert {each for hook, each in parts.called if hook == "close"} == closes - never, name
        assert ports_are_free(config)


async def test_each_part_fails_at_close_and_the_rest_is_closed(config: Config) -> None:
    whole, parts = watched(config)
    await whole.start()
    await ended(whole)
    closed = [name for hook, name in parts.called if hook == "close"]
    assert closed[-1] == "storage"
    for name in closed:
        node, found = watched(config, broken=(name, "close"))
        await node.start()
        await ended(node)
        assert [each for hook, each in found.called if hook == "close"] == closed
        assert isinstance(node.failure, BrokenError)
        assert ports_are_free(config)
    again = Node(config, parts=Watched)
    await again.start()
    await asyncio.sleep(0)
    await ended(again)
    assert again.failure is None
