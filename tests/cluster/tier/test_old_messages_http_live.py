"""A node process whose oldest messages are only in the tier shows them over HTTP, and to `raftmq messages find`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftmq.cli import run as raftmq
from raftmq.client import connect
from raftmq.local.process import free_base_port
from raftmq_wire.errors import LocalError
from tests.cluster.tier.test_uploads_live import SMALL, TieredNodes

pytestmark = pytest.mark.live

EVICTING = {
    "RAFTMQ_TIER__EVICT": "true",
    "RAFTMQ_RETENTION__BYTES_MAX": "2097152",
    "RAFTMQ_RETENTION__EVERY_MS": "100",
    "RAFTMQ_RETENTION__DELETE_WHEN": "",
}
MESSAGES = 30


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredNodes]:
    """One for both tests, which only read."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (SMALL | EVICTING).items():
            patch.setenv(name, value)
        yield from evicted(tmp_path_factory.mktemp("evicting"))


def evicted(folder: Path) -> Iterator[TieredNodes]:
    made = TieredNodes(folder / "c", folder / "store")
    try:
        made.local.up(1, free_base_port(4), tier=str(made.store))
        with connect(made.servers) as mq:
            mq.admin.create_topic("kept", 2)
            for number in range(MESSAGES):
                mq.send("kept", b"%08d" % number + b"x" * 220_000, key=f"k{number}")
        made.wait_verified()
        made.local.down()  # writes a checkpoint, which an EVICT would otherwise wait for
        made.local.up()
        made.until(lambda: made.tier()["log_begins"] > 1 << 20, "an EVICT")
        made.until(lambda: not made.ask(1, "/v1/retention")["sweeping"], "its end")
        yield made
    finally:
        with contextlib.suppress(LocalError):
            made.local.down()


def shown(capsys: pytest.CaptureFixture[str], nodes: TieredNodes, *arguments: str) -> list[dict[str, Any]]:
    """Returns the output of `raftmq messages find`."""
    capsys.readouterr()
    assert raftmq(["message", *arguments, "--servers", nodes.servers, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_pages_keys_and_ids_reach_into_the_tier(nodes: TieredNodes, capsys: pytest.CaptureFixture[str]) -> None:
    ask = nodes.ask
    numbers: list[int] = []
    oldest: dict[str, Any] = {}
    for queue in (0, 1):
        path, at = f"/v1/topics/kept/queues/{queue}/messages", 0
        while True:
            page = ask(1, f"{path}?offset={at}&count=4&body_bytes=8")
            offsets = [one["queue_offset"] for one in page["messages"]]
            assert (page["min_offset"], page["unreadable"]) == (0, [])
            assert offsets == [*range(at, page["next_offset"])]
            numbers += [int(one["body"]) for one in page["messages"]]
            oldest = min([one for one in [oldest, *page["messages"]] if one], key=lambda one: int(one["body"]))
            at = page["next_offset"]
            if at == page["max_offset"]:
                break
            assert offsets
        by_time = ask(1, f"{path}?time_ms={oldest['store_ms'] - 1}&count=1&body_bytes=8")
        assert [one["queue_offset"] for one in by_time["messages"]] == [0]
    assert sorted(numbers) == [*range(MESSAGES)]

    assert oldest["position"] < nodes.tier()["log_begins"]
    (by_key,) = ask(1, "/v1/topics/kept/messages/k0?body_bytes=8")["messages"]
    by_position = ask(1, f"/v1/messages/{oldest['position']}?body_bytes=8")["message"]
    assert oldest == by_key == by_position
    assert ask(1, "/v1/topics/kept/messages/k")["messages"] == []
    for arguments in (["--topic", "kept", "--key", "k0"], ["--id", oldest["id"]]):
        (found,) = shown(capsys, nodes, *arguments)
        assert (found["queue_id"], found["queue_offset"]) == (oldest["queue_id"], 0)


def test_commands_say_where_evicted_messages_are(nodes: TieredNodes, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str) -> str:
        capsys.readouterr()
        assert raftmq([*words, "--data", str(nodes.local.data)]) == 0
        return " ".join(capsys.readouterr().out.split())

    nodes.until(lambda: nodes.ask(1, "/v1/topics/kept")["topic"]["evicted"] > 0, "messages in the tier alone")
    topic = nodes.ask(1, "/v1/topics/kept")["topic"]
    nodes_begin = nodes.ask(1, "/v1/retention")["trim_position"]
    below = [
        one
        for queue in (0, 1)
        for one in nodes.ask(1, f"/v1/topics/kept/queues/{queue}/messages?offset=0&count=32&body_bytes=0")["messages"]
        if one["position"] < nodes_begin
    ]
    assert topic["messages"] == MESSAGES
    assert topic["evicted"] == len(below), "exactly those below the nodes' log"
    assert f"kept: {MESSAGES} messages (" in (described := told("topic", "describe", "kept"))
    assert f"on the nodes, {len(below)} of them in the tier alone)" in described
    assert f"+ {len(below)} in the tier" in told("topic", "list")
    rules = told("retention")
    assert "the nodes keep messages" in rules
    assert "others leave them at any time, and can be read in the tier" in rules
    assert "removed" not in rules
