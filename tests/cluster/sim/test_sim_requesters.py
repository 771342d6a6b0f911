"""Replies of request and reply: who gets them, whichever node took the request, the reply, or was restarted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.broker.groups.reply_notes import TTL_MAX_MS, TTL_MIN_MS, ttl_of
from raftmq_wire.codes import ResponseCode
from statemachine.levels import OWNERS_LEVEL
from tests.support.sim_cluster import SimCluster, SimNode
from tests.support.sim_users import with_key
from tests.support.users_clients import ANN, BOB, EVE, REPLIER, UsersClient, with_users

NODES = [0, 1, 2]


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimCluster]:
    with with_key(tmp_path) as made:
        made.create_topic("T")
        yield made


def producer(sim: SimCluster, node: SimNode, who: Any, client_id: str = "c") -> UsersClient:
    """A connected producer of a user."""
    made = UsersClient(sim, node, who, client_id)
    assert made.beat()[0] == 0
    return made


def denied(sim: SimCluster) -> int:
    """Requests that were denied, or would have been, on all nodes."""
    return sum(each.times for node in sim.running for each in node.running.serving.broker.denials.last_hour())


def undelivered(sim: SimCluster) -> list[str]:
    return [
        each.client_id for node in sim.running for each in node.running.serving.broker.shared_ids.undelivered_lately()
    ]


@pytest.mark.parametrize("replied_at", NODES)
@pytest.mark.parametrize("asked_at", NODES)
def test_the_reply_goes_to_the_connection_that_asked(sim: SimCluster, asked_at: int, replied_at: int) -> None:
    """Not to another user with the client id, although he came last and everywhere; he may not even send."""
    with_users(sim)
    requester = producer(sim, sim.running[asked_at], ANN)
    strangers = [producer(sim, node, EVE) for node in sim.running]
    assert requester.wants_reply("id-1")[0] == 0
    strangers += [producer(sim, node, EVE) for node in sim.running]
    replier = UsersClient(sim, sim.running[replied_at], REPLIER, "r")
    assert replier.reply("c", "id-1", b"secret") == (0, "")
    assert requester.bodies == [b"secret"]
    assert not any(stranger.asked for stranger in strangers)


@pytest.mark.parametrize("mode", ["", "observe", "enforce"])
@pytest.mark.parametrize("asked_at", NODES)
def test_two_clients_of_one_id_each_get_their_own(sim: SimCluster, asked_at: int, mode: str) -> None:
    """Containers share ids: of one user, of two, and without users."""
    with_users(sim, mode)
    users = (ANN, BOB, ANN) if mode else (None, None, None)
    clients = [producer(sim, sim.running[(asked_at + at) % 3], who) for at, who in enumerate(users)]
    clients += [producer(sim, sim.running[asked_at], users[1])]
    for at, client in enumerate(clients):
        assert client.wants_reply(f"id-{at}")[0] == 0
    for at, client in enumerate(clients):
        replier = UsersClient(sim, sim.running[at % 3], REPLIER if mode else None, "r")
        assert replier.reply("c", f"id-{at}", b"%d" % at)[0] == 0
        assert client.bodies == [b"%d" % at]


@pytest.mark.parametrize(("mode", "reaches"), [("", True), ("observe", True), ("enforce", False)])
@pytest.mark.parametrize("forged_at", NODES)
def test_a_reply_that_nobody_waits_for(sim: SimCluster, forged_at: int, mode: str, reaches: bool) -> None:
    """Who may reply cannot make up a reply for a client that waits for others."""
    with_users(sim, mode)
    client = producer(sim, sim.running[1], ANN if mode else None)
    client.wants_reply("id-1")
    sim.loop.run_for(TTL_MIN_MS / 1000 + 2)
    client.wants_reply("id-2")
    before = denied(sim)
    forger = UsersClient(sim, sim.running[forged_at], EVE if mode else None, "x")
    code, remark = forger.reply("c", "id-x", b"forged", topic="S")
    assert (code, client.bodies) == ((0, [b"forged"]) if reaches else (1, []))
    assert denied(sim) - before == (1 if mode else 0)
    nobody = forger.reply("nobody", "id-x", b"", topic="S")
    assert nobody[0] == 1
    if not reaches:
        assert remark.replace("<c>", "<nobody>") == nobody[1], "as if no such client were there"


@pytest.mark.parametrize("at", NODES)
def test_a_request_copied_by_who_read_it_leads_the_reply_to_nobody_else(sim: SimCluster, at: int) -> None:
    """He knows client id and correlation id, and notes them too; also not when the node that knew more has ended."""
    with_users(sim)
    others = [producer(sim, sim.running[at], ANN) for at in (0, 2)]
    client = producer(sim, sim.running[1], ANN)
    thief = producer(sim, sim.running[at], EVE)
    client.wants_reply("id-1")
    thief.wants_reply("id-1", topic="S")
    replier = UsersClient(sim, sim.running[2], REPLIER, "r")
    code, _ = replier.reply("c", "id-1", b"secret")
    assert not thief.asked
    assert (code, client.bodies) == ((0, [b"secret"]) if at == 1 else (1, [])), "the first is known only to one node"
    assert undelivered(sim) == ([] if at == 1 else ["c"])
    sim.loop.run_for(1)
    sim.running[1].kill(power=False)
    sim.loop.run_for(1)
    replier = UsersClient(sim, sim.running[-1], REPLIER, "r")
    code, _ = replier.reply("c", "id-1", b"secret")
    assert not thief.asked
    assert (code, [body for other in others for body in other.bodies]) == ((0, [b"secret"]) if at == 1 else (1, []))


@pytest.mark.parametrize("replied_at", NODES)
def test_a_connection_that_was_replaced(sim: SimCluster, replied_at: int) -> None:
    """The noted one comes first as long as it is open; then any other of the user, older ones too."""
    with_users(sim)
    node, other = sim.running[0], sim.running[1]
    elsewhere, older = producer(sim, other, ANN), producer(sim, node, ANN)
    asked = producer(sim, node, ANN)
    newer = producer(sim, node, ANN)
    strangers = [producer(sim, each, EVE) for each in sim.running]
    asked.wants_reply("id-1")
    replier = UsersClient(sim, sim.running[replied_at], REPLIER, "r")
    for number, client in enumerate([asked, newer, older, elsewhere]):
        assert replier.reply("c", "id-1", b"%d" % number)[0] == 0
        assert client.bodies == [b"%d" % number]
        client.close()
        sim.loop.run_for(0.1)
    assert replier.reply("c", "id-1", b"nobody")[0] == 1
    assert not any(stranger.asked for stranger in strangers)


def restart(sim: SimCluster, node: SimNode) -> None:
    node.kill(power=False)
    sim.loop.run_for(1)
    node.start()
    sim.settle()


@pytest.mark.parametrize("replied_at", NODES)
@pytest.mark.parametrize("twice", [False, True])
def test_the_node_that_noted_it_was_restarted(sim: SimCluster, replied_at: int, twice: bool) -> None:
    with_users(sim)
    node = sim.followers()[0]
    producer(sim, node, ANN).wants_reply("id-1")
    restart(sim, node)
    others = [each for each in sim.running if each is not node]
    client = producer(sim, others[0], ANN)
    client.wants_reply("id-2")  # that it waits for others says nothing now
    stranger = producer(sim, others[1], EVE) if twice else None
    replier = UsersClient(sim, sim.running[replied_at], REPLIER, "r")
    code, _ = replier.reply("c", "id-1", b"late")
    assert (code, client.bodies) == ((1, []) if twice else (0, [b"late"]))
    assert undelivered(sim) == (["c"] if twice else [])
    assert stranger is None or not stranger.asked
    if stranger is not None:
        finding = replier.node.running.serving.broker.shared_ids.undelivered_lately()[0]
        assert len(finding.users) == 2


def test_a_node_that_is_down_for_long_has_noted_nothing(sim: SimCluster) -> None:
    """Two users with one client id go on while one node is away."""
    with_users(sim)
    sim.followers()[0].kill(power=False)
    sim.loop.run_for(TTL_MIN_MS / 1000 + 10)
    node, other = sim.running
    ann, bob = producer(sim, node, ANN), producer(sim, other, BOB)
    ann.wants_reply("id-1")
    assert UsersClient(sim, other, REPLIER, "r").reply("c", "id-1", b"1")[0] == 0
    assert (ann.bodies, bob.bodies) == ([b"1"], [])


@pytest.mark.parametrize("mode", ["", "observe", "enforce"])
def test_a_node_that_says_nothing_is_not_waited_for(sim: SimCluster, mode: str) -> None:
    with_users(sim, mode)
    leader, (near, silent) = sim.leader(), sim.followers()
    client = producer(sim, near, ANN if mode else None)
    client.wants_reply("id-1")
    sim.isolate(silent)
    assert UsersClient(sim, leader, REPLIER if mode else None, "r").reply("c", "id-1", b"1")[0] == 0
    assert client.bodies == [b"1"]
    sim.mend()


def test_the_node_with_the_note_says_nothing_for_a_while(sim: SimCluster) -> None:
    """It is not lost: whoever took the client id elsewhere does not get the reply (seed 760000069)."""
    with_users(sim)
    leader, (near, silent) = sim.leader(), sim.followers()
    client, thief = producer(sim, silent, ANN), producer(sim, near, EVE)
    client.wants_reply("id-1")
    sim.isolate(silent)
    replier = UsersClient(sim, leader, REPLIER, "r")
    code, remark = replier.reply("c", "id-1", b"early")
    assert code != 0
    assert f"node {silent.node_id} does not say" in remark
    sim.mend()
    sim.settle()
    assert replier.reply("c", "id-1", b"secret")[0] == 0
    assert client.bodies[-1:] == [b"secret"]
    assert not thief.asked


@pytest.mark.parametrize("mode", ["", "enforce"])
def test_below_the_level_a_reply_goes_to_the_client_id(sim: SimCluster, mode: str) -> None:
    with_users(sim, mode, OWNERS_LEVEL - 1)
    client = producer(sim, sim.followers()[0], ANN if mode else None)
    client.wants_reply("id-1")
    for node in sim.running:
        assert UsersClient(sim, node, REPLIER if mode else None, "r").reply("c", "id-x", b"1")[0] == 0
    assert client.bodies == [b"1"] * 3


def test_a_client_whose_time_is_over_is_forgotten(sim: SimCluster) -> None:
    with_users(sim)
    node = sim.running[0]
    client = producer(sim, node, ANN)
    notes = node.running.serving.broker.reply_notes
    for at in range(5):
        client.wants_reply(f"id-{at}", ttl_ms=TTL_MIN_MS + 2_000 * at)
    note = notes.find("c", "id-0")
    assert note is not None
    assert notes.waits("c", note.user)
    sim.loop.run_for(TTL_MIN_MS / 1000 + 0.5)
    assert notes.find("c", "id-0") is None
    assert notes.find("c", "id-1") is not None
    sim.loop.run_for(15)
    assert len(notes) == 0
    assert not notes.waits("c", note.user)


@pytest.mark.parametrize(
    ("text", "wanted_ms"),
    [
        ("90000", 90_000),
        ("3000", TTL_MIN_MS),
        *((text, TTL_MIN_MS) for text in ("", "0", "-1", "1e9")),
        *((text, TTL_MAX_MS) for text in ("9" * 500, str(TTL_MAX_MS + 1))),
    ],
)
def test_how_long_a_requester_waits(text: str, wanted_ms: int) -> None:
    assert ttl_of(text) == wanted_ms


@pytest.mark.parametrize(("length", "most"), [(0, 50_000), (200, (16 << 20) // 1_300)], ids=["notes", "bytes"])
def test_who_asks_for_many_replies_loses_only_own_notes(sim: SimCluster, length: int, most: int) -> None:
    with_users(sim)
    node = sim.running[0]
    notes = node.running.serving.broker.reply_notes
    honest, flood = producer(sim, node, ANN, "a"), producer(sim, node, EVE, "e")
    honest.wants_reply("id-1")
    flood.wants_reply("id-0", topic="S")
    first = notes.find("e", "id-0")
    assert first is not None
    for at in range(most):
        node.run(notes.note, "e", f"{at}".rjust(length, "-"), TTL_MIN_MS, first.user, first.connection)
    flood.wants_reply("id-199", topic="S")
    assert len(notes) <= most
    assert notes.find("a", "id-1") is not None
    assert notes.find("e", "id-0") is None
    assert notes.find("e", "id-199") is not None
    sim.loop.run_for(2)
    replier = UsersClient(sim, sim.running[1], REPLIER, "r")
    assert replier.reply("e", "id-0", b"old")[0] == 0, "its note is lost, and its client id its own"
    sim.loop.run_for(TTL_MIN_MS / 1000)
    honest.wants_reply("id-2")
    assert replier.reply("a", "id-0", b"forged")[0] == 1


def test_a_note_of_names_that_are_too_long_is_not_kept(sim: SimCluster) -> None:
    with_users(sim)
    node = sim.running[0]
    client = producer(sim, node, ANN)
    assert client.wants_reply("x" * 300)[0] == 0
    assert len(node.running.serving.broker.reply_notes) == 0
    assert UsersClient(sim, node, REPLIER, "r").reply("c", "x" * 300, b"1")[0] == 0, "as below the level"


@pytest.mark.parametrize("replied_at", NODES)
def test_who_replies_needs_the_right_to_reply_whatever_topic_he_names(sim: SimCluster, replied_at: int) -> None:
    """Bob may read the request, so he knows whose it is, and may send to its topic."""
    with_users(sim)
    client = producer(sim, sim.running[1], ANN)
    client.wants_reply("id-1")
    bob = UsersClient(sim, sim.running[replied_at], BOB, "x")
    assert bob.reply("c", "id-1", b"forged", topic="T")[0] == ResponseCode.NO_PERMISSION
    replier = UsersClient(sim, sim.running[replied_at], REPLIER, "r")
    assert replier.reply("c", "id-1", b"a reply", topic="T")[0] == 0
    assert client.bodies == [b"a reply"]
