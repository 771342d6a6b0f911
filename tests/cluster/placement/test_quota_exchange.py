"""The frames by which nodes tell each other what is asked for under each quota."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.flow.quota_shares import DEMAND_MAX, Demands
from cluster.placement.quota_exchange import PAYLOAD_MAX, QuotaExchange, decode, encode
from cluster.runtime.peer_frames import Kind, WireError
from cluster.runtime.turns.work import WorkSteps
from tests.support.rows import each_row

KEY = ("topic=T", "topic=T", "pull_messages")


@given(st.dictionaries(st.tuples(*[st.text(max_size=40)] * 3), st.floats(0, DEMAND_MAX), max_size=30))
def test_what_is_told_is_heard(demands: Demands) -> None:
    assert decode(encode(demands)) == demands


def test_a_frame_has_a_bounded_size() -> None:
    demands = {("s" * 300, f"{'o' * 900}{number}", "pull_bytes"): 1.0 for number in range(1_000)}
    payload = encode(demands)
    assert len(payload) <= PAYLOAD_MAX
    assert 0 < len(decode(payload)) < len(demands)


@each_row(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb(1),
        msgpack.packb({}),
        msgpack.packb([[*KEY]]),
        msgpack.packb([[*KEY, 1]]),
        msgpack.packb([[*KEY, float("nan")]]),
        msgpack.packb([[*KEY, float("inf")]]),
        msgpack.packb([["x" * 2_000, "o", "l", 1.0]]),
        msgpack.packb([[1, "o", "l", 1.0]]),
        msgpack.packb([[*KEY, 1.0]] * 1_001),
        msgpack.packb([[*KEY, 1.0]]) + b"\x00",
        bytes(PAYLOAD_MAX + 1),
    ],
)
def test_what_is_no_frame_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode(payload)


def test_a_demand_out_of_range_is_moved_into_it() -> None:
    told = msgpack.packb([[*KEY, -3.0], ["s", "o", "l", 1e300]])
    assert decode(told) == {KEY: 0.0, ("s", "o", "l"): DEMAND_MAX}


class Shares:
    """What a node was told, and what it has to tell."""

    def __init__(self) -> None:
        self.active = True
        self.log: list[Any] = []

    def look(self, now_ms: int) -> WorkSteps:
        self.log.append(("look", now_ms))
        yield

    def below(self) -> Demands:
        return {KEY: 0.5}

    def beside(self, child: tuple[str, int], limits: tuple[str, ...]) -> Demands:
        return {(*KEY[:2], limits[0]): float(child[1])}

    def heard(self, child: tuple[str, int], demands: Demands, now_ms: int) -> None:
        self.log.append((child, demands))

    def told(self, demands: Demands) -> None:
        self.log.append(("told", demands))

    def leads_all(self) -> None:
        self.log.append("leads all")

    def forget(self) -> None:
        self.log.append("forget")


class Link:
    """A connection to a node of another group."""

    def __init__(self, group: int) -> None:
        self.group, self.open = group, True
        self.sent: list[Demands] = []

    def send(self, kind: Kind, header: list[Any], payload: bytes) -> bool:
        assert (kind, header) == (Kind.DEMANDS, [])
        if self.open:
            self.sent.append(decode(payload))
        return self.open


class World:
    """One node with two others of its group, and connections to other groups."""

    def __init__(self, group: int, leader: int) -> None:
        self.shares, self.to_first, self.leader = Shares(), Link(1), leader
        self.sent: dict[int, Demands] = {}
        self.handler: Any = None
        ours: Any = self
        self.exchange = QuotaExchange(
            ours.shares,
            ours,
            ours,
            ours,
            group=group,
            leader=lambda: ours.leader,
            leads=lambda: ours.leader == 1,
            monotonic_ms=lambda: 7,
        )

    def begin(self, owner: str, steps: WorkSteps) -> None:
        for _ in steps:
            pass

    def takes(self, kind: Kind, handler: Any) -> None:
        self.handler = handler

    def leader_link(self, group: int) -> Link | None:
        return self.to_first if group == 1 else None

    def connected_members(self) -> list[int]:
        return [2, 3]

    def send_frame(self, peer: int, kind: Kind, header: list[Any], payload: bytes) -> bool:
        self.sent[peer] = decode(payload)
        return True

    def frame(self, peer: int, demands: Demands) -> None:
        handler = self.exchange.part().frames[Kind.DEMANDS]
        handler(peer, Kind.DEMANDS, [], encode(demands))  # type: ignore[arg-type]


def test_a_follower_tells_its_leader_and_believes_nobody_else() -> None:
    world = World(group=1, leader=2)
    world.exchange.tick(0)
    assert world.sent == {2: {KEY: 0.5}}
    world.frame(3, {KEY: 9.0})
    world.handler(Link(2), [], encode({KEY: 9.0}))
    assert world.shares.log == [("look", 0)]
    world.frame(2, {KEY: 3.0})
    assert world.shares.log[-1] == ("told", {KEY: 3.0})
    world.leader, world.sent = 0, {}
    world.exchange.tick(1_000)
    assert not world.sent, "nobody leads"


def test_the_leader_of_the_first_group_tells_everybody_what_others_ask_for() -> None:
    world, second = World(group=1, leader=1), Link(2)
    world.exchange.tick(0)
    assert world.sent == {2: {KEY: 2.0}, 3: {KEY: 3.0}}, "followers hear of pulls alone"
    assert world.shares.log == [("look", 0), "leads all"]
    world.frame(3, {KEY: 1.0})
    world.handler(second, [], encode({KEY: 2.0}))
    assert world.shares.log[2:] == [(("node", 3), {KEY: 1.0}), (("group", 2), {KEY: 2.0})]
    world.exchange.tick(999)
    assert not second.sent, "once a second"
    world.exchange.tick(1_000)
    assert second.sent == [{(*KEY[:2], "send_messages"): 2.0}]
    second.open = False
    world.exchange.tick(2_000)
    second.open = True
    world.exchange.tick(3_000)
    assert len(second.sent) == 1, "a connection that broke is forgotten"


def test_the_leader_of_another_group_tells_the_first_one() -> None:
    world = World(group=2, leader=1)
    world.exchange.tick(0)
    assert world.to_first.sent == [{KEY: 0.5}]
    world.handler(Link(3), [], encode({KEY: 9.0}))
    assert world.shares.log == [("look", 0)]
    world.handler(Link(1), [], encode({KEY: 3.0}))
    assert world.shares.log[-1] == ("told", {KEY: 3.0})


def test_without_quotas_nothing_is_told() -> None:
    world = World(group=1, leader=1)
    world.exchange.tick(0)
    world.shares.active, world.sent = False, {}
    world.exchange.tick(5_000)
    world.exchange.tick(10_000)
    assert not world.sent
    assert world.shares.log[-1] == "forget"
    assert world.shares.log.count("forget") == 1
