"""One run: three node processes, or some in each of several groups of brokers, one client's program with several
features at once, and a leader killed every 10 s.

A cell is judged again and again until its judge is content or the calm time after the sending is over.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import raftmq
from cluster.config.local_layout import groups_of
from raftmq.client.errors import NotFound
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi, admin_addresses
from raftmq.local.process import free_base_port
from raftmq_wire.errors import LocalError
from raftmq_wire.queue_numbers import group_of
from tests.compat.conftest import ROOT, all_servers
from tests.compat.kills import leader_of
from tests.compat.matrix.programs import Program, why_spared
from tests.compat.matrix.users import denials, make_users, user_of
from tests.compat.places import Place, in_cluster, places
from tests.support.compat_judges import (
    JUDGES,
    RECOVERED_S,
    Seen,
    committed,
    delivered_twice,
    failures,
    gave_up,
    waits_s,
)
from tests.support.pace import at_most

QUEUES = 4
RETRIES = 3
KILL_EVERY_S, PHASE = 10.0, 0.6
"""A leader dies in each period, at a random moment of the first PHASE of it."""
SECURED_KILLS = 2
MODES = ("calm", "kills", "secured")
"""calm: nothing dies. kills: a leader in every KILL_EVERY_S. secured: clients have users, and SECURED_KILLS leaders
die."""
ENOUGH = {"calm": 1000, "kills": 5000, "secured": 5000}
"""Mode -> messages that are to be acknowledged in each cell."""
SENDING_MAX_S = 420.0
DRAIN_MAX_S, QUIET_MAX_S = 180.0, 60.0
"""Seconds after the sending to wait for missing messages, and to wait while nothing comes."""
SETTLE_S = 5.0
"""Time to wait for messages that should not come, after the last judge was content, in seconds."""
ORPHAN_COUNT = 100
SETTINGS = {
    "RAFTMQ_TIMER__DELAY_LEVELS": "1s 2s 3s 4s 5s 6s",
    "RAFTMQ_TRANSACTION__TIMEOUT_MS": "3000",
    "RAFTMQ_TRANSACTION__CHECK_INTERVAL_MS": "5000",
    "RAFTMQ_TRANSACTION__CHECK_MAX": "60",
}
"""The cluster's settings: a run is over in minutes."""


@dataclass(frozen=True)
class Plan:
    """The parameters of a run. `rate`: messages a second of each feature; `sending_s`: at least so long."""

    client: str
    features: tuple[str, ...]
    mode: str
    """One of MODES."""
    seed: int
    rate: float
    sending_s: float
    enough: int
    groups: int = 1
    """How many groups of brokers the cluster has."""
    nodes: int = 3
    """How many nodes each of them has."""

    @property
    def kills(self) -> bool:
        spared = any(why_spared(self.client, feature) for feature in self.features)
        return self.mode != "calm" and not spared

    @property
    def secured(self) -> bool:
        return self.mode == "secured"

    @property
    def kill_every_s(self) -> float:
        return self.sending_s / SECURED_KILLS if self.secured else KILL_EVERY_S


@dataclass(frozen=True)
class Result:
    """One cell of one run, as it is kept. Times in s."""

    client: str
    feature: str
    mode: str
    seed: int
    commit: str
    at: str
    passed: bool
    reason: str
    acknowledged: int
    failed: int
    delivered: int
    twice: int
    dead: int
    kills: int
    wait_max_s: float
    drain_s: float
    """Time between the end of the sending and the judge's being content."""
    denied: list[str] = field(default_factory=list)
    """What nodes denied to the users of the cell, and what to nobody known, in a secured run."""
    errors: dict[str, int] = field(default_factory=dict)
    """What the program was told of the sends that failed, with how many."""
    groups: int = 1


class Killer(threading.Thread):
    """kill -9 of the leader of a group, of any if there are several, in every period; the node is started again at
    once."""

    def __init__(self, live: LocalCluster, chance: random.Random, every_s: float, for_s: float) -> None:
        super().__init__(daemon=True)
        self._live, self._chance, self._every_s, self._for_s = live, chance, every_s, for_s
        self.kills: list[float] = []
        self.trouble: list[str] = []

    def run(self) -> None:
        begun = time.monotonic()
        period = 0
        while (start := (period + self._chance.uniform(0, PHASE)) * self._every_s) < self._for_s:
            time.sleep(max(0.0, begun + start - time.monotonic()))
            self._strike()
            period = max(period + 1, int((time.monotonic() - begun) / self._every_s + 0.5))
        for group in groups_of(self._live.nodes):
            self._live.wait_ready(60.0, group)

    def _strike(self) -> None:
        try:
            leader = leader_of(self._live, self._chance.choice(groups_of(self._live.nodes)))
            strike = self._live.aim(leader)
            strike()
            self.kills.append(time.time())
            self._live.restart(leader)
        except LocalError as error:
            self.trouble.append(str(error))


class Run:
    """A plan on its cluster."""

    def __init__(self, plan: Plan, home: Path, tell: Callable[[str], None]) -> None:
        self.plan, self._home, self._tell = plan, home, tell
        self._chance = random.Random(plan.seed)
        self._prefix = f"m{plan.seed % 100000}"
        self._secret = f"{self._chance.getrandbits(64):016x}" if plan.secured else ""
        self._live = LocalCluster(home / "data")
        self.broken = ""
        self.content: dict[str, float] = {}
        """feature -> when its judge was content for the first time since the sending ended."""

    def run(self) -> list[Result]:
        """Raises LocalError or RuntimeError if the cluster or the program does not come up."""
        nodes, groups = self.plan.nodes, self.plan.groups
        self._live.up(
            nodes, free_base_port(4 * nodes * groups), groups=groups, auth=self.plan.secured, timeout_s=at_most(60)
        )
        try:
            with raftmq.connect(self._live.servers, **self._live.client_options) as mq:
                return self._on_cluster(mq)
        finally:
            self._live.down()

    def _on_cluster(self, mq: raftmq.Client) -> list[Result]:
        groups = groups_of(self._live.nodes)
        admins = [AdminApi(admin_addresses(None, str(self._live.data), group)) for group in groups]
        for feature in self.plan.features:
            mq.admin.create_topic(f"{self._prefix}-{feature}", QUEUES)
            admins[0].post("/v1/groups", {"name": f"{self._prefix}-{feature}-readers", "retry_max_times": RETRIES})
        plan = self.plan
        if plan.secured:
            make_users(self._live, mq, self._prefix, plan.features, self._secret)
        arguments = (all_servers(self._live), self._prefix, str(plan.rate), *plan.features)
        program = Program(plan.client, self._home, "run", *arguments, secret=self._secret)
        try:
            program.wait("ready")
            try:
                self._send(program, admins)
            except (OSError, RuntimeError) as error:
                self.broken = f"the program ended: {error}"
            ended = time.monotonic()
            if not self.broken:
                self._drain(program, mq, ended)
            stored = {feature: places(mq, f"{self._prefix}-{feature}") for feature in plan.features}
            return self._results(program, stored, ended)
        finally:
            program.finish()

    def _send(self, program: Program, admins: list[AdminApi]) -> None:
        """Runs the phase between "go" and "stopped": kills, a reset, a killed producer, and a calm time in which
        clients resume."""
        plan = self.plan
        program.tell("go")
        begun = time.monotonic()
        killer = Killer(self._live, self._chance, plan.kill_every_s, plan.sending_s)
        if plan.kills:
            killer.start()
        if "transaction" in plan.features:
            self._leave_orphans(program)
        if "reset" in plan.features:
            program.pause(begun + plan.sending_s * self._chance.uniform(0.3, 0.7) - time.monotonic())
            program.cells["reset"].reset_at = time.time()
            for admin in admins:  # each has the offsets in its own queues
                self._reset(admin)
        program.pause(begun + plan.sending_s - time.monotonic())
        if plan.kills:
            killer.join()
            self._tell(f"{len(killer.kills)} leaders killed {''.join(killer.trouble)}")
            program.pause(RECOVERED_S + 10)
        while time.monotonic() - begun < SENDING_MAX_S and not self._enough(program):
            program.pause(1)
        program.tell("stop")
        program.wait("stopped")
        for feature in plan.features:
            program.cells[feature].kills = killer.kills

    def _enough(self, program: Program) -> bool:
        return all(len(program.cells[feature].acknowledged) >= self.plan.enough for feature in self.plan.features)

    def _leave_orphans(self, program: Program) -> None:
        arguments = (all_servers(self._live), self._prefix, str(ORPHAN_COUNT), "transaction")
        orphans = Program(self.plan.client, self._home, "orphans", *arguments, secret=self._secret)
        try:
            orphans.wait("ready")
        finally:
            orphans.kill()
        program.cells["transaction"].sends += orphans.cells["transaction"].sends

    def _reset(self, admin: AdminApi) -> None:
        """Resets the group to the first message; repeated until it is accepted."""
        group, topic = f"{self._prefix}-reset-readers", f"{self._prefix}-reset"
        deadline = time.monotonic() + at_most(60)
        while True:
            try:
                admin.post(f"/v1/groups/{group}/reset", {"topic": topic, "to": "earliest"})
                return
            except LocalError as error:
                if time.monotonic() > deadline:
                    raise
                self._tell(f"reset: {error}")
                time.sleep(0.5)

    def _drain(self, program: Program, mq: raftmq.Client, ended: float) -> None:
        count, changed = 0, ended
        while time.monotonic() < ended + DRAIN_MAX_S and len(self.content) < len(self.plan.features):
            time.sleep(1)
            if (now := sum(len(cell.deliveries) for cell in program.cells.values())) != count:
                count, changed = now, time.monotonic()
            elif time.monotonic() > changed + QUIET_MAX_S:
                break
            if "retry" in self.plan.features and "retry" not in self.content:
                program.cells["retry"].dead = self._dead_letters(mq)
            for feature in self.plan.features:
                if feature not in self.content and not any(JUDGES[feature](_copy(program.cells[feature]))):
                    self.content[feature] = time.monotonic()
        time.sleep(SETTLE_S)
        if "retry" in self.plan.features:
            program.cells["retry"].dead = self._dead_letters(mq)

    def _dead_letters(self, mq: raftmq.Client) -> list[str]:
        try:
            return [place.key for place in places(mq, f"%DLQ%{self._prefix}-retry-readers")]
        except NotFound:
            return []

    def _results(self, program: Program, stored: dict[str, dict[Place, int]], ended: float) -> list[Result]:
        results = []
        denied = denials(self._live.data)
        for feature in self.plan.features:
            seen = in_cluster(_copy(program.cells[feature]), stored[feature])
            refused = [
                what
                for role in ("sender", "reader", "")
                for what in denied.get(user_of(self._prefix, feature, role) if role else "", [])
            ]
            without = sorted({*groups_of(self._live.nodes)} - {group_of(number) for number in stored[feature].values()})
            if reasons := [
                *self._complaints(feature, seen, refused),
                *(f"nothing in group {each}" for each in without),
            ]:
                (self._home / f"{feature}.json").write_text(json.dumps(asdict(seen)))
            results.append(
                Result(
                    self.plan.client,
                    feature,
                    self.plan.mode,
                    self.plan.seed,
                    _commit(),
                    time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
                    not reasons,
                    "; ".join(reasons[:5]),
                    len(seen.acknowledged),
                    sum(send.error is not None for send in seen.sends),
                    len(seen.deliveries),
                    delivered_twice(seen),
                    len(seen.dead),
                    len(seen.kills),
                    round(max(waits_s(seen), default=0.0), 1),
                    round(self.content.get(feature, ended + DRAIN_MAX_S) - ended, 1),
                    refused,
                    gave_up(seen),
                    self.plan.groups,
                )
            )
        if "transaction" in self.plan.features:
            self._tell(f"{len(program.checks)} checks of half messages, {len(set(program.checks))} messages")
        return results

    def _complaints(self, feature: str, seen: Seen, denied: list[str]) -> list[str]:
        """The judge's, what was denied to the cell's users, and that the cell did too little to be judged."""
        reasons = [self.broken] if self.broken else list(JUDGES[feature](seen))
        if len(seen.acknowledged) < self.plan.enough:
            reasons.append(f"only {len(seen.acknowledged)} of {self.plan.enough} acknowledged")
        if feature == "retry" and not any(failures(key) > RETRIES for key in seen.dead):
            reasons.append("no dead letter")
        if feature == "transaction" and all(committed(send.key) for send in seen.sends):
            reasons.append("nothing was rolled back")
        return [*reasons, *(f"denied: {what}" for what in denied)]


def _copy(seen: Seen) -> Seen:
    """Returns a copy as it stands now: the thread that reads the program's output goes on appending."""
    return replace(seen, sends=list(seen.sends), deliveries=list(seen.deliveries))


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def run_plan(plan: Plan, home: Path, tell: Callable[[str], None]) -> list[Result]:
    """All cells of the plan. If one failed, the cluster's directory stays, with what was recorded of the cell."""
    home.mkdir(parents=True)
    results = Run(plan, home, tell).run()
    if all(result.passed for result in results):
        shutil.rmtree(home)
    else:
        tell(f"the nodes' data and logs and the client's own are in {home}")
    return results
