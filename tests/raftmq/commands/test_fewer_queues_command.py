"""What the commands ask when the number of queues changes, and what they say about what is hidden."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from cluster.backup.metadata import Metadata, TopicRecord
from raftmq.commands.data import metadata
from raftmq.commands.data.metadata import metadata as metadata_command
from raftmq.commands.messages.group import group
from raftmq.commands.messages.topic import topic

TOPIC: dict[str, Any] = {
    "name": "orders", "read_queues": 1, "write_queues": 4, "perm": 6, "attributes": {}, "messages": 80,
    "hidden": 60, "bytes": None, "bytes_exact": True,
}  # fmt: skip
QUEUE = {"queue_id": 1, "min_offset": 0, "max_offset": 20, "hidden": True}
OFFSET: dict[str, Any] = {
    "topic": "orders", "queue_id": 0, "committed_offset": 30, "min_offset": 0, "max_offset": 20, "lag": 0, "lag_ms": 0,
    "committed_age_ms": None, "owner": None, "hidden": True, "beyond_end": 10,
}  # fmt: skip


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The bodies that the commands send to a node that has TOPIC."""
    bodies: list[dict[str, Any]] = []

    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        bodies.append(body)
        return {"result": "updated", "topic": TOPIC}

    rows = {"offsets": [OFFSET], "queues": [QUEUE]}
    group_of = {"name": "g", "topics": ["orders"], "members": [], "lag": 60, "hidden": 60, "beyond_end": 1}
    api = SimpleNamespace(
        post=post,
        page=lambda path: {"topic": TOPIC},
        whole=lambda path, field: {"topic": TOPIC, **group_of, **rows},
        delete=lambda path: {"topic": TOPIC},
        local=lambda path: {"group": 1, "groups": []},
        pages=lambda path: iter([{"groups": [group_of | {"members": 0}]}]),
    )
    for module in (
        "commands.messages.topic",
        "commands.messages.group",
        "commands.data.metadata",
        "local.http.all_groups",
    ):
        monkeypatch.setattr(f"raftmq.{module}.AdminApi", lambda addresses, look="": api)
    return bodies


def run(command: Any, *words: str) -> str:
    result = CliRunner().invoke(command, [*words, "--admin", "127.0.0.1:1"])
    assert result.exit_code == 0, result.output
    return result.output


def test_queues_are_sent_only_where_they_are_named_and_now_only_where_it_is_given(posted: list[dict[str, Any]]) -> None:
    told = run(topic, "alter", "orders", "--dedup", "off")
    assert "60 messages hidden: consumers read only queue 0; more queues bring them back" in told
    run(topic, "alter", "orders", "--queues", "1", "--now")
    run(topic, "create", "orders", "--queues", "1", "--update")
    run(topic, "create", "orders", "--queues", "1", "--update", "--now")
    assert [{key: body.get(key) for key in ("queues", "now")} for body in posted] == [
        {"queues": None, "now": None},
        {"queues": 1, "now": True},
        {"queues": 1, "now": None},
        {"queues": 1, "now": True},
    ]


@pytest.mark.usefixtures("posted")
def test_what_is_hidden_or_beyond_the_end_is_said() -> None:
    told = run(topic, "describe", "orders")
    assert "orders: 80 messages (60 of them hidden) in 4 queues" in told
    assert "hidden" in told.splitlines()[-1]
    assert "would go with 80 messages (60 of them hidden)" in run(topic, "delete", "orders", "--dry-run")
    told = run(group, "describe", "g")
    assert "g: lag 60 (offset beyond the end in 1 queue, 60 hidden); members" in told
    assert "committed 10 beyond the end, hidden" in told
    assert "offset beyond the end in 1 queue, 60 hidden" in run(group, "list")


def test_an_import_is_checked_as_a_whole_before_anything_is_changed(
    posted: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "CHUNK_BYTES", 1)  # a request for each topic
    present = Metadata(cluster_uuid="u", applied_index=1, topics=[], groups=[], offsets=[], ends={})
    monkeypatch.setattr(metadata, "_present", lambda api: present)
    record = {"read_queues": 1, "write_queues": 1, "perm": 6, "order": False, "sys_flag": 0, "attributes": {}}
    records = [TopicRecord(name=name, **record) for name in ("a", "b")]  # type: ignore[arg-type]
    file = tmp_path / "m.json"
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(present, topics=records)))
    run(metadata_command, "import", str(file), "--yes")
    asked = [(body["topics"][0]["name"], body.get("dry_run"), body.get("now")) for body in posted]
    assert asked == [("a", True, None), ("b", True, None), ("a", None, None), ("b", None, None)]
    posted.clear()
    run(metadata_command, "import", str(file), "--yes", "--now")
    asked = [(body["topics"][0]["name"], body.get("dry_run"), body.get("now")) for body in posted]
    assert asked == [("a", None, True), ("b", None, True)]
