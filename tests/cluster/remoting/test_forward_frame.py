"""Frames that another node passes on, with headers that are none: refused before anything is done with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

from cluster.flow.gate import Gate
from cluster.remoting.forward.forward_frame import decode_forward
from cluster.remoting.forward.forwarded_path import ForwardedPath
from cluster.replication.acks.write_reports import WrittenRelay
from cluster.replication.send_identity import Identity
from cluster.runtime.peer_frames import Kind, WireError
from raftlog.types import NodeId
from tests.support.contexts import CONFIG
from tests.support.rows import each_row

GOOD: list[Any] = [7, "10.0.0.1", 5000, "default", [b"p" * 16, 3, 2], 9, 4]


def test_a_good_header_is_read() -> None:
    told = decode_forward(GOOD)
    assert (told.forward_id, told.client, told.listener, told.term, told.user) == (
        *(7, ("10.0.0.1", 5000), "default", 9, 4),
    )
    assert told.identity == Identity(b"p" * 16, 3, 2)
    assert decode_forward([*GOOD[:4], None, 9, 0]).identity is None


@each_row("place", range(7))
@each_row("value", [[], {}, 1.5, float("inf"), -1, 1 << 64, b"x", ["a", 1, 1], [b"p", -1, 1], [b"", 1, 1]])
def test_a_field_that_is_none_is_refused(place: int, value: Any) -> None:
    with pytest.raises(WireError):
        decode_forward([*GOOD[:place], value, *GOOD[place + 1 :]])


@pytest.mark.parametrize("header", [[], GOOD[:6], [*GOOD, 1], [[GOOD]]])
def test_a_header_of_another_length_is_refused(header: list[Any]) -> None:
    with pytest.raises(WireError):
        decode_forward(header)


@each_row("entry", [[float("inf"), 1], [1, float("nan")], ["1", 2], [1, -1], [1], [[1], 2]])
def test_a_place_in_the_log_that_is_none_is_refused(entry: list[Any]) -> None:
    relay = WrittenRelay(1, MagicMock(), early := MagicMock(), MagicMock(), MagicMock(), MagicMock(), MagicMock())  # type: ignore[arg-type]
    with pytest.raises(WireError):
        relay.on_frame(2, Kind.WRITTEN, entry)  # type: ignore[arg-type]
    early.written.assert_not_called()


@pytest.mark.parametrize(
    "end",
    [
        lambda path: path.write(b"an answer"),
        lambda path: path.unanswered(),
        lambda path: path.hand_back(),
        lambda path: path.client_gone(),
    ],
    ids=["answered", "oneway", "handed back", "client gone"],
)
def test_whoever_keeps_something_of_a_path_hears_once_that_its_request_is_over(
    end: Callable[[ForwardedPath], None],
) -> None:
    under_way: dict[Any, Any] = {}
    room, gate = MagicMock(), Gate(CONFIG)
    path = ForwardedPath(MagicMock(), NodeId(2), 7, ("10.0.0.1", 5000), "broker", room, Counter(), gate, under_way)
    under_way[NodeId(2), 7] = path
    heard: list[str] = []
    path.on_close.append(lambda: heard.append("over"))
    end(path)
    path.client_gone()
    assert (heard, under_way, path.on_close) == (["over"], {}, [])
