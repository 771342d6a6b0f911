"""The story `bitflip-minority`: bytes rot on one node after another, under load. No client may get a rotten byte, no
other node may store one, and all must be repaired.

Each flip is followed by an action that makes the node notice it: reading around it, inspect-consistency, a restart,
fsck. No second node is damaged before the frames and rows of the first are repaired: at every moment a majority has
every byte intact. Tables rot on one node only, because its checkpoints are linked to them and stay rotten after the
state was replaced.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from cluster.state.fsck import Fsck
from cluster.state.rebuild import Rebuild, RebuildError
from jepsen_like.live.harm.bitflip import Flip, FlippedFile, different_bytes, flip
from jepsen_like.live.probes.recovery_probe import wait_serving
from jepsen_like.live.stories.story import Scene, Story, StoryEnds
from jepsen_like.live.subjects.payload import id_of
from jepsen_like.live.subjects.subject import LoadPlan
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.verify.verify_directory import Finding, Severity
from raftmq.client import connect
from raftmq.client.errors import RaftMQError
from raftmq.local.waiting import until

FLIPS = 50
KINDS = (*[FlippedFile.SEALED] * 5, *[FlippedFile.ACTIVE] * 2, FlippedFile.INDEX, *[FlippedFile.TABLE] * 2)
"""Kinds of files to flip a byte in, used in turn."""
GROWN_BYTES = 20 << 20
"""Bytes of log before the first flip: by then some segments are sealed and some tables written."""
GROW_S = 300.0
GROWN_FACTOR = 0.2
"""The share of the load that goes on during the flips. Comparing nodes, fsck and a replay read all of the log, so under
the full load each flip would take longer than the one before."""
PLAY_S = 600.0
"""Seconds after which no further flip begins. If flips are left, a full run misses a gate."""
READ_S = 3.0
"""Seconds within which a flipped byte that a read has found must be repaired. A pull of the message waits 2 s for the
repair.
"""
MEND_S = 10.0
INSPECT_S = 120.0
ITSELF_S, BACK_S = 30.0, 60.0
"""Seconds within which a node must serve again: by itself, and after its state was replaced."""
AROUND = 100
"""The number of messages read on either side of a flip in each queue."""
DAMAGED = "-damaged-"


class Flips(NamedTuple):
    """The flips of a run: their numbers by kind of file and by result, the flips that are still on disk, and the number
    of flips that were planned.
    """

    kinds: Counter[str]
    ends: Counter[str]
    left: list[Flip]
    wanted: int


def play(scene: Scene) -> None:
    _grow(scene)
    flips = flip_all(scene)
    with scene.act("the nodes compare themselves") as told:
        told.append(_inspect(scene))
        scene.gate("inspect-consistency finds everything equal", told[0] == EQUAL, 1, told=told[0])
    _compare(scene)
    judge(scene, flips)


def judge(scene: Scene, flips: Flips) -> None:
    """Adds gates: all planned flips were made, and all were repaired, or are made again when needed."""
    kinds, ends, left, wanted = flips
    scene.measured |= {"flips": dict(kinds), "ends": dict(ends)}
    scene.gate("flips", sum(ends.values()), wanted)
    still = ", ".join(map(str, left))
    scene.gate("flips repaired, or made again when needed", sum(ends.values()) - len(left), wanted, told=still)


READ = "repaired when it was read"
INSPECTED = "found by inspect-consistency, repaired"
RESTARTED = "repaired by a restart"
CHECKED = "found by fsck, repaired"
IRRELEVANT = "found by fsck, made again when it is needed"
LEFT = "found by fsck, still there"


def _grow(scene: Scene) -> None:
    if not until(lambda: scene.stage.load.position >= GROWN_BYTES, GROW_S, 0.1):
        raise StoryEnds(f"the log did not grow to {GROWN_BYTES >> 20} MiB within {GROW_S:.0f} s")


def flip_one(scene: Scene, victim: int, kind: FlippedFile) -> Flip:
    """Changes a byte in a file of this kind, or of another kind if there is no such file. Raises StoryEnds if there is
    none at all."""
    for each in dict.fromkeys((kind, FlippedFile.SEALED, FlippedFile.ACTIVE, FlippedFile.INDEX)):
        made = flip(victim, scene.subject.data_of(victim), each, scene.rng, scene.stage.load.position)
        if made is not None:
            return made
    raise StoryEnds(f"node {victim} has no file to hurt")


def provoke(scene: Scene, made: Flip) -> str:
    """Makes the node notice the flip: by reading, by comparing, by a restart, or by an offline check. Returns the
    result."""
    if made.kind in (FlippedFile.SEALED, FlippedFile.ACTIVE):
        _read_around(scene, made)
        if _gone(made, READ_S):
            return READ
        _inspect(scene)
        if _gone(made, MEND_S):
            return INSPECTED
    if _restart(scene, made.node):
        _read_around(scene, made)
        if _gone(made, 1.0):
            return RESTARTED
    findings = _check_offline(scene, made)
    scene.demand(bool(findings), f"{made}: the offline check finds nothing")
    if findings and all(finding.severity is Severity.NOTE for finding in findings):
        return IRRELEVANT
    _read_around(scene, made)
    return CHECKED if _gone(made, MEND_S) else LEFT


def flip_all(
    scene: Scene,
    flip_one: Callable[[Scene, int, FlippedFile], Flip] = flip_one,
    provoke: Callable[[Scene, Flip], str] = provoke,
    clock: Callable[[], float] = time.monotonic,
) -> Flips:
    """Flips one byte after the other, and after each flip makes the node notice it. Begins no flip after PLAY_S. Raises
    StoryEnds.
    """
    ends: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    left: list[Flip] = []
    victim = rotten = scene.rng.choice(scene.subject.node_ids)
    wanted, until_s = scene.count(FLIPS), clock() + PLAY_S
    scene.stage.load.factor = GROWN_FACTOR
    for number in range(wanted):
        if clock() > until_s:
            scene.tell(f"         no further flip: {number} of {wanted} took more than {PLAY_S:.0f} s")
            break
        kind = KINDS[number % len(KINDS)]
        if kind is FlippedFile.TABLE:
            victim, kind = (rotten, kind) if not left else (victim, FlippedFile.SEALED)
        with scene.act(f"flip {number + 1}") as told:
            made = flip_one(scene, victim, kind)
            told.append(str(made))
            end = provoke(scene, made)
            told.append(end)
        ends[end] += 1
        kinds[made.kind.value] += 1
        left = [each for each in (*left, *([made] if end == LEFT else ())) if each.is_there]
        if not left:
            victim = scene.rng.choice(scene.subject.node_ids)
    return Flips(kinds, ends, left, wanted)


EQUAL = "everything is equal"


def _inspect(scene: Scene) -> str:
    """Runs `raftmq inspect-consistency`, with which the nodes read and compare their logs; returns its findings for
    people."""
    command = [sys.executable, "-m", "raftmq.cli", "inspect-consistency", "--data", str(scene.subject.data)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSPECT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"inspect-consistency did not end within {INSPECT_S:.0f} s"
    said = " ".join((done.stdout + done.stderr).split())
    return EQUAL if done.returncode == 0 else f"code {done.returncode}: {said[:400]}"


def _gone(made: Flip, timeout_s: float) -> bool:
    return until(lambda: not made.is_there, timeout_s, 0.05)


def _restart(scene: Scene, node: int) -> bool:
    """Restarts the node, with kill -9 half of the time. Returns False if it does not serve again by itself."""
    if scene.rng.random() < 0.5:
        scene.stage.strike([node])
    else:
        scene.subject.terminate(node)
    return _start(scene, node, ITSELF_S)


def _start(scene: Scene, node: int, timeout_s: float) -> bool:
    """Starts the node; returns True if it serves in time. A node that ends by itself, because it met the damage, is
    started again."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not scene.subject.is_running(node):
            scene.subject.start_node(node)
        if wait_serving(scene.subject, node, time.monotonic(), 1.0) is not None:
            return True
    return False


def _check_offline(scene: Scene, made: Flip) -> list[Finding]:
    """Returns fsck's findings about the file while the node is stopped; damage of the state is then repaired by
    replacing it.

    Raises StoryEnds if the node does not serve afterwards.
    """
    scene.subject.terminate(made.node)
    report = Fsck(scene.subject.data_of(made.node)).run()
    if not report.sound and made.kind is FlippedFile.TABLE:
        _rebuild(scene, made.node)
    if not _start(scene, made.node, BACK_S):
        raise StoryEnds(f"node {made.node} does not serve: {'; '.join(scene.subject.evidence())}")
    return [one.finding for one in report.judged if one.finding.path.name == made.path.name]


def _rebuild(scene: Scene, node: int) -> None:
    """Replaces the state as `raftmq rebuild DIR --yes` does: from the newest sound checkpoint, else by replaying the
    log."""
    for back in ("checkpoint", "start"):
        work = Rebuild(OsFileSystem(), scene.subject.data_of(node), int(time.time() * 1000))
        try:
            work.carry_out(work.plan(back))
            return
        except RebuildError as error:
            why = str(error)
        finally:
            work.close()
    scene.doubts.append(f"the state of node {node} could not be replaced: {why}")


def _read_around(scene: Scene, made: Flip) -> None:
    """Reads messages of every queue around the flip from the damaged node itself, which must serve only undamaged
    ones."""
    node = scene.subject.nodes[made.node - 1]
    address = f"127.0.0.1:{node.broker_port}"
    with connect(scene.subject.servers, **scene.subject.client_options) as mq:
        for queue_id in range(scene.subject.queues):
            try:
                _read_queue(scene, mq, address, queue_id, made)
            except RaftMQError:
                continue  # the node refused, or did not answer in time, so it served no damaged byte


def _read_queue(scene: Scene, mq: Any, address: str, queue_id: int, made: Flip) -> None:
    topic = scene.subject.topic

    def pull(offset: int, count: int) -> Any:
        pulled = mq.pull(topic, queue_id, offset, count, node=address, timeout_s=5.0)
        for message in pulled.messages:
            where = f"{topic}/{queue_id}@{message.queue_offset}"
            scene.demand(DAMAGED not in id_of(message.body), f"{where} was served damaged by {address}: {made}")
        return pulled

    end = pull(0, 1).max_offset
    low, high = 0, end
    while made.position >= 0 and low < high:
        middle = (low + high) // 2
        found = pull(middle, 1).messages
        if found and found[0].position <= made.position:
            low = middle + 1
        else:
            high = middle
    if made.position < 0:
        low = scene.rng.randrange(end + 1)
    at, until = max(0, low - AROUND), min(end, low + AROUND)
    while at < until:
        pulled = pull(at, until - at)
        if not pulled.messages:
            return
        at = pulled.next_offset


def _compare(scene: Scene) -> None:
    """Stops all nodes and compares their logs, which must be the same byte for byte: then no rotten byte is left or was
    passed on."""
    with scene.quiet():
        with scene.act("all stop, the logs are compared") as told:
            scene.wait_caught_up()
            scene.subject.stop_in_order()
            first, *others = scene.subject.node_ids
            counts = {
                node: different_bytes(scene.subject.data_of(first), scene.subject.data_of(node)) for node in others
            }
            told.append(", ".join(f"{count} bytes differ between nodes {first} and {n}" for n, count in counts.items()))
            scene.measured["different_bytes"] = sum(counts.values())
            scene.gate("bytes in which the logs differ", sum(counts.values()), 0, at_most=True)
        with scene.act("all start"):
            for node in scene.subject.node_ids:
                scene.subject.start_node(node)
            scene.wait_well()


STORY = Story(play, free_gib=3, segment_mib=6, load=LoadPlan(1000, 256))
