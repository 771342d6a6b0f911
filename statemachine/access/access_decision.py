"""Decides whether a user, at the client's address, has all the rights that a request needs. The decision is a pure
function of the user's row and rules.

The most specific rule that matches the resource decides: a literal name, then the longest prefix, then all resources of
a kind, then everything. Where an ALLOW and a DENY are equally specific, DENY wins. (RocketMQ's code lets ALLOW win
there, against its own comment.) Without a matching rule the request is denied. Custom rules are considered first.
Default rules count only if no custom rule matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from raftlog.work import charge
from statemachine.access.rules import Action, Need, Policy, Rule, RuleIndex, comes_from

if TYPE_CHECKING:
    from statemachine.access.user_rows import User

_LOOKS_PER_UNIT = 4


class Allowed(NamedTuple):
    """The verdict that the request may proceed."""


class Denied(NamedTuple):
    """The verdict that the request is refused."""

    reason: str


Verdict = Allowed | Denied
ALLOWED: Final = Allowed()


def judge(user: User, source: str, needs: Sequence[Need]) -> Verdict:
    """Returns the verdict on a request that needs all of `needs`. A super user may do everything; a request without
    needs is allowed to every enabled user. `source`: the client's address."""
    if not user.enabled:
        return Denied(f"user {user.name} is disabled")
    if user.is_super:
        return ALLOWED
    for need in needs:
        if not is_allowed(user.index, source, need):
            return Denied(f"user {user.name} has no right to {need} from {source}")
    return ALLOWED


def is_allowed(rules: RuleIndex, source: str, need: Need) -> bool:
    """Returns True if the rules allow a client at `source` one of the actions in `need`. The cost grows with the number
    of rules that fit the resource and with the number of different prefix lengths, and not with the number of all
    rules."""
    near = rules.fitting(need.kind, need.name)
    charge(1 + (rules.looks + len(near)) // _LOOKS_PER_UNIT)
    return any(_allows(near, source, action) for action in need.actions)


def _allows(near: Sequence[Rule], source: str, action: Action) -> bool:
    for policy in Policy:
        best, allowed = None, False
        for rule in near:
            if rule.policy is not policy or not rule.actions & {action, Action.ALL}:
                continue
            if rule.sources and not comes_from(source, rule.sources):
                continue
            rank = rule.resource.rank
            if best is None or rank > best:
                best, allowed = rank, rule.allow
            elif rank == best:
                allowed = allowed and rule.allow
        if best is not None:
            return allowed
    return False


class Verdicts:
    """A cache of the verdicts on one connection's requests, valid as long as its user's rules do not change. Signatures
    are never cached."""

    KEPT_MAX: Final = 1_024

    def __init__(self, source: str) -> None:
        """`source`: the address of the client."""
        self._source = source
        self._of = (0, 0)
        """Id and version of the user whose verdicts are cached."""
        self._kept: dict[Need, bool] = {}

    def judge(self, user: User, needs: Sequence[Need]) -> Verdict:
        """Returns the same verdict as the function `judge`, from the cache where possible."""
        if not user.enabled or user.is_super:
            return judge(user, self._source, needs)
        of, kept = (user.id, user.version), self._kept
        if of != self._of or len(kept) > self.KEPT_MAX:
            self._of = of
            kept.clear()
        for need in needs:
            known = kept.get(need)
            if known is None:
                known = kept[need] = is_allowed(user.index, self._source, need)
            if not known:
                return Denied(f"user {user.name} has no right to {need} from {self._source}")
        return ALLOWED
