"""Raises all groups of a cluster to one level, the first group last. Its decisions are copied into the logs of the
other groups, so it must not write anything that they do not know yet
(docs/adr/0108-groups-share-one-truth-and-copy-it.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from raftlog.types import FIRST_GROUP
from raftmq_wire.errors import ExitCode, LocalError

_PATH = "/v1/upgrade/finalize"
Finalized = dict[str, Any]
"""The answer to `POST /v1/upgrade/finalize` (`cluster.admin.handlers.upgrade.Finalized`)."""


class Api(Protocol):
    """The part of one group's HTTP API that this module uses; `AdminApi` has it."""

    def post(self, path: str, body: dict[str, Any]) -> Finalized:
        """Sends a POST; returns the answer. Raises LocalError."""


class Would(NamedTuple):
    """The result of a dry run: the level to which each group can be raised."""

    groups: dict[int, Finalized]
    """Group -> its answer to a dry run, in the order of the groups' numbers."""

    @property
    def level(self) -> int:
        """The level to which all groups are raised."""
        return max(int(answer["level"]) for answer in self.groups.values())

    @property
    def before(self) -> int:
        """The lowest level that a group has now."""
        return min(int(answer["before"]) for answer in self.groups.values())

    @property
    def left(self) -> list[int]:
        """The groups whose level is still lower, in the order in which they are raised."""
        return [group for group in in_order(self.groups) if self.groups[group]["level"] > self.groups[group]["before"]]


def in_order(groups: Iterable[int]) -> list[int]:
    """Returns the groups in the order in which they are raised: ascending, the first group last."""
    return sorted(groups, key=lambda group: (group == FIRST_GROUP, group))


def look_at(apis: Mapping[int, Api]) -> Would:
    """Asks every group to which level it can be raised. Nothing is written. Raises LocalError if one cannot be raised
    now, or if the members of different groups know different levels."""
    found: dict[int, Finalized] = {}
    for group, api in apis.items():
        try:
            found[group] = api.post(_PATH, {"dry_run": True})
        except LocalError as error:
            raise error.of_group(group) if len(apis) > 1 else error from None
    would = Would(found)
    low = [group for group, answer in found.items() if answer["level"] < would.level]
    if low:
        high = next(group for group, answer in found.items() if answer["level"] == would.level)
        raise LocalError(
            f"the members of group {low[0]} know levels up to {found[low[0]]['level']}",
            f"those of group {high} know level {would.level}, and all groups are raised to one level; "
            "nothing was written",
            "raftmq upgrade run    (then repeat the command)",
            ExitCode.REFUSED,
        )
    return would


def finalized(apis: Mapping[int, Api], would: Would) -> dict[int, Finalized]:
    """Raises the level of the groups in `would.left`, one after the other. Returns group -> answer for all groups; a
    group that already had the level has the answer of the dry run. Raises LocalError at the first group that refuses;
    the groups after it are not asked."""
    answers, raised = dict(would.groups), list[str]()
    for group in would.left:
        try:
            answers[group] = apis[group].post(_PATH, {})
        except LocalError as error:
            if len(apis) == 1:
                raise
            if raised:
                done = f"raised before: group {', '.join(raised)}, and those after it were left alone"
                raise error.after(done).of_group(group) from None
            why = f"{error.why}; no group was raised before, and those after it were left alone"
            raise LocalError(error.what, why, error.fix, error.exit_code).of_group(group) from None
        raised.append(str(group))
    return answers
