"""Performs a live test run that was asked for on the command line: makes the run's folder, starts the system under
test, runs the faults and the load, and afterwards ends all processes and removes what the run left behind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jepsen_like.live.conclusion import Conclusion
from jepsen_like.live.harm.disk_shim import Shim, ShimPower, prepare
from jepsen_like.live.harm.power import ShimError
from jepsen_like.live.nemeses.coverage_gates import FULL_S
from jepsen_like.live.nemeses.nemesis_interface import Nemesis
from jepsen_like.live.nemeses.scenarios import Scenario
from jepsen_like.live.outcome import RunFindings, write_outcome
from jepsen_like.live.plan import Plan, all_hostile, choose, story_of
from jepsen_like.live.probes.tier_probe import STORE, environment
from jepsen_like.live.run import Run, Tools
from jepsen_like.live.stories.story import Story
from jepsen_like.live.stories.story_table import STORIES
from jepsen_like.live.subjects.owned_resources import Owned, owning
from jepsen_like.live.subjects.processes import Processes
from jepsen_like.live.subjects.subject import Capability, Subject
from raftmq_wire.errors import ExitCode, LocalError

FREE_BYTES_MIN = 2 << 30
SUBJECTS = ("raftmq", "pysyncobj")
NODES = "nodes"
SHIM = "shim"


class RunRequest(NamedTuple):
    """The user's request for a run."""

    subject: str
    scenario: Scenario | None
    nemeses: tuple[Nemesis, ...] | None
    time_s: float
    seed: int
    rate: int | None
    """Sends per second; None: the rate that suits the subject."""
    scale: float = 1.0
    """The scale of a scripted scenario, and of hostile clients."""
    beside: tuple[str, ...] = ()
    """Names of the events (kills, snapshots and so on) that are caused at the nodes while one kind of hostile client at
    a time attacks them (`Plan.beside`)."""
    secured: bool = False
    """True if clients and nodes speak TLS, and rules are enforced."""
    at_once: int | None = 2
    """The number of attacks of hostile clients that run at the same time; None: all of them (`Plan.at_once`)."""

    @property
    def story(self) -> Story | None:
        """The story that is played instead of randomly dealt faults; None if there is none."""
        if self.scenario is not None and self.scenario.is_scripted:
            return STORIES[self.scenario.name]
        name = story_of(self.nemeses, self.beside)
        return STORIES[name] if name is not None else None


def check_space(folder: Path, free_bytes: int | None = None, needed: int = FREE_BYTES_MIN) -> None:
    """Raises LocalError if less space is free than needed, because a full disk of the machine itself would hurt more
    than the nodes."""
    there = folder if folder.exists() else next(parent for parent in folder.absolute().parents if parent.exists())
    free = shutil.disk_usage(there).free if free_bytes is None else free_bytes
    if free < needed:
        raise LocalError(
            f"only {free / (1 << 30):.2f} GiB are free at {there}",
            f"this run needs {needed / (1 << 30):.3g} GiB: its nodes' logs, its history, and room for everybody else",
            "raftmq chaos run --out DIR    (on another disk)",
            ExitCode.REFUSED,
        )


def space_needed(wish: RunRequest) -> int:
    """Returns the bytes of free disk space that a run needs: 2 GiB, or what a scripted scenario declares at its scale,
    plus 1 GiB for other programs on the machine.
    """
    story = wish.story
    share = min(1.0, wish.time_s / FULL_S) if all_hostile(wish.nemeses) else wish.scale
    return FREE_BYTES_MIN if story is None else max(FREE_BYTES_MIN, int((story.free_gib * share + 1) * (1 << 30)))


def run_folder(out: Path | None, seed: int) -> Path:
    """Makes the folder of a run; returns its path. Raises LocalError if it cannot be made, or contains something."""
    folder = out if out is not None else Path("chaos-runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        filled = any(folder.iterdir())
    except OSError as error:
        raise LocalError(
            f"{folder} cannot be the run's folder", str(error), "raftmq chaos run --out DIR", ExitCode.REFUSED
        ) from None
    if filled:
        raise LocalError(
            f"{folder} is not empty", "a run starts from nothing", "raftmq chaos run --out NEW_DIR", ExitCode.REFUSED
        )
    return folder


def perform(wish: RunRequest, folder: Path, tell: Callable[[str], None]) -> tuple[Plan, RunFindings]:
    """Performs the whole run in an empty folder. Nodes' directories are kept only if the verdict is not valid."""
    check_space(folder, needed=space_needed(wish))
    with owning(folder, tell) as owned:
        nodes = folder / NODES
        owned.add_directory(nodes)
        processes = Processes(owned)
        subject, tools, missing = _build(wish, folder, processes, owned, tell)
        try:
            choice = choose(subject.capabilities, missing, wish.nemeses)
            plan = Plan(
                wish.subject,
                wish.scenario,
                choice.nemeses,
                wish.time_s,
                wish.seed,
                wish.rate or subject.load.rate,
                wish.nemeses is not None,
                wish.scale,
                wish.rate is not None,
                wish.beside,
                wish.secured,
                wish.at_once,
            )
            tell(f"seed {plan.seed}    (again: {plan.command})")
            for name, why in choice.skipped.items():
                tell(f"skipped {name}: {why}")
            run = Run(plan, subject, folder, tell, tools=tools, skipped=choice.skipped)
            outcome = run.execute()
        finally:
            subject.stop()
            shutil.rmtree(folder / SHIM, ignore_errors=True)
        write_outcome(folder, outcome, plan, run.ops)
        if outcome.verdict is Conclusion.VALID:
            shutil.rmtree(nodes, ignore_errors=True)
        else:
            owned.keep_directory(nodes)
    return plan, outcome


def _build(
    wish: RunRequest, folder: Path, processes: Processes, owned: Owned, tell: Callable[[str], None]
) -> tuple[Subject, Tools, dict[Capability, str]]:
    from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject

    nodes, secured = folder / NODES, wish.secured
    if wish.subject == "pysyncobj":
        from jepsen_like.live.subjects.pysyncobj_subject import PySyncObjSubject

        return PySyncObjSubject(nodes, processes, seed=wish.seed), Tools(), {}
    if wish.story is not None:
        size, load = wish.story.segment_bytes(wish.scale), wish.story.load
        tiered = wish.story.is_tiered
        files_max = wish.scenario.files_max if wish.scenario is not None else None
        story_subject = RaftMQSubject(
            nodes,
            processes,
            seed=wish.seed,
            segment_size_bytes=size,
            environment=lambda _: environment(nodes / STORE, size) if tiered else {},
            load=load,
            files_max=files_max,
            is_direct=wish.story.is_direct,
            is_patient=wish.scale < 1 and all_hostile(wish.nemeses),
            has_users=secured,
            speaks_tls=secured,
        )
        return story_subject, Tools(), {}
    if not _wants_shim(wish):
        return RaftMQSubject(nodes, processes, seed=wish.seed, has_users=secured, speaks_tls=secured), Tools(), {}
    work = folder / SHIM
    owned.add_directory(work)
    try:
        proof = prepare(work, owned)
    except ShimError as error:
        missing = {Capability.POWER: str(error), Capability.CLOCK: str(error)}
        return RaftMQSubject(nodes, processes, seed=wish.seed, has_users=secured, speaks_tls=secured), Tools(), missing
    tell(proof.suspicion or "the disk shim holds: an unsynced write of this very node vanished, a synced one stayed")
    shim = Shim(nodes, work, proof.library)
    more = frozenset({Capability.POWER, Capability.CLOCK})
    subject = RaftMQSubject(
        nodes,
        processes,
        seed=wish.seed,
        environment=shim.environment,
        more=more,
        has_users=secured,
        speaks_tls=secured,
    )
    return subject, Tools(ShimPower(subject, shim), shim, proof.suspicion), {}


def _wants_shim(wish: RunRequest) -> bool:
    """Returns True if the nodes must run with the preloaded shim (`jepsen_like.live.harm.power`), because a chosen
    fault needs it or may use it.
    """
    needing = frozenset({Capability.POWER, Capability.CLOCK})
    chosen = wish.nemeses
    return chosen is None or any(n.needs & needing or n.name in ("part-kill", "pause-kill") for n in chosen)
