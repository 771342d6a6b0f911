"""The comparisons of `report-000` at its end, on a pretended cluster and real files: each check must be able to
fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xxhash import xxh3_128

from jepsen_like.live.probes.keyed_messages import KeyedMessages
from jepsen_like.live.probes.tier_probe import TierProbe
from raftmq.local.http.list_pages import whole_list

SEGMENT = 100


class Nodes:
    """Two nodes that know the same rows."""

    node_ids = (1, 2)

    def __init__(self, data: Path) -> None:
        self.data = data
        self.rows: dict[int, list[dict[str, Any]]] = {1: [], 2: []}

    def request(self, node: int, method: str, path: str, body: Any = None) -> Any:
        since = int(path.partition("since=")[2] or 0)
        left = [row for row in self.rows[node] if row["end"] > since]
        return {"segments": left[:2], "next": left[2]["base"] if len(left) > 2 else None}

    def whole(self, node: int, path: str, field: str, *, cursor: str) -> Any:
        return whole_list(lambda page: self.request(node, "GET", page), path, field, cursor)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    """Nodes with three segments in the store, in the rows and in the manifest."""
    made = Nodes(tmp_path)
    folder = tmp_path / "store/c"
    for kind in ("log", "index", "manifest"):
        (folder / kind).mkdir(parents=True)
    segments = []
    for number in range(3):
        parts = {}
        for kind in ("log", "index"):
            data = f"{kind} {number}".encode()
            (folder / kind / str(number)).write_bytes(data)
            parts[kind] = [{"name": f"{kind}/{number}", "xxh3": xxh3_128(data).hexdigest()}]
        base, end = number * SEGMENT, (number + 1) * SEGMENT
        segments.append({"base": base, "end": end, "parts": parts["log"], "index": parts["index"]})
        names = [f"log/{number}", f"index/{number}"]
        for rows in made.rows.values():
            rows.append({"base": base, "end": end, "state": "verified", "parts": names})
    publish(folder, segments)
    return made


def publish(folder: Path, segments: list[dict[str, Any]]) -> None:
    body = json.dumps({"segments": segments}).encode()
    (folder / "manifest/1.json").write_bytes(body)
    head = {"key": "manifest/1.json", "sha256": sha256(body).hexdigest()}
    (folder / "manifest/HEAD").write_text(json.dumps(head))


def differences(nodes: Nodes, position: int = 3 * SEGMENT) -> list[str]:
    subject: Any = nodes
    return TierProbe(subject).differences(position)


def forget_last(nodes: Nodes) -> None:
    folder = nodes.data / "store/c"
    publish(folder, json.loads((folder / "manifest/1.json").read_bytes())["segments"][:2])


def leave_temporary(nodes: Nodes) -> None:
    (nodes.data / "store/.raftmq/tmp").mkdir(parents=True)
    (nodes.data / "store/.raftmq/tmp/half").write_bytes(b"")


WRONG: list[tuple[Callable[[Nodes], object], list[str]]] = [
    (lambda nodes: None, []),
    (
        lambda nodes: nodes.rows[2][1].update(state="uploaded"),
        ["node 2 has the segment at 100 as uploaded"],
    ),
    (lambda nodes: nodes.rows[1].pop(), ["node 1 knows 2 segments, the manifest has 3, or others"]),
    (
        lambda nodes: (nodes.data / "store/c/log/1").write_bytes(b"log 2"),
        ["log/1 is not there, or not right"],
    ),
    (lambda nodes: (nodes.data / "store/c/index/2").unlink(), ["index/2 is not there, or not right"]),
    (lambda nodes: (nodes.data / "store/c/log/1-1").write_bytes(b"log 1"), ["log/1-1 is an orphan"]),
    (leave_temporary, ["a temporary file was left: half"]),
    (
        forget_last,
        [
            "node 1 knows 3 segments, the manifest has 2, or others",
            "node 2 knows 3 segments, the manifest has 2, or others",
            "index/2 is an orphan",
            "log/2 is an orphan",
            "the manifest ends at 200, the last closed segment at 300",
        ],
    ),
]


@pytest.mark.parametrize(("spoil", "told"), WRONG)
def test_states_manifest_and_listing_must_agree(
    nodes: Nodes, spoil: Callable[[Nodes], object], told: list[str]
) -> None:
    spoil(nodes)
    assert differences(nodes) == told


def test_a_request_that_is_not_answered_is_asked_again(nodes: Nodes) -> None:
    views = {"verified_to": 3 * SEGMENT, "number": 1, "running": False, "failure": ""}
    left: list[OSError | dict[str, Any]] = [OSError("timed out"), views, views, OSError("timed out"), views]

    def request(node: int, method: str, path: str, body: Any = None) -> Any:
        outcome = left.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    subject: Any = SimpleNamespace(data=nodes.data, request=request)
    probe = TierProbe(subject)
    assert probe.wait_verified(1, 3 * SEGMENT, 60.0)
    assert probe.scrub(1, 60.0) == views
    assert left == []


def test_a_log_that_goes_on_behind_the_manifest_is_told(nodes: Nodes) -> None:
    assert differences(nodes, 400) == ["the manifest ends at 300, the last closed segment at 400"]


def test_a_store_that_is_cut_off_is_no_directory_and_comes_back_whole(nodes: Nodes) -> None:
    subject: Any = nodes
    probe = TierProbe(subject)
    with probe.cut_off(), pytest.raises(NotADirectoryError):
        (probe.store / "c/log/1").read_bytes()
    assert differences(nodes) == []


def message(number: int, offset: int) -> SimpleNamespace:
    return SimpleNamespace(body=number.to_bytes(8, "big") + b"..", queue_offset=offset)


class Client:
    """A client that finds messages 0 and 1 in the first queue of the only topic, or what a test makes of it."""

    def __init__(self) -> None:
        self.messages, self.low, self.high = [message(0, 0), message(1, 1)], 0, 2
        self.admin = self

    def pull(self, topic: str, queue: int, offset: int) -> Any:
        if queue:
            return SimpleNamespace(messages=[], min_offset=0, max_offset=0)
        left = [one for one in self.messages if one.queue_offset >= offset][:1]
        return SimpleNamespace(messages=left, min_offset=self.low, max_offset=self.high)

    def query_messages(self, topic: str, key: str) -> list[Any]:
        return [one for one in self.messages if key == f"k{one.queue_offset}"]


@pytest.fixture
def sent() -> tuple[KeyedMessages, Client]:
    """Messages 0 and 1 are acknowledged; the outcome of 2 is not known."""
    messages, client = KeyedMessages.__new__(KeyedMessages), Client()
    messages._topics, messages._client, messages._acked = ("t",), client, bytearray((1, 1, 0))  # type: ignore[assignment]
    return messages, client


def test_what_was_acknowledged_is_read_from_offset_zero_without_a_gap(sent: tuple[KeyedMessages, Client]) -> None:
    messages, client = sent
    assert messages.read_all() == []
    client.messages[1] = message(2, 1)
    assert messages.read_all() == ["1 acknowledged messages are not there, the first is number 1"]
    client.messages[1] = message(1, 2)
    assert messages.read_all()[0] == "queue 0 of t has a gap: 2 to 2 instead of 1"
    client.messages, client.low = [], 1
    assert messages.read_all()[0] == "queue 0 of t has a gap: nothing, from 1 on instead of 0"
    client.low = 0
    assert messages.read_all()[0] == "queue 0 of t ends at 0, not at its end"


def test_a_key_that_finds_another_message_or_none_is_told(sent: tuple[KeyedMessages, Client]) -> None:
    messages, client = sent
    assert messages.find(1, 0.0) == ""
    client.messages[1] = message(0, 1)
    assert "does not find it" in messages.find(1, 0.0)
    client.messages.pop()
    assert "does not find it" in messages.find(1, 0.0)
