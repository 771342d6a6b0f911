"""The groups that a command is about: all of a local cluster, or the one whose addresses a person gave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from cluster.config.local_layout import NodeName, find_data_dir, key_of, name_of, read_cluster
from raftlog.types import FIRST_GROUP
from raftmq.local.http.admin_http import AdminApi, ApiRefusal, GivenAddresses, admin_addresses, node_addresses
from raftmq.local.http.asked_nodes import ask_all, each_node, no_group, not_among_given
from raftmq.local.http.credentials import addresses_of
from raftmq_wire.errors import ExitCode, LocalError

_T = TypeVar("_T")
Groups = Mapping[int, Sequence[str]]
"""Group -> the "host:port" of its HTTP APIs, in the order of the groups' numbers."""


def all_groups(admin: str | None, data: str | None, *, members: bool = False) -> dict[int, list[str]]:
    """Returns group -> the addresses to ask, for the groups that a command is about. Addresses that the user gave
    belong to one group, which is returned as the first. With `members`, the other nodes of that group are added. Raises
    LocalError."""
    addresses = node_addresses(admin, data) if members else admin_addresses(admin, data)
    if isinstance(addresses, GivenAddresses):
        return {FIRST_GROUP: addresses}
    cluster = read_cluster(find_data_dir(data))
    return {group: addresses_of(cluster.of_group(group)) for group in cluster.groups} or {FIRST_GROUP: addresses}


def one_group(groups: Groups, node: NodeName | None) -> Groups:
    """Returns only the group of `node`; all groups if `node` is None. Raises LocalError if the cluster has no such
    group."""
    return groups if node is None else named_group(groups, key_of(node)[0])


def named_group(groups: Groups, group: int) -> Groups:
    """Returns only the group of that number. Raises LocalError if the cluster has no such group."""
    if group not in groups:
        is_given = isinstance(groups.get(FIRST_GROUP), GivenAddresses)
        raise not_among_given(group) if is_given else no_group(group, groups)
    return {group: groups[group]}


def in_each(groups: Groups, ask: Callable[[AdminApi], _T], look: str, *, dry_run: bool = False) -> dict[int, _T]:
    """Has `ask` change each group, one after the other. Returns group -> result. `look`: the command that shows whether
    a change has happened. `dry_run`: `ask` changes nothing.

    Raises the LocalError of the first group that refuses; the groups after it are not asked. If others were changed
    before, the error says which (`LocalError.after`).
    """
    done: dict[int, _T] = {}
    for group, addresses in groups.items():
        try:
            done[group] = ask(AdminApi(addresses, look))
        except LocalError as error:
            if len(groups) == 1 or (not done and _is_not_found(error)):
                raise
            if done and not dry_run:
                raise _after(error, done).of_group(group) from None
            before = f"asked before: group {_listed(done)}" if done else "no group was asked before"
            why = f"{error.why}; {before}, and those after it were left alone"
            raise LocalError(error.what, why, error.fix, error.exit_code).of_group(group) from None
    return done


def _after(error: LocalError, done: Iterable[int]) -> LocalError:
    return error.after(f"done before: group {_listed(done)}, and those after it were left alone")


def _listed(groups: Iterable[int]) -> str:
    return ", ".join(map(str, groups))


def told_by_each(groups: Groups, ask: Callable[[AdminApi], _T]) -> tuple[dict[int, _T], list[str]]:
    """Asks each group. Returns group -> answer, and a sentence about each group that does not answer or has no leader.
    A group that answers `not_found` after another one has answered is left out without a sentence: it may not have
    copied the name yet. Raises LocalError if no group answers, or one refuses otherwise."""
    told: dict[int, _T] = {}
    silent: dict[int, LocalError] = {}
    for group, addresses in groups.items():
        try:
            told[group] = ask(AdminApi(addresses))
        except LocalError as error:
            if told and _is_not_found(error):
                continue
            passes = isinstance(error, ApiRefusal) and error.is_passing
            if not passes and error.exit_code is not ExitCode.UNREACHABLE:
                raise
            silent[group] = error
    if not told:
        raise next(iter(silent.values()))
    return told, [f"not in this: group {group}, {error.what}" for group, error in silent.items()]


def in_those_with_it(
    groups: Groups, ask: Callable[[AdminApi], _T], look: str, *, first_last: bool = False, dry_run: bool = False
) -> dict[int, _T]:
    """Has `ask` change each group. Returns group -> result, without the groups that answer `not_found`: only some
    groups may have the object that is to be changed.

    `look` and `dry_run` as for `in_each`; `first_last`: the first group is asked last. Raises LocalError for the first
    group that does not answer or refuses, as `in_each` does, and the first group's `not_found` error if no group has
    the object.
    """
    done: dict[int, _T] = {}
    nothing: dict[int, LocalError] = {}
    for group in sorted(groups, reverse=first_last):
        try:
            done[group] = ask(AdminApi(groups[group], look))
        except LocalError as error:
            if not _is_not_found(error):
                told = _after(error, done) if done and not dry_run else error
                raise (told.of_group(group) if len(groups) > 1 else told) from None
            nothing[group] = error
    if not done:
        raise nothing[FIRST_GROUP]
    return done


def alone(groups: Groups, done: str, then: str = "") -> list[str]:
    """Returns a warning if the user gave the addresses of one group and the cluster has other groups; [] if it has
    no others, or if the node does not report its groups. `done`: words for what is done to that one group only; `then`:
    a further sentence about the others."""
    addresses = groups.get(FIRST_GROUP)
    if not isinstance(addresses, GivenAddresses):
        return []
    try:
        view = AdminApi(addresses).local("/v1/broker-groups")
    except LocalError:  # a node of an earlier release knows of one group only
        return []
    return alone_told(view, done, then)


def alone_told(view: Mapping[str, Any], done: str, then: str = "") -> list[str]:
    """Returns the warning of `alone`. `view`: the answer to `GET /v1/broker-groups`."""
    others = [str(row["group"]) for row in view["groups"] if row["group"] != view["group"]]
    if not others:
        return []
    return [
        f"only group {view['group']} is {done}, whose addresses were given; the others, {', '.join(others)}, are "
        f"{done} at theirs{then}"
    ]


def _is_not_found(error: LocalError) -> bool:
    return isinstance(error, ApiRefusal) and error.code == "not_found"


class Asked(NamedTuple):
    """A node that has answered a request about itself."""

    group: int
    api: AdminApi
    view: dict[str, Any]
    """The answer; `node` in it is the node's name."""


def each_node_of(groups: Groups, path: str, node: NodeName | None = None) -> tuple[list[Asked], list[str]]:
    """Asks the nodes of all groups about themselves under `path`; only `node` if one is named. Returns the answers, and
    a sentence about each group none of whose nodes answers.

    Raises LocalError if no group answers, if `node` does not, or if a node refuses.
    """
    found: list[Asked] = []
    silent: dict[int, LocalError] = {}
    for group, addresses in one_group(groups, node).items():
        try:
            for api, view in each_node(addresses, path, None if node is None else key_of(node)[1], group):
                found.append(Asked(group, api, named(view, group)))
        except LocalError as error:
            if error.exit_code is not ExitCode.UNREACHABLE:
                raise
            silent[group] = error
    if not found:
        raise next(iter(silent.values()))
    return found, [f"no node of group {group} answers: {error.why}" for group, error in silent.items()]


def ask_all_of(groups: Groups, path: str, node: NodeName | None = None) -> tuple[list[Asked], dict[str, LocalError]]:
    """Asks as `each_node_of` does. Returns the answers, and address -> error for each node that does not answer. Raises
    LocalError as `each_node_of` does, except that a node's refusal is raised only if no node of its group answers."""
    found: list[Asked] = []
    silent: dict[str, LocalError] = {}
    for group, addresses in one_group(groups, node).items():
        try:
            answers, without = ask_all(addresses, path, None if node is None else key_of(node)[1], group)
        except LocalError as error:
            if error.exit_code is not ExitCode.UNREACHABLE or len(groups) == 1:
                raise
            silent |= dict.fromkeys(addresses, error)
            continue
        found += [Asked(group, api, named(view, group)) for api, view in answers]
        silent |= without
    if not found:
        raise next(iter(silent.values()))
    return found, silent


def leader_of(asked: Sequence[Asked]) -> Asked:
    """Returns the leader's answer among those of one group's nodes; the first answer if the leader's is not there."""
    return next((each for each in asked if each.view["node"] == name_of(each.group, each.view["leader"])), asked[0])


def named(view: dict[str, Any], group: int) -> dict[str, Any]:
    """Returns a node's answer about itself, in which `node` is the node's name instead of its id in the group."""
    return view if group == FIRST_GROUP else {**view, "node": name_of(group, view["node"])}


def in_one(answers: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the answers of all groups as one object: the first group's, and under `groups` those of the others, if
    there are any. `answers`: group -> answer."""
    told = dict(answers.get(FIRST_GROUP, {}))
    others = [{"group": group, **answer} for group, answer in answers.items() if group != FIRST_GROUP]
    return {**told, "groups": others} if others else told
