"""Written schedules for full nodes: what their commands do, what is judged, and what a black box is not told."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from cluster.replication.acks import early_answer_file
from jepsen_like.fakes.memory_fs import SECTOR
from jepsen_like.script import ScriptError
from jepsen_like.sim.checks.monitor import SEEN_BY_CLIENTS
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.faults.fault_plan import Fault
from jepsen_like.sim.faults.leader_faults import late_apply
from jepsen_like.sim.machines.disk import DiskLeftover, FaultyFileSystem
from jepsen_like.sim.machines.loop import SimLoop
from jepsen_like.sim.scripted import ScriptedWorld, play
from raftlog.types import NodeId

T = TypeVar("T")
TWO = NodeId(2)


def looked(script: str, look: Callable[[ScriptedWorld], T]) -> T:
    seen: list[T] = []

    class Looked(ScriptedWorld):
        def phases(self) -> None:
            super().phases()
            seen.append(look(self))

    verdict = Looked(script).run()
    assert not verdict.violations, verdict.violations
    return seen[0]


@pytest.mark.parametrize("inline", ["0.0", "1.0"])
def test_every_run_of_apply_is_compared_and_none_needs_a_thread(inline: str) -> None:
    threads = threading.active_count()
    script = f"nodes 3 apply_inline={inline}\nlead 1\nsend 3\nwait 0.2\n"
    compared, applied = looked(script, lambda stage: (set(stage.monitor._sums), stage.machines[TWO].node))
    assert applied is not None
    assert len(compared) >= 5
    assert threading.active_count() == threads


def test_a_lone_append_is_written_on_the_loop_and_a_slow_disk_stalls_it_once() -> None:
    """An append takes 50 ms on the lane; on the loop it takes none, but once as long as the slow disk does: 500 ms."""

    def taken_s(inline: str, slow: str) -> float:
        began = f"nodes 3 append_inline={inline} disk_s=0.05..0.05 idle_mark_ms=1000\nlead 1\nsend 3\n{slow}"
        before = looked(began, lambda stage: stage.loop.now)
        return looked(f"{began}send 3\n", lambda stage: stage.loop.now) - before

    assert taken_s("0.0", "") > 0.15
    assert taken_s("1.0", "") < 0.05
    slow = "slow 1 10\nslow 2 10\nslow 3 10\n"
    assert 0.5 < taken_s("1.0", slow) < taken_s("0.0", slow)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("lead 1\n", "line 1: a script begins with `nodes COUNT`"),
        ("nodes three\n", "line 1"),
        ("nodes 3 colour=1\n", "line 1"),
        ("nodes 3\nfly 1\n", "line 2: no command 'fly'"),
        ("nodes 3\n\nkill 9\n", "line 3"),
        ("nodes 3\npower 1 left=half\n", "line 2"),
        ("nodes 3\nlead\n", "line 2"),
    ],
)
def test_scripts_name_the_line_they_do_not_understand(script: str, told: str) -> None:
    with pytest.raises(ScriptError, match=told):
        play(script)


@pytest.mark.parametrize("command", ["demand", "load"])
def test_clients_that_work_are_not_started_again(command: str) -> None:
    """One that is started twice is two on one memory: each message that it cannot handle, both report."""

    def started(stage: ScriptedWorld) -> int:
        assert stage.failures is not None
        return stage.failures._left + stage.register._left

    assert looked(f"nodes 3 failures=1\nlead 1\n{command} 0.1\n{command} 0.1\n", started) == 1


def test_power_in_a_call_ends_the_node_there() -> None:
    script = "nodes 3\nlead 1\npower-in 2 fdatasync left=everything\nsend 1\n"
    machine_up = looked(script, lambda stage: stage.machines[TWO].up)
    assert not machine_up
    assert not play(script + "start 2\nsettle\n").violations


@pytest.mark.parametrize(("left", "stays"), [("nothing", 0), ("heads", SECTOR), ("everything", 3 * SECTOR)])
def test_what_a_power_failure_leaves(left: DiskLeftover, stays: int) -> None:
    fs = FaultyFileSystem()
    fs.mkdir(Path("/d"))
    file = fs.open(Path("/d/f"), create=True)
    file.truncate(3 * SECTOR)
    file.fdatasync()
    fs.fsync_dir(Path("/d"))
    file.pwritev([b"x" * 3 * SECTOR], 0)
    fs.open(Path("/d/new"), create=True)
    fs.crash_leaving(left)
    assert fs.open(Path("/d/f")).pread(4 * SECTOR, 0).count(b"x") == stays
    assert fs.exists(Path("/d/new")) == (left == "everything")


def test_what_rots_on_one_disk_is_mended_from_the_others() -> None:
    def sound(stage: ScriptedWorld) -> bool:
        machine = stage.machines[TWO]
        assert machine.node is not None
        log = machine.node.storage.directory.log
        (entry,) = log.read_entries(7, 8, 1)
        return machine.rotten == {7} and machine.bytes_of(entry, log) == entry.header + entry.payload

    assert looked("nodes 3\nlead 1\nsend 6\nwait 0.2\nrot 2 7\npower 2\nstart 2\nsettle\nwait 1\n", sound)


@pytest.mark.parametrize(("wait", "newest"), [("", False), ("wait 0.2\n", True)])
def test_rot_is_told_from_a_torn_write_below_the_newest_mark(wait: str, newest: bool) -> None:
    """Seed 987000449: rot in the last batch, before its mark, and a kill. A start cuts such an entry."""

    def marked(stage: ScriptedWorld) -> list[bool]:
        machine = stage.machines[TWO]
        assert machine.node is not None
        log = machine.node.storage.directory.log
        return [machine.is_marked(entry, log) for entry in log.read_entries(1, log.tail.index + 1, 1 << 20)]

    *older, last = looked(f"nodes 3\nlead 1\nwait 0.2\nsend 3\n{wait}", marked)
    assert last is newest
    assert older[0]


def test_a_black_box_hears_of_what_clients_see() -> None:
    """Of disks whose syncs do nothing, and a power failure."""
    script = "nodes 3\nlying 1 2 3\nlead 1\nsend 3\npower 1 2 3\nstart 1 2 3\nsettle\n"
    assert {violation.checker for violation in play(script).violations} - SEEN_BY_CLIENTS
    seen = play(script, black_box=True).violations
    assert seen
    assert {violation.checker for violation in seen} <= SEEN_BY_CLIENTS


def test_a_power_failure_in_a_write_on_the_loop_ends_the_node_as_one_does() -> None:
    """Seed 959600026: the record of early answers is written on the loop, and its node called that a failure."""

    class Failing(ScriptedWorld):
        def do_dim(self, node: str) -> None:
            fs = self.machines[NodeId(int(node))].fs
            step = fs.step

            def failing(call: str, path: Path, half: object = None) -> OSError | None:
                if (call, path.name) == ("pwritev", early_answer_file.NAME):
                    fs.step = step  # type: ignore[method-assign]
                    fs.cut_power_in = call
                return step(call, path, half)

            fs.step = failing  # type: ignore[method-assign]

    lines: list[str] = []
    script = "nodes 3 append_inline=0.0\nlead 1\nsend 3\ndim 1\nask 1 level=leader later\nwait 0.1\n"
    verdict = Failing(script, trace=lines.append).run()
    assert not verdict.violations
    assert any(line.endswith("node 1 ends: power") for line in lines)


@pytest.mark.parametrize(("code", "silent"), [(14, True), (11, False), (310, False)])
def test_a_request_without_an_answer_is_excused_by_its_code(code: int, silent: bool) -> None:
    loop = SimLoop(1000)
    connection = RawConnection("a", loop, lambda checker, what: None)
    connection.frame(code, {})
    loop.close()
    (asked,) = connection.unanswered.values()
    assert asked.silent == silent


@pytest.mark.parametrize(("dead", "applied"), [("2", 0), ("", 1)])
def test_the_leader_is_killed_before_others_apply_if_they_can_elect_the_next(dead: str, applied: int) -> None:
    """There are four voters: two of them are no majority, although two of the first three were."""

    def begin(stage: ScriptedWorld) -> int:
        late_apply(stage.nemesis, Fault(1, 0.0, "late-apply", 1.0, 7), random.Random(7), tries=0)
        return stage.nemesis.applied["late-apply"]

    killed = f"kill {dead}\n" if dead else ""
    assert looked(f"nodes 3\nlead 1\njoin 4\n{killed}", begin) == applied
