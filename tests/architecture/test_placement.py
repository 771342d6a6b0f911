"""Nobody but the route map knows how many groups of brokers there are: who makes broker data, names a broker, or picks
the node to forward to, asks it (docs/adr/0102-one-route-map.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.rows import each_row
from tests.support.tree import nodes, sources

ROOT = Path(__file__).parents[2]
HOME = "cluster/placement/"
ABOVE = (
    "cluster/admin/",
    "cluster/broker/",
    "cluster/grpc/",
    "cluster/remoting/",
    "cluster/requests/",
    "cluster/node/services.py",
)
"""What answers clients or forwards for them, and what that sees of the node."""
FIELD = "brokerAddrs"
"""The name of the addresses in RocketMQ's BrokerData."""
ALLOWED = {
    ("cluster/remoting/handlers/route.py", FIELD): "turns broker data into JSON",
    (
        "cluster/remoting/handlers/broker_stats.py",
        "cluster.broker_name",
    ): "shows the configuration",
    (
        "cluster/backup/service.py",
        "cluster.broker_name",
    ): "writes the name into a backup",
    ("cluster/tier/state_copies/state_copier.py", "cluster.broker_name"): "the same, into a copy of the state",
    ("cluster/members/new_node.py", "cluster.broker_name"): "compares the configurations of two nodes of a group",
    ("cluster/node/serving.py", "broker_addresses"): "hands the addresses of the members to the route map",
}


def knows(name: str, source: str) -> Iterator[str]:
    """Yields what a file knows of groups of brokers and should ask the route map."""
    for node in nodes(source):
        match node:
            case ast.Call(func=ast.Name(id="BrokerData") | ast.Attribute(attr="BrokerData")):
                yield "BrokerData"
            case ast.Constant(value=str(text)) if text == FIELD:
                yield FIELD
            case ast.Attribute(attr="broker_name", value=ast.Name(id="cluster") | ast.Attribute(attr="cluster")):
                yield "cluster.broker_name"
            case ast.Attribute(attr="leader_id") if name.startswith(ABOVE):
                yield "leader_id"
            case ast.Attribute(attr="broker_addresses"):
                yield "broker_addresses"


def offenders(files: dict[str, str]) -> set[tuple[str, str]]:
    """File and what it knows, outside the home of the route map and the configuration."""
    return {
        (name, known)
        for name, text in files.items()
        if not name.startswith((HOME, "cluster/config/"))
        for known in knows(name, text)
    }


def test_only_the_route_map_knows_groups_of_brokers() -> None:
    found = offenders(dict(sources("cluster")))
    assert found - set(ALLOWED) == set(), "ask `Services.routes`"
    assert set(ALLOWED) - found == set(), "this is gone: take it off the list"


@each_row(
    ("file", "text", "known"),
    [
        ("cluster/grpc/routes.py", 'data = route_map.BrokerData("raftmq", "c", {})', "BrokerData"),
        ("cluster/admin/handlers/topics.py", 'view = {"brokerAddrs": {}}', FIELD),
        ("cluster/requests/names.py", "name = services.config.cluster.broker_name", "cluster.broker_name"),
        ("cluster/requests/names.py", "def of(cluster): return cluster.broker_name", "cluster.broker_name"),
        ("cluster/requests/forward.py", "def to(self): return self._raw.leader_id", "leader_id"),
        ("cluster/remoting/route.py", "at = members.broker_addresses(listener)", "broker_addresses"),
    ],
)
def test_who_goes_past_it_is_found(file: str, text: str, known: str) -> None:
    assert offenders({file: text}) == {(file, known)}


def test_the_core_and_its_keepers_may_read_who_leads() -> None:
    assert offenders({"cluster/repair/repair_service.py": "peer = raw.leader_id"}) == set()
    assert offenders({"cluster/placement/route_map.py": 'BrokerData(cluster.broker_name, "c", {})'}) == set()
