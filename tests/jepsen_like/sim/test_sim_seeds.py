"""Whole runs: a few seeds without violation, the same seed the same run, and broken code found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from cluster.broker.sends.send_service import Sends
from cluster.node.services import NodeServices
from jepsen_like.fakes.memory_fs import MemoryFile
from jepsen_like.sim.campaign import Summary, run_range, shrink
from jepsen_like.sim.faults.fault_plan import plan
from jepsen_like.sim.options import draw
from jepsen_like.sim.result import SimResult
from jepsen_like.sim.world import run_seed
from raftlog.core.raw_node import RawNode, Ready

FIRST, SEEDS = 7002, 2
SHORT = 7002
"""The quicker one."""
PATIENCE = 30
"""Seeds after which broken code must have been found: the rarest of these shows in one seed of eleven."""
HASH_OF = "from jepsen_like.sim.world import run_seed; v = run_seed({}); print(v.hash, v.events, v.acked)"


@pytest.fixture(scope="module")
def summary() -> Summary:
    return run_range(FIRST, SEEDS)


def test_a_few_seeds_find_nothing_and_count(summary: Summary) -> None:
    assert not summary.failing, [verdict.violations for verdict in summary.failing]
    assert not summary.shortfalls()
    assert sorted(summary.verdicts) == list(range(FIRST, FIRST + SEEDS))


def test_the_summary_says_what_was_run(summary: Summary) -> None:
    row = summary.as_dict()
    assert json.loads(json.dumps(row)) == row
    assert row["share_counting"] == 1.0
    assert f"seeds {FIRST}-{FIRST + SEEDS - 1}" in summary.line()
    assert summary.sometimes["crash between append and ack"] >= SEEDS


def test_the_same_seed_is_the_same_run_whatever_the_hash_seed(summary: Summary) -> None:
    """Also after other runs in the same interpreter, and in an interpreter that orders its sets otherwise."""
    here = summary.verdicts[SHORT]
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    command = [sys.executable, "-c", HASH_OF.format(SHORT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [here.hash, str(here.events), str(here.acked)]
    assert not done.stderr


def test_another_seed_is_another_run(summary: Summary) -> None:
    assert len({verdict.hash for verdict in summary.verdicts.values()}) == SEEDS


# --- broken on purpose ----------------------------------------------------------------------------------------------


def ack_before_the_disk(patch: pytest.MonkeyPatch) -> None:
    """etcd#14370: what depends on the disk leaves before the disk has answered."""
    take = RawNode.ready

    def hasty(raw: RawNode) -> Ready:
        ready = take(raw)
        at_once = [message for message in ready.messages_after_persist if message.to_id != raw.raft.id]
        later = [message for message in ready.messages_after_persist if message.to_id == raw.raft.id]
        return ready._replace(messages=[*ready.messages, *at_once], messages_after_persist=later)

    patch.setattr(RawNode, "ready", hasty)


def forget_identities(patch: pytest.MonkeyPatch) -> None:
    """A retry is taken for a new message."""
    patch.setattr(Sends, "_known", lambda *_: False)


def sync_nothing(patch: pytest.MonkeyPatch) -> None:
    """fdatasync returns at once: a power cut takes what was acknowledged."""
    patch.setattr(MemoryFile, "fdatasync", lambda file: None)


def read_without_asking(patch: pytest.MonkeyPatch) -> None:
    """A leader answers reads although another may have taken its place."""
    patch.setattr(NodeServices, "read_index", lambda services, done: done(True))


@pytest.mark.timeout(600)  # another CPython may need more seeds
@pytest.mark.parametrize(
    ("breaks", "first", "checkers"),
    [  # the first seed is one that finds it; when the product changes, it may be a later one
        (ack_before_the_disk, 7025, {"invariant"}),
        pytest.param(forget_identities, 7027, {"log", "foreign"}, marks=pytest.mark.ci),
        (sync_nothing, 7025, {"node", "durability"}),
        (read_without_asking, 7025, {"register", "answers"}),
    ],
)
def test_broken_code_is_found(
    breaks: Callable[[pytest.MonkeyPatch], None], first: int, checkers: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    found: list[SimResult] = []
    for seed in range(first, first + PATIENCE):
        found.append(run_seed(seed))
        if found[-1].violations:
            break
    assert found[-1].violations, f"nothing found in {len(found)} seeds"
    assert found[-1].violations[0].checker in checkers, found[-1].violations


@pytest.mark.ci
def test_shrinking_keeps_the_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acks before the disk show without any fault, so that nearly the whole plan can go."""
    ack_before_the_disk(monkeypatch)
    faults = shrink(FIRST, runs_max=12)
    assert len(faults) < len(plan(draw(FIRST))) / 2
    assert run_seed(FIRST, faults=faults).violations[0].checker == "invariant"


def test_a_good_seed_cannot_be_shrunk() -> None:
    with pytest.raises(ValueError, match="no violation"):
        shrink(SHORT, runs_max=1)


@pytest.mark.slow
def test_seed_2540078() -> None:
    """A member's goodbye is lost in a box in the middle: its queues are the others' once the node misses it."""
    assert run_seed(2540078).violations == ()
