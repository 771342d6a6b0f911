"""The story `--beside`: plays each attack by itself, under one condition after the other, and measures its effect on
honest clients.

A cell of the table is one attack under one condition. It begins with newly started nodes, so that the longest turn and
the memory belong to the cell. It lasts for the time that the user named, and longer until a round is over and REQUESTS
are sent.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from jepsen_like.live.harm.attack_process import Assault, AttackRound, broken_in, orders_for
from jepsen_like.live.nemeses.nemesis_interface import Effect
from jepsen_like.live.outcome import Played
from jepsen_like.live.probes.honest_clients import P99_MAX_MS, seen_in
from jepsen_like.live.probes.long_turns import TURN_MAX_S, Turns, ask_turns
from jepsen_like.live.probes.node_watch import Watch
from jepsen_like.live.stories.concurrent_events import BESIDE, Beside
from jepsen_like.live.stories.story import Scene, Story, StoryEnds
from jepsen_like.live.stories.story_hostile import MEMORY_MAX
from jepsen_like.live.subjects.subject import LoadPlan

REQUESTS: Final = 5_000
"""Requests in each cell at full scale."""
LONGER_MAX: Final = 1.5
"""The longest time of a cell that has not sent its requests, as a multiple of its planned time."""
ROUND_MAX: Final = 4.0
"""The longest time of a cell in which no round is over, as a multiple of its planned time."""
ROUNDS: Final = 6
"""Number of rounds of an attack within the planned time of a cell."""
SETTLE_S: Final = 2.0
STOPS: Final = 3
"""The most attempts to stop the nodes with equal states: the leader may append an entry of its own between two stops.
"""
_SHOWN: Final = 3
_MIB: Final = 1 << 20


def play(scene: Scene) -> None:
    """Plays all cells; raises StoryEnds and OSError if it cannot continue."""
    cells = []
    for attack in scene.attacks:
        for name in scene.beside:
            cells.append(_cell(scene, attack, BESIDE[name]))
            scene.measured["cells"] = cells
            for line in table(cells)[0 if len(cells) == 1 else -1 :]:
                scene.tell(line)


def _cell(scene: Scene, attack: str, beside: Beside) -> dict[str, Any]:
    _start_again(scene)
    subject, rounds = scene.subject, []  # type: ignore[var-annotated]
    with scene.act(f"{attack} beside {beside.name}") as told, Watch(subject) as watch:
        scene.stage.sleep(SETTLE_S)
        resting = dict(watch.latest)
        watch.forget_peak()
        orders = orders_for(subject, scene.stage.leader(), [attack], scene.rng.getrandbits(32), scene.scale)
        orders.every_s = scene.time_s / ROUNDS
        with Assault(subject.processes, orders, rounds.append) as assault:
            begun, start_ns = time.monotonic(), time.monotonic_ns()
            told += beside.play(scene, attack, begun + scene.time_s)
            while goes_on(rounds, scene.count(REQUESTS), (time.monotonic() - begun) / scene.time_s):
                told += beside.play(scene, attack, time.monotonic() + scene.time_s / ROUNDS)
            span = start_ns, time.monotonic_ns()
        scene.wait_well()
        turns = {node.id: asyncio.run(ask_turns(node)) for node in subject.nodes}
        told += [f"node {node}: {each}" for node, each in turns.items()]
    cell = judged(scene, attack, beside, rounds, watch, resting, span, turns)
    scene.played.append(Played(attack, Effect(cell["requests"] > 0, ""), 0.0, (span[1] - span[0]) / 1e9, 0.0))
    if assault.died:
        scene.doubts.append(f"{attack}: the attacker ended by itself: {' | '.join(assault.noise)}")
    return cell


def goes_on(rounds: list[AttackRound], wanted: int, times: float) -> bool:
    """Returns True if a cell must last longer than planned; `times` is its time so far as a multiple of the planned
    one."""
    if not any(each.is_over for each in rounds):
        return times < ROUND_MAX
    return _sent(rounds) < wanted and times < LONGER_MAX


def _sent(rounds: list[AttackRound]) -> int:
    return sum(each.sent for each in rounds if each.is_over)


def judged(
    scene: Scene,
    attack: str,
    beside: Beside,
    rounds: list[AttackRound],
    watch: Watch,
    resting: dict[int, int],
    span: tuple[int, int],
    turns: dict[int, Turns],
) -> dict[str, Any]:
    """Returns a row of the table; demands of the scene that no promise was broken."""
    where = f"{attack} beside {beside.name}"
    seen, lost = seen_in(scene.history.ops, [span]), 0
    if beside.is_steady:
        changes = [each.what for each in watch.changes if beside.is_whole or each.is_reign]
        # Registers are changed and read through one node's HTTP port: while that node is down, they get no answer.
        lost = sum(seen.unanswered.values()) if beside.is_whole else seen.unanswered["send"]
        scene.demand(not changes, f"{where}: {'; '.join(changes[:_SHOWN])}")
        scene.demand(lost == 0, f"{where}: {lost} honest requests were not answered, the first: {seen.first}")
        scene.demand(seen.p99_ms() <= P99_MAX_MS, f"{where}: the p99 of honest sends is {seen.p99_ms():.0f} ms")
    wrong = broken_in(rounds)
    scene.demand(not wrong, f"{where}, {wrong}")
    grown = max(watch.peak[node] - resting.get(node, watch.peak[node]) for node in watch.peak)
    scene.demand(grown <= MEMORY_MAX, f"{where}: a node grew by {grown // _MIB} MiB")
    node, longest = max(turns.items(), key=lambda each: each[1].longest_s)
    scene.demand(longest.longest_s <= TURN_MAX_S, f"{where}: a turn of node {node} took {longest}")
    return {
        "attack": attack,
        "beside": beside.name,
        "requests": _sent(rounds),
        "leader_changes": sum(each.is_reign for each in watch.changes),
        "sends": seen.count(),
        "p99_ms": round(seen.p99_ms(), 1),
        "longest_turn": str(longest),
        "longest_turn_node": node,
        "memory_mib": max(watch.peak.values()) // _MIB,
        "memory_grown_mib": grown // _MIB,
        "unanswered": lost,
    }


def _start_again(scene: Scene) -> None:
    """Stops all nodes in order and starts them again, up to STOPS times, until all had applied the same when they
    stopped; then demands that their rows are equal. Raises StoryEnds if they never had."""
    subject = scene.subject
    with scene.quiet():
        for _ in range(STOPS):
            scene.wait_caught_up()
            subject.stop_in_order()
            digests = subject.read_digests(scene.history)
            scene.stage.start_all()
            scene.wait_well()
            if len({digest.applied for digest in digests.values()}) == 1:
                texts = {digest.text for digest in digests.values()}
                scene.demand(len(texts) == 1, f"the nodes hold different rows: {digests}")
                return
    raise StoryEnds(f"{STOPS} times the nodes had not applied the same when they were stopped")


def table(cells: list[dict[str, Any]]) -> list[str]:
    """Returns the rows as a Markdown table."""
    return [
        "| Attack | Beside | Requests | Leader changes | p99 of sends | Longest turn | Memory, most and growth |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {cell['attack']} | {cell['beside']} | {cell['requests']:,} | {cell['leader_changes']} | "
            f"{cell['p99_ms']:.0f} ms | {cell['longest_turn']} | "
            f"{cell['memory_mib']}, {cell['memory_grown_mib']} MiB |"
            for cell in cells
        ),
    ]


ONE_BY_ONE = Story(play, free_gib=8, load=LoadPlan(500, 128), is_direct=True)
