"""Fills in defaults that depend on other values, and checks the relations that must hold between values."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cluster.config.address import join_address, split_address
from cluster.config.config import Config
from cluster.config.local_layout import node_object
from cluster.config.node_sections import Listener, PeerNode
from cluster.config.source import ConfigError, KeyPath, Source, TooSmallError, did_you_mean, dotted
from raftlog.types import FIRST_GROUP

if TYPE_CHECKING:
    from cluster.config.service_sections import LimitsSection


ANY_ADDRESS = ("0.0.0.0", "::")
TLS_FILES = ("cert_file", "key_file", "ca_file")
AUTH_FILES = ("key_file", "first_user_file")
FRAME_OVERHEAD_BYTES = 64 << 10
"""Bytes to allow for an entry's headers, dispatch table and effects, and for the header of a remoting frame."""
_LEAST: tuple[tuple[str, str, Callable[[Config], int], str], ...] = (
    (
        "raft.election_ticks",
        "raft.heartbeat_ticks",
        lambda c: c.raft.heartbeat_ticks + 1,
        "a leader must send a heartbeat before its followers start an election",
    ),
    (
        "ha.housekeeping_interval_ms",
        "twice ha.send_heartbeat_interval_ms",
        lambda c: 2 * c.ha.send_heartbeat_interval_ms,
        "a single late answer must not close a connection",
    ),
    (
        "ha.client_heartbeat_timeout_ms",
        "twice ha.send_heartbeat_interval_ms",
        lambda c: 2 * c.ha.send_heartbeat_interval_ms,
        "a single late heartbeat must not close a connection",
    ),
    (
        "raft.inflight_bytes_max",
        "raft.append_bytes_max",
        lambda c: c.raft.append_bytes_max,
        "one append must fit into what may be in flight to a peer",
    ),
    (
        "limits.frame_bytes_max",
        "limits.message_bytes_max",
        lambda c: c.limits.message_bytes_max + FRAME_OVERHEAD_BYTES,
        "the largest message and its header must fit into a frame",
    ),
    (
        "limits.connection_inflight_bytes_max",
        "limits.frame_bytes_max",
        lambda c: c.limits.frame_bytes_max,
        "otherwise the largest frame would always exceed the limit of bytes in flight",
    ),
    (
        "limits.node_inflight_bytes_max",
        "limits.connection_inflight_bytes_max",
        lambda c: c.limits.connection_inflight_bytes_max,
        "one connection must not have more in flight than the whole node",
    ),
    (
        "limits.node_unsent_bytes_max",
        "limits.connection_unsent_bytes_max",
        lambda c: c.limits.connection_unsent_bytes_max,
        "one connection must not have more waiting than the whole node",
    ),
    (
        "log.segment_size_bytes",
        "limits.batch_bytes_max plus limits.message_bytes_max",
        lambda c: c.limits.batch_bytes_max + c.limits.message_bytes_max + FRAME_OVERHEAD_BYTES,
        "an entry never spans two segment files",
    ),
    (
        "send.deadline_ms",
        "send.leader_wait_ms",
        lambda c: c.send.leader_wait_ms,
        "the time a send may take includes the wait for a leader",
    ),
)
"""Lower bounds of keys that depend on other keys: (the key, the other key, the function that returns the least value,
the reason)."""


def complete(config: Config, source: Source, folder: Path | None) -> Config:
    """Returns the configuration with advertised addresses, this node's own entry in `peers` and the limits of its
    profile filled in, and with absolute paths. `folder` is that of the configuration file; None without a file."""
    data_dir = Path(config.node.data_dir).expanduser()
    if folder is not None and source.is_from_file(("node", "data_dir")):
        data_dir = folder / data_dir
    secret = Path(config.peer.secret_file).expanduser() if config.peer.secret_file else None
    if secret is not None and folder is not None and source.is_from_file(("peer", "secret_file")):
        secret = folder / secret
    tls = _absolute("tls", {key: getattr(config.tls, key) for key in TLS_FILES}, source, folder)
    auth = _absolute("auth", {key: getattr(config.auth, key) for key in AUTH_FILES}, source, folder)
    own = next((p for p in config.peers if p.id == config.node.id), None)
    peers = tuple(replace(each, listeners=_with_paired(config, each)) for each in config.peers)
    told = _with_paired(config, own) if own else {}
    own_names = {each.name: each.advertised or join_address(each.bind, each.port) for each in config.listeners}
    listeners = tuple(
        replace(each, advertised=each.advertised or told.get(each.name) or own_names.get(each.routes or each.name, ""))
        for each in config.listeners
    )
    config = replace(config, peers=peers)
    return replace(
        config,
        node=replace(config.node, data_dir=str(data_dir.absolute())),
        listeners=listeners,
        tls=replace(config.tls, **tls),
        auth=replace(config.auth, **auth),
        peer=replace(config.peer, secret_file=str(secret.absolute()) if secret is not None else ""),
        peers=_with_own_listeners(config, listeners),
        limits=with_profile(config.limits, source.tree.get("limits", {})),
    )


def _absolute(section: str, files: Mapping[str, str], source: Source, folder: Path | None) -> dict[str, str]:
    """Returns key -> absolute path, for the keys `files` of a section that are set. A relative path in the
    configuration file is relative to `folder`, the file's folder."""
    return {
        key: str((folder / path if folder is not None and source.is_from_file((section, key)) else path).absolute())
        for key, named in files.items()
        if (path := Path(named).expanduser()) != Path()
    }


def check(config: Config, source: Source) -> None:
    """Raises ConfigError for the first relation between values that does not hold."""
    _check_group(config, source)
    _check_listeners(config, source)
    _check_peers(config, source)
    _check_ports(config, source)
    _check_limits(config, source)
    _check_tls(config, source)
    _check_backup(config, source)
    _check_retention(config, source)
    _check_modes(config, source)
    _check_timer(config, source)


def _with_paired(config: Config, peer: PeerNode) -> dict[str, str]:
    """Returns the advertised addresses of a peer: listener -> "host:port". Listeners that give their clients another
    listener's addresses are included."""
    paired = {each.name: peer.listeners[each.routes] for each in config.listeners if each.routes in peer.listeners}
    return paired | peer.listeners


def _with_own_listeners(config: Config, listeners: tuple[Listener, ...]) -> tuple[PeerNode, ...]:
    """Returns `peers` with this node's own listeners filled in. If there are no peers, the node is a cluster of one."""
    advertised = {each.name: each.advertised for each in listeners}
    if not config.peers:
        admin = join_address(config.admin.bind, config.admin.port)
        own = PeerNode(
            id=config.node.id, host=config.peer.bind, port=config.peer.port, admin=admin, listeners=advertised
        )
        return (own,)
    return tuple(
        replace(peer, listeners=advertised) if peer.id == config.node.id and not peer.listeners else peer
        for peer in config.peers
    )


def _check_addresses(addresses: Iterable[str], key: str, fix: str, source: Source) -> None:
    for i, address in enumerate(addresses):
        path: KeyPath = ("cluster", key, i)
        try:
            split_address(address)
        except ValueError as error:
            raise ConfigError(f"{source.where(path)}: {dotted(path)} is not an address", str(error), fix) from None


def _check_group(config: Config, source: Source) -> None:
    group = config.cluster.group
    fix = 'write the host and the peer port of a member of group 1: first_group = ["10.0.0.1:10912"]'
    _check_addresses(config.cluster.first_group, "first_group", fix, source)
    fix = 'write the host and the peer port of a process of the registry: registry = ["10.0.0.1:9867"]'
    _check_addresses(config.cluster.registry, "registry", fix, source)
    if group == FIRST_GROUP or (config.cluster.id and config.peer.secret_file):
        return
    key = "peer.secret_file" if config.cluster.id else "cluster.id"
    raise ConfigError(
        f"{source.where(('cluster', 'group'))}: cluster.group is {group}, and {key} is not set",
        "all groups of a cluster have its uuid and its secret; only the first group makes them",
        f"set {key} to that of the cluster (cluster_id in raftmq status --json), or cluster.group to {FIRST_GROUP}",
    )


def _check_listeners(config: Config, source: Source) -> None:
    seen: set[str] = set()
    for i, listener in enumerate(config.listeners):
        path: KeyPath = ("listeners", i)
        if listener.name in seen:
            raise ConfigError(
                f"{source.where((*path, 'name'))}: two listeners are called {listener.name}",
                "a route contains the addresses of the listener that received the request, found by its name",
                "give each [[listeners]] its own name",
            )
        seen.add(listener.name)
        _check_routes(config, i, listener, source)
        host, _ = _address(listener.advertised, (*path, "advertised"), source)
        if host in ANY_ADDRESS:
            raise ConfigError(
                f"{source.where(path)}: {dotted(path)}.advertised cannot be {listener.advertised}",
                f"clients connect to this address, and cannot connect to {host}",
                f'write advertised = "<name or address clients reach>:{listener.port}"',
            )


def _check_routes(config: Config, i: int, listener: Listener, source: Source) -> None:
    """Raises ConfigError unless the listener gives its clients its own addresses, or those of a listener that gives its
    own."""
    if not listener.routes:
        return
    path: KeyPath = ("listeners", i, "routes")
    own = [each.name for each in config.listeners if not each.routes]
    if listener.routes not in own:
        raise ConfigError(
            f"{source.where(path)}: {dotted(path)} cannot be {listener.routes}",
            f"it names a listener of this node whose addresses routes contain: {', '.join(own) or 'none'}",
            did_you_mean(listener.routes, own) if own else "remove `routes` from one of the [[listeners]]",
        )
    for peer in config.peers:
        given, paired = peer.listeners.get(listener.name, ""), peer.listeners.get(listener.routes, "")
        if given != paired:
            about = node_object(config.cluster.group, peer.id)
            raise ConfigError(
                f"{source.where(path)}: {about} has two addresses for listener {listener.name}",
                f"routes = {listener.routes!r} says {paired or 'none'}, [[peers]] says {given}",
                f"remove {listener.name} from `listeners` of that [[peers]] table",
            )


def _check_peers(config: Config, source: Source) -> None:
    ids = [peer.id for peer in config.peers]
    if config.node.id not in ids:
        raise ConfigError(
            f"{source.where(('node', 'id'))}: node.id {config.node.id} is not among the peers",
            f"[[peers]] lists every member, including this node, and has ids {', '.join(map(str, sorted(ids)))}",
            "use one of these ids, or add a [[peers]] table for this node",
        )
    for i, peer in enumerate(config.peers):
        if peer.id in ids[:i]:
            raise ConfigError(
                f"{source.where(('peers', i, 'id'))}: two peers have id {peer.id}",
                "an id names one member of the group",
                "give each [[peers]] its own id",
            )
        if peer.address in [other.address for other in config.peers[:i]]:
            raise ConfigError(
                f"{source.where(('peers', i, 'port'))}: two peers have the address {peer.address}",
                "each node needs its own address for the other nodes",
                "give each [[peers]] its own host or port",
            )
        _check_peer_addresses(config, i, peer, source)


def _check_peer_addresses(config: Config, i: int, peer: PeerNode, source: Source) -> None:
    if peer.admin:
        _address(peer.admin, ("peers", i, "admin"), source)
    own_names = [listener.name for listener in config.listeners]
    for name, address in peer.listeners.items():
        path: KeyPath = ("peers", i, "listeners", name)
        _address(address, path, source)
        if name not in own_names:
            raise ConfigError(
                f"{source.where(path)}: {dotted(path)} names a listener that this node does not have",
                f"this node's [[listeners]] are {', '.join(own_names) or 'none'}; every node has the same ones",
                did_you_mean(name, own_names) if own_names else f'add a [[listeners]] table with name = "{name}"',
            )
    for listener in config.listeners:
        told = peer.listeners.get(listener.name)
        if told is None:
            about = node_object(config.cluster.group, peer.id)
            raise ConfigError(
                f"{source.where(('peers', i))}: peers.{i} ({about}) has no address for listener {listener.name}",
                "routes for this listener would not contain that node",
                f'write listeners = {{{listener.name} = "{peer.host}:{listener.port}"}} there',
            )
        if peer.id == config.node.id and told != listener.advertised:
            raise ConfigError(
                f"{source.where(('peers', i, 'listeners'))}: listener {listener.name} of this node has two addresses",
                f"peers.{i}.listeners says {told}, [[listeners]] says {listener.advertised}",
                "remove `advertised` from [[listeners]], or make them equal",
            )


def _check_ports(config: Config, source: Source) -> None:
    """Raises ConfigError if two of this node's ports bind the same address. A bind to all addresses conflicts with
    every other one on the same port."""
    wanted: list[tuple[KeyPath, str, int]] = [
        *((("listeners", i), each.bind, each.port) for i, each in enumerate(config.listeners)),
        (("peer",), config.peer.bind, config.peer.port),
        *([(("peer", "heartbeat"), *config.peer.heartbeat)] if config.peer.heartbeat is not None else []),
        (("admin",), config.admin.bind, config.admin.port),
    ]
    for i, (path, bind, port) in enumerate(wanted):
        for other_path, other_bind, other_port in wanted[:i]:
            same_host = bind == other_bind or bind in ANY_ADDRESS or other_bind in ANY_ADDRESS
            if port == other_port and same_host:
                raise ConfigError(
                    f"{source.where((*path, 'port'))}: {dotted(path)}.port {port} is also {dotted(other_path)}.port",
                    "each port of a node serves one purpose",
                    f"give {dotted(path)} another port",
                )


def _check_tls(config: Config, source: Source) -> None:
    tls = config.tls
    lacking = [key for key in ("cert_file", "key_file") if config.speaks_tls and not getattr(tls, key)]
    why, fix = "a port takes TLS", 'write {} = "/etc/raftmq/FILE.pem" under [tls]; raftmq cert node makes such files'
    if config.speaks_tls and tls.client_certificates != "none" and not tls.ca_file:
        lacking.append("ca_file")
    if config.tls_mode(config.peer.tls) != "disabled" and not tls.ca_file and not lacking:
        lacking, why = ["ca_file"], "nodes check each other's certificates"
        fix += ', or tls = "disabled" under [peer]'
    if lacking:
        raise ConfigError(
            f"{source.where(('tls', lacking[0]))}: tls.{lacking[0]} is missing",
            f"{why}, so that [tls] needs {' and '.join(lacking)}",
            fix.format(lacking[0]),
        )


def _check_backup(config: Config, source: Source) -> None:
    target = config.backup.to
    if target and not _is_place(target):
        raise ConfigError(
            f"{source.where(('backup', 'to'))}: backup.to {target} is not an absolute path",
            "a node may be started from different working directories, and its backups belong in one place",
            f'write, for example: to = "/var/backups/{target}"',
        )
    for root in config.backup.allowed:
        if not _is_place(root):
            raise ConfigError(
                f"{source.where(('backup', 'roots'))}: backup.roots has {root}, which is not an absolute path",
                "a node may be started from different working directories",
                'write absolute paths separated by ;, for example: roots = "/var/backups;/mnt/raftmq"',
            )


def _is_place(target: str) -> bool:
    """Returns True if a backup target means the same place in whatever folder the node is started: an absolute path or
    a URL."""
    return Path(target).is_absolute() or "://" in target


def _check_retention(config: Config, source: Source) -> None:
    retention = config.retention
    try:
        _ = retention.delete_hours
    except ValueError as error:
        raise ConfigError(
            f"{source.where(('retention', 'delete_when'))}: retention.delete_when cannot be {retention.delete_when!r}",
            str(error),
            'write hours of the day separated by ;, for example: delete_when = "04;16", or "" for any time',
        ) from None
    rising = ("disk_max_used_percent", "disk_force_clean_percent", "disk_refuse_writes_percent")
    for low, high in pairwise(rising):
        if getattr(retention, low) > getattr(retention, high):
            raise TooSmallError(
                f"{source.where(('retention', high))}: retention.{high} {getattr(retention, high)} is below "
                f"retention.{low} {getattr(retention, low)}",
                "as a disk fills up, expired messages are removed first, then others, and only then are writes refused",
                f"retention.{high}",
                getattr(retention, low),
                f"retention.{low}",
            )


def _check_modes(config: Config, source: Source) -> None:
    modes, path = config.modes, ("modes", "transient_store_pool_enable")
    if modes.transient_store_pool_enable and modes.flush_disk_type != "ASYNC_FLUSH":
        raise ConfigError(
            f"{source.where(path)}: modes.transient_store_pool_enable needs ASYNC_FLUSH",
            "the pool answers from memory, but with SYNC_FLUSH every answer waits for a disk",
            'write flush_disk_type = "ASYNC_FLUSH" under [modes], or transient_store_pool_enable = false',
        )


def _check_limits(config: Config, source: Source) -> None:
    for key, low, least, why in _LEAST:
        lowest, value = least(config), attrgetter(key)(config)
        if lowest > value:
            what = f"{source.where(tuple(key.split('.')))}: {key} {value} is too small for {low}"
            raise TooSmallError(what, why, key, lowest, low)


def _check_timer(config: Config, source: Source) -> None:
    try:
        parse_delay_levels(config.timer.delay_levels)
    except ValueError as error:
        path = ("timer", "delay_levels")
        raise ConfigError(
            f"{source.where(path)}: {dotted(path)} are not delays", str(error), 'write them as "1s 5s 10s 30s 1m 2m"'
        ) from None


def _address(text: str, path: KeyPath, source: Source) -> tuple[str, int]:
    try:
        return split_address(text)
    except ValueError as error:
        raise ConfigError(
            f"{source.where(path)}: {dotted(path)} is not an address", str(error), 'write it as "127.0.0.1:10911"'
        ) from None


UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LEVELS_MAX = 64
DELAY_MS_MAX = 365 * UNITS_MS["d"]


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Returns the delay of each level in milliseconds, level 1 first. `text` has words such as 10s and 2h. Raises
    ValueError for another word, a delay above DELAY_MS_MAX, or a number of levels that is not 1 to LEVELS_MAX."""
    levels = []
    for word in text.split():
        number, unit = word[:-1], UNITS_MS.get(word[-1])
        if unit is None or not (number.isascii() and number.isdigit() and len(number) <= 9):
            raise ValueError(f"{word!r} is not a number with one of the units {', '.join(UNITS_MS)}")
        levels.append(int(number) * unit)
    if not 0 < len(levels) <= LEVELS_MAX:
        raise ValueError(f"there are 1 to {LEVELS_MAX} levels, not {len(levels)}")
    if max(levels) > DELAY_MS_MAX:
        raise ValueError("a level is at most 365d")
    return tuple(levels)


PROFILES: dict[str, dict[str, int]] = {
    "rocketmq": {},
    "report-003": {"topic_length_max": 256, "message_bytes_max": 65_535},
}
"""Name of a profile -> the limits that it sets. `rocketmq` has the limits that RocketMQ's broker enforces, which are
also the keys' defaults: topics of 127 bytes, messages of 4 MiB. `report-003` has those of a widely read description of
its commit log: topics of 256 bytes, messages of 65,535."""


def with_profile(limits: LimitsSection, given: Container[str]) -> LimitsSection:
    """Returns the limits with the values of their profile, except for the keys in `given`, which were set
    explicitly."""
    return replace(limits, **{key: value for key, value in PROFILES[limits.profile].items() if key not in given})
