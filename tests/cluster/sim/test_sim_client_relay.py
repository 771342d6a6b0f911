"""Requests to clients from a node that does not hold their connection."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from cluster.broker.groups.client_relay import ANSWER_MS, IN_HAND_MAX, SILENCE_MS
from cluster.broker.groups.group_members import CLIENT_ID_MAX, Role
from cluster.broker.groups.relay_frame import GROUP_MAX
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import HANDED_OVER, ClientAnswer, ClientRequest
from raftmq_wire.codec import FLAG_ONEWAY, FLAG_RESPONSE, decode_header, encode_frame
from tests.support.samples import samples
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode


class Client(ClientPath):
    """A client of a group that records requests of its node, and answers them if it has an answer."""

    def __init__(self, node: SimNode, client_id: str, **heartbeat: Any) -> None:
        super().__init__(node)
        self.asked: list[tuple[int, dict[str, str], bytes, int]] = []
        self.answer: bytes | None = None
        node.paths.append(self)
        body = json.dumps({"clientID": client_id, **heartbeat}).encode()
        self.ask(encode_frame(34, 1, 0, body=body))

    def write(self, data: bytes) -> None:
        end = 8 + int.from_bytes(data[5:8], "big")
        header = decode_header(data[4], data[8:end])
        if header.flag & FLAG_RESPONSE:
            super().write(data)
            return
        self.asked.append((header.code, json.loads(bytes(header.extFields)), data[end:], header.flag))
        if self.answer is not None:
            self.node.loop.call_soon(self.respond, header.opaque, self.answer)

    def respond(self, opaque: int, body: bytes) -> None:
        assert self.calls is not None
        frame = encode_frame(0, opaque, FLAG_RESPONSE, ext={"k": "v"}, remark="fine", body=body)
        header = decode_header(frame[4], frame[8 : 8 + int.from_bytes(frame[5:8], "big")])
        self.node.run(self.calls.on_response, header, body)

    def close(self) -> None:
        super().close()
        for callback in self.on_close:
            self.node.run(callback)


@pytest.fixture
def sim() -> Any:
    with SimCluster(int(os.environ.get("SIM_SEED", "3"))) as made:
        made.create_topic("T")
        yield made


def producer(sim: SimCluster, node: SimNode, client_id: str = "p1", group: str = "PG") -> Client:
    client = Client(node, client_id, producerDataSet=[{"groupName": group}])
    sim.loop.run_until(lambda: client.replies, 5, "the heartbeat is answered")
    return client


def ask(
    node: SimNode, request: ClientRequest, client_id: str | None = None, group: str | None = "PG"
) -> list[ClientAnswer | Refused]:
    """Returns the end of the request, when it has ended."""
    outcomes: list[ClientAnswer | Refused] = []
    node.run(node.running.serving.broker.relay.ask_client, Role.PRODUCER, group, client_id, request, outcomes.append)
    return outcomes


def reason_of(outcomes: list[ClientAnswer | Refused]) -> Reason:
    (outcome,) = outcomes
    assert isinstance(outcome, Refused)
    return outcome.reason


CHECK = ClientRequest(39, {"topic": "T"}, b"half", oneway=True)
INFO = ClientRequest(307, {"consumerGroup": "g"})


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_oneway_request_finds_its_client_on_any_node(sim: SimCluster, where: int) -> None:
    client = producer(sim, sim.running[where])
    outcomes = ask(sim.leader(), CHECK)
    sim.loop.run_until(lambda: outcomes and client.asked, 1)
    assert outcomes == [HANDED_OVER]
    assert client.asked == [(39, {"topic": "T"}, b"half", FLAG_ONEWAY)]


@pytest.mark.parametrize("where", [0, 1, 2])
def test_the_answer_comes_back(sim: SimCluster, where: int) -> None:
    client = producer(sim, sim.running[where])
    client.answer = b"running"
    outcomes = ask(sim.leader(), INFO, "p1")
    sim.loop.run_until(lambda: outcomes, 1)
    assert outcomes == [ClientAnswer(0, "fine", {"k": "v"}, b"running")]
    assert len(client.asked) == 1


@pytest.mark.parametrize("longer", [0, 1])
def test_a_name_that_no_client_can_have_costs_no_connection_between_nodes(sim: SimCluster, longer: int) -> None:
    """A peer closes a connection that brings what cannot be, and the requests behind it would be lost."""
    client = producer(sim, sim.followers()[0])
    client.answer = b"running"
    long_id = ask(sim.leader(), INFO, "c" * (CLIENT_ID_MAX + longer))
    long_group = ask(sim.leader(), INFO, group="g" * (GROUP_MAX + longer))
    outcomes = ask(sim.leader(), INFO, "p1")
    sim.loop.run_until(lambda: long_id and long_group and outcomes, 3)
    assert (reason_of(long_id), reason_of(long_group)) == (Reason.NO_CONSUMER, Reason.NO_CONSUMER)
    assert outcomes == [ClientAnswer(0, "fine", {"k": "v"}, b"running")]


def test_what_becomes_of_requests_is_counted(sim: SimCluster) -> None:
    leader, follower = sim.leader(), sim.followers()[0]
    client = producer(sim, follower)
    client.answer = b"running"

    def counts(node: SimNode) -> dict[str, float]:
        return {
            ".".join([name.removeprefix("raftmq_client_requests_"), *labels.values()]): value
            for name, labels, value in samples(*node.running.serving.broker.relay.part().metrics)
            if value and not name.endswith("_created")
        }

    for request, group in ((INFO, "PG"), (CHECK, "PG"), (INFO, "absent")):
        outcomes = ask(leader, request, None, group)
        sim.loop.run_until(lambda: outcomes, 5)  # noqa: B023 - called at once
    client.answer = None
    outcomes = ask(leader, INFO)
    sim.loop.run_until(lambda: outcomes, ANSWER_MS / 1000 + 1)
    relayed = counts(leader).pop("relayed_total")
    taken = sum(value for node in sim.followers() for value in counts(node).values())
    assert relayed == taken >= 5, "the absent one was looked for on both"
    assert {name: value for name, value in counts(leader).items() if name != "relayed_total"} == {
        "total.answered": 1,
        "total.handed_over": 1,
        "total.absent": 1,
        "total.unanswered": 1,
    }
    assert counts(follower)["taken_total.handed_over"] == 3


def test_by_client_id_alone(sim: SimCluster) -> None:
    """A requester is known by its client id; its group is not."""
    follower = sim.followers()[0]
    producer(sim, follower, "p1")
    client = producer(sim, follower, "p2", group="other")
    outcomes = ask(sim.leader(), CHECK, "p2", group=None)
    sim.loop.run_until(lambda: outcomes, 1)
    assert (len(client.asked), outcomes) == (1, [HANDED_OVER])
    client.close()
    outcomes = ask(sim.leader(), CHECK, "p2", group=None)
    sim.loop.run_until(lambda: outcomes, 1)
    assert reason_of(outcomes) is Reason.NO_CONSUMER


def test_nobody_is_connected(sim: SimCluster) -> None:
    producer(sim, sim.followers()[0], "p1", group="other")
    outcomes = ask(sim.leader(), CHECK)
    sim.loop.run_until(lambda: outcomes, SILENCE_MS / 1000)
    assert reason_of(outcomes) is Reason.NO_CONSUMER


def test_clients_of_a_group_take_turns(sim: SimCluster) -> None:
    follower = sim.followers()[0]
    clients = [producer(sim, follower, f"p{at}") for at in range(3)]
    for _ in range(6):
        ask(sim.leader(), CHECK)
        sim.loop.run_for(0.1)
    assert [len(client.asked) for client in clients] == [2, 2, 2]


@pytest.mark.parametrize("at_leader", [True, False])
def test_a_client_that_does_not_answer(sim: SimCluster, at_leader: bool) -> None:
    client = producer(sim, sim.leader() if at_leader else sim.followers()[0])
    outcomes = ask(sim.leader(), INFO)
    sim.loop.run_for(ANSWER_MS / 1000 - 0.5)
    assert (len(client.asked), outcomes) == (1, [])
    sim.loop.run_for(1)
    assert reason_of(outcomes) is Reason.ERROR
    client.respond(0, b"late")
    assert len(outcomes) == 1


@pytest.mark.parametrize("at_leader", [True, False])
def test_a_client_that_disconnects(sim: SimCluster, at_leader: bool) -> None:
    client = producer(sim, sim.leader() if at_leader else sim.followers()[0])
    outcomes = ask(sim.leader(), INFO)
    sim.loop.run_until(lambda: client.asked, 1)
    client.close()
    sim.loop.run_until(lambda: outcomes, 1)
    assert reason_of(outcomes) is Reason.ERROR


def test_the_node_of_the_client_ends(sim: SimCluster) -> None:
    follower = sim.followers()[0]
    client = producer(sim, follower)
    outcomes = ask(sim.leader(), INFO)
    sim.loop.run_until(lambda: client.asked, 1)
    follower.kill(power=False)
    sim.loop.run_until(lambda: outcomes, 5)
    assert reason_of(outcomes) is Reason.ERROR


def test_a_silent_peer_is_passed_over(sim: SimCluster) -> None:
    leader, (silent, other) = sim.leader(), sorted(sim.followers(), key=lambda node: node.node_id)
    client = producer(sim, other)
    silent.hear(frame=lambda *_: None)
    outcomes = ask(leader, CHECK)
    sim.loop.run_for(SILENCE_MS / 1000 - 0.5)
    assert not client.asked
    sim.loop.run_until(lambda: outcomes, 1)
    assert (len(client.asked), outcomes) == (1, [HANDED_OVER])


def test_limits(sim: SimCluster) -> None:
    leader, follower = sim.leader(), sim.followers()[0]
    producer(sim, follower)
    outcomes = ask(leader, ClientRequest(39, {}, bytes(leader.running.config.limits.frame_bytes_max + 1), True))
    assert reason_of(outcomes) is Reason.INVALID
    waiting = [ask(leader, INFO) for _ in range(IN_HAND_MAX)]
    assert reason_of(ask(leader, INFO)) is Reason.BUSY
    sim.loop.run_for(1)
    assert reason_of(ask(follower, INFO)) is Reason.BUSY, "the client's node counts those of others too"
    sim.loop.run_for(ANSWER_MS / 1000)
    assert {reason_of(outcomes) for outcomes in waiting} == {Reason.ERROR}
    assert ask(follower, CHECK) == [HANDED_OVER]


def test_a_client_that_comes_over_a_new_connection(sim: SimCluster) -> None:
    follower = sim.followers()[0]
    old = producer(sim, follower)
    new = producer(sim, follower)
    old.close()
    outcomes = ask(sim.leader(), CHECK, "p1", group=None)
    sim.loop.run_until(lambda: outcomes, 1)
    assert (len(old.asked), len(new.asked)) == (0, 1)
