"""What the commands ask when the number of queues changes, and what they say about what is hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from cluster.backup.metadata import Metadata, TopicRecord
from raftmq.commands.data.metadata import CHUNK_BYTES
from raftmq.commands.data.metadata import metadata as metadata_command
from raftmq.commands.messages.group import group
from raftmq.commands.messages.topic import topic
from raftmq.local.http.admin_http import ApiRefusal
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.answering_api import Asked, MakeApi

TOPIC: dict[str, Any] = {
    "name": "orders", "read_queues": 1, "write_queues": 4, "perm": 6, "attributes": {}, "messages": 80,
    "hidden": 60, "bytes": None, "bytes_exact": True,
}  # fmt: skip
QUEUE = {"queue_id": 1, "min_offset": 0, "max_offset": 20, "hidden": True}
NOTHING: dict[str, Any] = {"topics": [], "groups": [], "offsets": [], "ends": {}}
OFFSET: dict[str, Any] = {
    "topic": "orders", "queue_id": 0, "committed_offset": 30, "min_offset": 0, "max_offset": 20, "lag": 0, "lag_ms": 0,
    "committed_age_ms": None, "owner": None, "hidden": True, "beyond_end": 10,
}  # fmt: skip


class Node:
    """A node that has TOPIC, and the bodies that the commands sent it."""

    def __init__(self, make_api: MakeApi) -> None:
        self.bodies: list[dict[str, Any]] = []
        group_of = {"name": "g", "topics": ["orders"], "members": [], "lag": 60, "hidden": 60, "beyond_end": 1}
        self.api = make_api(
            {
                "GET /v1/topics/orders": {"topic": TOPIC, "queues": [QUEUE]},
                "POST /v1/topics": self._changed,
                "PUT /v1/topics/orders": self._changed,
                "DELETE /v1/topics/orders": {"topic": TOPIC},
                "GET /v1/groups/g": group_of | {"offsets": [OFFSET]},
                "GET /v1/groups": {"groups": [group_of | {"members": 0}]},
                "GET /v1/broker-groups": {"group": 1, "groups": []},
                "GET /v1/metadata": {"cluster_uuid": "u", "applied_index": 1, **NOTHING},
                "POST /v1/metadata": self._changed,
            }
        )

    def _changed(self, asked: Asked) -> dict[str, Any]:
        self.bodies.append(asked.body)
        return {"result": "updated", "topic": TOPIC}

    def run(self, command: Any, *words: str) -> str:
        result = CliRunner().invoke(command, [*words, "--admin", self.api.address])
        assert result.exit_code == 0, result.output
        return result.output


@pytest.fixture
def node(make_api: MakeApi) -> Node:
    return Node(make_api)


def test_queues_are_sent_only_where_they_are_named_and_now_only_where_it_is_given(node: Node) -> None:
    told = node.run(topic, "alter", "orders", "--dedup", "off")
    assert "60 messages hidden: consumers read only queue 0; more queues bring them back" in told
    node.run(topic, "alter", "orders", "--queues", "1", "--now")
    node.run(topic, "create", "orders", "--queues", "1", "--update")
    node.run(topic, "create", "orders", "--queues", "1", "--update", "--now")
    assert [{key: body.get(key) for key in ("queues", "now")} for body in node.bodies] == [
        {"queues": None, "now": None},
        {"queues": 1, "now": True},
        {"queues": 1, "now": None},
        {"queues": 1, "now": True},
    ]


def test_what_is_hidden_or_beyond_the_end_is_said(node: Node) -> None:
    told = node.run(topic, "describe", "orders")
    assert "orders: 80 messages (60 of them hidden) in 4 queues" in told
    assert "hidden" in told.splitlines()[-1]
    assert "would go with 80 messages (60 of them hidden)" in node.run(topic, "delete", "orders", "--dry-run")
    told = node.run(group, "describe", "g")
    assert "g: lag 60 (offset beyond the end in 1 queue, 60 hidden); members" in told
    assert "committed 10 beyond the end, hidden" in told
    assert "offset beyond the end in 1 queue, 60 hidden" in node.run(group, "list")


def two_parts(folder: Path) -> Path:
    """A document with two topics, which needs a request for each."""
    present = Metadata(cluster_uuid="u", applied_index=1, **NOTHING)
    long = {f"about_{n}": "x" * (CHUNK_BYTES // 9) for n in range(6)}
    record = {"read_queues": 1, "write_queues": 1, "perm": 6, "order": False, "sys_flag": 0, "attributes": long}
    records = [TopicRecord(name=name, **record) for name in ("a", "b")]  # type: ignore[arg-type]
    file = folder / "m.json"
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(present, topics=records)))
    return file


def test_an_import_is_checked_as_a_whole_before_anything_is_changed(node: Node, tmp_path: Path) -> None:
    file = two_parts(tmp_path)
    node.run(metadata_command, "import", str(file), "--yes")
    asked = [(body["topics"][0]["name"], body.get("dry_run"), body.get("now")) for body in node.bodies]
    assert asked == [("a", True, None), ("b", True, None), ("a", None, None), ("b", None, None)]
    node.bodies.clear()
    node.run(metadata_command, "import", str(file), "--yes", "--now")
    asked = [(body["topics"][0]["name"], body.get("dry_run"), body.get("now")) for body in node.bodies]
    assert asked == [("a", None, True), ("b", None, True)]


def test_an_import_that_stops_after_some_parts_says_that_they_were_imported(node: Node, tmp_path: Path) -> None:
    file = two_parts(tmp_path)

    def second_is_refused(asked: Asked) -> Any:
        if asked.body["topics"][0]["name"] == "b" and "dry_run" not in asked.body:
            return ApiRefusal("refused", "no", "the group drains", "try another", ExitCode.REFUSED)
        return {}

    node.api.answers["POST /v1/metadata"] = second_is_refused
    result = CliRunner().invoke(metadata_command, ["import", str(file), "--yes", "--admin", node.api.address])
    assert isinstance(result.exception, LocalError)
    assert result.exception.exit_code is ExitCode.UNKNOWN
    assert result.exception.why.endswith("; of 2 parts, 1 were imported before this one")
