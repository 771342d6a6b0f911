"""The stories `registry-loss` and `registry-faults`: the registry of two groups of brokers is lost in every way, under
load, and its processes have each fault that nodes have in other scenarios.

Its clients know the registry alone. While one, two or all of its processes are away, come back with nothing, hang, or
come back with an old copy of their directory, each send must be acknowledged, and no route may lack queues or name a
leader that was replaced long ago. Soon after a majority is back, the registry must accept an operation.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jepsen_like.live.harm.power import ShimError, disks_in
from jepsen_like.live.probes.route_probe import Leader, RouteProbe
from jepsen_like.live.stories.groups_scene import SECOND, GroupsScene, groups_scene
from jepsen_like.live.stories.story import WELL_S, Scene, Story, StoryEnds
from jepsen_like.live.subjects.run_registry import RunRegistry
from jepsen_like.live.subjects.subject import LoadPlan, leader_of
from raftlog.types import FIRST_GROUP
from raftmq.client import connect
from raftmq.client.errors import RaftMQError
from raftmq.local.init import check_data_dirs
from raftmq.local.waiting import until

QUEUES = 4
ROUNDS = 20
WARM_S = 3.0
AWAY_S, CALM_S = (2.0, 6.0), (0.5, 2.0)
COPY_S = 6.0
"""Seconds between copying a directory and using the copy. An operation is written in that time, because the watchdog
asks for one every 5 s.
"""
TOPIC, PROBE = "both", "probe"
SOON_S, LONGEST_S, SERVED_S = 10.0, 30.0, 5.0
SOON_SHARE = 0.95
TOLD_S = 1.0
"""Seconds between two frames in which a process of the registry reports its state to nodes."""
KINDS = ("one killed", "all killed", "all wiped", "two killed", "all stopped", "an old copy")
FAULTS_S = 600.0
FAULTS = (
    "its leader killed",
    "all stopped",
    "its leader without power",
    "its leader cut off",
    "its leader's disk full",
    "all without power",
    "all apart",
    "all disks full",
    "its leader stopped",
    "two killed",
)
HELD_S = 12.0
"""Seconds for which only the leading process has a fault. The other processes must have operations accepted meanwhile.
"""
SHIM = "registry-shim"


class _Lost:
    """Plays rounds of faults on the registry, and keeps the measurements."""

    def __init__(self, scene: Scene, groups: GroupsScene, registry: RunRegistry) -> None:
        self.scene, self.groups, self.registry = scene, groups, registry
        self.accepted_s: list[float] = []
        """Seconds until an operation was accepted: from the return of a majority or, if there was one all the time,
        from the fault. A round in which only the leader has a fault adds a second number, from the end of the fault.
        """
        self.writes_lost = 0
        """Number of writes that power failures lost, because no sync had covered them."""
        self.served_s: list[float] = []
        """Seconds from the registry's first route until a client was served, one number for each client that started
        while the registry was away.
        """
        places = {
            f"127.0.0.1:{node.broker_port}": (group, node.id)
            for group in (FIRST_GROUP, SECOND)
            for node in groups.nodes_of(group).nodes
        }
        self.probe = RouteProbe(registry.ports, TOPIC, self._leaders, places.get)

    def _leaders(self) -> dict[int, Leader]:
        found = {}
        for group in (FIRST_GROUP, SECOND):
            states = self.groups.nodes_of(group).states()
            leader = leader_of(states)
            state = states[leader] if leader is not None else None
            if leader is not None and state is not None:
                found[group] = (state.term, leader)
        return found

    def play(self, kind: str, number: int) -> str:
        """Plays one round with the fault `kind`; returns a description of its result."""
        registry, scene = self.registry, self.scene
        away_s = scene.rng.uniform(*AWAY_S)
        one = registry.ids[number % len(registry.ids)]
        others = [each for each in registry.ids if each != one]
        self._move_leader(scene.rng.choice((FIRST_GROUP, SECOND)))
        with self._new_client(kind in ("all killed", "all wiped")) as served:
            match kind:
                case "one killed":
                    registry.lose(one)
                    since_s = time.monotonic()
                    scene.stage.sleep(away_s)
                    registry.start(one)
                case "two killed":
                    registry.lose(*others)
                    scene.stage.sleep(away_s)
                    since_s = time.monotonic()
                    registry.start(*others)
                case "all stopped":
                    registry.halt(*registry.ids)
                    scene.stage.sleep(away_s)
                    since_s = time.monotonic()
                    registry.go_on(*registry.ids)
                    scene.stage.sleep(2 * TOLD_S)
                case "an old copy":
                    since_s = self._put_back(one)
                case "its leader killed" | "its leader without power":
                    since_s = self._break_leader(kind, away_s)
                case "its leader stopped" | "its leader cut off" | "its leader's disk full":
                    return self._without_leader(kind)
                case "all apart":
                    registry.separate(*registry.ids)
                    scene.stage.sleep(away_s)
                    since_s = time.monotonic()
                    registry.join()
                case "all disks full":
                    registry.set_full(True, *registry.ids)
                    scene.stage.sleep(away_s)
                    since_s = time.monotonic()
                    registry.set_full(False, *registry.ids)
                case "all without power":
                    self.writes_lost += registry.fail_power(scene.rng, *registry.ids)
                    scene.stage.sleep(away_s)
                    since_s = time.monotonic()
                    registry.start(*registry.ids)
                case _:
                    registry.lose(*registry.ids)
                    if kind == "all wiped":
                        registry.wipe(*registry.ids)
                    scene.stage.sleep(away_s)
                    since_s = time.monotonic()
                    registry.start(*registry.ids)
            took_s = self._until_accepted(since_s)
            served.append(since_s)
        self.accepted_s.append(took_s)
        return f"{kind}: an operation was accepted after {took_s:.1f} s"

    def _leader(self) -> int:
        """Returns the process that leads, according to the reports that nodes have of the processes; the first process
        if the node does not answer.
        """
        nodes = self.groups.nodes_of(FIRST_GROUP)
        with contextlib.suppress(OSError):
            return self.registry.leader(nodes.request(nodes.node_ids[0], "GET", "/v1/registry")["processes"])
        return self.registry.ids[0]

    def _break_leader(self, kind: str, away_s: float) -> float:
        """Breaks the leading process, which comes back after `away_s`; returns the moment at which it ended. A majority
        remains."""
        leader, registry = self._leader(), self.registry
        since_s = time.monotonic()
        if kind == "its leader killed":
            registry.lose(leader)
        else:
            self.writes_lost += registry.fail_power(self.scene.rng, leader)
        self.scene.stage.sleep(away_s)
        registry.start(leader)
        return since_s

    def _without_leader(self, kind: str) -> str:
        """Plays a round in which the leading process runs but cannot work for a while. First the other processes must
        have an operation accepted, and after the fault all must. Returns a description of the result.
        """
        leader, registry = self._leader(), self.registry
        since_s = time.monotonic()
        acts: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
            "its leader stopped": (lambda: registry.halt(leader), lambda: registry.go_on(leader)),
            "its leader cut off": (lambda: registry.separate(leader), registry.join),
            "its leader's disk full": (
                lambda: registry.set_full(True, leader),
                lambda: registry.set_full(False, leader),
            ),
        }
        begin, end = acts[kind]
        begin()
        try:
            took_s = self._until_accepted(since_s, leader)
            self.scene.stage.sleep(max(0.0, HELD_S - took_s))
        finally:
            end()
        self.accepted_s.append(took_s)
        since_s = time.monotonic()
        self.scene.stage.sleep(2 * TOLD_S)
        self.accepted_s.append(self._until_accepted(since_s))
        return f"{kind}: an operation was accepted after {took_s:.1f} s, and after {self.accepted_s[-1]:.1f} s again"

    def _put_back(self, one: int) -> float:
        """Restores an older copy of a process's directory; returns the moment at which the process lost its present
        one."""
        registry, directory = self.registry, self.registry.directory(one)
        registry.lose(one)
        copy = directory.with_name("copy")
        shutil.copytree(directory, copy)
        registry.start(one)
        self.scene.stage.sleep(COPY_S)
        registry.lose(one)
        since_s = time.monotonic()
        shutil.rmtree(directory)
        copy.rename(directory)
        registry.start(one)
        return since_s

    def _until_accepted(self, since_s: float, without: int = 0) -> float:
        """Waits until a process reports that an operation was accepted after `since_s`; returns the seconds from then.
        The report comes up to TOLD_S late. Reports of the process `without` do not count: it hangs, and nodes still
        have its earlier report.
        """

        def is_accepted() -> bool:
            for group in (FIRST_GROUP, SECOND):
                nodes = self.groups.nodes_of(group)
                with contextlib.suppress(OSError):
                    told = nodes.request(nodes.node_ids[0], "GET", "/v1/registry")["processes"]
                    now_s = time.monotonic()
                    for each in told:
                        age_ms = each["accepted_ms"]
                        if (
                            each["id"] != without
                            and each["accepts"]
                            and age_ms is not None
                            and now_s - age_ms / 1000 > since_s + TOLD_S
                        ):
                            return True
            return False

        if not until(is_accepted, WELL_S, 0.1):
            raise StoryEnds(f"no operation was accepted within {WELL_S:.0f} s after a majority was back")
        return time.monotonic() - since_s

    def _move_leader(self, group: int) -> None:
        """Moves the leadership of the group to another node, so that routes change and the registry must follow."""
        nodes = self.groups.nodes_of(group)
        leader = self.groups.leader(group)
        to = self.scene.rng.choice([node for node in nodes.node_ids if node != leader])
        with contextlib.suppress(OSError):
            nodes.request(leader, "POST", "/v1/leader/transfer", {"to": to})
        self.groups.wait_well(group)

    @contextlib.contextmanager
    def _new_client(self, comes: bool) -> Iterator[list[float]]:
        """A context during which the registry is away. If `comes`, a new client that knows only the registry is started
        during that time, and must be served after the registry is back. Yields a list, to which the caller adds the
        moment (monotonic) from which the registry counts as back. Adds to `served_s`.
        """
        since: list[float] = []
        ended: list[float] = []
        thread = threading.Thread(target=self._come, args=(ended,), name="new-client")
        if comes:
            timer = threading.Timer(AWAY_S[0] / 2, thread.start)
            timer.start()
        yield since
        if comes:
            timer.join()
            thread.join()
            ready_s = self.probe.first_route_after(since[0])
            if ended and ready_s is not None:
                self.served_s.append(max(0.0, ended[0] - ready_s))

    def _come(self, ended: list[float]) -> None:
        scene = self.scene
        try:
            with connect(self.registry.servers, timeout_s=WELL_S, **scene.subject.client_options) as mq:
                mq.send(PROBE, b"a new client")
                ended.append(time.monotonic())
        except RaftMQError as error:
            scene.demand(False, f"a client that came while the registry was away: {error}")


def play(scene: Scene) -> None:
    """Plays `registry-loss`: the registry is lost again and again, in each way in turn."""
    _play(scene, None)


def play_faults(scene: Scene) -> None:
    """Plays `registry-faults`: the registry's processes have one fault after the other for ten minutes."""
    _play(scene, scene.folder / SHIM)


def _play(scene: Scene, shim: Path | None) -> None:
    if scene.subject.has_users:
        raise StoryEnds(
            "the registry speaks no TLS, and the routes of nobody are judged here: run it without --secured"
        )
    try:
        registry = RunRegistry(scene.subject, None if shim is None else disks_in(shim))
    except ShimError as error:
        raise StoryEnds(f"the disks of the registry cannot have faults here: {error}") from error
    try:
        with groups_scene(scene, registry.servers) as groups:
            _lose(scene, groups, registry)
    finally:
        registry.stop()


def _lose(scene: Scene, groups: GroupsScene, registry: RunRegistry) -> None:
    with scene.act("a second group, and the registry") as told:
        groups.join()
        nodes = [*scene.subject.nodes, *groups.second.nodes]
        registry.make(check_data_dirs(scene.subject.nodes), nodes)
        begun_s = time.monotonic()
        registry.start(*registry.ids)
        for topic in (TOPIC, PROBE):
            groups.mq.admin.create_topic(topic, queues=QUEUES, groups=[FIRST_GROUP, SECOND])
        lost = _Lost(scene, groups, registry)
        told.append(f"an operation was accepted after {lost._until_accepted(begun_s):.1f} s")
        groups.begin(TOPIC)
        names = {f"raftmq{suffix}": (QUEUES, QUEUES) for suffix in ("", "-g02")}
        lost.probe.start(names)
        scene.stage.sleep(WARM_S)
    try:
        with groups.no_key_moves([TOPIC]):
            for number, kind in _rounds(scene, registry):
                with scene.act(f"round {number + 1}") as told:
                    told.append(lost.play(kind, number))
                    scene.stage.sleep(scene.rng.uniform(*CALM_S))
    finally:
        lost.probe.stop()
    groups.finish()
    _judge(scene, groups, lost)


def _rounds(scene: Scene, registry: RunRegistry) -> Iterator[tuple[int, str]]:
    """Yields the rounds of the story, each with its number: ROUNDS of them or, with faults, as many as begin in
    time."""
    if not registry.has_faults:
        yield from zip(range(scene.count(ROUNDS)), itertools.cycle(KINDS), strict=False)
        return
    ends_s = time.monotonic() + FAULTS_S * scene.scale
    for number, kind in enumerate(itertools.cycle(FAULTS)):
        if time.monotonic() >= ends_s:
            return
        yield number, kind


def _judge(scene: Scene, groups: GroupsScene, lost: _Lost) -> None:
    counts, probe = groups.load.counts, lost.probe
    scene.demand(not counts.failed + counts.unknown, f"{counts.failed} sends failed, {counts.unknown} are unknown")
    wrong = probe.wrong()
    for each in wrong[:5]:
        scene.demand(False, each)
    if len(wrong) > 5:
        scene.demand(False, f"{len(wrong) - 5} more of this kind")
    scene.demand({*probe.last_s} == {*lost.registry.ids}, f"only processes {[*probe.last_s]} told routes")
    soon = sum(each <= SOON_S for each in lost.accepted_s) / len(lost.accepted_s)
    scene.gate("share of rounds with an operation within 10 s", round(soon, 3), SOON_SHARE)
    scene.gate("longest until an operation, s", round(max(lost.accepted_s), 1), LONGEST_S, at_most=True)
    if lost.served_s:
        longest_s = max(lost.served_s)
        scene.gate("longest until a new client is served, s", round(longest_s, 2), SERVED_S, at_most=True)
    scene.measured |= {
        "routes told": len(probe.routes),
        "routes refused": len(probe.refusals),
        "leaders": {group: len(each) for group, each in sorted(probe.history.items())},
        "operation accepted after, s": [round(each, 2) for each in lost.accepted_s],
        "times that an operation had to be accepted": len(lost.accepted_s),
        "writes lost without power": lost.writes_lost,
        "new clients served after, s": [round(each, 2) for each in lost.served_s],
    }


STORY = Story(play, load=LoadPlan(50, 64), is_direct=True)
FAULTS_STORY = Story(play_faults, load=LoadPlan(50, 64), is_direct=True)
