"""Connections that close together are looked at together, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.broker.sends.closed_connections import ClosedConnections


class Path:
    """A connection that is closed."""

    closed = True


def test_many_that_close_in_one_turn_are_told_once_and_in_turn() -> None:
    soon: list[Callable[[], None]] = []
    told: list[tuple[str, list[Any]]] = []
    closings = ClosedConnections(soon.append)
    closings.listen(lambda closed: told.append(("first", list(closed))))
    closings.listen(lambda closed: told.append(("second", list(closed))))
    paths: list[Any] = [Path() for _ in range(1000)]
    for path in paths:
        closings.add(path)
    assert len(soon) == 1
    assert all(closings.hears(path) for path in paths)
    soon.pop()()
    assert told == [("first", paths), ("second", paths)]
    assert not any(closings.hears(path) for path in paths)
    closings.add(paths[0])
    assert len(soon) == 1, "one that closes later has its own look"


def test_a_look_that_a_request_brought_leaves_nothing_for_the_turn() -> None:
    soon: list[Callable[[], None]] = []
    told: list[list[Any]] = []
    closings = ClosedConnections(soon.append)
    closings.listen(lambda closed: told.append(list(closed)))
    path: Any = Path()
    closings.add(path)
    closings.look()
    soon.pop()()
    assert told == [[path]]
