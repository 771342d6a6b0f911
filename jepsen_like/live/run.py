"""Carries out one run: a quiet load, faults, heal, progress, read-back and verdict. However the run ends, it heals all
faults and ends all processes that it started.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jepsen_like.history import HistoryWriter, Op
from jepsen_like.live.conclusion import Conclusion
from jepsen_like.live.judge import WORKLOAD, denials, judge
from jepsen_like.live.loss_explanation import explain
from jepsen_like.live.nemeses.coverage_gates import Gate, applied_and_felt, gates, rounds_due, scenario_gates
from jepsen_like.live.nemeses.nemesis_interface import Effect, Nemesis, PowerSwitch, SkewsClocks, Stage
from jepsen_like.live.outcome import HEAL_S, Played, RunFindings, conclude
from jepsen_like.live.plan import HOLD_S, PAUSE_S, QUIET_S, Deck, Plan, pace
from jepsen_like.live.probes.bytes_in_flight import wait_given_back
from jepsen_like.live.probes.leader_monitor import PROCESS, LeaderMonitor
from jepsen_like.live.probes.live_members import LiveMembers
from jepsen_like.live.probes.log_workload import LogWorkload
from jepsen_like.live.probes.node_ends import NodeEnds
from jepsen_like.live.probes.side_workload import SideWorkload
from jepsen_like.live.stories.story import Scene, StoryEnds
from jepsen_like.live.stories.story_table import STORIES
from jepsen_like.live.subjects.proxy import EdgeTraffic, Pair
from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject
from jepsen_like.live.subjects.subject import Capability, Subject, is_caught_up
from raftmq.client.errors import RaftMQError
from raftmq.local.waiting import until
from statemachine.rows.kv import KVError

CATCH_UP_S = 120.0
SUM_UP_TRIES = 3
PROGRESS_ACKS = 50
PROGRESS_S = 30.0
QUIET_LOAD_S = 30.0
"""The most seconds to wait, once the load is held, until no request is in flight."""


class Tools(NamedTuple):
    """The tools that some faults need. A tool that this machine does not have is missing."""

    power: PowerSwitch | None = None
    clocks: SkewsClocks | None = None
    suspicion: str = ""
    """Description of a failure before the run that casts doubt on the run; "" if there was none. A run with a suspicion
    is never valid.
    """


class Run:
    """One run; call `execute` once."""

    def __init__(
        self,
        plan: Plan,
        subject: Subject,
        folder: Path,
        tell: Callable[[str], None],
        *,
        tools: Tools = Tools(),  # noqa: B008 - a value
        skipped: dict[str, str] | None = None,
    ) -> None:
        self._plan = plan
        self._subject = subject
        self._folder = folder
        self._tell = tell
        self._skipped = skipped or {}
        self._rng = random.Random(f"faults-{plan.seed}")
        meta = {
            "workload": WORKLOAD,
            "seed": plan.seed,
            "subject": plan.subject,
            "repeat": plan.command,
            "scenario": plan.scenario.name if plan.scenario else None,
        }
        self._history = HistoryWriter(folder / "history.jsonl", meta)
        self._load = LogWorkload(subject, self._history, subject.load._replace(rate=plan.rate))
        self._side: SideWorkload | None = None
        members: LiveMembers | None = None
        if isinstance(subject, RaftMQSubject):
            self._side = SideWorkload(subject, self._history, plan.seed)
            members = LiveMembers(subject)
        self._stage = Stage(subject, self._load, self._rng, power=tools.power, clocks=tools.clocks, members=members)
        self._monitor = LeaderMonitor(subject, self._history)
        self._scene: Scene | None = None
        self._ends: NodeEnds | None = None
        """Finds nodes that ended by themselves; None for other systems, and in a story, which judges that itself."""
        if plan.story is not None and isinstance(subject, RaftMQSubject):
            self._scene = Scene(subject, self._stage, self._history, folder, plan.scale, tell, self._hold, plan)
        elif isinstance(subject, RaftMQSubject):
            self._ends = NodeEnds(subject.processes)
        self._played: list[Played] = []
        self._reasons: list[str] = [tools.suspicion] if tools.suspicion else []
        """Reasons for doubt; with any of them the run is not valid."""
        self._began = time.monotonic()
        self._rows = 0

    def execute(self) -> RunFindings:
        """Runs everything and returns the outcome. Raises LocalError if the cluster does not even start; stops every
        node before it returns or raises."""
        thresholds = gc.get_threshold()
        # A full garbage collection would visit everything that was polled and stop the load for seconds. A collection
        # of the middle generation, at its default threshold, visits a million young objects and takes 70 ms.
        gc.set_threshold(20_000, 2, 1 << 30)
        try:
            self._subject.start()
            self._began = time.monotonic()
            if self._scene is not None:
                self._scene.begin(self._began)
            self._monitor.start()
            self._load.start()
            if self._side is not None:
                self._side.start()
            self._phase("quiet")
            self._stage.sleep(min(QUIET_S, self._plan.time_s / 4))
            self._phase("faults")
            if self._scene is None:
                self._inflict()
            else:
                self._play_story(self._scene)
            whole = self._heal()
            self._finish_load(whole)
            if whole:
                self._read_back()
                self._sum_up()
        finally:
            if self._side is not None:
                self._side.abort()
            self._load.abort()
            self._monitor.close()
            self._subject.stop()
            self._history.close()
            gc.set_threshold(*thresholds)
        return self._outcome()

    def _play_story(self, scene: Scene) -> None:
        assert self._plan.story is not None
        try:
            STORIES[self._plan.story].play(scene)
        except (StoryEnds, OSError, RaftMQError) as error:
            scene.doubts.append(f"the scenario could not be played to its end: {error}")
        self._played += scene.played

    def _hold(self, held: bool) -> bool:
        """Holds the load, or lets it continue; returns True if no request is in flight any more."""
        self._load.factor = 0.0 if held else 1.0
        if self._side is not None:
            self._side.held = held
        if not held:
            return True
        side = self._side
        return until(lambda: not (self._load.counts.in_flight or (side is not None and side.busy)), QUIET_LOAD_S, 0.02)

    @property
    def ops(self) -> Sequence[Op]:
        """Every step of the history so far."""
        return self._history.ops

    def _phase(self, name: str) -> None:
        note = self._history.invoke(PROCESS + 2, "phase", {"name": name})
        self._history.ok(note, note.value)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _inflict(self) -> None:
        deck = Deck(self._plan.nemeses, self._rng, self._subject.emphasis)
        begun_s = self._elapsed
        while (left_s := self._plan.time_s - self._elapsed) > 0:
            nemesis = deck.deal()
            if nemesis is None:
                self._stage.sleep(min(0.5, max(0.01, left_s)))
                continue
            each_s = (self._elapsed - begun_s) / len(self._played) if self._played else 0.0
            hurry = 1.0 if self._plan.chosen else pace(left_s, deck.due(rounds_due(self._plan.time_s)), each_s)
            if not self._play(nemesis, hurry):
                return
            if not self._played[-1].effect.happened:
                deck.again(nemesis)
            self._stage.sleep(hurry * self._rng.uniform(*PAUSE_S))

    def _play(self, nemesis: Nemesis, hurry: float) -> bool:
        """Plays one fault and waits for the recovery from it. Returns False if the cluster did not recover: then
        nothing further is proved."""
        at_s = self._elapsed
        self._note_ends(f"before {nemesis.name} at {at_s:.1f} s")
        note = self._history.invoke(PROCESS + 1, "fault", {"kind": nemesis.name, "nodes": []})
        begun = time.monotonic()
        try:
            effect = nemesis.apply(self._stage, hurry * self._rng.uniform(*HOLD_S))
        except OSError as error:  # a node did not answer the harness; the heal undoes a half-done fault
            effect = Effect(False, f"could not be played: {error}")
            self._subject.fabric.heal()
        took_s = time.monotonic() - begun
        self._history.ok(note, note.value | {"detail": effect.told, "effect": effect.happened})
        recovered_s = self._stage.wait_healthy(HEAL_S)
        self._note_ends(f"during {nemesis.name} at {at_s:.1f} s", is_right=nemesis.stops_nodes)
        self._played.append(Played(nemesis.name, effect, at_s, took_s, recovered_s))
        mark = " " if effect.happened else "?"
        back = f"well again after {1000 * recovered_s:.0f} ms" if recovered_s is not None else "NOT well again"
        self._tell(f"{at_s:6.1f} s {mark} {nemesis.name}: {effect.told}; {back}")
        return recovered_s is not None

    def _note_ends(self, when: str, *, is_right: bool = False) -> None:
        """Records a doubt for each node that has ended by itself since the last call, unless that `is_right`."""
        ended = self._ends.since_last() if self._ends is not None else []
        self._reasons += [f"{each}, {when}" for each in ended if not is_right]

    def _heal(self) -> bool:
        """Ends every fault, and waits until all nodes agree on a leader and sends are acknowledged. Returns False if
        that takes too long. Records a reason for doubt if a link of the leader stays silent.
        """
        self._phase("heal")
        subject = self._subject
        for node in subject.node_ids:
            subject.resume(node)
        subject.fabric.heal()
        self._load.factor = 1.0
        took = self._stage.wait_healthy(HEAL_S)
        if took is None:
            states = ", ".join(f"{node}: {state}" for node, state in subject.states().items())
            self._reasons.append(f"the cluster did not heal within {HEAL_S:.0f} s after the last fault: {states}")
            self._reasons += subject.evidence()
            return False
        before = subject.fabric.traffic()
        if not self._load.wait_acks(PROGRESS_ACKS, PROGRESS_S):
            self._reasons.append(f"healed, but not {PROGRESS_ACKS} sends were acknowledged in {PROGRESS_S:.0f} s")
            return False
        if silent := self._silent_edges(before):
            self._reasons.append(f"edges still silent after the heal: {', '.join(silent)}")
        self._tell(f"{self._elapsed:6.1f} s   healed: one leader, every node up, sends acknowledged")
        return True

    def _silent_edges(self, before: dict[Pair, EdgeTraffic]) -> list[str]:
        """Returns the names of links from and to the leader that have carried no bytes for so long that they must be
        broken; [] if the nodes do not use the proxies' links.
        """
        if self._plan.story is not None and STORIES[self._plan.story].is_direct:
            return []
        deadline = time.monotonic() + PROGRESS_S
        while True:
            now, leader = self._subject.fabric.traffic(), self._stage.leader()
            silent = [
                f"{a}->{b}"
                for (a, b), traffic in now.items()
                if leader in (a, b) and traffic.passed_bytes == before[a, b].passed_bytes
            ]
            if not silent or time.monotonic() > deadline:
                return silent
            time.sleep(0.1)

    def _finish_load(self, whole: bool) -> None:
        self._note_ends("after the last fault")
        if self._side is not None:
            self._side.stop()
        left = self._load.stop()
        if left and whole:
            self._reasons.append(f"{left} sends never had an outcome although the cluster is whole")

    def _read_back(self) -> None:
        self._phase("read-back")
        if not self._wait_caught_up():
            return
        if isinstance(self._subject, RaftMQSubject):
            self._reasons += asyncio.run(wait_given_back(self._subject.nodes))
        try:
            self._rows = self._subject.read_all(self._history)
        except (OSError, RaftMQError) as error:
            self._reasons.append(f"the replicas could not be read to their end: {error}")

    def _sum_up(self) -> None:
        """Stops the nodes in an orderly way and computes digests of their states, which must be equal after equal
        entries.

        The leader may append an entry of its own between the stops of two nodes. Then the nodes are started and stopped
        again.
        """
        subject = self._subject
        if not isinstance(subject, RaftMQSubject) or self._reasons:
            return
        try:
            for _ in range(SUM_UP_TRIES):
                if not self._wait_caught_up():
                    return
                subject.stop_in_order()
                digests = subject.read_digests(self._history)
                if len({digest.applied for digest in digests.values()}) == 1:
                    return
                self._stage.start_all()
                self._stage.wait_healthy(HEAL_S)
        except (OSError, KVError) as error:
            self._reasons.append(f"the states could not be summed up: {error}")

    def _wait_caught_up(self) -> bool:
        """Waits until all replicas have applied the same entries, and returns True. If they have not in time, records a
        reason for doubt and returns False.
        """
        caught_up = until(lambda: is_caught_up(self._subject.states()), CATCH_UP_S, 0.1)
        if not caught_up:
            self._reasons.append(f"the replicas had not applied the same after {CATCH_UP_S:.0f} s")
        return caught_up

    def _outcome(self) -> RunFindings:
        seconds = self._elapsed
        judgement = judge(self._history.ops, len(self._subject.node_ids))
        broken, doubts = [*self._monitor.two_leaders, *judgement.broken], [*self._reasons, *judgement.doubts]
        doubts += denials(self._history.ops)
        if self._scene is not None:
            broken, doubts = [*self._scene.broken, *broken], [*self._scene.doubts, *doubts]
        verdict, reasons = conclude(self._plan, self._load.counts, self._played, broken, doubts)
        story = explain(self._history.ops, self._subject.evidence()) if verdict is Conclusion.INVALID else []
        faults = applied_and_felt(
            (nemesis.name for nemesis in self._plan.nemeses), ((each.name, each.effect) for each in self._played)
        )
        return RunFindings(
            verdict,
            reasons,
            self._load.counts,
            self._played,
            self._monitor.changes,
            self._stage.kills,
            self._stage.power_failures,
            self._rows,
            judgement,
            self._skipped,
            seconds,
            story,
            faults,
            self._gates(faults),
            self._scene.measured if self._scene is not None else {},
        )

    def _gates(self, faults: dict[str, tuple[int, int]]) -> list[Gate]:
        """Returns the gates of the run: those of its story or scenario, if it has one, else those of the full mix.
        Returns [] if the user chose single faults that no story plays, and for systems other than RaftMQ."""
        if self._scene is not None:
            return self._scene.gates
        if self._plan.scenario is not None and self._side is not None:
            return scenario_gates(faults)
        if self._plan.chosen or self._side is None:
            return []
        cuts = self._stage.power_failures if Capability.POWER in self._subject.capabilities else None
        return gates(self._plan.time_s, self._load.counts, faults, self._monitor.changes, cuts)
