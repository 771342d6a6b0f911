"""Names of topics, groups, nodes, keys and runbooks: shell completion, and suggestions for a name that is nearly right.

Completion asks the cluster for at most a second and never prints an error, because a shell would show it in the command
line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from cluster.config.local_layout import find_data_dir, read_cluster
from raftlog.types import FIRST_GROUP
from raftmq.commands.shared_options import show_problems
from raftmq.commands.value_types import NameType
from raftmq.local.http.admin_http import AdminApi, ApiRefusal, admin_addresses
from raftmq.local.http.all_groups import Groups, told_by_each
from raftmq_wire.errors import ExitCode, LocalError

_QUICK_S = 1.0

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _completed(path: str, field: str, name: str, keep: Callable[[str], bool]) -> Complete:
    def complete(context: click.Context, param: click.Parameter, begun: str) -> list[str]:
        try:
            addresses = admin_addresses(context.params.get("admin"), context.params.get("data"))
            pages = list(AdminApi(addresses, timeout_s=_QUICK_S).local_pages(path))
        except (LocalError, OSError, ValueError):
            return []
        found = [str(each[name]) for page in pages for each in page.get(field, ())]
        return [each for each in found if each.startswith(begun) and (keep(each) or begun.startswith("%"))]

    return complete


def _is_own(name: str) -> bool:
    return not name.startswith("%")


complete_topics = _completed("/v1/topics", "topics", "name", _is_own)
complete_groups = _completed("/v1/groups", "groups", "name", _is_own)
_complete_members = _completed("/v1/members", "members", "id", _is_own)


def complete_nodes(context: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """Completes names of nodes: the members of the first group, and of a local cluster all nodes of further groups and
    the processes of the registry."""
    try:
        given = context.params.get("admin")
        further = [] if given else read_cluster(find_data_dir(context.params.get("data"))).processes
    except (LocalError, OSError):
        further = []
    found = [str(each.name) for each in further if each.key[0] != FIRST_GROUP]
    return [*_complete_members(context, param, begun), *(name for name in found if name.startswith(begun))]


def complete_keys(context: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """Completes keys of raftmq.toml, in the form section.name."""
    from cluster.config.explain import keys

    return [each for each in keys() if each.startswith(begun)]


def complete_cluster_keys(context: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """Completes keys that belong to the cluster; in a list of KEY VALUE pairs, only the keys."""
    from cluster.config.cluster_keys import CLUSTER_KEYS

    given = context.params.get(param.name or "") if param.nargs == -1 else None
    if given is not None and len(given) % 2:
        return []
    return [each for each in CLUSTER_KEYS if each.startswith(begun)]


def complete_runbooks(context: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """Completes codes of findings and alerts."""
    from cluster.admin.handlers.dashboard import runbooks

    return [each for each in runbooks() if each.startswith(begun)]


TOPIC = click.argument("topic", type=NameType("topic"), shell_complete=complete_topics)


@contextlib.contextmanager
def with_near_miss(name: str, known: Callable[[], Sequence[str]]) -> Iterator[None]:
    """A context in which NotFound becomes an error that suggests the nearest of the `known` topics."""
    from cluster.config.source import nearest
    from raftmq.client.errors import NotFound, RaftMQError

    try:
        yield
    except NotFound as error:
        try:
            near = nearest(name, known())
        except RaftMQError:
            near = None
        fix = f"did you mean {near}?    (raftmq topic list shows all)" if near else "raftmq topic list"
        raise LocalError(f"there is no topic {name}", str(error), fix, ExitCode.REFUSED) from None


@contextlib.contextmanager
def near_name(api: AdminApi, path: str, name: str) -> Iterator[None]:
    """A context in which the API's refusal of an unknown name suggests the nearest existing one. `path`: /v1/topics or
    /v1/groups."""
    from cluster.config.source import nearest

    try:
        yield
    except ApiRefusal as error:
        if error.code != "not_found":
            raise
        kind = path.rpartition("/")[2]
        found: list[dict[str, Any]] = []
        with contextlib.suppress(LocalError):
            found = [each for page in api.local_pages(path) for each in page[kind]]
        near = nearest(name, [each["name"] for each in found])
        if near is None:
            raise
        fix = f"did you mean {near}?    (raftmq {kind.removesuffix('s')} list shows all)"
        raise ApiRefusal(error.code, error.what, error.why, fix, error.exit_code) from None


def told_of(
    groups: Groups, path: str, name: str, ask: Callable[[AdminApi], dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Asks each group of brokers about a topic or a consumer group, and prints which groups did not answer. Returns
    group -> answer; `path` and an unknown name as for `near_name`."""
    with near_name(AdminApi(groups[FIRST_GROUP]), path, name):
        told, silent = told_by_each(groups, ask)
    show_problems(silent)
    return told
