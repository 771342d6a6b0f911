"""How many failures a set of voters survives, and the texts about it in health, status and before a removal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from raftlog.core.quorum import majority

SAFE_VOTERS = 3
"""The smallest group that survives a failure."""


class QuorumView(msgspec.Struct, frozen=True, kw_only=True):
    """The voters in force, as one node sees them."""

    voters: list[int]
    majority: int
    away: list[int]
    """Voters that this node has no connection to, or hears nothing of."""
    survives: int
    """How many more voters may fail while writes continue; negative if too many have failed already."""
    finding: str = ""
    """What an operator should know about it; "" if a failure is survived."""


def quorum_of(voters: Iterable[int], is_here: Callable[[int], bool]) -> QuorumView:
    """`is_here`: the voter takes part now."""
    names = sorted(voters)
    away = [voter for voter in names if not is_here(voter)]
    need = majority(len(names))
    survives = len(names) - len(away) - need
    return QuorumView(
        voters=names, majority=need, away=away, survives=survives, finding=_finding(names, away, need, survives)
    )


def _finding(names: list[int], away: list[int], need: int, survives: int) -> str:
    if survives > 0 or not names:
        return ""
    gone = f"{_nodes(away)} of the voters {_said(names)} {'is' if len(away) == 1 else 'are'} away"
    if survives < 0:
        return f"no majority: {gone}, and writes need {need}"
    if not away:
        voters = f"node {names[0]} is the only voter" if len(names) == 1 else f"both voters, {_said(names)}, are needed"
        return f"no failure is survived: {voters}; with three voters one may fail: raftmq node add"
    return (
        f"the next failure stops writes: {gone}; start it again on its machine (in a cluster of raftmq up: "
        f"raftmq restart {away[0]})"
    )


def before_and_after(view: Mapping[str, Any], node: int) -> tuple[QuorumView, QuorumView]:
    """Of the removal of `node`, from `GET /v1/members` of the leader."""
    members = {member["id"]: member for member in view["members"] if member["role"] == "voter"}

    def is_here(voter: int) -> bool:
        return voter == view["leader"] or members[voter]["live"] is not False

    return quorum_of(members, is_here), quorum_of(members.keys() - {node}, is_here)


def told(quorum: QuorumView) -> str:
    """One line: voters, majority, what is survived."""
    count = len(quorum.voters)
    away = f" ({_said(quorum.away)} away)" if quorum.away else ""
    survived = {0: "no failure is survived", 1: "one failure is survived"}.get(
        quorum.survives, f"{quorum.survives} failures are survived" if quorum.survives > 0 else "no majority: no writes"
    )
    return f"voters {_said(quorum.voters)}{away}; {quorum.majority} of {count} are a majority; {survived}"


def _nodes(nodes: list[int]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {_said(nodes)}"


def _said(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"
