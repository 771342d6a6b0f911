"""Runs a node in one process, and opens it again whenever the node asks for that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from cluster.config.config import Config
from cluster.config.exposure_check import open_folder, open_ports
from cluster.config.local_layout import names_of, node_object
from cluster.node.node import Node
from cluster.repair.initial_checkpoint import restore_from_peers
from cluster.retention.disk_space import LOOK_EVERY_MS, is_full, wait_for_space
from cluster.runtime.environment import Environment
from cluster.runtime.host.versions import versions
from cluster.state.state_opening import StateLostError
from raftlog.errors import StorageError
from raftmq_wire import kernel

logger = logging.getLogger(__name__)


class NodeRuns:
    """Runs the node until it must stop for good. To clients and peers, a restart inside the process looks like any
    other restart. Event loop only."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        started: Callable[[Node], object] = lambda node: None,
        opened: Callable[[Node], object] = lambda node: None,
        closed: Callable[[Node], object] = lambda node: None,
        look_every_ms: int = LOOK_EVERY_MS,
    ) -> None:
        """Keeps the arguments. The three functions are called with the node of each run: `opened` when its directory is
        open, `started` when its ports are, and `closed` at its end. `look_every_ms` is the time between two checks if a
        full disk has space again."""
        self._config, self._rules = config, config.retention
        self._environment = environment
        self._started = started
        self._opened = opened
        self._closed, self._look_every_ms = closed, look_every_ms
        self._stopped = False
        self._restoring: asyncio.Task[None] | None = None
        self.node: Node | None = None
        """The node of the present run, or of the last one; None before the first one is opened."""

    def stop(self) -> None:
        """Stops the node for good, and ends a wait for disk space."""
        self._stopped = True
        if self._restoring is not None:
            self._restoring.cancel()
        elif self.node is not None:
            self.node.stop()

    async def run(self) -> Node | None:
        """Runs the node, and returns the last one after it was closed; None if `stop` was called before one ran. A node
        that ended for lack of disk space is opened again when there is space. Raises the errors of Node and Node.start,
        and StateLostError if no peer has a state for this node."""
        while not self._ended():
            self.node = node = await self._open()
            if node is None:
                break
            self._opened(node)
            await node.start()
            tell_start(node)
            self._started(node)
            if self._ended():
                node.stop()
            await node.finished
            await node.close()
            self._config, self._rules = node.layers.own, node.config.retention  # the settings that the node read last
            self._closed(node)
            again = await self._space_again(node.failure) if node.failure is not None else bool(node.restarting)
            if not again:
                break
            logger.warning("the node starts again in its process, %s", node.restarting or "there is space again")
        return self.node

    def _ended(self) -> bool:
        return self._stopped

    async def _space_again(self, failure: BaseException) -> bool:
        """Returns True if the node ended for lack of disk space, and there is enough again; waits for that. Returns
        False if the node ended for another reason, or if it is stopped during the wait."""
        if not is_full(failure):
            return False
        logger.critical("the node is stopped until there is space on the disk of %s", self._config.node.data_dir)
        directory = Path(self._config.node.data_dir)
        fs = self._environment.fs
        return await wait_for_space(fs, directory, self._rules, self._ended, self._look_every_ms)

    async def _open(self) -> Node | None:
        """Opens the node, and returns it. Returns None if it was stopped meanwhile. If the disk is full, waits for
        space, except at the first start: there StorageError is raised."""
        while self.node is not None:
            try:
                return await self._open_once()
            except StorageError as error:
                if not is_full(error):
                    raise
                if not await self._space_again(error):
                    return None
        return await self._open_once()

    async def _open_once(self) -> Node | None:
        try:
            return Node(self._config, self._environment)
        except StateLostError as lost:
            restoring = restore_from_peers(self._config, self._environment, lost)
            self._restoring = asyncio.get_running_loop().create_task(restoring, name="restore")
        try:
            await asyncio.wait([self._restoring])
            if self._restoring.cancelled():
                return None
            self._restoring.result()
        finally:
            self._restoring = None
        return Node(self._config, self._environment)


def tell_start(node: Node) -> None:
    """Logs the versions, the addresses, and the positions of the log and the state of a node that now serves
    clients."""
    config, raft, identity = node.config, node.raw, node.storage.directory.identity
    used, own = versions(), node_object(identity.group_id, node.node_id)
    ports = ", ".join(
        [
            *(f"{each.name} {each.bind}:{each.port}" for each in config.listeners),
            f"peer {config.peer.bind}:{config.peer.port}",
            f"admin {config.admin.bind}:{config.admin.port}",
        ]
    )
    logger.info(
        "%s of cluster %s (%s) serves: raftmq %s, python %s, %s kernel; %s; directory %s; term %d, "
        "log up to index %d, applied up to %d; voters %s",
        own,
        config.cluster.name,
        identity.cluster_uuid,
        used["raftmq"],
        used["python"],
        kernel.NAME,
        ports,
        node.storage.directory.path,
        raft.term,
        raft.tail.index,
        raft.applied_index,
        names_of(identity.group_id, node.peers.membership.in_force.voter_ids),
    )
    if ports := open_ports(config):
        logger.warning("%s", ports)
    if folder := open_folder(node.storage.directory.path):
        logger.warning("%s: %s", own, folder.says)
    if kernel.WHY:
        logger.info("%s uses the kernel in Python: %s", own, kernel.WHY)
