"""Requests that are sent to each node of a cluster, because each answers about itself; and errors for nodes that do not
exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cluster.config.local_layout import REGISTRY_GROUP, NodeName, key_of, name_of
from raftlog.types import FIRST_GROUP
from raftmq.local.http.admin_http import AdminApi, GivenAddresses
from raftmq_wire.errors import ExitCode, LocalError

NodeAnswers = list[tuple[AdminApi, dict[str, Any]]]


def ask_each(addresses: Sequence[str], path: str) -> tuple[NodeAnswers, dict[str, LocalError]]:
    """Asks all nodes about themselves; returns the answers, in the order of the addresses, and address -> error for
    nodes without an answer. Raises LocalError if nodes refuse and none answers."""
    answers: NodeAnswers = []
    silent: dict[str, LocalError] = {}
    for address in addresses:
        api = AdminApi(_alone(address, addresses))
        try:
            answers.append((api, api.local(path)))
        except LocalError as error:
            silent[address] = error
    refusal = next((error for error in silent.values() if error.exit_code is not ExitCode.UNREACHABLE), None)
    if refusal is not None and not answers:
        raise refusal
    return answers, silent


def ask_all(
    addresses: Sequence[str], path: str, node: int | None = None, group: int = FIRST_GROUP
) -> tuple[NodeAnswers, dict[str, LocalError]]:
    """Asks each node, as `ask_each` does, and keeps only the answer of `node`, if one is named. `group`: the group of
    the nodes. Raises LocalError if no such node has answered, so that silence is not taken for an empty list."""
    answers, silent = ask_each(addresses, path)
    if not answers:
        raise _nobody(addresses, silent)
    kept = [each for each in answers if node in (None, each[1]["node"])]
    if node is not None and not kept:
        raise _not_reached(node, group, answers)
    return kept, silent


def each_node(
    addresses: Sequence[str], path: str, node: int | None = None, group: int = FIRST_GROUP
) -> Iterator[tuple[AdminApi, dict[str, Any]]]:
    """Yields each node that can be reached, with its answer about itself under `path`; only `node` if one is named.

    `group`: the group of the nodes. Raises LocalError at the end if no such node was reached, and at once if one of
    them refuses.
    """
    answers: NodeAnswers = []
    silent: dict[str, LocalError] = {}
    reached = False
    for address in addresses:
        api = AdminApi(_alone(address, addresses))
        try:
            view = api.local(path)
        except LocalError as error:
            if error.exit_code is not ExitCode.UNREACHABLE:
                raise
            silent[address] = error
            continue
        answers.append((api, view))
        if node in (None, view["node"]):
            reached = True
            yield api, view
    if not answers:
        raise _nobody(addresses, silent)
    if node is not None and not reached:
        raise _not_reached(node, group, answers)


def no_node(node: NodeName, known: Iterable[int]) -> LocalError:
    """Returns the error for a node that its group does not have. `known`: the ids of the group's members."""
    group, _ = key_of(node)
    names = ", ".join(str(name_of(group, each)) for each in sorted(known))
    return LocalError(
        f"there is no node {node}",
        f"the members are {names}",
        f"use one of {names}; raftmq node list shows them",
        ExitCode.REFUSED,
    )


def no_group(group: int, known: Iterable[int]) -> LocalError:
    """Returns the error for a group that the cluster does not have. `known`: the numbers of its groups."""
    names = ", ".join(map(str, sorted(known)))
    if group == REGISTRY_GROUP:
        return LocalError(
            "a process of the registry is no node of a group",
            "the groups depend on none of them: it may be stopped and started at any time",
            "raftmq restart registry/1    (or kill, logs, status)",
            ExitCode.REFUSED,
        )
    return LocalError(
        f"there is no group {group}",
        f"the groups of the cluster are {names}",
        f"use one of {names}; raftmq status shows them",
        ExitCode.REFUSED,
    )


def not_among_given(group: int) -> LocalError:
    """Returns the error for a further group that is named together with explicit addresses."""
    return LocalError(
        f"group {group} cannot be chosen among addresses that are given",
        "--admin names nodes of one group, and there an id alone names a node",
        "the same with the addresses of that group, and without its number",
        ExitCode.USAGE,
    )


def _alone(address: str, addresses: Sequence[str]) -> list[str]:
    """Returns a list with one of the addresses; it is a GivenAddresses if `addresses` is."""
    return GivenAddresses([address]) if isinstance(addresses, GivenAddresses) else [address]


def _nobody(addresses: Sequence[str], silent: dict[str, LocalError]) -> LocalError:
    if not silent:
        return LocalError(
            "the cluster has no node", "no address of a node is known", "raftmq status", ExitCode.UNREACHABLE
        )
    first = next(iter(silent.values()))
    if len(silent) == 1:
        return first
    whys = "; ".join(dict.fromkeys(error.why for error in silent.values()))
    fix = "raftmq status" if isinstance(addresses, GivenAddresses) else first.fix
    return LocalError(f"no node answers at {', '.join(silent)}", whys, fix, ExitCode.UNREACHABLE)


def _not_reached(node: int, group: int, answers: NodeAnswers) -> LocalError:
    """Returns the error for a node of a group that is not among those that answered: the reason may be that it is no
    member."""
    heard = ", ".join(str(name_of(group, view["node"])) for _, view in answers)
    members = [member["id"] for member in answers[0][0].local("/v1/members")["members"]]
    name = name_of(group, node)
    if node not in members:
        return no_node(name, members)
    return LocalError(
        f"node {name} does not answer",
        f"it is not running, or cannot be reached; the nodes that answer: {heard}",
        "raftmq status",
        ExitCode.UNREACHABLE,
    )
