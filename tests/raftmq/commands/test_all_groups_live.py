"""The command line's tools judge all groups of a local cluster: two groups of one node each."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cluster.config.local_layout import NodeRecord
from jepsen_like.client_kit.fields import send_fields
from jepsen_like.client_kit.frames import HOST, frames_of, request
from raftmq import cli
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi, ApiRefusal
from raftmq.local.http.credentials import addresses_of
from raftmq.local.process import free_base_port
from raftmq_wire.codec import ext_of
from raftmq_wire.codes import RequestCode
from raftmq_wire.errors import ExitCode
from raftmq_wire.message_format import encode_message_id
from raftmq_wire.queue_numbers import group_of, number_of
from statemachine.levels import LEVEL
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.wait_until import wait

pytestmark = pytest.mark.live

Run = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("groups") / "data")
    with small_segments():
        made.up(1, free_base_port(8), groups=2, tier=str(made.data.parent / "store"))
        yield made
        if (made.data / "cluster.json").exists():
            made.down()


@pytest.fixture
def run(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Types a command for this cluster, with --json; its exit code and object, or what it printed without --json."""

    def ran(*words: str, as_json: bool = True, here: bool = True) -> tuple[int, Any]:
        where = ["--data", str(cluster.data)] if here else []
        code = cli.run([*words, *where, *(["--json"] if as_json else [])])
        told = capsys.readouterr()
        return (code, json.loads(told.out)) if as_json and told.out.strip() else (code, told.out + told.err)

    return ran


def test_finalize_looks_at_all_groups(run: Run) -> None:
    code, told = run("upgrade", "finalize", "--yes")
    assert (code, told["level"], told["index"]) == (0, LEVEL, None)
    assert [(group["group"], group["level"]) for group in told["groups"]] == [(2, LEVEL)]
    text = run("upgrade", "finalize", as_json=False)[1]
    assert text == f"every group has level {LEVEL} already: nothing was written\n"


def test_links_and_reload_ask_the_nodes_of_all_groups(run: Run) -> None:
    assert [view["node"] for view in run("links")[1]["nodes"]] == [1, "2/1"]
    assert [view["node"] for view in run("reload")[1]["nodes"]] == [1, "2/1"]
    assert run("reload", as_json=False)[1] == "node 1: nothing has changed\nnode 2/1: nothing has changed\n"
    assert run("reload", "--node", "2/1", as_json=False)[1] == "node 2/1: nothing has changed\n"
    code, refused = run("reload", "--node", "3/1")
    assert (code, refused["error"]["what"]) == (ExitCode.REFUSED, "there is no group 3")
    assert run("reload", "--node", "2/9")[1]["error"]["what"] == "there is no node 2/9"


def test_consistency_is_inspected_in_each_group(run: Run) -> None:
    code, told = run("inspect-consistency")
    assert (code, told["nodes"], told["marker"] >= 0) == (ExitCode.UNKNOWN, [1], True)
    ((group, nodes, marker),) = [(each["group"], each["nodes"], each["marker"]) for each in told["groups"]]
    assert (group, nodes, marker >= 0) == (2, [1], True)
    heads = [line.partition(":")[0] for line in run("inspect-consistency", as_json=False)[1].splitlines()]
    assert heads == ["node 1", "unknown", "node 2/1", "unknown"]


def test_fsck_of_a_cluster_reads_the_directories_of_all_groups(cluster: LocalCluster, run: Run) -> None:
    code, refused = run("fsck", str(cluster.data), here=False)
    assert (code, refused["error"]["type"]) == (ExitCode.REFUSED, "raftmq down, then repeat the command")
    cluster.down()
    try:
        code, told = run("fsck", str(cluster.data), here=False)
        homes = [str(cluster.data / home / "data") for home in ("n1", "g02/n1")]
        assert (code, [each["directory"] for each in told["directories"]]) == (0, homes)
        assert [each.get("node") for each in told["directories"]] == [None, "2/1"]
        text = run("fsck", str(cluster.data / "g02" / "n1"), as_json=False, here=False)[1]
        assert text.startswith(f"node 2/1, {homes[1]}: sound")
        plan = run("rebuild", str(cluster.data / "g02" / "n1"), "--plan", here=False)[1]["plan"]
        assert (plan["node"], plan["directory"]) == ("2/1", homes[1])
    finally:
        cluster.up()


def make_topic(cluster: LocalCluster, name: str, groups: list[int]) -> None:
    """Makes a topic in these groups, and waits until the second one knows it."""
    AdminApi(addresses_of(cluster.of_group(1))).post("/v1/topics", {"name": name, "queues": 1, "groups": groups})
    wait_for_copy(cluster, "topics", name)


def wait_for_copy(cluster: LocalCluster, kind: str, name: str) -> None:
    """Waits until the second group knows what the first one has made."""
    second = AdminApi(addresses_of(cluster.of_group(2)))
    wait(lambda: name in [each["name"] for each in second.local(f"/v1/{kind}")[kind]], f"{name} is not there")


def test_a_topic_spreads_only_when_it_is_told_to(run: Run) -> None:
    def groups(name: str) -> list[int]:
        found: list[int] = run("topic", "describe", name)[1]["topic"]["groups"]
        return found

    assert run("topic", "create", "everywhere", "--queues", "3")[0] == 0
    assert run("topic", "create", "at-home", "--queues", "3", "--dedup", "strict", "--in-group", "1")[0] == 0
    assert (groups("everywhere"), groups("at-home")) == ([1, 2], [1])
    code, refused = run("topic", "create", "nowhere", "--in-group", "7")
    assert (code, "there is no group 7" in str(refused)) == (ExitCode.USAGE, True)
    assert run("topic", "alter", "at-home", "--queues", "4")[0] == 0
    assert groups("at-home") == [1]
    code, told = run("topic", "spread", "at-home", "--yes")
    assert (code, told["topic"]["groups"], told["topic"]["attributes"]) == (0, [1, 2], {"dedup": "strict"})
    code, again = run("topic", "spread", "at-home", "--in-group", "2", "--yes")
    assert (code, again["topic"]["groups"], again["topic"]["write_queues"]) == (0, [1, 2], 4)
    assert run("topic", "spread", "no-such", "--yes")[0] == ExitCode.REFUSED


def test_a_request_that_would_move_keys_says_so(cluster: LocalCluster) -> None:
    api = AdminApi(addresses_of(cluster.of_group(1)))
    body = {"name": "stays", "queues": 2}
    api.post("/v1/topics", body | {"groups": [1]})
    with pytest.raises(ApiRefusal, match="keys would move"):
        api.post("/v1/topics", body | {"groups": [2], "if_exists": "update"})
    assert api.post("/v1/topics", body | {"groups": [2], "if_exists": "keep"})["topic"]["groups"] == [1]
    told = api.post("/v1/topics", {"name": "stays", "groups": [2], "if_exists": "update", "move_keys": True})
    assert (told["topic"]["groups"], told["topic"]["write_queues"]) == ([1, 2], 2)


def ask(node: NodeRecord, code: RequestCode, fields: dict[str, str], body: bytes = b"") -> dict[str, str]:
    """Asks a node's port for clients. Returns the fields of the answer, whose code must be 0."""
    with socket.create_connection((HOST, node.broker_port), timeout=at_most(10)) as connection:
        connection.sendall(request(code, fields, body, opaque=1)[1])
        buffer = bytearray()
        while data := connection.recv(1 << 16):
            buffer += data
            for header, _ in frames_of(buffer):
                assert header.code == 0, header.remark
                return ext_of(header)
    raise ConnectionError("closed without an answer")


def stored(cluster: LocalCluster) -> list[int]:
    """The number of messages of T in each group."""
    fields = {"topic": "T", "queueId": "0"}
    return [int(ask(node, RequestCode.GET_MAX_OFFSET, fields)["offset"]) for node in cluster.nodes]


def test_a_backup_has_all_groups_and_a_restore_brings_all_back(cluster: LocalCluster, run: Run, tmp_path: Path) -> None:
    make_topic(cluster, "T", [1, 2])
    for node in cluster.nodes:
        for _ in range(node.group):
            ask(node, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"hello")
    assert stored(cluster) == [1, 2]
    to = cluster.data.parent / "backups"
    code, told = run("backup", "create", "--to", str(to))
    assert code == 0, told
    ((group, node, path),) = [(each["group"], each["node"], Path(each["path"])) for each in told["groups"]]
    assert (told["node"], group, node, path.parent) == (1, 2, "2/1", to / "g02")
    first = Path(told["path"])
    listed = run("backup", "list", str(to), here=False)[1]["backups"]
    assert [(each["name"], each["node"]) for each in listed] == [(first.name, 1), (f"g02/{path.name}", "2/1")]
    code, verified = run("backup", "verify", str(to), here=False)
    assert (code, [each["name"] for each in verified["backups"]]) == (0, [first.name, f"g02/{path.name}"])
    code, one = run("backup", "create", "--to", str(to), "--node", "2/1", "--keep", "1")
    assert (code, one["groups"][0]["removed"], first.exists()) == (0, [path.name], True)
    later = Path(one["groups"][0]["path"])

    restore = ("restore", "--from", str(first), "--nodes", "1", "--base-port", str(free_base_port(8)))
    code, refused = run(*restore, "--into", str(tmp_path / "none"), here=False)
    assert (code, refused["error"]["what"].partition(" that")[0]) == (
        ExitCode.REFUSED,
        "group 2: there is no backup of group 2",
    ), "the one that is left was begun later"
    assert not (tmp_path / "none").exists()
    code, refused = run("restore", "--from", str(later), "--into", str(tmp_path / "none"), here=False)
    assert (code, refused["error"]["what"]) == (ExitCode.USAGE, f"{later.name} is a backup of group 2 alone")
    for made in (first, later):  # a backup of the same second and entry has its name
        shutil.rmtree(made)
    code, told = run("backup", "create", "--to", str(to))
    assert code == 0, told
    first = Path(told["path"])
    code, told = run(*restore[:2], str(first), *restore[3:], "--into", str(tmp_path / "new"), here=False)
    assert code == 0, told
    assert (told["nodes"], [group["group"] for group in told["groups"]]) == (2, [2])
    again = LocalCluster(tmp_path / "new")
    with small_segments():
        again.up()
    try:
        assert [node.name for node in again.nodes] == [1, "2/1"]
        wait(lambda: [view.ready for view in again.views()] == [True, True], again.views)
        assert stored(again) == [1, 2]
        make_topic(again, "U", [2])  # the groups know each other, and the second copies what is made now
    finally:
        again.down()


def test_what_nodes_say_of_themselves_is_asked_of_all_groups(run: Run) -> None:
    both = [1, "2/1"]
    for command in (["scrub"], ["repair"], ["recovery"], ["tier", "status"], ["config", "diff"]):
        code, told = run(*command)
        assert (code, [view["node"] for view in told["nodes"]]) == (0, both), command
    for command in (["scrub", "--status"], ["repair"], ["recovery"]):
        assert [view["node"] for view in run(*command, "--node", "2/1")[1]["nodes"]] == ["2/1"], command
    assert {event["node"] for event in run("events")[1]["events"]} == {*both}
    assert "  node 2/1  " in run("events", as_json=False)[1]
    assert run("alarm", "list")[1]["silent"] == []


def test_top_shows_all_groups(run: Run) -> None:
    code, told = run("top", "--count", "1")
    assert (code, [node["id"] for node in told["nodes"]]) == (0, [1, 1])
    assert [(group["group"], group["leader"]) for group in told["groups"]] == [(1, 1), (2, 1)]
    text = run("top", "--count", "1", as_json=False)[1]
    assert "node 1 leads" in text
    assert "node 2/1 leads" in text


def test_the_tier_of_each_group_is_closed_listed_and_verified(cluster: LocalCluster, run: Run) -> None:
    code, told = run("tier", "seal")
    assert (code, [group["group"] for group in told["groups"]]) == (0, [2])

    def listed() -> list[int]:
        answer = run("tier", "ls")[1]
        return [len(each["segments"]) for each in (answer, *answer["groups"])]

    wait(lambda: min(listed()) > 0, listed)

    def verified() -> int:
        code, told = run("tier", "verify")
        assert code == 0, told
        return min(told["segments"], told["groups"][0]["segments"])

    wait(lambda: verified() > 0, verified)  # a node lists a segment a moment before the store's manifest has it
    text = run("tier", "status", as_json=False)[1]
    assert f"tier       {(cluster.data.parent / 'store' / 'g02').as_uri()}" in text
    assert [line.split() for line in text.splitlines() if line.startswith("group ")] == [["group", "1"], ["group", "2"]]


def test_queues_of_all_groups_are_named_in_reads_and_resets(cluster: LocalCluster, run: Run, tmp_path: Path) -> None:
    make_topic(cluster, "Q", [1, 2])
    make_topic(cluster, "One", [1])
    with connect(cluster.servers) as mq:
        mq.admin.create_group("billing")
        wait_for_copy(cluster, "groups", "billing")
        for number in range(3):
            mq.send("Q", b"n%d" % number, queue_id=number_of(2, 0) if number else 0, key=f"k{number}")
        mq.admin.commit("billing", "Q", 0, 1)
        mq.admin.commit("billing", "Q", number_of(2, 0), 1)
    code, told = run("group", "describe", "billing")
    assert (code, told["lag"]) == (0, 1)
    assert [(each["queue_id"], each["committed_offset"]) for each in told["offsets"]] == [(0, 1), (65536, 1)]
    assert [line.split()[1] for line in run("group", "describe", "billing", as_json=False)[1].splitlines()[2:]] == [
        "0",
        "2/0",
    ]
    (listed,) = [each for each in run("group", "list")[1]["groups"] if each["name"] == "billing"]
    assert (listed["lag"], listed["topics"]) == (1, ["Q"])
    (listed,) = [each for each in run("topic", "list")[1]["topics"] if each["name"] == "Q"]
    assert (listed["messages"], listed["write_queues"], listed["groups"]) == (3, 2, [1, 2])
    described = run("topic", "describe", "Q")[1]
    assert [(each["queue_id"], each["max_offset"]) for each in described["queues"]] == [(0, 1), (65536, 2)]
    assert "2/0" in run("topic", "describe", "Q", as_json=False)[1]

    reset = ("group", "reset", "billing", "--topic", "Q", "--yes")
    moved = run(*reset, "--to", "earliest", "--dry-run")[1]["queues"]
    assert [(each["queue_id"], each["offset"], each["again"]) for each in moved] == [(0, 0, 1), (65536, 0, 1)]
    moved = run(*reset, "--to", "latest", "--queue", "2/0")[1]["queues"]
    assert [(each["queue_id"], each["before"], each["offset"]) for each in moved] == [(65536, 1, 2)]
    assert "2/0" in run(*reset, "--to", "earliest", as_json=False)[1]
    with connect(cluster.servers) as mq:
        assert [each.committed for each in mq.admin.offsets("billing", "Q")] == [0, 0]
    code, refused = run(*reset, "--to", "earliest", "--queue", "3/0")
    assert (code, refused["error"]["what"]) == (ExitCode.REFUSED, "there is no group 3")
    one = run("group", "reset", "billing", "--topic", "One", "--to", "earliest", "--yes")
    assert (one[0], [each["queue_id"] for each in one[1]["queues"]]) == (0, [0]), "group 2 has no queue of it"
    code, refused = run("group", "reset", "billing", "--topic", "One", "--to", "earliest", "--queue", "2/0", "--yes")
    assert (code, refused["error"]["what"]) == (ExitCode.USAGE, "topic One has no queue in this group of brokers")
    told = run("group", "clone", "billing", "audit", "--yes")[1]
    assert [(each["topic"], each["queue_id"], each["offset"]) for each in told["offsets"] if each["topic"] == "Q"] == [
        ("Q", 0, 0),
        ("Q", 65536, 0),
    ]
    assert run("messages", "browse", "Q", "--queue", "2/0", "--format", "{queue} {body}", as_json=False)[1].split("\n")[
        :2
    ] == ["2/0 n1", "2/0 n2"]
    file = tmp_path / "q.parquet"
    assert run("export", "Q", "--to", str(file))[1]["messages"] == 3
    assert sorted(pq.read_table(file)["queue_id"].to_pylist()) == [0, 65536, 65536]
    assert run("topic", "delete", "Q", "--yes")[1]["topic"]["messages"] == 3


def test_dead_letters_of_all_groups_are_listed_and_resent(cluster: LocalCluster, run: Run) -> None:
    make_topic(cluster, "D", [1, 2])
    with connect(cluster.servers) as mq:
        for number in range(3):
            mq.send("D", b"d%d" % number, queue_id=number_of(2, 0) if number else 0)
        with mq.consumer("letters", "D") as consumer:
            for _ in range(3):
                consumer.dead_letter(next(consumer))
            code, told = run("dlq", "list", "letters")
            assert (code, told["kept"]) == (0, 3)
            found = sorted((one.get("broker_group", 1), one["offset"], one["body"]) for one in told["letters"])
            assert [(group, offset) for group, offset, _ in found] == [(1, 0), (2, 0), (2, 1)]
            assert {body for group, _, body in found if group == 2} == {"d1", "d2"}
            assert {line.split()[0] for line in run("dlq", "list", "letters", as_json=False)[1].splitlines()[1:4]} == {
                "0",
                "2/0",
                "2/1",
            }
            assert run("dlq", "resend", "letters", "--offset", "2/1")[1]["sent"] == 1
            again = next(consumer)
            assert (again.topic, again.reconsume_times) == ("D", 0)
            assert again.body == next(body.encode() for group, offset, body in found if (group, offset) == (2, 1))
            bounds = [mq.admin.max_offset("%RETRY%letters", number_of(group, 0)) for group in (1, 2)]
            assert run("dlq", "resend", "letters", "--all")[1]["sent"] == 2
            after = [mq.admin.max_offset("%RETRY%letters", number_of(group, 0)) for group in (1, 2)]
            assert [end - begin for begin, end in zip(bounds, after, strict=True)] == [1, 1], "each in its own group"
            assert run("dlq", "resend", "letters", "--all")[1]["sent"] == 0
        code, refused = run("dlq", "resend", "letters", "--offset", "2/9")
        assert refused["error"]["what"] == "letters has no dead letter at offset 2/9"
        assert run("dlq", "purge", "letters", "--yes")[1]["deleted"] == 3
        wait(lambda: run("dlq", "list", "letters")[1]["kept"] == 0, "the second group has not deleted them")


@pytest.mark.parametrize("group", [1, 2])
def test_dead_letters_may_lie_in_one_group_alone(cluster: LocalCluster, run: Run, group: int) -> None:
    topic, readers = f"Only{group}", f"only{group}"
    make_topic(cluster, topic, [group])
    with connect(cluster.servers) as mq:
        mq.send(topic, b"d")
        with mq.consumer(readers, topic) as consumer:
            consumer.dead_letter(next(consumer))
            code, told = run("dlq", "list", readers)
            assert (code, [one["body"] for one in told["letters"]]) == (0, ["d"])
            assert run("dlq", "resend", readers, "--all")[1]["sent"] == 1
            assert next(consumer).body == b"d"
        assert run("dlq", "list", readers)[1]["letters"][0]["resent"] is True
    code, refused = run("dlq", "list", "nobody")
    assert (code, refused["error"]["what"]) == (ExitCode.REFUSED, "there is no consumer group nobody")


def test_a_message_is_found_at_a_position_of_its_group(cluster: LocalCluster, run: Run) -> None:
    make_topic(cluster, "P", [1, 2])
    with connect(cluster.servers) as mq:
        mq.send("P", b"one", queue_id=0)
        mq.send("P", b"two", queue_id=number_of(2, 0))
        (message,) = mq.pull("P", number_of(2, 0), 0).messages
    code, told = run("messages", "find", "--topic", "P", "--position", f"2/{message.position}")
    assert (code, told["body"], told["queue_id"]) == (0, "two", 65536)
    (node,) = cluster.of_group(2)
    by_id = encode_message_id((HOST, node.broker_port), message.position)
    text = run("messages", "find", "--topic", "P", "--id", by_id, as_json=False)[1]
    assert f"P queue 2/0 offset 0, position 2/{message.position}" in text
    assert run("messages", "find", "--topic", "P", "--position", str(message.position))[0] != 0


def test_retention_is_shown_and_run_in_all_groups(run: Run) -> None:
    code, told = run("retention")
    assert (code, told["run"], [view["node"] for view in told["nodes"]]) == (0, None, [1, "2/1"])
    code, told = run("retention", "--run")
    assert (code, told["run"]["index"], [each["group"] for each in told["run"]["groups"]]) == (0, None, [2])
    text = run("retention", "--run", as_json=False)[1]
    assert [line for line in text.splitlines() if line.startswith("group ")] == ["group 1", "group 2"]
    assert text.count("nothing has expired") == 2


def test_an_event_of_any_group_is_acknowledged(run: Run) -> None:
    code, refused = run("alarm", "ack", "unsafe_recovered")
    assert (code, refused["error"]["what"]) == (
        ExitCode.REFUSED,
        "there is no event behind unsafe_recovered any more",
    )


def test_who_names_the_addresses_of_one_group_hears_of_the_others(cluster: LocalCluster, run: Run) -> None:
    make_topic(cluster, "A", [1, 2])
    (node,) = cluster.of_group(2)
    there = ("--admin", f"127.0.0.1:{node.admin_port}")
    for command, done in ((["retention"], "shown"), (["tier", "seal"], "sealed")):
        code, text = run(*command, *there, as_json=False, here=False)
        warning = f"only group 2 is {done}, whose addresses were given; the others, 1, are {done} at theirs"
        assert (code, warning in text) == (0, True), text


def test_members_and_access_are_shown_of_all_groups(run: Run) -> None:
    code, told = run("node", "list")
    assert (code, [member["id"] for member in told["members"]]) == (0, [1])
    assert [(each["group"], [member["id"] for member in each["members"]]) for each in told["groups"]] == [(2, [1])]
    text = run("node", "list", as_json=False)[1]
    assert [line.split()[0] for line in text.splitlines() if " leader " in line] == ["1", "2/1"]
    assert "groups" not in run("node", "list", "--in-group", "2")[1]
    code, told = run("auth", "show")
    assert (code, [view["node"] for view in told["nodes"]]) == (0, [1, "2/1"])
    assert [view["node"] for view in run("auth", "key")[1]["nodes"]] == [1, "2/1"]
    code, both = run("node", "can-stop", "1", "2/1")
    assert (code, both["allowed"]) == (ExitCode.REFUSED, False)
    assert [(each["name"], each["allowed"]) for each in both["nodes"]] == [(1, False), ("2/1", False)]
    code, answer = run("node", "can-stop", "2/1", as_json=False)
    assert (code, "do not stop node 2/1 now" in answer) == (ExitCode.REFUSED, True)
    assert "raftmq node add --in-group 2 --data" in answer.splitlines()[-1]


def test_metadata_of_all_groups_is_exported_and_imported(cluster: LocalCluster, run: Run, tmp_path: Path) -> None:
    make_topic(cluster, "M", [2])
    with connect(cluster.servers) as mq:
        mq.admin.create_group("meta")
        wait_for_copy(cluster, "groups", "meta")
        for _ in range(3):
            mq.send("M", b"m")
        mq.admin.commit("meta", "M", number_of(2, 0), 3)
        file = tmp_path / "metadata.json"
        code, told = run("metadata", "export", "--to", str(file))
        assert code == 0, told
        document = json.loads(file.read_text())
        (topic,) = [each for each in document["topics"] if each["name"] == "M"]
        assert (topic["place"], topic["read_queues"]) == ([[2, 1, 1]], 1)
        (second,) = document["further"]
        assert (second["group_id"], second["ends"]["M"]) == (2, [3])
        offset = {"group": "meta", "topic": "M", "queue_id": 0, "offset": 3}
        assert offset in second["offsets"]
        assert run("metadata", "import", str(file), "--yes")[1]["changes"] == []
        second["offsets"] = [{**offset, "offset": 1}]
        topic["attributes"] = {"dedup": "strict"}
        document["topics"].append({**topic, "name": "N", "place": [[1, 2, 2], [2, 1, 1]]})
        file.write_text(json.dumps(document))
        code, told = run("metadata", "import", str(file), "--yes")
        assert (code, told["applied"]) == (0, True), told
        assert "~ offset of meta in M/2/0: 3 -> 1 (back: 2 again)" in told["changes"]
        assert mq.admin.committed("meta", "M", number_of(2, 0)) == 1
        wait_for_copy(cluster, "topics", "N")
        wait(lambda: len(mq.admin.describe_topic("N").queues) == 3, "N is not in both groups")
        assert [queue.queue_id for queue in mq.admin.describe_topic("M").queues] == [number_of(2, 0)], "where it was"
        document["further"][0]["group_id"] = 3
        file.write_text(json.dumps(document))
        changes = run("metadata", "import", str(file), "--dry-run")[1]["changes"]
    assert "! group of brokers 3: 1 offsets are left out, the cluster does not have it" in changes


def test_open_transactions_and_staged_writes_are_listed_of_all_groups(run: Run) -> None:
    for command in ("transactions", "writes"):
        code, told = run(command, "list")
        assert (code, [each["group"] for each in told["groups"]]) == (0, [2]), command
    assert run("transactions", "list", as_json=False)[1] == "0 open transactions\n"
    text = run("writes", "list", as_json=False)[1].splitlines()
    none = "0 messages staged, 0 bytes"
    assert text == ["group      1", none, "group      2", none]


def test_what_is_hot_is_told_of_each_group(run: Run) -> None:
    code, told = run("topic", "hot")
    assert (code, told["group"], [each["group"] for each in told["groups"]]) == (0, 1, [2])
    lines = run("topic", "hot", as_json=False)[1].splitlines()
    assert [line.partition(":")[0] for line in lines if line.startswith("group ")] == ["group 1", "group 2"]


def test_fewer_queues_hide_nothing_in_any_group(cluster: LocalCluster, run: Run) -> None:
    """The first group decides about the topic, and knows nothing of what is unread in the second."""
    make_topic(cluster, "Fewer", [2])
    run("topic", "alter", "Fewer", "--queues", "3")
    wait(lambda: len(run("topic", "describe", "Fewer")[1]["queues"]) == 3, "the second group has two queues")
    with connect(cluster.servers) as mq, mq.producer() as producer:
        sent = [producer.send("Fewer", b"%d" % number) for number in range(6)]
    assert {group_of(each.queue_id) for each in sent} == {2}
    for command in (("alter", "Fewer", "--queues", "1"), ("create", "Fewer", "--update", "--queues", "1")):
        code, told = run("topic", *command)
        assert (code, "are not consumed lie in queues" in told["error"]["what"]) == (ExitCode.REFUSED, True), told
    assert len(run("topic", "describe", "Fewer")[1]["queues"]) == 3
    text = run("topic", "alter", "Fewer", "--queues", "1", "--now", as_json=False)[1]
    assert text.startswith("Fewer has 1 queue in group 2")


def test_a_topic_is_made_in_all_groups(cluster: LocalCluster, run: Run) -> None:
    text = run("topic", "create", "All", "--queues", "2", as_json=False)[1]
    assert text == "created topic All with 2 queues in each of the groups 1, 2\n"
    wait_for_copy(cluster, "topics", "All")
    queues = [number_of(group, queue) for group in (1, 2) for queue in (0, 1)]
    assert [queue["queue_id"] for queue in run("topic", "describe", "All")[1]["queues"]] == queues
    make_topic(cluster, "Here", [2])
    assert run("topic", "create", "Here", "--keep")[1]["topic"]["groups"] == [2]
    text = run("topic", "alter", "Here", "--queues", "3", as_json=False)[1]
    assert text == "Here has 3 queues in group 2\n"
    wait(lambda: len(run("topic", "describe", "Here")[1]["queues"]) == 3, "the second group has one queue")
    AdminApi(addresses_of(cluster.of_group(1))).post(
        "/v1/topics", {"name": "Here", "if_exists": "update", "queues": 2, "groups": [1], "move_keys": True}
    )
    text = run("topic", "alter", "Here", "--retention", "1h", as_json=False)[1]
    assert text == "Here has 2 queues in group 1, 3 in group 2 retention.ms=3600000\n"
    text = run("topic", "create", "Here", "--update", "--queues", "4", as_json=False)[1]
    assert text == "updated topic Here with 4 queues in each of the groups 1, 2\n"
