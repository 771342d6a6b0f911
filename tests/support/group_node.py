"""A node as nodes of other groups see it: its links with them, its map of the groups, its record; real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from cluster.config.loading import load
from cluster.peer.allowed_peers import Membership
from cluster.peer.group_links import QUIET_LOOKS, GroupLinks
from cluster.peer.keyring import Keyring
from cluster.peer.transport import PeerTransport
from cluster.peer.transport_options import FrameHandlers, PeerLevels
from cluster.placement.group_map import Epoch, GroupMember, GroupRecord
from cluster.placement.groups_file import GroupsFile
from cluster.placement.known_groups import KnownGroups
from cluster.runtime.alarms import Alarms
from raftlog.storage.files.fs import OsFileSystem
from raftlog.types import NodeId
from raftmq.local.process import free_base_port
from statemachine.cluster_wide.broker_groups import BrokerGroup
from statemachine.levels import GROUPS_LEVEL
from tests.support.wait_until import until

FS = OsFileSystem()
KEY = Keyring((b"n" * 32,), demanded=True)
QUICK = {"look_s": 0.02}
PATIENT_LOOKS = 100
"""Looks without a byte that a node whose looks are quick allows where all share one loop."""


async def looked(known: KnownGroups, times: int) -> None:
    """Waits until it has looked at the other groups so often again."""
    before = known._looks
    await until(lambda: known._looks > before + times)


class Node:
    """The only node of its group, as far as other groups see it."""

    def __init__(
        self,
        folder: Path,
        group: int,
        first: int = 0,
        cluster: str = "c",
        keyring: Keyring = KEY,
        *,
        is_dialled: bool = True,
        quiet_looks: int = QUIET_LOOKS,
        looks: dict[str, Any] = QUICK,
        **changes: Any,
    ) -> None:
        """`first`: the peer port of group 1; 0 if it is not configured. `is_dialled`: False if nobody reaches it at the
        address that it tells. `looks`: arguments of its `KnownGroups`."""
        self.port = free_base_port(1)
        self.folder = folder / f"g{group}"
        self.folder.mkdir(exist_ok=True)
        known = Membership(cluster, group, NodeId(1), f"u{group}", {NodeId(1): f"u{group}"})
        self.level = GROUPS_LEVEL
        self.transport = PeerTransport(
            known,
            {},
            ("127.0.0.1", self.port),
            incarnation=1,
            keyring=keyring,
            levels=PeerLevels(of_cluster=lambda: self.level),
        )
        self.links = GroupLinks(self.transport, lambda group: self.known.leader(group), quiet_looks=quiet_looks)
        member = GroupMember(
            1, "127.0.0.1", self.port if is_dialled else group, "", {"broker": f"127.0.0.1:{self.port}"}
        )
        self.record: GroupRecord | None = GroupRecord(group, f"g{group}", Epoch(1, 0), 1, [member])
        keys: dict[str, Any] = {"cluster.group": group, "cluster.id": f"{'0' * 8}-0000-0000-0000-{'0' * 12}"}
        if first:
            keys["cluster.first_group"] = [f"127.0.0.1:{first}"]
        base = {"node.id": 1, "node.data_dir": "/data", "peer.secret_file": "/secret"}
        self.alarms = Alarms(lambda: 0)
        context: Any = SimpleNamespace(
            config=load(None, {}, base | keys | changes), loop=asyncio.get_running_loop(), alarms=self.alarms
        )
        self.file = GroupsFile(FS, self.folder, cluster, group)
        self.rows: dict[int, BrokerGroup] = {}
        """The groups of the truth; none as long as it is not copied."""
        self.ends = 0
        """How often it was ended because its group has retired."""
        self.known = KnownGroups(
            context, self.links, self.file, lambda: self.record, lambda: self.rows, self._end, **looks
        )
        self.part: Any = self.known.part()

    async def start(self) -> Node:
        await self.transport.start(FrameHandlers(*[lambda *_: None] * 5))
        self.part.start()
        return self

    def _end(self) -> None:
        self.ends += 1

    async def close(self) -> None:
        await self.part.close()
        await self.transport.close()

    def add(self, *groups: int) -> None:
        """These are the groups of the truth."""
        self.rows = {number: BrokerGroup(f"g{number}", 3) for number in groups}

    def rises(self, **changes: Any) -> GroupRecord:
        """Another leader is elected in its group."""
        assert self.record is not None
        term, index, _ = self.record.epoch
        self.record = replace(self.record, epoch=Epoch(term + 1, index), **changes)
        self.part.role(None)
        return self.record

    def knows(self, *nodes: Node) -> bool:
        others = {node.record.group: node.record for node in nodes if node is not self and node.record is not None}
        return self.known.others() == others
