"""Topics, groups and offsets as one document: over HTTP, out and in again; what an import shows and leaves out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from cluster.admin.handlers.backup import TARGET
from cluster.backup import metadata as documents
from cluster.backup.metadata import Metadata, OffsetRecord, export, plan, read
from cluster.members.service import watch_event
from raftlog import membership as memberships
from raftlog.membership import Membership
from raftlog.storage.files.genesis import Voter
from raftlog.types import EntryType, NodeId
from raftmq.commands.data.metadata import _parts
from raftmq_wire.errors import LocalError
from statemachine.commands import pack
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.removal_slices import DeleteTopic
from statemachine.rows.digest import digest
from statemachine.topics.topics import CreateTopic


@pytest.fixture
def used(node: Any) -> Any:
    """A node with a bit of everything."""
    node.apply(
        [
            CreateTopic({"name": "orders", "write_queues": 3, "read_queues": 3, "attributes": {"a": "b"}}, False),
            CreateTopic({"name": "%RETRY%g", "write_queues": 1, "read_queues": 1}, False),
            PutGroup({"name": "g", "retry_max_times": 5, "attributes": {"x": "y"}}, False),
            Subscribe("g", [("orders", "TAG", "*", 7)]),
            PutGroup({"name": "idle"}, False),
        ]
    )
    node.add_messages("orders", 0, 20)
    node.add_messages("orders", 2, 5)
    node.apply([CommitOffsets([("g", 1, 0, 12), ("g", 1, 2, 5)])])
    return node


def document(node: Any) -> Metadata:
    return export(node.state, "u")


def apply_plan(node: Any, wanted: Metadata) -> None:
    todo = plan(wanted, document(node))
    records: list[Any] = [*todo.topics, *todo.groups]
    if commands := [each for record in records for each in documents.commands_for(record)]:
        node.apply(commands)
    rows = [(each.group, node.state.topics[each.topic].id, each.queue_id, each.offset) for each in todo.offsets]
    if rows:
        node.apply([CommitOffsets(rows)])


def test_a_document_is_read_as_it_was_written(used: Any) -> None:
    told = document(used)
    assert read(msgspec.json.format(msgspec.json.encode(told)), "m.json") == told
    assert [topic.name for topic in told.topics] == ["%RETRY%g", "orders"]
    assert told.ends == {"%RETRY%g": [0], "orders": [20, 0, 5]}
    assert told.offsets == [
        OffsetRecord(group="g", topic="orders", queue_id=0, offset=12),
        OffsetRecord(group="g", topic="orders", queue_id=2, offset=5),
    ]


def test_importing_twice_changes_nothing_the_second_time(used: Any, make_node: Any) -> None:
    fresh = make_node()
    wanted = document(used)
    apply_plan(fresh, wanted)
    assert (fresh.state.topics["orders"].attributes, fresh.state.groups) == ({"a": "b"}, used.state.groups)
    again = plan(wanted, document(fresh))
    assert (again.topics, again.groups, again.offsets) == ([], [], [])
    assert [change.sign for change in again.changes] == ["!", "!"]


def test_offsets_beyond_the_end_of_a_queue_are_left_out(used: Any) -> None:
    wanted = document(used)
    shorter = msgspec.structs.replace(wanted, ends={"orders": [11, 0, 5]}, offsets=[])
    todo = plan(wanted, shorter)
    assert [(each.queue_id, each.offset) for each in todo.offsets] == [(2, 5)]
    assert [f"{change.sign} {change.what}" for change in todo.changes] == [
        "! offset of g in orders/0: 12 is left out, the queue ends at 11 here",
        "+ offset of g in orders/2: 0 -> 5",
    ]


def test_offsets_of_another_topic_are_left_out(used: Any) -> None:
    """The one that was deleted, or the one of another cluster; also if the queue is as long as the old one was."""
    there = document(used)
    older = msgspec.structs.replace(there, topic_ids={"orders": there.topic_ids["orders"] - 1})
    elsewhere = msgspec.structs.replace(there, cluster_uuid="v")
    for wanted, why in ((older, "the topic with id 0, which is gone"), (elsewhere, "cluster v, and cluster u answers")):
        todo = plan(wanted, msgspec.structs.replace(there, offsets=[]))
        assert todo.offsets == []
        assert [change.sign for change in todo.changes] == ["!", "!"]
        assert why in todo.changes[0].what


def test_a_document_of_an_earlier_release_is_read(used: Any) -> None:
    """It does not say in which topics its offsets count."""
    raw = msgspec.to_builtins(document(used))
    del raw["topic_ids"], raw["group_id"]
    wanted = read(json.dumps({**raw, "schema": 10}).encode(), "m.json")
    todo = plan(wanted, msgspec.structs.replace(document(used), offsets=[]))
    assert [each.offset for each in todo.offsets] == [12, 5]


def test_the_difference_names_every_field_and_what_is_consumed_again(used: Any) -> None:
    wanted = document(used)
    topics = [msgspec.structs.replace(topic, perm=4) if topic.name == "orders" else topic for topic in wanted.topics]
    offsets = [msgspec.structs.replace(each, offset=3) for each in wanted.offsets]
    groups = [group for group in wanted.groups if group.name == "g"]
    changed = msgspec.structs.replace(wanted, topics=topics, groups=groups, offsets=offsets)
    todo = plan(changed, wanted)
    assert [f"{change.sign} {change.what}" for change in todo.changes] == [
        "~ topic orders: perm 6 -> 4",
        "~ offset of g in orders/0: 12 -> 3 (back: 9 again)",
        "~ offset of g in orders/2: 5 -> 3 (back: 2 again)",
    ]
    assert todo.kept == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 12, "more": 1}, "has format 12: a newer RaftMQ wrote it\nthis version reads formats up to 11"),
        ({"kind": "else"}, "is no metadata export"),
        ({"topics": 5}, "is no metadata export"),
        ({"surprise": 1}, "unknown field `surprise`"),
    ],
)
def test_what_cannot_be_imported_is_refused_in_words(used: Any, change: dict[str, Any], words: str) -> None:
    raw = {**msgspec.to_builtins(document(used)), **change}
    with pytest.raises(LocalError, match=words):
        read(json.dumps(raw).encode(), "m.json")


def test_requests_stay_below_the_limit_of_a_body(used: Any) -> None:
    one = document(used)
    topics = [msgspec.structs.replace(one.topics[0], name=f"t{i}") for i in range(1000)]
    parts = list(_parts(plan(msgspec.structs.replace(one, topics=topics), one)))
    assert len(parts) > 2
    assert max(len(json.dumps(part)) for part in parts) < 64 * 1024
    assert [topic["name"] for part in parts for topic in part["topics"]] == [topic.name for topic in topics]


async def test_over_http(client: Any, used: Any) -> None:
    told = await (await client.get("/v1/metadata?consistency=linearizable")).json()
    assert msgspec.convert(told, Metadata) == export(used.state, "", 1)
    before = digest(used.kv)
    same = {"topics": told["topics"], "groups": told["groups"], "offsets": told["offsets"]}
    answer = await client.post("/v1/metadata", json=same)
    assert (answer.status, (await answer.json())["topics"]) == (200, 2)
    assert digest(used.kv) == before
    lost = {"offsets": [{"group": "g", "topic": "nope", "queue_id": 0, "offset": 1}]}
    for body, status, words in (
        (lost, 404, "no topic nope"),
        ({}, 409, "nothing to change"),
        ({"topics": [{"name": "x"}]}, 400, "not valid"),
    ):
        refused = await client.post("/v1/metadata", json=body)
        assert refused.status == status
        assert words in (await refused.json())["error"]["message"]


async def test_a_name_that_no_topic_may_have_is_refused(client: Any, used: Any) -> None:
    told = await (await client.get("/v1/metadata")).json()
    refused = await client.post("/v1/metadata", json={"topics": [{**told["topics"][0], "name": "a b"}]})
    assert refused.status == 400
    assert "may hold only letters" in (await refused.json())["error"]["message"]


@pytest.mark.parametrize("others", [["topics"], ["%RETRY%g"], []], ids=["topics", "offsets", "nothing else"])
async def test_an_import_of_which_a_part_was_done_does_not_say_that_nothing_was_changed(
    client: Any, used: Any, others: list[str]
) -> None:
    told = await (await client.get("/v1/metadata")).json()
    lost = {"group": "idle", "topic": "orders", "queue_id": 0, "offset": 3}
    kept = [lost | {"topic": "%RETRY%g", "offset": 0}] if "%RETRY%g" in others else []
    topics = [told["topics"][0] | {"name": "new"}] if "topics" in others else []
    used.before_apply = lambda commands: used.append_entry(EntryType.COMMAND, pack([DeleteTopic("orders")]))
    refused = await client.post("/v1/metadata", json={"topics": topics, "offsets": [lost, *kept]})
    error = (await refused.json())["error"]
    if others:
        assert (refused.status, error["code"]) == (504, "unknown_outcome")
        assert error["message"].startswith("a part of it was done: ")
        assert "nothing was changed" not in error["hint"]
    else:
        assert (refused.status, error["code"]) == (400, "bad_command")
        assert "nothing was changed" in error["hint"]


async def test_an_event_is_put_to_rest_once(client: Any, node: Any) -> None:
    assert (await client.post("/v1/alarms/unsafe_recovered/ack")).status == 404
    voter = Voter(NodeId(1), UUID(int=1))
    members = Membership(UUID(int=2), (voter,), (), memberships.UNSAFE_RECOVER, "a disk burnt")
    node.append_entry(EntryType.MEMBERSHIP, memberships.encode(members))
    watch_event(node.state, node.alarms)
    assert [alarm.key for alarm in node.alarms.all()] == ["unsafe_recovered"]
    answer = await client.post("/v1/alarms/unsafe_recovered/ack")
    assert (answer.status, (await answer.json())["event"]) == (200, "a disk burnt")
    assert node.state.acknowledged == node.state.membership.index
    watch_event(node.state, node.alarms)
    assert node.alarms.all() == []
    assert (await client.post("/v1/alarms/unsafe_recovered/ack")).status == 404
    other = await client.post("/v1/alarms/backup_failed/ack")
    assert (other.status, (await other.json())["error"]["hint"]) == (404, "raftmq alarm list")


def test_a_restore_is_an_event_without_an_alarm(node: Any) -> None:
    voter = Voter(NodeId(1), UUID(int=1))
    node.append_entry(
        EntryType.MEMBERSHIP, memberships.encode(Membership(UUID(int=2), (voter,), (), memberships.RESTORE))
    )
    watch_event(node.state, node.alarms)
    assert node.alarms.all() == []


async def test_a_backup_over_http(make_node: Any, serve: Any) -> None:
    node = make_node(1, backup__roots="/mnt/other;/backups")
    client = await serve(node)
    assert (await (await client.get("/v1/backup")).json())["attempt"] is None
    refused = await client.post("/v1/backup", json={"to": "relative/path"})
    assert (refused.status, (await refused.json())["error"]["hint"][:22]) == (400, "give the absolute path")
    for bad in ("s3://[", "/backups/a\0b", "file:///backups/a%00b", "0000://", "s3://a/b?c"):
        assert not re.search(TARGET, bad), "the document says so"
        assert (await client.post("/v1/backup", json={"to": bad})).status == 400, bad
    for good in ("/backups/x", "file:///backups/x", "s3://bucket/prefix", "abfs://container"):
        assert re.search(TARGET, good)
    node.backups.begin = lambda *_, **__: (_ for _ in ()).throw(LocalError("busy", "one is made", "wait"))
    busy = await client.post("/v1/backup", json={"to": "/backups"})
    assert (busy.status, (await busy.json())["error"]["hint"]) == (503, "wait")


@pytest.mark.parametrize(
    ("roots", "to", "allowed"),
    [
        ("{0}/backups", "{0}/backups", True),
        ("{0}/backups", "{0}/backups/deeper", True),
        ("{0}/other;{0}/backups", "{0}/backups/x", True),
        ("", "{0}/own/x", True),  # below backup.to
        ("", "{0}/backups", False),
        ("{0}/backups", "{0}/backups-of-others", False),
        ("{0}/backups", "{0}/backups/../elsewhere", False),
        ("{0}/backups", "{0}/backups/link/x", False),
        ("{0}/backups", "/", False),
        ("{0}/backups", "file://{0}/backups/x", True),
        ("{0}/backups", "file://{0}/backups/../elsewhere", False),
        ("{0}/backups;s3://bucket/a", "s3://bucket/a/b", True),
        ("s3://bucket/a", "s3://bucket/ab", False),
        ("s3://bucket/a", "s3://bucket/a/../b", False),
        ("s3://bucket/a", "s3://bucket/a/%2e%2e/b", False),
        ("s3://bucket/a", "s3://bucket/a/.%2E", False),
        ("s3://bucket/a", "s3://bucket/a/%2E%2e/%2e./b", False),
        ("s3://bucket/a", "s3://bucket/a/b%2f..%2f..%2fc", False),
        ("{0}/backups", "s3://bucket/a", False),
        ("", "file://{0}/tier", True),
        ("", "file://{0}/tier/../x", False),
    ],
)
async def test_a_backup_goes_below_a_configured_root_or_nowhere(
    make_node: Any, serve: Any, tmp_path: Path, roots: str, to: str, allowed: bool
) -> None:
    (tmp_path / "backups").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "backups/link").symlink_to(tmp_path / "elsewhere")
    tier = (tmp_path / "tier").as_uri()
    node = make_node(1, backup__roots=roots.format(tmp_path), backup__to=str(tmp_path / "own"), tier__url=tier)
    begun: list[str] = []
    node.backups.begin = lambda to, **_: begun.append(to)
    client = await serve(node)
    answer = await client.post("/v1/backup", json={"to": to.format(tmp_path)})
    told = await answer.json()
    if allowed:
        assert (answer.status, begun) == (202, [to.format(tmp_path)])
    else:
        assert (answer.status, told["error"]["code"], begun) == (403, "path_not_allowed", [])
        assert "backup.roots" in told["error"]["hint"]
