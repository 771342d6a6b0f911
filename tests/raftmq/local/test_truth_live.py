"""Two groups of real processes share topics: what is made in the first is there in the second, and what still works in
the second while the first is away."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.config.local_layout import NodeRecord
from jepsen_like.client_kit.fields import send_fields
from jepsen_like.client_kit.frames import HOST, frames_of, request
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import address_of
from raftmq.local.process import free_base_port
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.errors import LocalError
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.wait_until import wait

pytestmark = [pytest.mark.live, pytest.mark.ci]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("two") / "data")
    with small_segments():
        made.up(1, free_base_port(16), groups=2)
    yield made
    made.down()


def node_of(cluster: LocalCluster, group: int) -> NodeRecord:
    return cluster.of_group(group)[0]


def api(cluster: LocalCluster, group: int) -> AdminApi:
    return AdminApi([address_of(node_of(cluster, group))])


def ask(port: int, code: RequestCode, fields: dict[str, str], body: bytes = b"") -> tuple[int, str | None, bytes]:
    """Code, remark and body of the answer."""
    with socket.create_connection((HOST, port), timeout=at_most(10)) as connection:
        connection.sendall(request(code, fields, body, opaque=1)[1])
        buffer = bytearray()
        while data := connection.recv(1 << 16):
            buffer += data
            for header, found in frames_of(buffer):
                return header.code, header.remark, bytes(found)
    raise ConnectionError("closed without an answer")


def answered(connection: socket.socket, code: RequestCode, fields: dict[str, str], body: bytes = b"") -> bytes:
    """The body of the answer on a connection that stays open. Its code must be 0."""
    connection.sendall(request(code, fields, body, opaque=1)[1])
    buffer = bytearray()
    while data := connection.recv(1 << 16):
        buffer += data
        for header, found in frames_of(buffer):
            if header.flag & 1:  # else the node tells the client that members have changed
                assert header.code == 0, header.remark
                return bytes(found)
    raise ConnectionError("closed without an answer")


def send(cluster: LocalCluster, group: int, topic: str) -> tuple[int, str | None]:
    port = node_of(cluster, group).broker_port
    return ask(port, RequestCode.SEND_MESSAGE_V2, send_fields(topic), b"hello")[:2]


def route(cluster: LocalCluster, group: int, topic: str) -> dict[str, Any]:
    port = node_of(cluster, group).namesrv_port
    code, remark, body = ask(port, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    assert code == 0, remark
    found: dict[str, Any] = json.loads(body)
    return found


def topics(cluster: LocalCluster, group: int) -> dict[str, list[int]]:
    rows = api(cluster, group).local("/v1/topics")["topics"]
    return {row["name"]: row["groups"] for row in rows}


def make(cluster: LocalCluster, name: str, groups: list[int]) -> None:
    """Makes a topic in the first group, unless it is there, and waits until the second one knows it."""
    wanted = {"name": name, "queues": 2, "groups": groups, "if_exists": "keep"}
    api(cluster, 1).post("/v1/topics", wanted)
    wait(lambda: topics(cluster, 2).get(name) == groups, lambda: topics(cluster, 2))


def test_a_topic_of_two_groups_is_written_and_found_in_both(cluster: LocalCluster) -> None:
    make(cluster, "both", [1, 2])
    make(cluster, "one", [1])
    found = [route(cluster, group, "both") for group in (1, 2)]
    assert found[0] == found[1]
    assert [row["brokerName"] for row in found[0]["queueDatas"] if row["perm"] & 2] == ["raftmq-1", "raftmq-g02-1"]
    assert route(cluster, 2, "one") == route(cluster, 1, "one"), "group 2 has none of its queues, and knows who has"
    assert [send(cluster, group, "both")[0] for group in (1, 2)] == [0, 0]
    assert send(cluster, 1, "one")[0] == 0
    code, remark = send(cluster, 2, "one")
    assert code != 0, remark
    api(cluster, 1).delete("/v1/topics/one")
    wait(lambda: "one" not in topics(cluster, 2), lambda: topics(cluster, 2))


def test_what_is_made_at_the_second_group_is_there_when_it_was_answered(cluster: LocalCluster) -> None:
    second = api(cluster, 2)
    made = second.post("/v1/topics", {"name": "there", "queues": 3, "groups": [2]})
    assert (made["topic"]["groups"], made["topic"]["read_queues"], made["result"]) == ([2], 3, "created")
    everywhere = second.post("/v1/topics", {"name": "everywhere", "queues": 3})
    assert (everywhere["topic"]["groups"], everywhere["topic"]["read_queues"]) == ([1, 2], 3)
    assert send(cluster, 2, "there")[0] == 0
    assert send(cluster, 2, "made-by-a-send")[0] == 0
    assert (topics(cluster, 1)["there"], topics(cluster, 1)["made-by-a-send"]) == ([2], [2])
    second.post("/v1/groups", {"name": "g"})
    assert [row["name"] for row in api(cluster, 1).local("/v1/groups")["groups"]] == ["g"]
    second.delete("/v1/topics/there")
    assert topics(cluster, 1) == topics(cluster, 2)
    assert "there" not in topics(cluster, 2)
    with pytest.raises(LocalError, match="topic made-by-a-send is there already"):
        second.post("/v1/topics", {"name": "made-by-a-send"})


def test_what_is_refused(cluster: LocalCluster) -> None:
    first, second = api(cluster, 1), api(cluster, 2)
    with pytest.raises(LocalError, match="there is no group 3"):
        first.post("/v1/topics", {"name": "three", "groups": [1, 3]})
    with pytest.raises(LocalError, match="the groups are in the log of group 1"):
        second.post("/v1/broker-groups", {"group": 3})
    with pytest.raises(LocalError, match="there is a group 2 already"):
        first.post("/v1/broker-groups", {"group": 2})
    with pytest.raises(LocalError, match="would read as an alias"):
        first.post("/v1/broker-groups", {"group": 3, "name": "raftmq-7"})
    assert [row["group"] for row in second.local("/v1/broker-groups")["groups"]] == [1, 2]


def test_a_topic_comes_and_goes_while_it_is_written(cluster: LocalCluster) -> None:
    """A send that was checked against the topic of before goes into the log before the copy that ends it: apply takes
    no row of a topic that is not there, and a node that has one stops."""
    first, port = api(cluster, 1), node_of(cluster, 2).broker_port
    ended, codes = threading.Event(), Counter[int]()

    def flood() -> None:
        frames = b"".join(
            request(RequestCode.SEND_MESSAGE_V2, send_fields("restless"), b"hello", opaque=number)[1]
            for number in range(200)
        )
        while not ended.is_set():
            with socket.create_connection((HOST, port), timeout=at_most(10)) as connection:
                connection.sendall(frames)
                buffer, left = bytearray(), 200
                while left and (data := connection.recv(1 << 16)):
                    buffer += data
                    for header, _ in frames_of(buffer):
                        codes[header.code] += 1
                        left -= 1

    floods = [threading.Thread(target=flood) for _ in range(2)]
    for each in floods:
        each.start()
    try:
        for _ in range(12):  # sends make it again, too
            first.post("/v1/topics", {"name": "restless", "queues": 2, "groups": [2], "if_exists": "keep"})
            taken = codes[0]
            wait(lambda taken=taken: codes[0] > taken)  # type: ignore[misc]
            first.delete("/v1/topics/restless")
    finally:
        ended.set()
        for each in floods:
            each.join()
    assert codes[0] > 0
    assert not cluster.view(2).nodes[0].status["alarms"]  # type: ignore[index]
    assert api(cluster, 2).local("/v1/status")["term"] == 1, "it did not stop and start again"


def test_a_client_is_listed_by_a_group_that_has_not_heard_of_it(cluster: LocalCluster) -> None:
    """As for a Java client whose next heartbeat comes in half a minute, while another has sent one to both groups."""
    make(cluster, "both", [1, 2])
    sub = [{"topic": "both", "subString": "*", "subVersion": 1}]
    consumer = {"groupName": "readers", "subscriptionDataSet": sub}
    with contextlib.ExitStack() as stack:

        def connected(group: int, client: str) -> socket.socket:
            address = HOST, node_of(cluster, group).broker_port
            connection = stack.enter_context(socket.create_connection(address, timeout=at_most(10)))
            body = json.dumps({"clientID": client, "consumerDataSet": [consumer]}).encode()
            answered(connection, RequestCode.HEART_BEAT, {}, body)
            return connection

        connected(1, "early")
        connected(1, "late")
        at_second = connected(2, "early")
        fields = {"consumerGroup": "readers"}
        listed = json.loads(answered(at_second, RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields))
        assert listed["consumerIdList"] == ["early", "late"]


def test_the_second_group_goes_on_without_the_first(cluster: LocalCluster) -> None:
    make(cluster, "both", [1, 2])
    first = node_of(cluster, 1)
    before = route(cluster, 2, "both")
    cluster.kill(first.name)
    assert send(cluster, 2, "both")[0] == 0
    assert route(cluster, 2, "both") == before, "who is away keeps its rows: keys keep their queues"
    cluster.kill("2/1")
    cluster.restart("2/1")
    assert send(cluster, 2, "both")[0] == 0
    assert route(cluster, 2, "both") == before, "the map is on disk"
    code, remark = send(cluster, 2, "made-without-group-1")
    assert (code, "group 1 has no leader now" in (remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True), remark
    cluster.restart(first.name)
    api(cluster, 1).post("/v1/topics", {"name": "later", "groups": [2]})
    wait(lambda: topics(cluster, 2).get("later") == [2], lambda: topics(cluster, 2))
    assert send(cluster, 2, "later")[0] == 0


def test_what_an_answer_says_is_made_or_gone_is_so_in_the_other_group(cluster: LocalCluster) -> None:
    first = api(cluster, 1)
    for number in range(10):
        topic, group = f"shown-{number}", f"shown-g-{number}"
        first.post("/v1/topics", {"name": topic, "queues": 1})
        first.post("/v1/groups", {"name": group})
        assert topic in topics(cluster, 2)
        port = node_of(cluster, 2).broker_port
        fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "0"}
        assert ask(port, RequestCode.UPDATE_CONSUMER_OFFSET, fields)[0] == 0
        first.delete(f"/v1/topics/{topic}")
        assert topic not in topics(cluster, 2)
