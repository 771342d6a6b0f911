"""Writes and changes the raftmq.toml files of a local cluster. `raftmq up` writes them once, and the user may edit them
afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from msgspec.structs import replace
from tomlkit import TOMLDocument
from tomlkit.items import AoT, Table

from cluster.config.cross_key_rules import AUTH_FILES, TLS_FILES
from cluster.config.loading import load
from cluster.config.local_layout import GROUP_FOLDERS, NodeRecord, group_folder, groups_of, node_object, replace_file
from cluster.config.node_sections import ClusterSection
from cluster.config.source import toml_value
from raftlog.types import FIRST_GROUP, GROUPS_MAX
from raftmq_wire.errors import ExitCode, LocalError


def like_another(own: str, other: str, own_sections: frozenset[str]) -> str:
    """Returns the text of the file `own` of a joining node, with all sections of another node's file `other` except
    `own_sections`."""
    document, settings = tomlkit.parse(own), tomlkit.parse(other)
    for section in settings:
        if section not in own_sections:
            document[section] = settings[section]
    return tomlkit.dumps(document)


def moved(
    text: str, node: NodeRecord, nodes: Sequence[NodeRecord], first: Sequence[NodeRecord], *, failpoints: bool
) -> str:
    """Returns a node's file with the new ports of `node`, and with "data" as its data directory. In [[peers]], former
    members are removed and new ones added. `nodes` are the members of its group, `first` those of the first group. If
    `failpoints` is True, failpoints are enabled; otherwise that setting stays."""
    document = tomlkit.parse(text)
    _table(document, "node")["data_dir"] = "data"
    _table(document, "peer")["port"] = node.peer_port
    _table(document, "admin")["port"] = node.admin_port
    for listener in document.get("listeners", ()):
        port = listener_port(node, str(listener.get("name")))
        if port is not None:
            listener["port"] = port
            listener.pop("advertised", None)
    document["peers"] = _moved_peers(document, node, nodes)
    if failpoints:
        _table(document, "failpoints")["enabled"] = True
    if node.group != FIRST_GROUP:
        _name_first_group(document, first)
    return tomlkit.dumps(document)


def with_tier(text: str, url: str) -> str:
    """Returns a node's file with `url` as its object store (tier.url)."""
    document = tomlkit.parse(text)
    _table(document, "tier")["url"] = url
    return tomlkit.dumps(document)


def with_tls(text: str, files: Mapping[str, str]) -> str:
    """Returns a node's file with the given certificate files for TLS. If it had no TLS mode, the node then refuses
    plain text."""
    document = tomlkit.parse(text)
    table = _table(document, "tls")
    table.setdefault("mode", "enforcing")
    for key, path in files.items():
        table[key] = path
    return tomlkit.dumps(document)


def with_registry(text: str, addresses: Sequence[str]) -> str:
    """Returns a node's file with the addresses of the registry's processes. With no addresses, the file has no key
    `cluster.registry`."""
    document = tomlkit.parse(text)
    cluster = _table(document, "cluster")
    if addresses:
        cluster["registry"] = list(addresses)
    else:
        cluster.pop("registry", None)
    return tomlkit.dumps(document)


def with_users_key(text: str, path: str) -> str:
    """Returns a node's file with the path of the key that encrypts users' secrets."""
    document = tomlkit.parse(text)
    _table(document, "auth")["key_file"] = path
    return tomlkit.dumps(document)


def listener_port(node: NodeRecord, name: str) -> int | None:
    """Returns the port of one of the two listeners that a local cluster knows by name; None for another name."""
    return {"broker": node.broker_port, "namesrv": node.namesrv_port}.get(name)


def _table(document: TOMLDocument, name: str) -> Any:
    if name not in document:
        document[name] = tomlkit.table()
    return document[name]


def _moved_peers(document: TOMLDocument, node: NodeRecord, nodes: Sequence[NodeRecord]) -> AoT:
    known = {int(peer["id"]): peer for peer in document.get("peers", ())}
    peers = tomlkit.aot()
    for other in nodes:
        like = known.get(other.id)
        peers.append(_moved_peer(like if like is not None else _copy_of(known.get(node.id)), other))
    return peers


def _copy_of(peer: Any) -> Table:
    table = tomlkit.table()
    for key, value in (peer or {}).items():
        table[key] = value.unwrap() if hasattr(value, "unwrap") else value
    return table


def _moved_peer(table: Any, node: NodeRecord) -> Table:
    """Sets the id and the addresses of `node` in a [[peers]] table, and returns it. All other values stay as they
    are."""
    table["id"] = node.id
    table["port"] = node.peer_port
    table["admin"] = f"{HOST}:{node.admin_port}"
    for name in table.get("listeners", {}):
        if listener_port(node, name):
            table["listeners"][name] = f"{HOST}:{node.broker_port}"
    assert isinstance(table, Table)
    return table


HOST = "127.0.0.1"
NODES_MAX = 9
"""The most nodes in each group of a local cluster. More voters only make writes slower. Nodes on other machines join
with configurations of their own."""


def plan_nodes(data: Path, count: int, base_port: int | None) -> list[NodeRecord]:
    """Returns the records of nodes 1 to `count` of the first group. They have RocketMQ's usual ports, or 4 x count
    ports in a row from `base_port`. Raises LocalError if `count` is not 1 to NODES_MAX, or if the ports do not lie in
    1024 to 65535."""
    _check_count(count)
    if base_port is not None:
        check_base_port(base_port, count)
        return _in_a_row(data, FIRST_GROUP, count, base_port)
    return [_record(data, i + 1, 9876 + i, 10911 + 10 * i, 10912 + 10 * i, 9644 + i) for i in range(count)]


def plan_all(
    data: Path, groups: Iterable[int], count: int, base_port: int | None, is_free: Callable[[int], bool]
) -> list[NodeRecord]:
    """Returns the records of nodes 1 to `count` of each group in `groups`, which begins with the first group. They have
    their usual ports, or ports in a row from `base_port`. The ports of further groups are free now. Those of the first
    group may be in use while its nodes do not run. Raises LocalError if `count` is not 1 to NODES_MAX, or if there are
    not enough ports."""
    nodes: list[NodeRecord] = []
    for group in groups:
        base = None if base_port is None else base_port + 4 * len(nodes)
        if group == FIRST_GROUP:
            nodes += plan_nodes(data, count, base)
        else:
            nodes += plan_group(data, group, count, base, nodes, is_free)
    if base_port is not None:
        check_base_port(base_port, len(nodes))
        _check_free((node for node in nodes if node.group != FIRST_GROUP), is_free)
    return nodes


def _check_free(nodes: Iterable[NodeRecord], is_free: Callable[[int], bool]) -> None:
    """Raises LocalError for the first port of these nodes that is not free."""
    for node in nodes:
        for purpose, port in node.ports.items():
            if not is_free(port):
                raise LocalError(
                    f"port {port} ({purpose} of node {node.name}) is in use",
                    "another process has it; nothing was written",
                    "the same with another --base-port, or without it",
                    ExitCode.REFUSED,
                )


def _check_count(count: int) -> None:
    if not 1 <= count <= NODES_MAX:
        raise LocalError(
            f"a local cluster of {count} nodes is not possible",
            f"it can have 1 to {NODES_MAX} nodes; 3 survive the loss of one, 5 the loss of two",
            "raftmq up --nodes 3",
            ExitCode.USAGE,
        )


def check_base_port(base_port: int, count: int) -> None:
    """Raises LocalError unless there are enough ports from `base_port` on for `count` nodes, the nodes of all groups
    together."""
    if not 1024 <= base_port <= 65536 - 4 * count:
        raise LocalError(
            f"--base-port {base_port} leaves no room for the ports",
            f"{count} nodes need {4 * count} consecutive ports between 1024 and 65535",
            "raftmq up --base-port 20000",
            ExitCode.USAGE,
        )


def check_groups(groups: int) -> None:
    """Raises LocalError if no cluster can have that many groups."""
    if not 1 <= groups <= GROUPS_MAX:
        raise LocalError(
            f"a cluster of {groups} groups is not possible",
            f"it can have 1 to {GROUPS_MAX} groups, each with its own leader and log",
            "raftmq up --groups 2",
            ExitCode.USAGE,
        )


def plan_group(
    data: Path,
    group: int,
    count: int,
    base_port: int | None,
    known: Sequence[NodeRecord],
    is_free: Callable[[int], bool],
) -> list[NodeRecord]:
    """Returns the records of nodes 1 to `count` of a further group, with 4 x count ports in a row. The ports begin at
    `base_port`. If that is None, they are the group's usual ports, if these are free and the nodes of the first group
    in `known` have their usual ports; otherwise they lie above all other ports. Raises LocalError if `count` is not 1
    to NODES_MAX, or if no free ports are found."""
    _check_count(count)
    if base_port is None:
        base_port = _free_row(group, 4 * count, known, is_free)
    return _in_a_row(data, group, count, base_port)


_GROUP_PORTS, _GROUP_STEP = 11000, 4 * NODES_MAX
"""The first usual port of group 2, which lies above those of NODES_MAX nodes of the first group; and the number of
ports for each group."""


def _free_row(group: int, wanted: int, known: Sequence[NodeRecord], is_free: Callable[[int], bool]) -> int:
    taken = {port for node in known for port in node.ports.values()}

    def fits(base: int) -> bool:
        return all(port not in taken and is_free(port) for port in range(base, base + wanted))

    usual = _GROUP_PORTS + (group - 2) * _GROUP_STEP
    if all(node.namesrv_port == 9876 + node.id - 1 for node in known if node.group == FIRST_GROUP) and fits(usual):
        return usual
    above = max(taken, default=20000) + 1
    for base in range(above, min(above + 200, 65537 - wanted)):
        if fits(base):
            return base
    raise LocalError(
        f"no {wanted} consecutive free ports were found for group {group}",
        f"the ranges from {above} upwards were tried",
        "raftmq down && raftmq up --base-port P    (with a P of your choice, and the same --groups)",
        ExitCode.REFUSED,
    )


def _in_a_row(data: Path, group: int, count: int, base_port: int) -> list[NodeRecord]:
    return [
        _record(data, i + 1, *(base_port + step * count + i for step in range(4)), group=group) for i in range(count)
    ]


def plan_moved(nodes: Sequence[NodeRecord], base_port: int) -> list[NodeRecord]:
    """Returns the same nodes with 4 x count ports in a row from `base_port`, group after group. Raises LocalError if
    the ports do not lie in 1024 to 65535."""
    check_base_port(base_port, len(nodes))
    found: list[NodeRecord] = []
    for group in groups_of(nodes):
        own = [node for node in nodes if node.group == group]
        planned = _in_a_row(own[0].data, group, len(own), base_port + 4 * len(found))
        found += [
            replace(ports, id=node.id, log=node.log, replaces=node.replaces)
            for node, ports in zip(own, planned, strict=True)
        ]
    return found


USERS_KEY = "users.key"
"""Name of the file with the key that encrypts users' secrets, in the data directory of a local cluster."""
GROUPS_SECRET = "SECRET"
"""Name of the file with the cluster's secret, in the data directory of a local cluster of several groups. The nodes of
further groups read it. Nodes of the first group have the secret in their own data directories."""


def write_configs(nodes: Sequence[NodeRecord], *, failpoints: bool = False, users_key: bool = False) -> None:
    """Makes each node's folder, and its raftmq.toml with the values that differ from the defaults. If `users_key` is
    True, each file names USERS_KEY as its `auth.key_file`."""
    for node in nodes:
        write_config(node, nodes, failpoints=failpoints, users_key=users_key)


def write_config(
    node: NodeRecord, nodes: Sequence[NodeRecord], *, failpoints: bool = False, users_key: bool = False
) -> None:
    """Makes one node's folder and its raftmq.toml. `nodes` are all members, including this one."""
    node.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = _toml(node, nodes, failpoints)
    if users_key:
        text += f'\n[auth]\nkey_file = "../{USERS_KEY}"\n'
    node.config_path.write_text(text, encoding="utf-8")


OWN_SECTIONS = frozenset({"node", "peer", "admin", "listeners", "peers"})


def write_config_like(node: NodeRecord, nodes: Sequence[NodeRecord], like: Path) -> None:
    """Makes the folder and the file of a joining node. All sections are copied from another node's file `like`, except
    those in OWN_SECTIONS."""
    write_config(node, nodes)
    own = node.config_path.read_text(encoding="utf-8")
    text = like_another(own, like.read_text(encoding="utf-8"), OWN_SECTIONS)
    node.config_path.write_text(text, encoding="utf-8")


class GroupFacts(msgspec.Struct, frozen=True):
    """Facts about the cluster that are written into the files of a further group's nodes."""

    uuid: str
    broker_name: str
    """The broker name of the group."""
    first: Sequence[NodeRecord]
    """The nodes of the first group."""


def write_group_configs(nodes: Sequence[NodeRecord], like: Path, facts: GroupFacts) -> None:
    """Makes the folders and files of all nodes of a further group. All sections are copied from a file `like` of the
    first group, except those in OWN_SECTIONS and values that only the first group has."""
    settings = like.read_text(encoding="utf-8")
    for node in nodes:
        write_config(node, nodes)
        own = node.config_path.read_text(encoding="utf-8")
        node.config_path.write_text(in_group(like_another(own, settings, OWN_SECTIONS), node, facts), encoding="utf-8")


def in_group(text: str, node: NodeRecord, facts: GroupFacts) -> str:
    """Returns the text of a node's file with settings of the first group, changed into one for a node of a further
    group."""
    document = tomlkit.parse(text)
    cluster = _table(document, "cluster")
    cluster["id"], cluster["group"], cluster["broker_name"] = facts.uuid, node.group, facts.broker_name
    _name_first_group(document, facts.first)
    for section, names in (("tls", TLS_FILES), ("auth", AUTH_FILES)):
        table = document.get(section, {})
        for name in names:  # A relative path counts from the folder of the file, which is one level deeper here.
            if table.get(name) and not Path(str(table[name])).expanduser().is_absolute():
                table[name] = f"../{table[name]}"
    for section, name in (("tier", "url"), ("backup", "to")):
        if document.get(section, {}).get(name):
            document[section][name] = of_group(str(document[section][name]), node.group)
    return tomlkit.dumps(document)


def of_group(place: str, group: int) -> str:
    """Returns the URL or folder for the objects of one group below the cluster's `place`. A subfolder is needed,
    because names of objects contain the cluster's id, but not the group."""
    return place if group == FIRST_GROUP else f"{place.rstrip('/')}/{group_folder(Path(), group)}"


def of_cluster(place: str, group: int) -> str:
    """Returns the cluster's place for a group's place: removes the group's folder from its end, if it is there. The
    inverse of `of_group`."""
    own = "" if group == FIRST_GROUP else f"/{group_folder(Path(), group)}"
    return place.rstrip("/").removesuffix(own) if own else place


_NAMES_FIRST_GROUP = "first_group" in ClusterSection.__struct_fields__
"""True if this release has the key `first_group` in `[cluster]`: by it, nodes of further groups find the first one."""


def _name_first_group(document: TOMLDocument, first: Sequence[NodeRecord]) -> None:
    if _NAMES_FIRST_GROUP:
        _table(document, "cluster")["first_group"] = [f"{HOST}:{node.peer_port}" for node in first]


def plan_node(
    data: Path, node_id: int, known: Sequence[NodeRecord], is_free: Callable[[int], bool], group: int = FIRST_GROUP
) -> NodeRecord:
    """Returns the record of one more node of a group. In the first group it gets RocketMQ's usual ports for its id, if
    these are free and the other nodes there have their usual ports. Otherwise it gets four free ports in a row above
    all others. `known`: the nodes of all groups. Raises LocalError if no ports are found."""
    taken = {port for node in known for port in node.ports.values()}
    if group == FIRST_GROUP:
        usual = _record(
            data,
            node_id,
            9876 + node_id - 1,
            10911 + 10 * (node_id - 1),
            10912 + 10 * (node_id - 1),
            9644 + node_id - 1,
        )
        is_usual = all(node.namesrv_port == 9876 + node.id - 1 for node in known if node.group == FIRST_GROUP)
        if is_usual and all(is_free(port) and port not in taken for port in usual.ports.values()):
            return usual
    first = max(taken, default=20000) + 1
    for base in range(first, min(first + 200, 65532)):
        ports = range(base, base + 4)
        if all(is_free(port) for port in ports):
            return _record(data, node_id, *ports, group=group)
    raise LocalError(
        f"no four consecutive free ports were found for {node_object(group, node_id)}",
        f"200 ranges from {first} upwards were tried",
        "raftmq down && raftmq up --base-port P    (with a P of your choice; then raftmq node add)",
        ExitCode.REFUSED,
    )


def _record(
    data: Path, node_id: int, namesrv: int, broker: int, peer: int, admin: int, *, group: int = FIRST_GROUP
) -> NodeRecord:
    log = str(group_folder(data, group) / f"n{node_id}" / "node.log")
    return NodeRecord(node_id, None, broker, namesrv, peer, admin, log, group=group)


def _toml(node: NodeRecord, nodes: Sequence[NodeRecord], failpoints: bool) -> str:
    lines = [
        f"# Node {node.name} of a local cluster, written by `raftmq up`. Every key: raftmq config explain",
        "[node]",
        f"id = {node.id}",
        'data_dir = "data"',
        "",
        "[backup]",
        f"roots = {toml_value(str(node.data.parent))}",
        "",
        "[peer]",
        f"port = {node.peer_port}",
        *([] if node.group == FIRST_GROUP else [f"secret_file = {toml_value(f'../../{GROUPS_SECRET}')}"]),
        "",
        "[admin]",
        f"port = {node.admin_port}",
        "",
        "[[listeners]]",
        'name = "broker"',
        f"port = {node.broker_port}",
        "",
        "# The port that clients use as the name server: it directs them to the broker ports.",
        "[[listeners]]",
        'name = "namesrv"',
        f"port = {node.namesrv_port}",
    ]
    for each in nodes:
        broker = f"{HOST}:{each.broker_port}"
        lines += [
            "",
            "[[peers]]",
            f"id = {each.id}",
            f"port = {each.peer_port}",
            f'admin = "{HOST}:{each.admin_port}"',
            f'listeners = {{broker = "{broker}", namesrv = "{broker}"}}',
        ]
    if failpoints:
        lines += ["", "[failpoints]", "enabled = true"]
    return "\n".join(lines) + "\n"


def move_ports(nodes: Sequence[NodeRecord], *, failpoints: bool = False) -> None:
    """Changes the ports in existing raftmq.toml files; every other setting, and every comment, stays. Raises OSError if
    a file cannot be read or written, and ConfigError if it would not be valid."""
    first = [node for node in nodes if node.group == FIRST_GROUP]
    for node in nodes:
        own = [each for each in nodes if each.group == node.group]
        text = moved(node.config_path.read_text(encoding="utf-8"), node, own, first, failpoints=failpoints)
        replace_file(node.config_path, text.encode(), check=load)


def set_tier(nodes: Sequence[NodeRecord], url: str) -> None:
    """Makes every node upload to the object store `url`; nodes of a further group use a folder in it. Raises as
    `_rewrite` does; the files of earlier nodes then stay changed."""
    for node in nodes:
        own = of_group(url, node.group)
        _rewrite(node.config_path, lambda text, own=own: with_tier(text, own))  # type: ignore[misc]


def set_registry(config_path: Path, addresses: Sequence[str]) -> None:
    """Makes the node register with the registry's processes at these peer addresses; [] for none. Raises as `_rewrite`
    does."""
    _rewrite(config_path, lambda text: with_registry(text, addresses))


def set_tls(config_path: Path, stem: str, folder: Path) -> None:
    """Makes the node accept only TLS on all its ports. The certificate and the key are the files in `folder` whose
    names begin with `stem`. If the node's file sets a TLS mode already, that mode stays. Raises as `_rewrite` does."""
    own = folder / stem
    files = {"cert_file": own.with_suffix(".crt"), "key_file": own.with_suffix(".key"), "ca_file": folder / "ca.crt"}
    _rewrite(config_path, lambda text: with_tls(text, _relative(files, config_path)))


def set_users_key(config_path: Path, key_file: Path) -> None:
    """Sets the file in which the node finds the key of users' secrets. Raises as `_rewrite` does."""
    path = _relative({"key_file": key_file}, config_path)["key_file"]
    _rewrite(config_path, lambda text: with_users_key(text, path))


def _relative(files: Mapping[str, Path], config_path: Path) -> dict[str, str]:
    return {key: os.path.relpath(path, config_path.parent) for key, path in files.items()}


def _rewrite(config_path: Path, changed: Callable[[str], str]) -> None:
    """Replaces the text of a node's file by what `changed` returns for it. Raises ConfigError, and changes nothing, if
    the new text is no valid configuration. Raises LocalError if the file cannot be read or written."""
    try:
        replace_file(config_path, changed(config_path.read_text(encoding="utf-8")).encode(), check=load)
    except OSError as error:
        why = error.strerror or str(error)
        raise LocalError(f"{config_path} cannot be changed", why, f"ls -ld {config_path.parent}") from None


def read_nodes(data: Path) -> list[NodeRecord]:
    """Returns the nodes of an existing data directory as their raftmq.toml files describe them; [] if there are none.
    Raises ConfigError for a file that cannot be used. Raises LocalError for one without the listeners `broker` and
    `namesrv`, or of another group than its folder."""
    nodes = []
    for path in node_files(data):
        config = load(path)
        ports = {listener.name: listener.port for listener in config.listeners}
        if missing := {"broker", "namesrv"} - ports.keys():
            raise LocalError(
                f"{path} has no listener called {missing.pop()}",
                "clients of a local cluster use the listeners `broker` and `namesrv`",
                f"add a [[listeners]] table with that name to {path}",
                ExitCode.REFUSED,
            )
        group, folder = config.cluster.group, path.parent.parent
        if group_folder(data, group) != folder:
            raise LocalError(
                f"{path} says cluster.group = {group}, and lies in the folder of another group",
                f"the nodes of group {group} are in {group_folder(data, group)}",
                f"set cluster.group in {path} back, or move the folder to where it was",
                ExitCode.REFUSED,
            )
        log = str(path.parent / "node.log")
        nodes.append(
            NodeRecord(
                config.node.id,
                None,
                ports["broker"],
                ports["namesrv"],
                config.peer.port,
                config.admin.port,
                log,
                group=group,
            )
        )
    return sorted(nodes, key=lambda node: node.key)


def node_files(data: Path) -> list[Path]:
    """Returns the paths of the raftmq.toml of all nodes in a data directory, those of the first group first."""
    return [*sorted(data.glob("n*/raftmq.toml")), *sorted(data.glob(f"{GROUP_FOLDERS}/n*/raftmq.toml"))]
