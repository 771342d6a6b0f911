"""Nemeses of membership: nodes join, leave and replace each other under load, among kills.

There are three voters before each fault and after it.
"""

from __future__ import annotations

from collections.abc import Callable

from jepsen_like.live.nemeses.nemesis_interface import ChangesMembers, Effect, Nemesis, Stage
from jepsen_like.live.subjects.subject import Capability

NEEDS = frozenset({Capability.MEMBERS})


class _Play:
    """One membership fault in progress. `ended` returns its effect, with the number of messages that were acknowledged
    and the seconds that passed during it.
    """

    def __init__(self, stage: Stage) -> None:
        assert stage.members is not None, "the subject has the capability, or the fault is not dealt"
        self.members: ChangesMembers = stage.members
        self._stage = stage
        self._acked = stage.load.counts.acked
        self._begun = stage.clock()

    def ended(self, happened: bool, told: str) -> Effect:
        """Returns the effect. The fault counts only if there are three voters after it, and if messages were
        acknowledged during it, which proves that it happened under load."""
        acked, took_s = self._stage.load.counts.acked - self._acked, self._stage.clock() - self._begun
        voters = self.members.voters()
        told = f"{told}; {acked} acknowledged meanwhile, {took_s:.1f} s, voters {', '.join(map(str, voters))}"
        return Effect(happened and acked > 0 and len(voters) == 3, told, {"acked": acked, "took_s": took_s})

    def join(self) -> int:
        """Adds a new voter; returns its id, 0 if it does not become one."""
        node = self.members.join()
        return node if node and self.members.wait_voter(node) else 0


def grow(stage: Stage, hold_s: float) -> Effect:
    """Adds a fourth voter, and removes a follower, perhaps the new one."""
    play = _Play(stage)
    new = play.join()
    stage.sleep(hold_s)
    gone = stage.followers()[0]
    return play.ended(bool(new) and play.members.leave(gone), f"node {new} joined and voted, node {gone} was removed")


def replace_leader(stage: Stage, hold_s: float) -> Effect:
    """Adds a new node, and removes the leader while it leads. If another node can take over, the leader first transfers
    leadership to it.
    """
    play = _Play(stage)
    new = play.join()
    leader = stage.leader()
    left = play.members.leave(leader)
    stage.sleep(hold_s)
    return play.ended(bool(new) and left, f"node {new} joined, node {leader} was removed while it led")


def replace_dead(stage: Stage, hold_s: float) -> Effect:
    """Kills a follower together with its disk; a new node takes its place while the remaining two go on."""
    play = _Play(stage)
    dead = stage.followers()[0]
    lost = play.members.lose(dead)
    new = play.join()
    left = play.members.leave(dead)
    stage.sleep(hold_s / 2)
    return play.ended(lost and bool(new) and left, f"node {dead} died with its disk, node {new} took its place")


def replace_among_kills(stage: Stage, hold_s: float) -> Effect:
    """Replaces a dead follower, and while the new node catches up, kills and restarts one of the remaining two."""
    play = _Play(stage)
    dead = stage.followers()[0]
    lost = play.members.lose(dead)
    new = play.members.join()
    victim = stage.rng.choice([node for node in stage.subject.node_ids if node != new])
    struck = stage.strike([victim])
    stage.sleep(min(hold_s, 1.0))
    stage.start_all()
    votes = bool(new) and play.members.wait_voter(new)
    left = play.members.leave(dead)
    told = f"node {dead} died with its disk, node {new} took its place although node {victim} was killed meanwhile"
    return play.ended(lost and votes and left and struck == 1, told)


def learn(stage: Stage, hold_s: float) -> Effect:
    """Adds a learner that stays one, kills the leader after the learner has caught up, and removes the learner, which
    never voted."""
    play = _Play(stage)
    new = play.members.join(manual=True)
    near = bool(new) and play.members.wait_caught_up(new)
    leader = stage.leader()
    struck = stage.strike([leader])
    stage.sleep(hold_s / 2)
    stage.start_all()
    stayed = bool(new) and play.members.is_learner(new)
    left = bool(new) and play.members.leave(new)
    told = f"node {new} caught up as a learner, leader {leader} was killed, the learner stayed one and was removed"
    return play.ended(near and stayed and left and struck == 1, told)


def _long(name: str, does: str, apply: Callable[[Stage, float], Effect]) -> Nemesis:
    """Returns a nemesis that is not part of the random mix. In a full run of the mix every fault comes five times, and
    sending the whole log to each new node would take too long.
    """
    return Nemesis(name, does, apply, NEEDS, is_mixed=False)


NEMESES = (
    _long("member-grow", "a fourth voter joins, one of the four leaves", grow),
    _long("member-replace-leader", "a node joins, the leader is removed", replace_leader),
    _long("member-replace-dead", "a follower dies with its disk and is replaced", replace_dead),
    _long("member-replace-kills", "the same while another node is killed and comes back", replace_among_kills),
    _long("member-learner", "a learner comes and goes, the leader is killed between", learn),
)
