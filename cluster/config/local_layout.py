"""Describes the data directory of a local cluster: where it is found, what it contains, and which node runs where.

    .raftmq/                found from folders inside it, as .git is; RAFTMQ_DATA or --data name another one
        cluster.json        nodes with process ids and ports; replaced atomically, never edited in place
        lock                locked while a command starts or stops processes
        n1/raftmq.toml      the node's configuration
        n1/node.log         what the node printed; older files are node.log.1, ...
        n1/data/            the node's data directory: log, hard state, database, identity
        g02/n1/...          the same for the nodes of group 2; SECRET and users.key are then for all groups
        registry/r1/...     registry.toml, node.log and data of a process of the registry, if there are several groups

cluster.json can be made again from the raftmq.toml files. All other files are lost if they are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import msgspec

from cluster.config.sealed_json import Schema
from raftlog.format_versions import is_known, why_unknown
from raftlog.storage.files import layout
from raftlog.types import FIRST_GROUP
from raftmq_wire.errors import ExitCode, LocalError

DATA_DIR_NAME = ".raftmq"
DATA_DIR_VARIABLE = "RAFTMQ_DATA"
CLUSTER_FILE = "cluster.json"
CLUSTER_SCHEMA = 11
_ONE_GROUP_SCHEMA = 10
"""The format of a file without further groups, which earlier releases read: for them an id names one node."""

NodeName = int | str
"""The name of a node in commands and in JSON. In the first group it is the node's id, in other groups "GROUP/ID", such
as "3/2". A process of the registry is called "registry/ID"."""
_NAME = re.compile(r"(?:(registry|\d{1,9})/)?(\d{1,9})", re.ASCII)
_GROUP_FOLDER = re.compile(r"g\d\d", re.ASCII)
GROUP_FOLDERS = "g[0-9][0-9]"
"""The pattern of the folders of further groups."""
REMOVED = "removed"
"""Name of the folder beside a group's nodes into which the folders of removed nodes are moved."""


REGISTRY_GROUP = 0
"""The number used instead of a group's for processes of the registry (docs/adr/0112), which belong to no group."""
REGISTRY = "registry"
"""The word used instead of a group's number in names of processes of the registry; also the name of their folder."""


def name_of(group: int, node: int) -> NodeName:
    """Returns the name of a node: its id in the first group, else "GROUP/ID", because an id is unique only within its
    group."""
    if group == REGISTRY_GROUP:
        return f"{REGISTRY}/{node}"
    return node if group == FIRST_GROUP else f"{group}/{node}"


def node_object(group: int, node: int) -> str:
    """Returns the name of a node in findings, events, log lines and errors: "node 3", "node 2/3", "registry node 1"."""
    return f"registry node {node}" if group == REGISTRY_GROUP else f"node {name_of(group, node)}"


def names_of(group: int, nodes: Iterable[int]) -> str:
    """Returns the names of nodes of one group in the order of their ids, for a text: "1, 2", "2/1, 2/2"."""
    return ", ".join(str(name_of(group, node)) for node in sorted(nodes))


def link_object(group: int, node: int, peer: int) -> str:
    """Returns the name of the link between two nodes of a group in findings and events. It is the same on both
    sides."""
    return f"link {name_of(group, min(node, peer))}-{name_of(group, max(node, peer))}"


def key_of(name: NodeName) -> tuple[int, int]:
    """Returns (group, id) of a node's name; (1, 2) for both "1/2" and "2". Raises LocalError if the text is no such
    name."""
    found = _NAME.fullmatch(str(name))
    if found is None:
        raise LocalError(
            f"{str(name)[:40]!r} is no name of a node",
            "a node is named by its id, as 2, or in a further group by group and id, as 3/2",
            "raftmq status    (shows the names)",
            ExitCode.USAGE,
        )
    return REGISTRY_GROUP if found[1] == REGISTRY else int(found[1] or FIRST_GROUP), int(found[2])


def group_folder(data: Path, group: int) -> Path:
    """Returns the folder with the nodes of a group: the data directory itself for the first group, else gGG in it."""
    return data if group == FIRST_GROUP else data / f"g{group:02}"


def group_at(place: str) -> int:
    """Returns the number of the group of brokers to which a folder or URL belongs, by its last part: 2 for "g02". Other
    places belong to the first group."""
    name = place.rstrip("/").rpartition("/")[2]
    return int(name[1:]) if _GROUP_FOLDER.fullmatch(name) else FIRST_GROUP


class NodeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node in cluster.json. `pid` is None while no process of it runs that `raftmq` has started."""

    module: ClassVar[str] = "cluster.node"
    """The Python module that the node's process runs."""
    id: int
    pid: int | None
    broker_port: int
    namesrv_port: int
    peer_port: int
    admin_port: int
    log: str
    replaces: int | None = None
    """Id of the node that this one is to replace; None if there is none, or if it was replaced already."""
    group: int = FIRST_GROUP
    """The number of the node's group. Ids are unique only within a group, so use `key` or `name` to tell nodes
    apart."""

    @property
    def key(self) -> tuple[int, int]:
        """The node's (group, id)."""
        return self.group, self.id

    @property
    def name(self) -> NodeName:
        """The node's name."""
        return name_of(self.group, self.id)

    @property
    def data(self) -> Path:
        """The data directory of the cluster, with cluster.json."""
        return self.home.parent if self.group == FIRST_GROUP else self.home.parent.parent

    @property
    def home(self) -> Path:
        """The node's folder."""
        return Path(self.log).parent

    @property
    def config_path(self) -> Path:
        """The node's configuration file."""
        return self.home / "raftmq.toml"

    @property
    def ports(self) -> dict[str, int]:
        """The node's ports: purpose -> port."""
        return {
            "name server": self.namesrv_port,
            "broker": self.broker_port,
            "peer": self.peer_port,
            "admin": self.admin_port,
        }


class RegistryRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of the registry in cluster.json. `pid` is None while no process of it runs that `raftmq` has
    started."""

    module: ClassVar[str] = "cluster.registry"
    """The Python module that the process runs."""
    id: int
    pid: int | None
    port: int
    """The port for clients."""
    peer_port: int
    """The port where nodes register."""
    own_port: int
    """The port for the other processes of the registry."""
    log: str

    @property
    def key(self) -> tuple[int, int]:
        """(REGISTRY_GROUP, id), in the form of a node's key."""
        return REGISTRY_GROUP, self.id

    @property
    def name(self) -> NodeName:
        """The process's name."""
        return name_of(*self.key)

    @property
    def home(self) -> Path:
        """The process's folder."""
        return Path(self.log).parent

    @property
    def config_path(self) -> Path:
        """The process's registry.toml."""
        return self.home / "registry.toml"

    @property
    def ports(self) -> dict[str, int]:
        """The process's ports: purpose -> port."""
        return {"name server": self.port, "peer": self.peer_port, "registry": self.own_port}


R = TypeVar("R", NodeRecord, NodeRecord | RegistryRecord)


class ClusterFile(msgspec.Struct, frozen=True):
    """The content of cluster.json."""

    nodes: list[NodeRecord]
    schema: int = CLUSTER_SCHEMA
    registry: list[RegistryRecord] = []
    """The processes of the registry; [] if there is none."""

    @property
    def groups(self) -> list[int]:
        """The numbers of the groups, ascending."""
        return groups_of(self.nodes)

    def of_group(self, group: int) -> list[NodeRecord]:
        """Returns the nodes of one group."""
        return [node for node in self.nodes if node.group == group]

    @property
    def processes(self) -> list[NodeRecord | RegistryRecord]:
        """All nodes, and then the processes of the registry."""
        return [*self.nodes, *self.registry]

    def node(self, name: NodeName) -> NodeRecord:
        """Returns the node of that name. Raises LocalError, which names the existing ones."""
        return self._found(name, self.nodes)

    def process(self, name: NodeName) -> NodeRecord | RegistryRecord:
        """Returns the node, or the process of the registry, of that name. Raises LocalError, which names the existing
        ones."""
        return self._found(name, self.processes)

    def _found(self, name: NodeName, among: Sequence[R]) -> R:
        key = key_of(name)
        for each in among:
            if each.key == key:
                return each
        known = ", ".join(str(each.name) for each in among)
        raise LocalError(
            f"there is no {node_object(*key)}",
            f"the members are {known}",
            f"use one of {known}",
            ExitCode.REFUSED,
        )

    def with_nodes(self, nodes: Iterable[NodeRecord]) -> ClusterFile:
        """Returns the same cluster with these nodes, in the order of their names."""
        return msgspec.structs.replace(self, nodes=sorted(nodes, key=lambda node: node.key))

    def without(self, name: NodeName) -> ClusterFile:
        """Returns the same cluster without that node."""
        key = key_of(name)
        return msgspec.structs.replace(self, nodes=[node for node in self.nodes if node.key != key])

    def with_pid(self, name: NodeName, pid: int | None) -> ClusterFile:
        """Returns the same cluster in which the node or process `name` has another process id; None if it does not
        run."""
        key = key_of(name)
        nodes, registry = (
            [msgspec.structs.replace(each, pid=pid) if each.key == key else each for each in records]
            for records in (self.nodes, self.registry)
        )
        return msgspec.structs.replace(self, nodes=nodes, registry=registry)


def groups_of(nodes: Iterable[NodeRecord]) -> list[int]:
    """Returns the numbers of the groups of these nodes, ascending."""
    return sorted({node.group for node in nodes})


def find_data_dir(
    given: str | None = None, environ: Mapping[str, str] | None = None, start: Path | None = None
) -> Path:
    """Returns the absolute path of the data directory on which a command works: --data, RAFTMQ_DATA, the nearest
    .raftmq in this folder or one above, or ./.raftmq. A directory with a cluster.json comes before one without, as in
    the client library (`raftmq.client.discovery`)."""
    named = given or (os.environ if environ is None else environ).get(DATA_DIR_VARIABLE)
    here = (start or Path.cwd()).absolute()
    if named:
        return Path(os.path.normpath(here / Path(named).expanduser()))
    candidates = [folder / DATA_DIR_NAME for folder in (here, *here.parents)]
    for is_there in (_has_cluster, Path.is_dir):
        for path in candidates:
            if is_there(path):
                return path
    return candidates[0]


def _has_cluster(data: Path) -> bool:
    try:
        return (data / CLUSTER_FILE).is_file()
    except PermissionError:  # It may be another user's cluster. The command that uses it says so.
        return True


def read_cluster(data: Path) -> ClusterFile:
    """Reads the cluster in the data directory `data`. Raises LocalError if there is none, or if its file cannot be
    read, is damaged or has another format."""
    path = data / CLUSTER_FILE
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise LocalError(
            f"there is no cluster in {data}",
            f"{path} does not exist",
            _advice(data),
            ExitCode.UNREACHABLE,
        ) from None
    except OSError as error:
        raise LocalError(
            f"{path} cannot be read",
            error.strerror or str(error),
            f"ls -ld {data}    (then repeat the command as the user who owns it)",
            ExitCode.REFUSED,
        ) from error
    try:
        schema = msgspec.json.decode(raw, type=Schema).schema
        if is_known(schema, CLUSTER_SCHEMA):
            return msgspec.structs.replace(msgspec.json.decode(raw, type=ClusterFile), schema=CLUSTER_SCHEMA)
    except msgspec.MsgspecError as error:
        raise LocalError(
            f"{path} is damaged",
            str(error),
            f"rm {path} && raftmq up    (this recreates it from the raftmq.toml files; it contains no messages)",
            ExitCode.REFUSED,
        ) from None
    raise LocalError(*why_unknown(path, schema, CLUSTER_SCHEMA), ExitCode.REFUSED)


def _advice(data: Path) -> str:
    """Returns what to type if `data` has no cluster. The person may have meant the folder around it, or one inside
    it."""
    for near in (data / DATA_DIR_NAME, data.parent, data.parent.parent):
        if _has_cluster(near):
            return f"the same command with --data {near}"
    return f"raftmq up --detach    (or name its data directory with --data or {DATA_DIR_VARIABLE})"


def local_root(node_data: str) -> Path | None:
    """Returns the data directory of the local cluster to which a node with this data directory belongs, because `raftmq
    up` made it; None if it belongs to no such cluster."""
    folder = Path(node_data).absolute().parent.parent
    roots = [folder, folder.parent] if _GROUP_FOLDER.fullmatch(folder.name) else [folder]
    return next((root for root in roots if (root / CLUSTER_FILE).is_file()), None)


def has_no_data(directory: Path) -> bool:
    """Returns True if a data directory is missing, or empty except for a lock file. Raises OSError if it cannot be
    read."""
    return not directory.exists() or all(path.name == layout.LOCK for path in directory.iterdir())


def has_no_identity(directory: Path) -> bool:
    """Returns True if a data directory is missing, or does not have a node's identity. It is empty then, or it was
    deleted while its node ran, and the node wrote a few files again. Raises OSError if the directory cannot be
    examined."""
    return not (directory / layout.IDENTITY).exists()


def is_lost(node_data: str, node: int) -> bool:
    """Returns True if the data directory of another node of the same local cluster and group was lost. `node_data` is
    this node's directory, `node` the id of the other one. Returns False if this process may not read the directory."""
    try:
        return has_no_identity(Path(node_data).absolute().parent.parent / f"n{node}" / "data")
    except OSError:
        return False


Place = Literal["up", "machine", "container", "compose", "kubernetes"]
"""The place where a node runs. `up`: in a cluster that `raftmq up` made. `machine`: directly on a machine. `container`:
in a container. `compose`: in a container of docker-compose.yml. `kubernetes`: in a pod."""
PLACE_VARIABLE = "RAFTMQ_PLACE"
"""The environment variable with which docker-compose.yml tells a node that it is one of its services."""
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
"""The files that Docker and podman make in each container."""


def place_of(node_data: str, container_marks: Sequence[str] = CONTAINER_MARKS) -> Place:
    """Returns the place where the node with that data directory runs. `container_marks` are files that exist only in
    containers."""
    if local_root(node_data) is not None:
        return "up"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if os.environ.get(PLACE_VARIABLE) == "compose":
        return "compose"
    return "container" if any(Path(mark).exists() for mark in container_marks) else "machine"


def write_cluster(data: Path, cluster: ClusterFile) -> None:
    """Replaces cluster.json atomically: even after a power loss, a reader sees either the old file or the new one. The
    file of a cluster of one group can be read by earlier releases."""
    several = cluster.groups not in ([], [FIRST_GROUP])
    cluster = msgspec.structs.replace(cluster, schema=CLUSTER_SCHEMA if several else _ONE_GROUP_SCHEMA)
    replace_file(data / CLUSTER_FILE, msgspec.json.format(msgspec.json.encode(cluster), indent=2) + b"\n")


def replace_file(
    path: Path, data: bytes, mode: int = 0o666, *, check: Callable[[Path], object] = lambda fresh: None
) -> None:
    """Replaces a small file atomically: even after a power loss, a reader sees either the old contents or the new.

    An existing file keeps its owner, group and mode as far as this user may set them, but other users get no right that
    is not in `mode`. A new file gets `mode` less the umask. `check` is called with the path of the new contents before
    the replacement. Raises OSError if the file cannot be written, and what `check` raises. The file is then unchanged.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fresh.unlink(missing_ok=True)  # left by a dead process with this pid: in a container, pids are used again
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            _keep_access(path, descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        check(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    sync_folder(path.parent)


def _keep_access(path: Path, descriptor: int, most: int) -> None:
    """Gives an open file the owner, group and mode of the file at `path`, if that exists. If this user may not set the
    group, the rights of the group are removed, because another group would get them. All other users get no right that
    is not in `most`, so that a secret does not stay readable to them."""
    try:
        known = path.stat()
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(known.st_mode) & (most | stat.S_IRWXU | stat.S_IRWXG)
    try:
        os.fchown(descriptor, known.st_uid, known.st_gid)
    except PermissionError:
        try:
            os.fchown(descriptor, -1, known.st_gid)
        except PermissionError:
            mode &= ~stat.S_IRWXG
    os.fchmod(descriptor, mode)


def sync_folder(folder: Path) -> None:
    """Syncs a folder, so that the file names in it survive a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class BusyError(LocalError):
    """Raised if another command is starting or stopping nodes of the same data directory."""


@contextlib.contextmanager
def locked(data: Path) -> Iterator[None]:
    """Locks the data directory for a command that starts or stops processes. Raises BusyError if another command has
    the lock, and LocalError if the lock file cannot be opened."""
    try:
        opened = (data / "lock").open("a")
    except OSError as error:
        raise LocalError(
            f"the cluster in {data} cannot be started or stopped from here",
            f"{data / 'lock'}: {error.strerror}",
            f"ls -ld {data}    (then repeat the command as the user who owns it)",
            ExitCode.REFUSED,
        ) from None
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another raftmq command is using {data}",
                "it is starting or stopping nodes",
                "wait for it to end and repeat the command",
                ExitCode.REFUSED,
            ) from None
        yield
