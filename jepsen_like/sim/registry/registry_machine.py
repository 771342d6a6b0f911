"""A machine with a process of the registry on it. It runs the product's code: its links, its client port and the code
that keeps its child process running. Only the child process is modelled (`replicas`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from cluster.placement.group_map import Epoch, GroupMember, GroupRecord, GroupRecords, encode
from cluster.registry.frames import RegistrySettings
from cluster.registry.name_server import NameServer
from cluster.registry.records import NOTHING, TopicPlace, View
from cluster.registry.registry_file import RegistryFile
from cluster.registry.surroundings import Surroundings
from cluster.runtime.peer_frames import Kind
from jepsen_like.sim.machines.clock import START_WALL_MS
from jepsen_like.sim.machines.loop import Process
from jepsen_like.sim.machines.machine import (
    CLUSTER,
    CLUSTER_KEY,
    NAMESRV_PORT,
    REGISTRY_PEER_PORT,
    registry_addresses,
    registry_host,
)
from jepsen_like.sim.options import Options, stream
from jepsen_like.sim.registry.replicas import Replicas, SimReplica

if TYPE_CHECKING:
    from jepsen_like.sim.machines.loop import SimLoop
    from jepsen_like.sim.machines.network import Network

FOREIGN = 9
"""A group of brokers that no cluster of the simulator has."""
_ELSEWHERE = GroupMember(1, "10.9.9.9", 1, "", {"broker": "10.9.9.9:1"})


class RegistryMachine:
    """A machine that runs one process of the registry. `server` is None while no process runs."""

    def __init__(
        self, number: int, options: Options, loop: SimLoop, network: Network, replicas: Replicas, topic: str
    ) -> None:
        """`topic`: a topic of which the process claims, when it lies, that only a foreign group has it."""
        self.number, self.host = number, registry_host(number)
        self._loop, self._network, self._replicas, self._topic = loop, network, replicas, topic
        self._rng = stream(options.seed, f"registry {number}")
        self.process: Process | None = None
        self.processes: list[Process] = []
        self.server: NameServer | None = None
        self.child: SimReplica | None = None
        self._older: list[GroupRecords] = []
        """The maps (records of groups) that the process had each time that it began to lie, or ended."""
        self.lies = self.has_lied = False
        """`lies`: True while the process lies. `has_lied`: True if it has lied since its last start."""
        self._file = RegistryFile(
            id=number,
            cluster_id=CLUSTER,
            secret_file="/etc/raftmq/secret",
            data_dir="/registry",
            processes=list(registry_addresses(REGISTRY_PEER_PORT + 1)),
            port=NAMESRV_PORT,
            peer_port=REGISTRY_PEER_PORT,
            bind=self.host,
        )

    @property
    def up(self) -> bool:
        """True if a process runs here, also while it is paused."""
        return self.process is not None and self.process.alive

    @property
    def runs_replica(self) -> bool:
        """True if the child runs, and it is not paused with its parent process."""
        process, child = self.process, self.child
        return self.up and process is not None and not process.paused and child is not None and not child.is_over

    def start(self) -> None:
        """Starts the process unless it runs."""
        if self.up:
            return
        self.has_lied = False
        process = self.process = Process(f"registry{self.number}", self.host)
        self.processes.append(process)
        process.run(self._loop.create_task, self._live())

    async def _live(self) -> None:
        surroundings = Surroundings(
            self._start_child,
            lambda _: (CLUSTER_KEY,),
            self._rng.randbytes,
            lambda: START_WALL_MS + int(self._loop.now * 1000),
        )
        server = NameServer(self._file, surroundings=surroundings)
        await server.start()
        self.server = server

    async def _start_child(self, settings: RegistrySettings, log: int) -> SimReplica:
        self.child = SimReplica(self._replicas, self.number, self._rng)
        return self.child

    def kill(self) -> None:
        """Kills the process and its child."""
        if self.process is None or not self.process.alive:
            return
        self.process.alive = self.process.paused = False
        if self.server is not None:
            self._older.append(self.server.records.view.groups)
        self.server = self.child = None
        self.lies = False
        self._network.process_ended(self.process, politely=True)

    def pause(self) -> None:
        """Pauses the process and its child, as SIGSTOP does."""
        if self.process is not None and self.process.alive:
            self.process.paused = True

    def resume(self) -> None:
        """Undoes `pause`."""
        if self.process is not None and self.process.paused:
            self._loop.resume(self.process)

    def lie(self) -> None:
        """Gives the process false records, which it sends to everybody: older epochs, groups of another cluster, and a
        topic that only such a group has."""
        if self.server is None:
            return
        self.lies = self.has_lied = True
        view = self.server.records.view
        self._older.append(view.groups)
        groups = {number: self._aged(record) for number, record in view.groups.items()}
        foreign = GroupRecord(FOREIGN, "foreign", Epoch(1 << 40, 0), 1, [_ELSEWHERE])
        self.server.records.view = View(
            {**groups, FOREIGN: foreign}, {**view.topics, self._topic: TopicPlace(0, (FOREIGN,))}, NOTHING.beats
        )
        if self.process is not None and not self.process.paused:
            self.process.run(self._tell, self.server)

    def _tell(self, server: NameServer) -> None:
        told = encode(server.records.view.groups.values())
        for link in server.registrations.links.all():
            link.send(Kind.GROUPS, [], told)

    def _aged(self, record: GroupRecord) -> GroupRecord:
        """Returns a record of the group that was true once, without its second member; `record` itself if no older one
        is known. A node that knows nothing of the group believes the record, and then names the leader of that time.
        """
        older = [groups[record.group] for groups in self._older if record.group in groups]
        older = [each for each in older if each.epoch < record.epoch]
        if not older:
            return record
        found = self._rng.choice(older)
        return replace(found, members=found.members[:1] + found.members[2:])
