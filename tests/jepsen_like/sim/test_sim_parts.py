"""The simulator's own parts: processes on the loop, TCP in memory, the running digest, and the rules of judgement."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.sim.clients.client_machines import Attempt, Foreign
from jepsen_like.sim.faults.fault_plan import plan
from jepsen_like.sim.judge import bounds
from jepsen_like.sim.machines.disk import DigestKV, FaultyFileSystem, lost_rows
from jepsen_like.sim.machines.loop import EventBudgetError, Process, SimLoop
from jepsen_like.sim.machines.network import EdgeConditions, Network
from jepsen_like.sim.options import ADDED_KINDS, FAULT_KINDS, LATER_KINDS, STALL_KINDS, STALLS_FROM, draw
from statemachine.rows.kv import CQ, META, Batch


class Machines:
    """A loop, a network and two processes; `told` is what connections heard, in order."""

    def __init__(self) -> None:
        self.loop = SimLoop(10_000)
        self.network = Network(self.loop, EdgeConditions(random.Random(1), (0.001, 0.01), split=0.3))
        self.a, self.b = Process("a", "10.0.0.1"), Process("b", "10.0.0.2")
        self.told: list[Any] = []
        self.dialled: list[Any] = []

    def serve(self) -> None:
        self.b.run(self.network.listen, lambda: Told(self, "b"), "10.0.0.2", 80)

    def connect(self) -> None:
        self.serve()
        self.dial()
        self.pass_time(1)

    def dial(self) -> None:
        async def work() -> None:
            try:
                transport, _ = await asyncio.get_running_loop().create_connection(
                    lambda: Told(self, "a"), "10.0.0.2", 80
                )
                self.dialled.append(transport)
            except OSError as error:
                self.dialled.append(error)

        self.a.run(self.loop.create_task, work())

    def pass_time(self, seconds: float) -> None:
        self.loop.call_outside(seconds, self.loop.stop)
        self.loop.run_forever()

    def heard(self, name: str) -> bytes:
        return b"".join(data for who, data in self.told if who == name and isinstance(data, bytes))


class Told(asyncio.Protocol):
    def __init__(self, machines: Machines, name: str) -> None:
        self.machines, self.name = machines, name

    def data_received(self, data: bytes) -> None:
        self.machines.told.append((self.name, data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.machines.told.append((self.name, type(exc).__name__))


@pytest.fixture
def machines() -> Iterator[Machines]:
    made = Machines()
    yield made
    made.loop.bury([made.a, made.b])


def test_a_stopped_process_goes_on_where_it_stood(machines: Machines) -> None:
    ran: list[float] = []
    machines.a.run(machines.loop.call_later, 1.0, lambda: ran.append(machines.loop.now))
    machines.a.paused = True
    machines.pass_time(2)
    assert not ran
    machines.loop.resume(machines.a)
    machines.pass_time(1)
    assert ran == [2.0]


def test_a_dead_process_does_nothing_any_more(machines: Machines) -> None:
    ran: list[int] = []

    async def forever() -> None:
        while True:
            ran.append(1)
            await asyncio.sleep(1)

    machines.a.run(machines.loop.create_task, forever())
    machines.pass_time(2.5)
    machines.a.alive = False
    machines.pass_time(5)
    assert len(ran) == 3


def test_the_event_budget_is_a_limit(machines: Machines) -> None:
    def again() -> None:
        machines.loop.call_soon(again)

    machines.a.run(machines.loop.call_soon, again)
    with pytest.raises(EventBudgetError):
        machines.pass_time(1)


def test_bytes_arrive_whole_and_in_order(machines: Machines) -> None:
    machines.connect()
    sent = [bytes([n]) * (n + 1) for n in range(100)]
    for data in sent:
        machines.dialled[0].write(data)
    machines.pass_time(1)
    assert machines.heard("b") == b"".join(sent)


def test_a_cut_delays_and_never_loses(machines: Machines) -> None:
    machines.connect()
    machines.network.cut([("10.0.0.1", "10.0.0.2")])
    machines.dialled[0].write(b"one way")
    machines.pass_time(5)
    assert machines.heard("b") == b""
    machines.network.heal()
    machines.pass_time(1)
    assert machines.heard("b") == b"one way"


def test_a_forgotten_connection_leads_nowhere_for_ever_and_a_new_one_works(machines: Machines) -> None:
    machines.connect()
    assert not machines.network.forgets({"10.0.0.1", "10.0.0.2"})
    machines.network.forget(machines.network.dialled("10.0.0.2", "10.0.0.1"))
    assert machines.network.forgets({"10.0.0.1", "10.0.0.2"})
    assert not machines.network.forgets({"10.0.0.1", "10.0.0.3"})
    machines.dialled[0].write(b"into the void")
    machines.pass_time(1)
    machines.network.heal()
    machines.pass_time(60)
    assert machines.heard("b") == b""
    assert not machines.dialled[0].is_closing(), "nobody is told"
    machines.dial()
    machines.pass_time(1)
    machines.dialled[1].write(b"anew")
    machines.pass_time(1)
    assert machines.heard("b") == b"anew"


def test_one_side_of_a_forgotten_connection_may_be_told(machines: Machines) -> None:
    machines.connect()
    machines.network.forget(machines.network.dialled("10.0.0.1", "10.0.0.2"), told="10.0.0.2")
    machines.pass_time(5)
    assert not machines.dialled[0].is_closing()
    assert machines.told == [("b", "ConnectionResetError")]


def test_a_dial_is_refused_hangs_or_succeeds_late(machines: Machines) -> None:
    machines.dial()
    machines.pass_time(1)
    assert isinstance(machines.dialled.pop(), ConnectionRefusedError)
    machines.serve()
    machines.network.cut([("10.0.0.2", "10.0.0.1")])
    machines.dial()
    machines.pass_time(2)
    assert not machines.dialled
    machines.network.heal()
    machines.pass_time(5)
    assert machines.dialled[0].get_extra_info("peername") == ("10.0.0.2", 80)


def test_a_killed_process_says_goodbye_a_dark_machine_does_not(machines: Machines) -> None:
    machines.connect()
    machines.b.alive = False
    machines.network.process_ended(machines.b, politely=True)
    machines.pass_time(1)
    assert machines.told == [("a", "NoneType")]


def test_bytes_to_a_machine_that_came_back_are_answered_by_a_reset(machines: Machines) -> None:
    machines.connect()
    machines.b.alive = False
    machines.network.process_ended(machines.b, politely=False)
    machines.network.links.down.add("10.0.0.2")
    machines.dialled[0].write(b"anybody?")
    machines.pass_time(3)
    assert machines.told == []
    machines.network.links.down.clear()
    machines.network.retry()
    machines.pass_time(1)
    assert machines.told == [("a", "ConnectionResetError")]


def test_what_was_written_before_close_arrives(machines: Machines) -> None:
    machines.connect()
    machines.dialled[0].write(b"last words")
    machines.dialled[0].close()
    machines.pass_time(1)
    assert machines.heard("b") == b"last words"
    assert machines.told[-1] == ("b", "NoneType")


def test_the_running_digest_is_that_of_a_scan() -> None:
    rng = random.Random(5)
    kv = DigestKV()
    for _ in range(200):
        batch = Batch()
        for _ in range(rng.randint(1, 6)):
            family, key = rng.choice((META, CQ)), bytes([rng.randrange(20)])
            step = rng.random()
            if step < 0.6:
                batch.put(family, key, rng.randbytes(3))
            elif step < 0.8:
                batch.delete(family, key)
            else:
                batch.delete_range(family, key, bytes([key[0] + 5]))
        kv.write(batch)
        assert kv.sums == kv.recount()
        if rng.random() < 0.05:
            kv, _ = lost_rows(kv, rng)
            assert kv.sums == kv.recount()


def test_a_call_fails_once_on_demand() -> None:
    fs = FaultyFileSystem()
    fs.mkdir(Path("/d"))
    file = fs.open(Path("/d/f"), create=True)
    fs.fail_next["fdatasync"] = errno.EIO
    file.pwritev([b"x"], 0)
    with pytest.raises(OSError, match="Input/output error"):
        file.fdatasync()
    assert fs.failed == ["fdatasync:EIO"]
    fs.restart()
    assert not fs.failed


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (["ok"], (1, 1)),
        (["no", "ok"], (1, 1)),
        (["unknown", "ok"], (1, 1)),
        (["unknown", "unknown"], (0, 1)),
        (["silence", "ok"], (1, 2)),
        (["silence", "no"], (0, 1)),
        (["no"], (0, 0)),
    ],
)
def test_copies_of_a_foreign_send(ends: list[str], expected: tuple[int, int]) -> None:
    assert bounds(Foreign("m", [Attempt("10.0.0.1", 1, end) for end in ends])) == expected


def test_a_node_that_restarted_remembers_no_unanswered_send() -> None:
    attempts = [Attempt("10.0.0.1", 1, "unknown"), Attempt("10.0.0.1", 2, "ok")]
    assert bounds(Foreign("m", attempts)) == (1, 2)


def test_plans_hold_every_kind_and_one_fault_between_append_and_ack() -> None:
    kinds = set()
    for seed in (*range(200), *range(STALLS_FROM, STALLS_FROM + 20)):
        faults = plan(draw(seed))
        assert "crash-before-ack" in {fault.kind for fault in faults}
        assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
        kinds |= {fault.kind for fault in faults}
    assert kinds == {*FAULT_KINDS, "rot", "away", *ADDED_KINDS, *LATER_KINDS, *STALL_KINDS}
    assert plan(draw(3)) == plan(draw(3))


def test_what_is_added_to_a_plan_leaves_the_rest_as_it_was() -> None:
    options = next(options for options in map(draw, range(400)) if all(options.added) and not any(options.later))
    without = plan(options._replace(added=(0, 0, 0)))
    assert [fault for fault in plan(options) if fault.kind not in ADDED_KINDS] == list(without)
    assert len({fault.number for fault in plan(options)}) == len(without) + sum(options.added)


def test_half_of_the_seeds_have_nothing_added() -> None:
    drawn = [draw(seed) for seed in range(400)]
    plain = [options for options in drawn if not any(options.added) and not options.weak]
    assert 160 < len(plain) < 260
    assert all(not options.flush_async for options in plain)
    assert sum(options.weak > 0 for options in drawn) > 80
    assert sum(options.memory_pool for options in drawn) > 20
