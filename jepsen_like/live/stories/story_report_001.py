"""The story `report-001`: metadata that one leader created is present under every later leader, after restarts of any
majority.

Field report 001: topics and groups were created on A, leadership moved to B, all nodes were stopped, and the metadata
of A was gone when A and C came back without B. Afterwards the story switches leaders rapidly under load.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from jepsen_like.checkers.history_steps import GroupQueue
from jepsen_like.live.probes.expected_metadata import ExpectedMetadata, GroupSpec, TopicSpec
from jepsen_like.live.stories.story import Scene, Story, StoryEnds
from raftmq.client import AsyncClient, aconnect
from raftmq.client.errors import RaftMQError

T = TypeVar("T")
A, B, C = 1, 2, 3
COUNT, SWITCHES = 1000, 200
SWITCH_S = 20.0
"""The longest time in seconds for one switch with its write; a longer one ends the story."""
PREFIX = "r1-"
SHOWN = 5
_ATTRIBUTES: tuple[dict[str, str], ...] = (
    {},
    {"dedup": "strict"},
    {"message.type": "FIFO"},
    {"dedup": "off", "message.type": "NORMAL"},
)


def play(scene: Scene) -> None:
    catalogue = ExpectedMetadata(PREFIX)
    count = scene.count(COUNT)
    _lead(scene, A)
    _write(scene, catalogue, f"{count} topics and groups created on A", _created(scene, range(count)))
    _lead(scene, B)
    _change(scene, catalogue, count)
    _restart_without_b(scene, catalogue)
    with scene.act("B comes back"):
        scene.subject.start_node(B)
        scene.wait_well()
    _compare(scene, catalogue, "all three")
    _switch(scene, catalogue)
    _compare(scene, catalogue, "all three after the switches")


Wanted = tuple[dict[str, TopicSpec], dict[str, GroupSpec], dict[GroupQueue, int]]


def _created(scene: Scene, numbers: range) -> Wanted:
    """Returns the topics, groups and offsets to create for these numbers, with fields drawn by the seed."""
    rng = scene.rng
    topics = {
        f"{PREFIX}t{n:04d}": TopicSpec(rng.randrange(1, 9), rng.choice((2, 4, 6)), dict(rng.choice(_ATTRIBUTES)))
        for n in numbers
    }
    groups = {
        f"{PREFIX}g{n:04d}": GroupSpec(rng.randrange(1, 20), rng.random() < 0.8, rng.random() < 0.3, rng.random() < 0.7)
        for n in numbers
    }
    offsets = {
        (f"{PREFIX}g{n:04d}", f"{PREFIX}t{n:04d}", 0): rng.randrange(1, 1_000_000) for n in numbers if n % 3 == 0
    }
    return topics, groups, offsets


def _write(scene: Scene, catalogue: ExpectedMetadata, name: str, wanted: Wanted) -> None:
    with scene.act(name):
        _with_client(scene, "written", lambda client: catalogue.put(client, *wanted))


def _with_client(scene: Scene, what: str, act: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Calls `act` with a client. Raises StoryEnds if it fails, because only acknowledged changes can be demanded
    afterwards."""

    async def work() -> T:
        async with aconnect(scene.subject.servers, **scene.subject.client_options) as client:
            return await act(client)

    try:
        return asyncio.run(work())
    except (RaftMQError, OSError) as error:
        raise StoryEnds(f"metadata could not be {what}: {error}") from error


def _change(scene: Scene, catalogue: ExpectedMetadata, count: int) -> None:
    """Changes some topics and groups on B, deletes some, and adds new ones."""
    changed = _created(scene, range(0, count, 3))
    _write(scene, catalogue, f"{len(changed[0])} of them changed on B", changed)
    topics, groups = (
        [f"{PREFIX}t{n:04d}" for n in range(1, count, 5)],
        [f"{PREFIX}g{n:04d}" for n in range(2, count, 5)],
    )
    with scene.act(f"{len(topics)} topics and {len(groups)} groups deleted on B"):
        _with_client(scene, "written", lambda client: catalogue.drop(client, topics, groups))
    _write(scene, catalogue, "more added on B", _created(scene, range(count, count + count // 10 + 1)))


def _lead(scene: Scene, node: int, nodes: list[int] | None = None) -> None:
    """Makes the node the leader of these nodes (default: all), whichever leads now. Raises StoryEnds."""
    with scene.act(f"leadership to node {node}") as told:
        deadline = time.monotonic() + SWITCH_S
        while (leader := scene.stage.leader()) != node:
            try:
                scene.subject.transfer(leader, node)
            except OSError:
                time.sleep(0.05)
            if time.monotonic() > deadline:
                raise StoryEnds(f"node {node} did not become leader within {SWITCH_S:.0f} s")
        scene.wait_well(nodes)
        told.append(f"term {_term(scene, node)}")


def _term(scene: Scene, node: int) -> int:
    state = scene.subject.states()[node]
    return state.term if state is not None and state.leads else -1


def _restart_without_b(scene: Scene, catalogue: ExpectedMetadata) -> None:
    """Stops all nodes and computes the digests of their states; then A and C come back alone, and each of them leads
    once."""
    with scene.quiet():
        with scene.act("all stop") as told:
            scene.wait_caught_up()
            orderly = scene.subject.stop_in_order()
            applied = sorted({digest.applied for digest in scene.subject.read_digests(scene.history).values()})
            told.append(f"{'' if orderly else 'NOT '}in order; states summed up at {applied}")
            if len(applied) > 1:
                scene.doubts.append(f"the stopped nodes had applied {applied}: their states cannot be compared")
        with scene.act("A and C start without B"):
            scene.subject.start_node(A)
            scene.subject.start_node(C)
            scene.wait_well([A, C])
    for node in (A, C):
        _lead(scene, node, [A, C])
        _compare(scene, catalogue, f"node {node} leads, without B", [A, C])


def _compare(scene: Scene, catalogue: ExpectedMetadata, when: str, nodes: list[int] | None = None) -> None:
    """Compares the catalogue with the leader's linearizable answers, and with the state that every running node shows
    once it has caught up."""
    running = scene.subject.node_ids if nodes is None else nodes
    with scene.act(f"metadata compared: {when}") as told:
        differences = _with_client(scene, "read", catalogue.differences)
        leader = scene.stage.leader()
        path = "/v1/topics?consistency=linearizable"
        shown = scene.subject.whole(leader, path, "topics", timeout_s=20.0)
        differences += catalogue.topic_differences(shown, f"node {leader} linearizably, {when}")
        for node in running:
            differences += catalogue.topic_differences(_caught_up_topics(scene, node, shown), f"node {node}, {when}")
        told.append(f"{len(catalogue.topics)} topics, {len(catalogue.groups)} groups, {len(catalogue.offsets)} offsets")
        told.append(f"{len(differences)} differences")
        more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        scene.demand(not differences, "; ".join(differences[:SHOWN]) + more)


def _caught_up_topics(scene: Scene, node: int, newest: dict[str, Any]) -> dict[str, Any]:
    """Returns a node's own list of topics once it is as new as the leader's was. Raises StoryEnds."""
    deadline = time.monotonic() + SWITCH_S
    while True:
        shown = scene.subject.whole(node, "/v1/topics", "topics", timeout_s=20.0)
        if shown["applied_index"] >= newest["applied_index"]:
            return shown
        if time.monotonic() > deadline:
            raise StoryEnds(f"node {node} did not apply entry {newest['applied_index']} within {SWITCH_S:.0f} s")
        time.sleep(0.05)


def _switch(scene: Scene, catalogue: ExpectedMetadata) -> None:
    """Switches leaders rapidly; each switch creates a topic, which is acknowledged in the new leader's own term."""
    wanted, terms = scene.count(SWITCHES), [_term(scene, scene.stage.leader())]
    before = scene.stage.load.counts.acked
    with scene.act(f"{wanted} rapid role switches under load") as told:
        begun = time.monotonic()
        for number in range(wanted):
            name, spec = f"{PREFIX}s{number:04d}", TopicSpec(1 + number % 8, 6, {})
            terms.append(_switch_once(scene, name, spec, terms[-1]))
            catalogue.topics[name] = spec
        seconds = time.monotonic() - begun
        acked = scene.stage.load.counts.acked - before
        told.append(f"{len(terms) - 1} terms from {terms[1]} to {terms[-1]}, {acked:,} messages acknowledged meanwhile")
    scene.demand(terms == sorted(set(terms)), f"the terms of the switches do not rise: {terms}")
    scene.measured |= {"switches": wanted, "switches_per_s": round(wanted / seconds, 2), "acked_meanwhile": acked}
    scene.gate("role switches with an acknowledged write in their term", len(terms) - 1, wanted)
    scene.gate("messages acknowledged meanwhile", acked, wanted)


def _switch_once(scene: Scene, name: str, spec: TopicSpec, before: int) -> int:
    """Switches once; returns the term in which the topic was created, above `before`. Raises StoryEnds."""
    subject, deadline = scene.subject, time.monotonic() + SWITCH_S
    body = {"name": name, "queues": spec.queues, "if_exists": "update"}
    while time.monotonic() < deadline:
        leader = scene.stage.leader()
        to = scene.rng.choice([node for node in subject.node_ids if node != leader])
        try:
            if not subject.transfer(leader, to):
                continue
            term = _term(scene, to)
            answer = subject.request(to, "POST", "/v1/topics", body)
        except OSError:
            time.sleep(0.02)
            continue
        if term > before and answer["term"] == term:
            return term
    raise StoryEnds(f"no write was acknowledged in a new term within {SWITCH_S:.0f} s (after term {before})")


STORY = Story(play)
