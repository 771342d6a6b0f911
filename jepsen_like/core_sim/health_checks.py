"""Checks of a healthy group in addition to safety: little traffic, progress, and a read after a failover without
writes."""

from __future__ import annotations

from collections.abc import Callable

from jepsen_like.core_sim.machine import CoreMachine
from jepsen_like.core_sim.run_options import TICK_US
from jepsen_like.core_sim.violation import PromiseBroken
from jepsen_like.core_sim.world import CoreWorld, entries_in
from raftlog.messages import AppendEntries, AppendEntriesReply, Message
from raftlog.types import Role, SoftState

_CALM_OPERATIONS = 12
_ELECTION_TICKS = 400
_PROGRESS_TICKS = 1_500
_READ_TICKS = 100


class LeaderTraffic:
    """Counts the appends, their entries and the refusals that members send while there are no faults."""

    def __init__(self, world: CoreWorld) -> None:
        self.world = world
        self.entries = self.appends = self.rejections = 0
        world.on_send.append(self._sent)

    def _sent(self, machine: CoreMachine, message: Message) -> None:
        if isinstance(message, AppendEntries):
            self.appends += 1
            self.entries += entries_in(message)
        elif isinstance(message, AppendEntriesReply):
            self.rejections += message.rejected

    def stop(self) -> None:
        """Stops counting."""
        self.world.on_send.remove(self._sent)


def calm_start(world: CoreWorld) -> None:
    """Runs the first operations without a fault, on fast links and disks. Checks that each entry is sent at most once
    to each follower, and that no follower refuses one.

    Raises PromiseBroken "no-progress" or "message-budget".
    """
    knobs = world.knobs
    network = world.network
    _quick(world)
    traffic = LeaderTraffic(world)
    acked = world.history.acked
    if not world.run_until(lambda: len(acked) >= _CALM_OPERATIONS, world.now + _ELECTION_TICKS * TICK_US):
        raise PromiseBroken("no-progress", f"{len(acked)} acknowledged in {_ELECTION_TICKS} ticks without faults")
    traffic.stop()
    network.link_us, network.jitter_us = knobs.link_us, knobs.jitter_us
    world.disk_us = dict.fromkeys(world.machines, knobs.disk_us)
    if len(world.leader_terms) == 1 and world.monitor is not None:
        _check_traffic(world, traffic)


def _check_traffic(world: CoreWorld, traffic: LeaderTraffic) -> None:
    followers = world.knobs.nodes - 1
    leader = world.leader()
    if leader is None:
        return
    allowed = followers * leader.raw.last_index
    if traffic.rejections or traffic.entries > allowed:
        raise PromiseBroken(
            "message-budget",
            f"{traffic.entries} entries sent, {allowed} needed, {traffic.rejections} refusals, without any fault",
        )


def progress(world: CoreWorld, goal: int) -> None:
    """Waits, after the heal, until `goal` operations are acknowledged, at least five of them new. Then ends the writes,
    and waits until all members have applied the same entries and no message from before the heal can arrive any more.
    Raises PromiseBroken "no-progress".
    """
    history = world.history
    goal = max(goal, len(history.acked) + 5)
    if not world.run_until(lambda: len(history.acked) >= goal, world.now + _PROGRESS_TICKS * TICK_US):
        raise PromiseBroken(
            "no-progress", f"{len(history.acked)} of {goal} acknowledged {_PROGRESS_TICKS} calm ticks on"
        )
    world.writing = False
    settle(world)
    world.run_until(lambda: False, world.quiet_from)


def settle(world: CoreWorld) -> None:
    """Waits, without writes, until all members that are up have applied the leader's whole log and may lead, and nodes
    that left are stopped.

    Raises PromiseBroken "no-progress".
    """

    def equal() -> bool:
        leader = world.leader()
        if leader is None:
            return False
        last = leader.raw.last_index
        left = {voter.id for voter in world.newest.removed} & {machine.id for machine in world.up()}
        up = [machine for machine in world.group() if machine.up]
        return not left and all(machine.raw.applied_index == last and not machine.backfilling for machine in up)

    if not _in_time(world, equal):
        state = [(m.id, m.raw.role.name, m.raw.term, m.raw.last_index, m.raw.applied_index) for m in world.up()]
        raise PromiseBroken("no-progress", f"the members do not come together: {state}")


def _leader_at_last(world: CoreWorld) -> CoreMachine:
    """Waits for a leader and returns it. Even without faults there may be none for a moment: without pre-vote a member
    with a fast clock may depose the leader. Raises PromiseBroken.
    """
    leader = world.leader()
    if leader is None:
        world.run_until(lambda: world.leader() is not None, world.now + _ELECTION_TICKS * TICK_US)
        leader = world.leader()
    if leader is None:
        raise PromiseBroken("no-progress", f"no leader {_ELECTION_TICKS} ticks after healing")
    return leader


def _in_time(world: CoreWorld, done: Callable[[], bool]) -> bool:
    """Runs the world until `done` returns True, and returns True. Returns False once no member has made progress for
    the time of an election. A learner with a small window may take long.
    """
    before, applied = -1, 0
    while applied > before:
        if world.run_until(done, world.now + _ELECTION_TICKS * TICK_US):
            return True
        before, applied = applied, sum(machine.raw.applied_index for machine in world.up())
    return False


def quiescent_failover(world: CoreWorld) -> None:
    """Crashes the leader or cuts it off while there are no writes. Checks that a linearizable read succeeds at the next
    leader, although nothing new is written. Does nothing in a group of fewer than three voters. Raises PromiseBroken.
    """
    leader = _leader_at_last(world)
    if not _stands_a_loss(world):
        return
    if world.seed % 2 == 0:
        world.tell(f"failover from {leader.id}, which crashes")
        world.crash(leader)
    else:
        world.tell(f"failover from {leader.id}, which is cut off")
        _cut_off(world, leader)
    others = [machine for machine in world.voters() if machine is not leader]

    def led() -> bool:
        return any(machine.raw.role is Role.LEADER for machine in others if machine.up)

    if not world.run_until(led, world.now + _ELECTION_TICKS * TICK_US):
        raise PromiseBroken("no-progress", f"no new leader {_ELECTION_TICKS} ticks after node {leader.id} went")
    deadline = world.now + _READ_TICKS * TICK_US
    asked: list[int] = []

    def ask(successor: CoreMachine) -> None:
        if successor.up and successor.raw.role is Role.LEADER:
            asked[:] = [world.ask_read(successor)]

    def on_role(machine: CoreMachine, soft: SoftState) -> None:
        if soft.role is Role.LEADER:
            world.at(0, ask, machine)

    world.on_role.append(on_role)
    successor = max(
        (machine for machine in others if machine.up and machine.raw.role is Role.LEADER),
        key=lambda machine: machine.raw.term,
        default=None,
    )
    if successor is not None:
        ask(successor)
    answered = world.run_until(lambda: bool(asked) and asked[0] not in world.reads, deadline)
    world.on_role.remove(on_role)
    if not answered:
        raise PromiseBroken(
            "quiescent-failover", f"a read at the new leader is not answered within {_READ_TICKS} ticks"
        )
    _ask_among_learners(world, leader)
    world.network.heal()
    world.start(leader)


def _stands_a_loss(world: CoreWorld) -> bool:
    """Returns True if the group can lose a voter; a group of two voters cannot."""
    return len(world.newest.voters) >= 3


def _cut_off(world: CoreWorld, leader: CoreMachine) -> None:
    """Cuts the leader and the learners off from the other voters. With check-quorum, checks that the leader steps down
    within two election timeouts.

    Raises PromiseBroken "stale-leader".
    """
    world.network.cut(world.links_of([leader.id, *world.newest.learner_ids]))
    if not world.knobs.raft["check_quorum"]:
        return
    _client_writes(world, leader)  # no member will acknowledge these writes
    ticks = 2 * int(world.knobs.raft["election_ticks"]) + 2
    term = leader.raw.term

    if not world.run_until(lambda: not _leads(leader, term), world.now + ticks * world.tick_us[leader.id]):
        raise PromiseBroken(
            "stale-leader", f"node {leader.id} leads {ticks} ticks after it was cut off from all voters"
        )


def _ask_among_learners(world: CoreWorld, deposed: CoreMachine) -> None:
    """Checks that the old leader, if it still leads because only learners hear it, does not answer a read once clients
    have written at its successor. Raises PromiseBroken "stale-read".
    """
    successor = world.leader()
    if successor is None or successor is deposed:
        return
    if not world.newest.learner_ids or not _leads(deposed, deposed.raw.term):
        return
    written = set(_client_writes(world, successor))
    world.run_until(lambda: world.history.acked.keys() >= written, world.now + _READ_TICKS * TICK_US)
    if _leads(deposed, deposed.raw.term):
        world.ask_read(deposed)
        world.run_until(lambda: False, world.now + int(world.knobs.raft["election_ticks"]) * TICK_US)


def _leads(leader: CoreMachine, term: int) -> bool:
    """Returns True if `leader` is up, is in this term and believes that it leads."""
    return leader.up and leader.raw.role is Role.LEADER and leader.raw.term == term


def rejoin(world: CoreWorld) -> None:
    """Checks that with pre-vote and check-quorum a member that was away for long does not disturb the group when it
    returns. Raises PromiseBroken "disruption". Does nothing in half of the seeds, and in groups that lack the options.
    """
    raft = world.knobs.raft
    leader = world.leader()
    if leader is None or not (raft["pre_vote"] and raft["check_quorum"]) or world.seed % 4 >= 2:
        return
    if not (_heartbeats_in_time(world) and _stands_a_loss(world)):
        return
    election_us = int(raft["election_ticks"]) * TICK_US
    away = [machine.id for machine in world.voters() if machine is not leader][:1]
    term = leader.raw.term
    world.tell(f"rejoin of {away[0]}")
    world.network.cut(world.links_of(away))
    if world.run_until(lambda: not _leads(leader, term), world.now + 4 * election_us):
        raise PromiseBroken("disruption", f"leader {leader.id} steps down while node {away[0]} is away")
    world.network.heal()
    if world.run_until(lambda: not _leads(leader, term), world.now + 2 * election_us):
        raise PromiseBroken("disruption", f"leader {leader.id} steps down as node {away[0]} comes back")
    terms = {int(machine.id): machine.raw.term for machine in world.group() if machine.up}
    if world.monitor is not None and set(terms.values()) != {term}:
        raise PromiseBroken("disruption", f"terms {terms} after node {away[0]} came back, {term} before")


def handover(world: CoreWorld) -> None:
    """Asks the leader to transfer leadership to a member that lags a little. Checks that the member becomes leader, and
    that no operation which the old leader accepts meanwhile is lost. Raises PromiseBroken "handover". Does nothing in
    three of four seeds.
    """
    leader = world.leader()
    raft = world.knobs.raft
    if leader is None or world.seed % 4 != 2 or raft["election_ticks"] < 2 * raft["heartbeat_ticks"] + 2:
        return
    if not _stands_a_loss(world):
        return
    _quick(world)
    target = next(machine for machine in world.voters() if machine is not leader)
    world.tell(f"handover from {leader.id} to {target.id}")
    term = leader.raw.term
    world.network.cut(world.links_of([target.id]))
    before = _client_writes(world, leader)
    world.run_until(lambda: world.history.acked.keys() >= set(before), world.now + TICK_US)
    world.network.heal()
    leader.act(leader.raw.transfer_leadership, target.id)
    late: list[int] = []
    for _ in range(2 * int(raft["election_ticks"])):
        late += _client_writes(world, leader)
        if world.run_until(lambda: not _leads(leader, term), world.now + TICK_US // 4):
            break
    lost = [operation for operation in late if operation not in world.history.acked]
    if lost and not _leads(leader, term):
        raise PromiseBroken(
            "handover", f"leader {leader.id} took {len(lost)} operations it was handing over and lost them"
        )
    if not world.run_until(lambda: target.raw.role is Role.LEADER, world.now + int(raft["election_ticks"]) * TICK_US):
        raise PromiseBroken(
            "handover", f"node {target.id} does not lead, although node {leader.id} was asked to hand over"
        )


def _quick(world: CoreWorld) -> None:
    world.network.link_us, world.network.jitter_us = 200, 100
    world.disk_us = dict.fromkeys(world.machines, 200)


def _client_writes(world: CoreWorld, leader: CoreMachine) -> list[int]:
    """Proposes a new operation of every client at `leader`; returns those that it accepted."""
    for client in world.clients:
        client.fresh(1)
        leader.act(world.propose, leader, client)
    taken = {operation for _, operation, _ in world.pending[leader.id].values()}
    return [client.batch[0] for client in world.clients if client.batch[0] in taken]


def _heartbeats_in_time(world: CoreWorld) -> bool:
    """Returns True if the heartbeats of the slowest clock reach the fastest clock within its election timeout, whatever
    the links do."""
    raft, network, ticks = world.knobs.raft, world.network, world.tick_us.values()
    interval_us = int(raft["heartbeat_ticks"]) * max(ticks)
    quickest_us = (int(raft["election_ticks"]) - 1) * min(ticks)  # the first tick may come right after the heartbeat
    return interval_us + network.link_us + network.jitter_us < quickest_us


def final(world: CoreWorld) -> None:
    """Checks, when all members are up again, that they have the same list, with everything acknowledged in it. Raises
    PromiseBroken."""
    settle(world)
    if world.monitor is not None:
        world.monitor.full(list(world.machines.values()))
    group = world.group()
    first = group[0].state.values
    for machine in world.machines.values():
        values = machine.state.values
        if machine.halted:
            raise PromiseBroken("halted", f"node {machine.id} stopped on an assertion of its own")
        if machine not in group and values != first[: len(values)]:
            raise PromiseBroken(
                "state-machine-safety", f"node {machine.id}, no member, holds what node {group[0].id} lacks"
            )
    for machine in group:
        if machine.state.values != first:
            raise PromiseBroken("state-machine-safety", f"nodes {group[0].id} and {machine.id} hold different lists")
        world.history.check_final(machine.id, machine.state.values)
