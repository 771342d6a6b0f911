"""A checkpoint from a peer, for a node whose own are all unsound: the source that serves, and the fetch before joining.

`state` of cluster/peer/fetch.py:

    ["list"]                               fields: [[name, index, term, header_crc], ...], newest first
    ["manifest", name]                     payload: the manifest file
    ["file", name, file, offset, size]     payload: bytes of one of its files

What comes is believed only after the manifest's CRCs fit every file, the rows add up to the manifest's sums, and the
last applied entry is one of this node's own log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from google_crc32c import extend

from cluster.config import Config
from cluster.environment import Environment
from cluster.peer.fetch import (
    PAYLOAD_MAX,
    STATE,
    FetchClient,
    Fetched,
    FetchError,
    Refused,
    Source,
    Status,
    early_client,
)
from cluster.peer.transport import Membership, PeerTransport
from cluster.recovery import manifest as manifests
from cluster.recovery.checkpoints import FETCHED, Checkpoint, Checkpoints
from cluster.recovery.manifest import CheckpointFile, Manifest
from cluster.recovery.opening import StateLostError, is_of_log
from raftlog import membership as memberships
from raftlog.errors import StorageError
from raftlog.storage.fs import FileSystem, read_file, storage_error
from raftlog.storage.log_reader import LogReader
from raftlog.storage.members import newest_above
from raftlog.storage.node_dir import NodeDir, open_node_dir
from raftlog.types import NodeId
from statemachine import sums
from statemachine.broker_state import AppliedMark
from statemachine.kv import KV, KVError
from statemachine.rocks_reader import CheckpointReader

logger = logging.getLogger(__name__)

TIMEOUT_MS = 5000
"""For one answer."""


def state_source(fs: FileSystem, checkpoints: Checkpoints) -> Source:
    """Serves this node's checkpoints; see the module."""

    def answer(arguments: list[Any]) -> Fetched:
        match arguments:
            case ["list"]:
                marks = [(one.path.name, one.manifest.mark) for one in checkpoints.all()]
                return Fetched([[name, mark.index, mark.term, mark.header_crc] for name, mark in marks], b"")
            case ["manifest", str() as name]:
                return Fetched([], read_file(fs, _known(checkpoints, name).path / manifests.FILE)[:PAYLOAD_MAX])
            case ["file", str() as name, str() as file, int() as offset, int() as size] if offset >= 0 < size:
                known = _known(checkpoints, name)
                if file not in {one.name for one in known.manifest.files}:
                    raise Refused(Status.MISSING, f"checkpoint {name} has no file {file[:80]}")
                opened = fs.open(known.path / file)
                data = opened.pread(min(size, PAYLOAD_MAX), offset)
                opened.close()
                return Fetched([], data)
        raise ValueError(f"not a request for a checkpoint: {arguments!r:.100}")

    return answer


def _known(checkpoints: Checkpoints, name: str) -> Checkpoint:
    found = checkpoints.load(name) if manifests.is_name(name) else None
    if found is None:
        raise Refused(Status.MISSING, f"there is no checkpoint {name[:80]} any more")
    return found


class StateFetch:
    """Asks peers for a checkpoint that fits below this node's log, and adopts it as one of its own."""

    def __init__(self, fs: FileSystem, directory: Path, group_id: int, log: LogReader) -> None:
        self._fs = fs
        self._group_id = group_id
        self._log = log
        self._checkpoints = Checkpoints(fs, directory, group_id)
        self.refusals: list[str] = []
        """Why a peer's checkpoint was not taken."""

    async def run(self, client: FetchClient, peers: Sequence[NodeId]) -> Checkpoint | None:
        """The first that proves sound; None if no peer has one. Raises StorageError."""
        for peer in peers:
            try:
                listed = await client.fetch(peer, STATE, ["list"], TIMEOUT_MS)
                for name, index, term, header_crc in listed.fields:
                    if not self._fits(AppliedMark(term, index, 0, 0, header_crc)):
                        self.refusals.append(f"checkpoint {name} of node {peer} does not fit this node's log")
                        continue
                    return await self._take(client, peer, str(name))
            except FetchError as error:
                self.refusals.append(str(error))
            except (KVError, ValueError, TypeError) as error:
                self.refusals.append(f"what node {peer} gave is not sound: {error}")
            except OSError as error:
                raise storage_error(self._fs, "fetching into", self._checkpoints.path, error) from error
        return None

    def _fits(self, mark: AppliedMark) -> bool:
        if not self._log.first_index - 1 <= mark.index <= self._log.tail.index:
            return False
        return is_of_log(self._log, mark) is not False

    async def _take(self, client: FetchClient, peer: NodeId, name: str) -> Checkpoint:
        answer = await client.fetch(peer, STATE, ["manifest", name], TIMEOUT_MS)
        manifest = manifests.decode(answer.payload, self._group_id, Path(name))
        if manifest is None or manifest.name != name or not self._fits(manifest.mark):
            raise ValueError(f"the manifest of {name} is damaged")
        folder = self._checkpoints.path / FETCHED
        if self._fs.exists(folder):
            self._fs.remove_tree(folder)
        self._fs.mkdir(folder)
        for file in manifest.files:
            await self._copy(client, peer, name, file, folder)
        self._fs.fsync_dir(folder)
        check_rows(folder, manifest)
        logger.warning("checkpoint %s fetched from node %d, %d bytes", name, peer, manifest.size)
        return self._checkpoints.adopt(folder, manifest._replace(peer=peer))

    async def _copy(self, client: FetchClient, peer: NodeId, name: str, file: CheckpointFile, folder: Path) -> None:
        if "/" in file.name or file.name in ("", ".", "..", manifests.FILE):
            raise ValueError(f"{name} names a file {file.name!r}")
        target = self._fs.open(folder / file.name, create=True)
        at = crc = 0
        while at < file.size:
            part = await client.fetch(peer, STATE, ["file", name, file.name, at, PAYLOAD_MAX], TIMEOUT_MS)
            if not part.payload:
                break
            target.pwritev([part.payload], at)
            crc = extend(crc, part.payload)
            at += len(part.payload)
        target.fdatasync()
        target.close()
        if (at, crc) != (file.size, file.crc32c):
            raise ValueError(f"{name}/{file.name} does not have the size and CRC that the manifest tells")


def check_rows(folder: Path, manifest: Manifest) -> None:
    """Reads every row of a checkpoint. Raises KVError, ValueError unless they are those of the manifest."""
    with CheckpointReader(folder, strict=True) as reader:
        if reader.mark != manifest.mark:
            raise ValueError(f"its rows end at entry {reader.mark.index}, its manifest at {manifest.mark.index}")
        counted = sums.count(cast("KV", reader))  # `scan` is all that it asks for
        wrong = [family for family, told in manifest.sums.items() if counted.get(family) != told]
    if wrong:
        raise ValueError(f"its rows of {', '.join(wrong)} do not add up to its sums")


async def restore_from_peers(config: Config, environment: Environment, lost: StateLostError) -> None:
    """Fetches a checkpoint, so that the next opening finds one; nothing of this node runs meanwhile.

    Raises `lost`, with what the peers said, if none of them has one.
    """
    directory = open_node_dir(environment.fs, Path(config.node.data_dir))
    try:
        members = _members(directory)
        addresses = {NodeId(peer.id): (peer.host, peer.port) for peer in config.peers if peer.id in members.members}
        transport = PeerTransport(members, addresses, (config.peer.bind, config.peer.port))
        fetch = StateFetch(environment.fs, directory.path, directory.identity.group_id, directory.log)
        async with early_client(transport) as client:
            taken = await fetch.run(client, [node for node in addresses if node != config.node_id])
    except StorageError as error:
        raise StateLostError(f"{lost}\n{error}") from error
    finally:
        directory.close(clean=True)  # nothing was appended
    if taken is None:
        raise StateLostError(f"{lost}\nNo peer could help: {'; '.join(fetch.refusals) or 'there is none'}.")


def _members(directory: NodeDir) -> Membership:
    """Those of GENESIS: no state is there to tell of others. After a change of cluster the log is searched for them."""
    identity, log = directory.identity, directory.log
    members = (newest_above(log, -1) if identity.origin else None) or memberships.of_genesis(log.genesis)
    return Membership(
        str(identity.cluster_uuid),
        identity.group_id,
        identity.node_id,
        str(identity.node_uuid),
        {node_id: str(node_uuid) for node_id, node_uuid in members.node_uuids.items()},
    )
