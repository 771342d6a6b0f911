"""Scripted scenarios: fixed acts instead of randomly chosen faults, each with its demands on the system."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jepsen_like.history import HistoryWriter
from jepsen_like.live.nemeses.coverage_gates import Gate
from jepsen_like.live.nemeses.nemesis_interface import Stage
from jepsen_like.live.outcome import Played
from jepsen_like.live.plan import Plan
from jepsen_like.live.probes.leader_monitor import PROCESS
from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject
from jepsen_like.live.subjects.subject import LoadPlan, is_caught_up
from raftmq.local.waiting import until

WELL_S = 60.0
SEGMENT_BYTES_MIN = 6 << 20
"""The smallest segment size: a message of the largest size must fit."""


class StoryEnds(Exception):
    """The story cannot continue; the text says why. Its demands so far count, and the run is not valid."""


class Scene:
    """The tools of a story, and the place where it records its results."""

    def __init__(
        self,
        subject: RaftMQSubject,
        stage: Stage,
        history: HistoryWriter,
        folder: Path,
        scale: float,
        tell: Callable[[str], None],
        hold: Callable[[bool], bool],
        plan: Plan | None = None,
    ) -> None:
        self.subject = subject
        self.stage = stage
        self.history = history
        self.folder = folder
        self.scale = scale
        """The scale: 1 is the full scenario; less is a rehearsal."""
        self.tell = tell
        self._hold = hold
        self.time_s = plan.time_s if plan is not None else 0.0
        """Seconds that the story may last, for stories whose duration the user decides."""
        self.rate = plan.rate if plan is not None and plan.rate_given else None
        """Sends per second that the user asked for; None if the user named no rate."""
        self.attacks = [nemesis.name for nemesis in plan.nemeses] if plan is not None else []
        """Names of the attacks that hostile clients play."""
        self.beside = plan.beside if plan is not None else ()
        """Events at the nodes during the attacks, played one after the other."""
        self.at_once = plan.at_once if plan is not None else None
        """The number of attacks that are played at the same time; None: all."""
        self.played: list[Played] = []
        """Rounds of faults that the story played itself."""
        self.broken: list[str] = []
        """Promises that were broken, each with its proof."""
        self.doubts: list[str] = []
        self.gates: list[Gate] = []
        self.measured: dict[str, Any] = {}
        """Measurements for the JSON output."""
        self._began = time.monotonic()

    def begin(self, began: float) -> None:
        """Sets the moment (monotonic seconds) from which the printed times of acts count, so that they match the run's
        other lines.
        """
        self._began = began

    @property
    def rng(self) -> random.Random:
        """The run's seeded random source."""
        return self.stage.rng

    def count(self, full: int) -> int:
        """Returns `full` at this scale, at least one."""
        return max(1, round(full * self.scale))

    @contextlib.contextmanager
    def act(self, name: str) -> Iterator[list[str]]:
        """Records one act in the history and prints it with its duration, together with the lines that are added to the
        yielded list."""
        note = self.history.invoke(PROCESS + 1, "fault", {"kind": name, "nodes": []})
        at_s, told = time.monotonic() - self._began, []  # type: tuple[float, list[str]]
        try:
            yield told
        finally:
            took_s = time.monotonic() - self._began - at_s
            detail = "; ".join(told)
            self.history.ok(note, note.value | {"detail": detail})
            self.tell(f"{at_s:6.1f} s   {name} ({took_s:.1f} s){': ' * bool(detail)}{detail}")

    def demand(self, holds: bool, what: str) -> None:
        """Adds `what`, the proof that a promise is broken, to `broken` unless `holds` is True."""
        if not holds:
            self.broken.append(what)

    def gate(self, name: str, value: float, wanted: float, *, at_most: bool = False, told: str = "") -> None:
        """Adds a measured value that must be at least `wanted` in a full run; with `at_most`, at most that."""
        self.gates.append(Gate(name, value, wanted, at_most, told))

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """A context in which no client sends requests and none is in flight. Raises StoryEnds."""
        try:
            if not self._hold(True):
                raise StoryEnds("requests under way had no outcome although the load was held")
            yield
        finally:
            self._hold(False)

    def wait_well(self, nodes: list[int] | None = None) -> float:
        """Returns the seconds until these nodes (default: all) agree on a leader that accepts writes. Raises
        StoryEnds."""
        wanted = self.subject.node_ids if nodes is None else nodes
        begun = time.monotonic()
        if not until(lambda: agree(self.subject, wanted), WELL_S, 0.02):
            raise StoryEnds(f"nodes {wanted} did not agree on a leader within {WELL_S:.0f} s")
        return time.monotonic() - begun

    def wait_caught_up(self, timeout_s: float = WELL_S) -> None:
        """Waits until every node has applied everything that any node knows to be committed. Raises StoryEnds."""
        if not until(lambda: is_caught_up(self.subject.states()), timeout_s, 0.05):
            raise StoryEnds(f"the replicas had not applied the same after {timeout_s:.0f} s")


class Story(NamedTuple):
    """A scripted scenario: `play(scene)` raises StoryEnds if it cannot continue."""

    play: Callable[[Scene], None]
    free_gib: int = 2
    """Free disk space that it needs at scale 1, in GiB."""
    segment_mib: int = 6
    load: LoadPlan | None = None
    """The load of the log workload; None: the one that suits the subject."""
    is_direct: bool = False
    """True if nodes reach each other without the proxies, since the story breaks no link. The proxies share the
    harness's process, and every pause of a process that records millions of sends would look like a silent leader."""
    is_tiered: bool = False
    """True if nodes have a directory as tier, and evict to it. In a rehearsal segments are smaller, not fewer."""

    def segment_bytes(self, scale: float) -> int:
        """Returns the size of a segment of the nodes' logs."""
        full = self.segment_mib << 20
        return max(SEGMENT_BYTES_MIN, int(full * min(1.0, scale))) if self.is_tiered else full


def agree(subject: RaftMQSubject, nodes: list[int]) -> bool:
    """Returns True if these nodes answer and name one leader among them that accepts writes."""
    states = subject.states()
    known = [state for node in nodes if (state := states[node]) is not None]
    leaders = {state.leader for state in known}
    if len(known) < len(nodes) or len(leaders) != 1:
        return False
    leader = leaders.pop()
    first = states.get(leader) if leader is not None else None
    return first is not None and first.leads and first.open
