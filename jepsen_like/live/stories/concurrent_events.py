"""Events at the nodes while one kind of hostile request is played by itself (`story_one_by_one`)."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from jepsen_like.client_kit.wire import ask_http
from jepsen_like.live.stories.story import WELL_S, Scene, StoryEnds
from jepsen_like.live.subjects.raftmq_nodes import until_answered
from raftlog.storage.files import layout
from raftmq.local.waiting import until

BEGIN_S = (0.5, 2.0)
"""Shortest and longest pause in seconds before a node is killed, so that the attack is in progress by then."""
AWAY_S = (0.2, 1.0)
MIDDLE_S: Final = 5.0
"""Longest time in seconds that a kill waits for a wave of the attack's work to reach its middle."""
INTO_S: Final = 0.2
"""Longest time in seconds from the middle of a wave until the kill, which comes at a drawn moment within it."""
COPY_S: Final = 60.0
_POLL_S: Final = 0.01
_BACKUPS: Final = "backups"

Waves = dict[str, tuple[str, float]]
WAVES: Final[Waves] = {
    "large-topic": ("raftmq_removals_pending", 1),
    "drawn-deletions": ("raftmq_removals_pending", 1),
    "crowd": ("raftmq_long_polls", 1_000),
    "filter-crowd": ("raftmq_long_polls", 1_000),
}
"""Attack that works in waves -> (the leader's metric that shows the work, the metric's value in the middle of a wave).
The other attacks work all the time.
"""


class Beside(NamedTuple):
    """An event at the nodes during an attack. `play(scene, attack, deadline)` causes it until `deadline` (monotonic
    seconds), and returns lines that say what it did.
    """

    name: str
    does: str
    play: Callable[[Scene, str, float], list[str]]
    is_whole: bool = True
    """True if the event kills no node, so that no node's process may end."""
    is_steady: bool = True
    """True if leader and term must stay as they are."""


def play_nothing(scene: Scene, attack: str, deadline: float) -> list[str]:
    """Waits until the deadline, and does nothing else."""
    scene.stage.sleep(max(0.0, deadline - time.monotonic()))
    return []


def play_snapshot(scene: Scene, attack: str, deadline: float) -> list[str]:
    """Kills a follower and restarts it without its state and checkpoints, so that it takes a snapshot of the state from
    another node. Raises StoryEnds."""
    taken = 0
    while time.monotonic() < deadline or not taken:
        scene.stage.sleep(scene.rng.uniform(*BEGIN_S))
        (node, *_) = scene.stage.followers()
        scene.stage.strike([node])
        data = scene.subject.data_of(node)
        for name in (layout.STATE, layout.CHECKPOINTS):
            shutil.rmtree(data / name, ignore_errors=True)
        scene.subject.start_node(node)
        if not until(lambda node=node: _is_back(scene, node), WELL_S, 0.1):  # type: ignore[misc]
            raise StoryEnds(f"node {node} did not come back without its state within {WELL_S:.0f} s")
        source = scene.subject.request(node, "GET", "/v1/recovery")["recovery"]["state_source"]
        scene.demand(source == "peer", f"node {node}, without a state, made one from: {source}")
        taken += 1
    return [f"{taken} states taken from a peer"]


def _is_back(scene: Scene, node: int) -> bool:
    state = scene.subject.states()[node]
    return state is not None and state.leader is not None


def play_checkpoint(scene: Scene, attack: str, deadline: float) -> list[str]:
    """Makes every node read its log and rows again, then makes a checkpoint and a backup on one node after the other,
    until the deadline."""
    subject, made = scene.subject, 0
    for node in subject.node_ids:
        subject.request(node, "POST", "/v1/scrub")
    while time.monotonic() < deadline:
        for node in subject.node_ids:
            target = scene.folder / _BACKUPS
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            subject.request(node, "POST", "/v1/backup", {"to": str(target), "copy_all": True})
            until_answered(partial(_copied, scene, node), COPY_S, 0.1)
            attempt = subject.request(node, "GET", "/v1/backup")["attempt"]
            state, error = attempt["state"], attempt["error"]
            scene.demand(state == "done", f"a backup of node {node} is {state}: {error}")
            made += 1
            if time.monotonic() >= deadline:
                break
    shutil.rmtree(scene.folder / _BACKUPS, ignore_errors=True)
    return [f"{made} backups"]


def _copied(scene: Scene, node: int) -> bool:
    attempt = scene.subject.request(node, "GET", "/v1/backup")["attempt"]
    return attempt is not None and attempt["state"] != "running"


def play_kills(scene: Scene, attack: str, deadline: float) -> list[str]:
    """Kills the leader again and again, in the middle of a wave if the attack has waves."""
    kills = middles = 0
    while time.monotonic() < deadline or not kills:
        scene.stage.sleep(scene.rng.uniform(*BEGIN_S))
        leader = scene.stage.leader()
        middles += attack not in WAVES or _meets_wave(scene, attack, leader)
        scene.stage.sleep(scene.rng.uniform(0.0, INTO_S))
        kills += scene.stage.strike([leader])
        scene.stage.sleep(scene.rng.uniform(*AWAY_S))
        scene.stage.start_all()
        scene.wait_well()
    return [f"{kills} kills of the leader, {middles} in the middle of a wave"]


def _meets_wave(scene: Scene, attack: str, leader: int) -> bool:
    """Waits until the leader has as much work as in the middle of a wave of attacks; returns False if that does not
    happen in time."""
    metric, wanted = WAVES[attack]
    (port,) = (node.admin_port for node in scene.subject.nodes if node.id == leader)
    return until(lambda: _figure(port, metric) >= wanted, MIDDLE_S, _POLL_S) is True


def _figure(admin_port: int, metric: str) -> float:
    lines = asyncio.run(ask_http(admin_port, "GET", "/metrics", timeout_s=1.0)).body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((metric + " ", metric + "{")))


BESIDE: Final = {
    each.name: each
    for each in (
        Beside("nothing", "nothing else happens", play_nothing),
        Beside("snapshot", "a follower that lost its state takes it from another node", play_snapshot, is_whole=False),
        Beside("checkpoint", "every node reads everything again, and makes backups", play_checkpoint),
        Beside("kills", "the leader is killed at random times", play_kills, is_whole=False, is_steady=False),
    )
}
"""All events, by name."""
