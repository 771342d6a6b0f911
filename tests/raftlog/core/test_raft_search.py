"""A seeded random search: anything may happen at any time, the invariants hold after every event; then the faults stop
and the group must make progress.

Replay one run:   RAFT_SEED=17 pytest tests/raftlog/core/test_raft_search.py
Search longer:    RAFT_SEEDS=2000 RAFT_STEPS=5000 pytest tests/raftlog/core/test_raft_search.py
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from raftlog.core.raw_node import RawNode, Ready
from raftlog.core.state.config import RaftConfig
from raftlog.errors import MembershipError, ProposalDroppedError
from raftlog.membership import Address, Membership, promoted, with_learner, without
from raftlog.messages import InstallSnapshot
from raftlog.types import Entry, EntryType, NodeId, Voter
from tests.support.raft_group import Disk, Group

STEPS = int(os.environ.get("RAFT_STEPS", "3000"))
SEEDS, QUICK = range(300), 120
"""All, and how many of them the default suite runs; `-m slow` runs the others."""
LIVENESS_TICKS = 400
MEMBERS_MAX = 8

WEIGHTS = {
    "tick": 14,
    "ready": 26,
    "sync": 16,
    "deliver": 60,
    "drop": 3,
    "repeat": 3,
    "propose": 12,
    "read": 3,
    "crash": 0.4,
    "start": 1.5,
    "campaign": 0.5,
    "isolate": 0.3,
    "cut": 0.4,
    "heal": 0.5,
    "closed": 0.4,
    "transfer": 0.3,
    "clock": 1,
    "lose": 0.2,
    "damage": 0.3,
    "repair": 1,
    "release": 3,
    "change": 4,
    "trim": 0.5,
}

# Every second run: one election after the other, crashes at the worst moments, hardly any time for repairs.
UNREST = {
    "tick": 3,
    "ready": 30,
    "sync": 14,
    "deliver": 60,
    "drop": 8,
    "propose": 5,
    "read": 4,
    "crash": 3,
    "start": 6,
    "campaign": 6,
    "isolate": 1,
    "heal": 2,
    "clock": 0.2,
    "transfer": 0.3,
    "lose": 1,
    "damage": 0.5,
    "repair": 2,
    "release": 5,
    "change": 3,
    "trim": 1,
}

KEEPS_GOING = {"tick", "ready", "sync", "deliver", "start", "heal", "propose", "repair", "release"}


class Search:
    """One run: a group, its faults, and what was promised to readers."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        unrest = seed % 2 == 1
        self.weights = UNREST if unrest else WEIGHTS
        self.count = count = rng.choice([3, 3, 5] if unrest else [1, 3, 3, 3, 5])
        election_ticks = rng.choice([5, 10])
        settings = {
            "election_ticks": election_ticks,
            "heartbeat_ticks": rng.choice([1, 2]),
            "append_bytes_max": rng.choice([100, 400, 1 << 20]),
            "inflight_messages_max": rng.choice([1, 3, 256]),
            "inflight_bytes_max": rng.choice([200, 1 << 20]),
            "cache_bytes_max": rng.choice([1, 2000, 1 << 20]),
            "apply_bytes_max": rng.choice([100, 1 << 20]),
            "applying_bytes_max": rng.choice([100, 1 << 20]),
            "segment_size": rng.choice([500, 1 << 20]),
            "pre_vote": rng.random() < 0.8 and not unrest,
            "check_quorum": rng.random() < 0.8 and not unrest,
        }
        self.group = Group(
            lambda node: RaftConfig(node, 1, **settings),  # type: ignore[arg-type]
            {NodeId(n): Disk() for n in range(1, count + 1)},
            seed,
        )
        self.cuts: set[tuple[NodeId, NodeId]] = set()
        self.now = 1_000_000
        self.reads: dict[int, int] = {}
        self.contexts = 0
        self.seen: Counter[str] = Counter()
        self.offers: dict[NodeId, InstallSnapshot] = {}

    def run(self, steps: int) -> None:
        """Faults first, then progress."""
        # Each run has its own mix: all faults at once hide what few of them find (swarm testing). What keeps the group
        # going is never rare, or nothing happens that faults could break.
        # A voter that lost its end is one that is gone; with a removal under way that may be one too many for ever.
        without = self.rng.choice(["lose", "change"])
        names = [name for name in self.weights if name != without]
        weights = [
            weight * (self.rng.choice([0.7, 1, 1.5]) if name in KEEPS_GOING else self.rng.choice([0, 0.1, 0.5, 1, 3]))
            for name, weight in self.weights.items()
            if name != without
        ]
        for name in self.rng.choices(names, weights, k=steps):
            getattr(self, name)()
        self.recover()

    def _node(self) -> NodeId | None:
        return self.rng.choice(list(self.group.nodes)) if self.group.nodes else None

    def _leader(self) -> NodeId | None:
        leaders = self.group.leaders()
        return self.rng.choice(leaders) if leaders else None

    # -- events

    def tick(self) -> None:
        if node := self._node():
            self.now += 50
            self.group.act(node, RawNode.tick)

    def ready(self) -> None:
        node = self._node()
        if node and self.group.nodes[node].has_ready():
            self._take(node)

    def _take(self, node: NodeId) -> None:
        ready: Ready = self.group.take_ready(node)
        for read in ready.read_states:
            assert read.index >= self.reads[read.context], f"read {read.context} misses what was committed before it"
            self.seen["reads"] += 1
        self.seen["applied"] += len(ready.committed_entries)
        if ready.install is not None:
            self.seen["offers"] += 1
            self.offers[node] = ready.install

    def sync(self) -> None:
        node = self._node()
        if not node or not (writes := self.group.disks[node].writes):
            return
        if self.rng.random() < 0.2:
            self._sync_together(node, self.rng.randint(1, len(writes)))
        else:
            self.group.sync(node)

    def _sync_together(self, node: NodeId, count: int) -> None:
        """One fdatasync covers several writes, and only the last is acknowledged."""
        done = [self.group.disks[node].sync_one() for _ in range(count)]
        last = next((ready.entries[-1] for ready in reversed(done) if ready.entries), None)
        if last is not None:
            self.group.act(node, lambda raw: raw.persisted(last.id))
        for message in (m for ready in done for m in ready.messages_after_persist):
            if message.to_id == node:
                self.group.deliver(message)
            else:
                self.group.network.append(message)

    def deliver(self) -> None:
        network = self.group.network
        if network:
            at = 0 if self.rng.random() < 0.7 else self.rng.randrange(len(network))
            message = network.pop(at)
            if (message.from_id, message.to_id) not in self.cuts:
                self.group.deliver(message)

    def drop(self) -> None:
        if network := self.group.network:
            network.pop(self.rng.randrange(len(network)))

    def repeat(self) -> None:
        if network := self.group.network:
            self.group.deliver(self.rng.choice(network))

    def propose(self) -> None:
        leader = self._leader()
        if leader is None:
            return
        payload = self.rng.randbytes(self.rng.choice([1, 50, 300]))
        try:
            self.group.act(leader, lambda raw: raw.propose(EntryType.MESSAGES, payload, raw.log_time_ms()))
        except ProposalDroppedError:
            self.seen["dropped"] += 1

    def read(self) -> None:
        leader = self._leader()
        if leader is None:
            return
        self.contexts += 1
        context = self.contexts
        self.reads[context] = max(raw.commit_index for raw in self.group.nodes.values())
        self.group.act(leader, lambda raw: raw.read_index(context))

    def crash(self) -> None:
        """Some of the writes under way reach the disk without anyone hearing of it, the last perhaps in part."""
        node = self._node()
        if node is None:
            return
        disk = self.group.disks[node]
        applied = self.group.nodes[node].applied_index
        for _ in range(self.rng.randint(0, len(disk.writes))):
            disk.sync_one()
        if disk.writes and (torn := disk.writes[0]).entries:
            if torn.hard_state is not None:
                disk.hard_state = torn.hard_state
            disk.replace(torn.entries[0].index, torn.entries[: self.rng.randint(0, len(torn.entries))])
        self.group.crash(node)
        disk.applied_index = self.rng.randint(disk.applied_index, applied)
        self.seen["crashes"] += 1

    def lose(self) -> None:
        """The disk of a node that is down loses the end of the log; never so many that no quorum knows what it said."""
        withheld = [node for node in self._everyone() if self.group.disks[node].withheld is not None]
        down = [node for node in self._everyone() if node not in self.group.nodes]
        if self.count // 2 <= len(withheld) or not down:
            return
        node = self.rng.choice(down)
        disk = self.group.disks[node]
        if disk.applied_index < disk.tail.index:
            self.group.lose_from(node, self.rng.randint(disk.applied_index + 1, disk.tail.index))
            self.seen["lost"] += 1

    def damage(self) -> None:
        """Some entries in the middle of a disk cannot be read any more."""
        node = self.rng.choice(self._everyone())
        disk = self.group.disks[node]
        if disk.tail.index > 0 and not disk.damaged:
            low = self.rng.randint(max(1, disk.first_index), disk.tail.index)
            disk.damaged = range(low, self.rng.randint(low, disk.tail.index) + 1)
            self.seen["damaged"] += 1
            if node in self.group.nodes:
                self.group.act(node, lambda raw: raw.hold_campaigns("damage", True))

    def repair(self) -> None:
        self._repair(self.rng.choice(self._everyone()))

    def _repair(self, node: NodeId) -> None:
        self.group.disks[node].damaged = range(0)
        if node in self.group.nodes:
            self.group.act(node, lambda raw: raw.hold_campaigns("damage", False))
            self.group.act(node, RawNode.repaired)

    def release(self) -> None:
        for node, raw in self.group.nodes.items():
            if raw.caught_up_with_leader:
                self.group.release(node)
                self.seen["released"] += 1

    def start(self) -> None:
        down = [node for node in self._everyone() if node not in self.group.nodes]
        if down:
            self.group.start(self.rng.choice(down))

    def cut(self) -> None:
        a, b = self.rng.choices(self._everyone(), k=2)
        self.cuts.add((a, b))
        if self.rng.random() < 0.5:
            self.cuts.add((b, a))

    def isolate(self) -> None:
        node = self.rng.choice(self._everyone())
        self.cuts.update(pair for other in self._everyone() for pair in ((node, other), (other, node)))

    def campaign(self) -> None:
        """An election timeout: elections are where the bugs are."""
        if node := self._node():
            self.group.act(node, RawNode.campaign)

    def heal(self) -> None:
        self.cuts.clear()

    def closed(self) -> None:
        node = self._node()
        if node and (leader := self.group.nodes[node].leader_id):
            self.group.act(node, lambda raw: raw.peer_closed(leader))

    def transfer(self) -> None:
        leader = self._leader()
        if leader is not None:
            target = self.rng.choice(self._everyone())
            with suppress(ValueError):  # it said that it is not fit
                self.group.act(leader, lambda raw: raw.transfer_leadership(target))

    def clock(self) -> None:
        if node := self._node():
            wall = self.now + self.rng.choice([0, 0, -3000, 5000])
            self.group.act(node, lambda raw: raw.set_clock(wall, self.now))

    def change(self) -> None:
        """A member joins, becomes a voter or leaves; refused now and then. Or one installs what it was offered."""
        if self.offers:
            self._install(self.rng.choice(list(self.offers)))
        leader = self._leader()
        if leader is None:
            return
        members = self.group.nodes[leader].membership
        kinds = [self._add] * (len(self.group.disks) < MEMBERS_MAX) + [self._promote] * (3 * bool(members.learners))
        kinds += [self._remove] * (len(members.voters) > 1)
        if not kinds:
            return
        try:
            new = self.rng.choice(kinds)(members)
            self.group.act(leader, lambda raw: raw.propose_membership(new, raw.log_time_ms()))
            self.seen[new.reason] += 1
        except (MembershipError, ProposalDroppedError):
            self.seen["change refused"] += 1

    def _add(self, members: Membership) -> Membership:
        node = NodeId(len(self.group.disks) + 1)
        self.group.join(node)
        return with_learner(members, Voter(node, UUID(int=node)), Address(node, "host", 1))

    def _promote(self, members: Membership) -> Membership:
        return promoted(members, self.rng.choice(members.learner_ids))

    def _remove(self, members: Membership) -> Membership:
        return without(members, self.rng.choice((*members.voter_ids, *members.learner_ids)))

    def trim(self) -> None:
        """A checkpoint, and the log below it goes; now and then some of it comes back."""
        node = self._node()
        if node is None:
            return
        disk, raw = self.group.disks[node], self.group.nodes[node]
        if self.rng.random() < 0.1:
            self.group.trim(node, self.rng.randint(0, disk.first_index))
            return
        disk.applied_index = self.rng.randint(disk.applied_index, raw.applied_index)
        self.group.trim(node, self.rng.randint(disk.first_index, max(disk.first_index, disk.applied_index)))
        self.seen["trims"] += 1

    def _install(self, node: NodeId) -> None:
        """Installs a checkpoint of a node that reaches far enough."""
        offer = self.offers.pop(node)
        sources = [
            each
            for each, raw in self.group.nodes.items()
            if each != node and raw.applied_index >= offer.last.index and not self.group.disks[each].damaged
        ]
        if sources:
            source = self.rng.choice(sources)
            self.group.disks[source].applied_index = self.group.nodes[source].applied_index
            self.group.install(node, source)
            self.seen["installs"] += 1

    # -- progress

    def _everyone(self) -> list[NodeId]:
        return list(self.group.disks)

    def _send_away(self) -> None:
        """Crashes nodes that left for good: nobody tells them so, they campaign for ever, and their operator may stop
        them."""
        leader = max(self.group.leaders(), key=lambda node: self.group.nodes[node].term, default=None)
        if leader is not None and (raw := self.group.nodes[leader]).committed_membership_index == raw.membership.index:
            for node in set(self.group.nodes) - set(raw.membership.node_uuids):
                self.group.crash(node)

    def recover(self) -> None:
        """All up, nothing lost from now on: a new entry must be applied everywhere."""
        self.cuts.clear()
        for node in self._everyone():
            if node not in self.group.nodes:
                self.group.start(node)
            self._repair(node)
        marker: Entry | None = None
        for _ in range(LIVENESS_TICKS):
            self._settle()
            nodes = self.group.nodes
            leader = max(self.group.leaders(), key=lambda node: nodes[node].term, default=None)
            if leader is not None and (marker is None or not nodes[leader].raft.log.matches(marker.id)):
                marker = self._propose_marker(leader)
            elif marker is not None and all(raw.applied_index >= marker.index for raw in nodes.values()):
                self.release()
                voters = [raw for node, raw in nodes.items() if node in raw.membership.voter_ids]
                assert all(raw.may_vote for raw in nodes.values()), "all are fit again"
                assert all(raw.may_campaign for raw in voters), "all voters may lead"
                return
            self._send_away()
            for node in list(self.offers):
                self._install(node)
            for node in list(self.group.nodes):
                self.group.act(node, RawNode.tick)
        states = [raw.status() for raw in self.group.nodes.values()]
        raise AssertionError(f"no progress within {LIVENESS_TICKS} ticks: {states}")

    def _propose_marker(self, leader: NodeId) -> Entry | None:
        try:
            return self.group.nodes[leader].propose(EntryType.MESSAGES, b"marker", 0)
        except ProposalDroppedError:
            return None

    def _settle(self) -> None:
        for _ in range(5000):
            busy = bool(self.group.network)
            for node, raw in self.group.nodes.items():
                while raw.has_ready():
                    self._take(node)
                    busy = True
                while self.group.disks[node].writes:
                    self.group.sync(node)
                    busy = True
            network, self.group.network = self.group.network, []
            for message in network:
                self.group.deliver(message)
            if not busy:
                return
        raise AssertionError("the group does not come to rest between two ticks")


def searched() -> Iterator[Any]:
    """Yields the seeds that the environment asks for, else SEEDS."""
    if "RAFT_SEED" in os.environ:
        yield int(os.environ["RAFT_SEED"])
    elif "RAFT_SEEDS" in os.environ:
        yield from range(int(os.environ["RAFT_SEEDS"]))
    else:
        yield from SEEDS[:QUICK]
        yield from (pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[QUICK:])


@pytest.mark.parametrize("seed", list(searched()))
def test_search(seed: int) -> None:
    print(f"replay: RAFT_SEED={seed} RAFT_STEPS={STEPS} pytest {__file__}")  # noqa: T201 - shown when it fails
    search = Search(seed)
    search.run(STEPS)
    assert search.seen["applied"] > len(search.group.voters), "the run did nothing"
    leaders = search.group.leaders()
    assert len({search.group.nodes[node].term for node in leaders}) == len(leaders) > 0
