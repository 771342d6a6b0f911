"""Links: which word fits what is seen, since when, what expires, what an operator is told."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.config.node_sections import HaSection
from cluster.peer.connections import BULK, CONTROL
from cluster.peer.link_state import Evidence, LinkMetrics, LinkState, judge
from cluster.peer.links import LOOK_EVERY_MS, Links
from cluster.peer.slow_leader_transfer import SlowTurns
from cluster.peer.sync_times import SyncTimes
from cluster.runtime.alarms import Alarms
from cluster.runtime.peer_frames import Kind, WireError
from raftlog.core.status import PeerStatus
from raftlog.types import NodeId, Role
from tests.support.rows import each_row
from tests.support.samples import text_of

TWO = NodeId(2)


def progress(state: str = "REPLICATE", lag: int = 0, match: int = 5) -> PeerStatus:
    return PeerStatus(TWO, match, match + 1, state, True, lag, 0, 0, True, not lag)


FINE = Evidence((), "", True, 50, 3000, False, progress(), 0, False)


@each_row(
    ("seen", "state", "reason"),
    [
        (FINE, "TRANSFER", ""),
        (FINE._replace(missing=("bulk",)), "SHUTDOWN", "no connection for bulk"),
        (
            FINE._replace(missing=("control", "bulk"), error="h:1: refused"),
            "SHUTDOWN",
            "no connection for control and bulk: h:1: refused",
        ),
        (FINE._replace(heard=False), "READY", "connected, and nothing has been heard of it since"),
        (FINE._replace(silent_ms=3000), "SUSPEND", "silent for 3000 ms"),
        (FINE._replace(progress=progress("PROBE", 9)), "HANDSHAKE", "probing where the logs match"),
        (
            FINE._replace(progress=progress("SNAPSHOT", 9)),
            "SUSPEND",
            "the log that it needs is trimmed: it takes a snapshot",
        ),
        (FINE._replace(progress=progress(lag=9), stalled_ms=2999), "TRANSFER", ""),
        (
            FINE._replace(progress=progress(lag=9), stalled_ms=3000),
            "SUSPEND",
            "no acknowledgement for 3000 ms, 9 entries are behind",
        ),
        (FINE._replace(stalled_ms=9999), "TRANSFER", ""),  # nothing to acknowledge
        (
            FINE._replace(progress=progress(lag=9), held=True),
            "SUSPEND",
            "it catches up, and waits for ha.catch_up_bytes_per_second",
        ),
        (FINE._replace(progress=None, leads=True), "TRANSFER", ""),
        (FINE._replace(progress=None), "SUSPEND", "neither of the two leads"),
    ],
)
def test_one_word_for_each_case(seen: Evidence, state: str, reason: str) -> None:
    assert judge(seen) == (LinkState(state), reason)


class Wire:
    """A transport of which everything can be set."""

    def __init__(self) -> None:
        membership = SimpleNamespace(node_id=NodeId(1), group_id=1)
        self.roster = SimpleNamespace(peers=lambda: [TWO], membership=membership, object_of=lambda peer: f"node {peer}")
        self.links: dict[tuple[NodeId, str], Any] = {}
        self.inlets: dict[Any, None] = {}
        self.dial_errors: dict[NodeId, str] = {}
        self.sent: list[tuple[str, Kind, list[Any]]] = []
        self.aborted: list[Any] = []

    def send_on(self, peer: NodeId, channel: str, kind: Kind, header: list[Any]) -> bool:
        self.sent.append((channel, kind, header))
        return (peer, channel) in self.links

    def connect(self) -> None:
        for channel in (CONTROL, BULK):
            link = SimpleNamespace()
            link.abort = partial(self._abort, link, (TWO, channel))
            self.links[TWO, channel] = link

    def _abort(self, link: Any, key: tuple[NodeId, str]) -> None:
        self.aborted.append(link)
        self.links.pop(key, None)

    def accept(self, channel: str = CONTROL) -> Any:
        inlet = SimpleNamespace(peer=TWO, channel=channel, reads=0, ping_interval_ms=0)
        hashed = _Hashed(inlet)
        hashed.expect_pings = partial(setattr, hashed, "ping_interval_ms")
        hashed.transport = SimpleNamespace(abort=partial(self._abort_inlet, hashed))
        self.inlets[hashed] = None
        return hashed

    def _abort_inlet(self, inlet: Any) -> None:
        self.aborted.append(inlet)
        del self.inlets[inlet]


class _Hashed(SimpleNamespace):
    def __init__(self, other: SimpleNamespace) -> None:
        super().__init__(**vars(other))

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


class World:
    def __init__(self, **ha: int) -> None:
        self.now = 1_000_000
        self.wire = Wire()
        self.raw = SimpleNamespace(
            catch_up_budget=None,
            catch_up_waits=False,
            last_index=5,
            role=Role.LEADER,
            leader_id=NodeId(1),
            status=lambda: SimpleNamespace(peers=[progress()]),
        )
        clock = SimpleNamespace(
            monotonic_ms=lambda: self.now, wall_ms=lambda: self.now + 5, monotonic_s=lambda: self.now / 1000
        )
        wire: Any = self.wire
        raw: Any = self.raw
        slow = SlowTurns(raw, clock, Alarms(clock.wall_ms), lambda to: None, 1000)
        syncs = SyncTimes(NodeId(1), clock, lambda: (0, 0.0), 1000)
        self.links = Links(wire, raw, clock, HaSection(**ha), LinkMetrics(), lambda: None, slow, syncs)

    def run(self, milliseconds: int, *speaking: Any) -> None:
        for _ in range(milliseconds // 50):
            self.now += 50
            for inlet in speaking:
                inlet.reads += 1
            self.links.tick(self.now)

    def answer_all(self) -> None:
        for channel, kind, header in self.wire.sent:
            if kind == Kind.PING:
                self.links.on_frame(TWO, Kind.PONG, [channel, header[1]])
        self.wire.sent.clear()

    @property
    def state(self) -> tuple[str, int]:
        (view,) = self.links.view()
        return view.state, view.age_ms


def test_a_link_comes_up_and_each_state_has_its_age() -> None:
    world = World()
    world.run(1000)
    assert world.state == ("SHUTDOWN", 950)
    world.wire.connect()
    world.run(2000)
    assert world.state[0] == "READY"
    inlet = world.wire.accept()
    world.run(4000, inlet)
    state, age_ms = world.state
    assert state == "TRANSFER"
    assert 3600 <= age_ms <= 4000
    world.run(4000)
    assert world.state[0] == "SUSPEND", "silent"
    text = text_of(*world.links.part().metrics)
    assert 'raftmq_link_state{peer="2",state="SUSPEND"} 1.0' in text
    assert 'raftmq_link_state{peer="2",state="READY"} 0.0' in text
    assert 'raftmq_link_changes_total{peer="2",state="TRANSFER"} 1.0' in text


def test_a_peer_is_silent_when_it_was_connected_or_heard_and_nothing_came_since() -> None:
    world = World()
    world.run(5000)
    assert not world.links.is_silent(TWO), "it is not connected"
    world.wire.connect()
    world.run(2000)
    assert not world.links.is_silent(TWO), "it may still say something"
    world.run(2000)
    assert world.links.is_silent(TWO), "connected, and never heard"
    inlet = world.wire.accept()
    world.run(1000, inlet)
    assert not world.links.is_silent(TWO)
    world.run(2500)
    assert not world.links.is_silent(TWO)
    world.run(1000)
    assert world.links.is_silent(TWO), "for three times ha.send_heartbeat_interval_ms"
    world.run(500, inlet)
    assert not world.links.is_silent(TWO)


def test_ten_seconds_in_ready_are_a_finding_also_over_connections_that_expire() -> None:
    world = World(housekeeping_interval_ms=3000)
    world.run(200)
    world.wire.connect()
    for _ in range(3):  # nobody answers: the connections are given up, and the dialler makes new ones
        world.run(3000)
        assert not world.links.view()[0].finding
        world.run(400)
        if not world.wire.links:
            world.wire.connect()
    world.run(1000)
    (view,) = world.links.view()
    assert len(world.wire.aborted) >= 4
    assert view.state == "READY"
    assert view.age_ms > 10_000
    assert "READY for 11 s" in view.finding
    world.run(1000, world.wire.accept())
    assert not world.links.view()[0].finding
    assert world.state[0] == "TRANSFER"


def test_a_link_that_was_heard_in_between_has_not_been_ready_all_the_time() -> None:
    """READY for a moment at the start, heard for two minutes, silent, given up, dialled again: READY since just now."""
    world = World(housekeeping_interval_ms=3000)
    world.wire.connect()
    world.run(500)
    assert world.state[0] == "READY"
    inlet = world.wire.accept()
    for _ in range(120):
        world.run(1000, inlet)
        world.answer_all()
    world.run(6000)  # it stands still: silent, then given up
    world.wire.connect()
    world.run(500)
    (view,) = world.links.view()
    assert (view.state, view.finding) == ("READY", "")
    assert view.age_ms < 1000


def test_answers_keep_connections_and_measure_the_round_trip() -> None:
    world = World(send_heartbeat_interval_ms=500, housekeeping_interval_ms=2000)
    world.wire.connect()
    inlet = world.wire.accept()
    for _ in range(100):
        world.run(100, inlet)
        world.answer_all()
    assert not world.wire.aborted
    trip = world.links.view()[0].round_trip_ms
    assert trip is not None
    assert 0 <= trip <= 100
    world.run(2600, inlet)
    assert len(world.wire.aborted) == 2, "both connections: nobody answers any more"
    text = text_of(*world.links.part().metrics)
    assert 'raftmq_link_expired_total{peer="2",side="dialled"} 2.0' in text


def test_silent_connections_of_a_peer_are_closed_unless_it_speaks_seldom() -> None:
    world = World(client_heartbeat_timeout_ms=2000)
    silent, seldom = world.wire.accept(), world.wire.accept(BULK)
    world.links.on_frame(TWO, Kind.PING, [BULK, 1, 5000])
    assert (BULK, Kind.PONG, [BULK, 1]) in world.wire.sent
    assert (silent.ping_interval_ms, seldom.ping_interval_ms) == (0, 5000)
    world.run(2600)
    assert silent in world.wire.aborted
    assert seldom not in world.wire.aborted
    world.run(13_000)
    assert seldom in world.wire.aborted


def test_who_stood_still_does_not_take_the_others_for_silent() -> None:
    world = World(housekeeping_interval_ms=3000, client_heartbeat_timeout_ms=3000)
    world.wire.connect()
    inlet = world.wire.accept()
    world.run(1000, inlet)
    world.answer_all()
    world.now += 60_000
    world.run(500, inlet)
    world.answer_all()
    world.run(500, inlet)
    assert not world.wire.aborted
    assert world.state[0] == "TRANSFER"
    world.run(4000)
    assert len(world.wire.aborted) == 3, "it is awake, and they are silent"


@pytest.mark.parametrize("header", [[], ["x", 1], [CONTROL, "1"], [CONTROL]])
def test_malformed_heartbeats_are_refused(header: list[Any]) -> None:
    with pytest.raises(WireError):
        World().links.on_frame(TWO, Kind.PING, header)


def test_late_and_foreign_answers_change_nothing() -> None:
    world = World()
    world.run(1000)
    world.links.on_frame(TWO, Kind.PONG, [CONTROL, 12345])
    world.links.on_frame(NodeId(9), Kind.PONG, [CONTROL, 1])
    assert world.links.view()[0].round_trip_ms is None


def words(world: World, channel: str = CONTROL) -> list[object]:
    """Returns what PINGs on one channel said of peers that are not reached, without repetitions."""
    said = [header[3] for sent_on, kind, header in world.wire.sent if kind == Kind.PING and sent_on == channel]
    return [word for at, word in enumerate(said) if not at or said[at - 1] != word]


def test_the_leader_says_at_once_whom_it_does_not_reach() -> None:
    world = World()
    world.wire.connect()
    inlet = world.wire.accept()
    world.run(3000, inlet)
    assert words(world) == [None, []] or words(world) == [[]]
    links, world.wire.links = world.wire.links, {}
    world.wire.sent.clear()
    world.run(900, inlet)
    assert world.links.unreached() == set()
    world.run(300 + LOOK_EVERY_MS, inlet)
    assert world.links.unreached() == {TWO}
    world.wire.links = links
    world.run(5000, inlet)
    assert world.links.unreached() == set()
    assert words(world)[-1] == []


def test_a_node_says_at_once_that_it_leaves_and_its_leader_counts_it_as_away() -> None:
    world = World()
    world.wire.connect()
    inlet = world.wire.accept()
    world.run(3000, inlet)
    said = [header[4] for _, kind, header in world.wire.sent if kind == Kind.PING]
    assert said
    assert not any(said)
    world.wire.sent.clear()
    world.links.leaving = lambda: True
    world.run(2 * LOOK_EVERY_MS, inlet)
    assert [header[4] for _, kind, header in world.wire.sent if kind == Kind.PING][-1] is True
    assert world.links.unreached() == set(), "itself it is not away"
    world.links.on_frame(TWO, Kind.PING, [CONTROL, 1, 1000, None, True])
    world.run(LOOK_EVERY_MS, inlet)
    assert world.links.unreached() == {TWO}
    world.links.on_frame(TWO, Kind.PING, [CONTROL, 2, 1000, None])
    world.run(5000, inlet)
    assert world.links.unreached() == set(), "an older node says nothing about it"


def test_silence_is_out_of_reach_and_who_does_not_lead_says_nothing() -> None:
    world = World()
    world.wire.connect()
    inlet = world.wire.accept()
    world.run(3000, inlet)
    world.run(1000 + LOOK_EVERY_MS)
    assert world.links.unreached() == {TWO}
    world.raw.role, world.raw.leader_id = Role.FOLLOWER, NodeId(0)
    world.run(1000)
    assert words(world)[-1] is None
    assert world.links.unreached() == {TWO}, "nobody leads: the last word stays"


def test_a_follower_takes_the_leaders_word_and_none_from_the_commit_before() -> None:
    world = World()
    world.wire.connect()
    world.wire.accept()
    world.raw.role, world.raw.leader_id = Role.FOLLOWER, TWO
    world.links.on_frame(TWO, Kind.PING, [CONTROL, 1, 1000, [3]])
    assert world.links.unreached() == {NodeId(3)}
    world.links.on_frame(TWO, Kind.PING, [BULK, 2, 1000, [4]])
    assert world.links.unreached() == {NodeId(3)}, "one connection, so that the last word is the newest"
    world.links.on_frame(TWO, Kind.PING, [CONTROL, 3, 1000])
    assert world.links.unreached() == set(), "a leader without such a field moves no name"
    with pytest.raises(WireError, match="malformed list"):
        world.links.on_frame(TWO, Kind.PING, [CONTROL, 4, 1000, "3"])
