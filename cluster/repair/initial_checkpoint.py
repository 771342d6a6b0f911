"""Fetches a checkpoint from a peer before the node joins, if the node has no usable one of its own.

The checkpoint is trusted only after every file has its CRC in the manifest, the rows add up to the manifest's sums, and
its last applied entry is in this node's own log. If that log ends earlier, or diverges from the peer's, it is extended
first (log_extension.py). If no peer has the entries in between any more, a snapshot replaces the log as well
(snapshot_fetch.py). Peers serve the requests with log_source.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cluster.config.config import Config
from cluster.config.local_layout import node_object
from cluster.members.addresses import peer_addresses
from cluster.peer.secret import load as load_keys
from cluster.peer.transport import Membership, PeerTransport
from cluster.peer.transport_options import PeerLevels
from cluster.repair.checkpoint_copy import CheckpointCopy, CountRows
from cluster.repair.fetch import STATE, FetchClient, FetchError, early_client
from cluster.repair.log_extension import LogForward
from cluster.repair.peer_requests import ask, at_once
from cluster.repair.progress import InstallMetrics, InstallProgress
from cluster.repair.snapshot_fetch import Snapshot, SnapshotTake, Where
from cluster.runtime.environment import Environment
from cluster.runtime.figures.row_count import count_apart
from cluster.state import suspect_state
from cluster.state.checkpoints import FETCHED, Checkpoint, Checkpoints
from cluster.state.state_opening import StateLostError, is_of_log
from raftlog import membership as memberships
from raftlog.errors import FrameError, OutOfRangeError, StorageError
from raftlog.storage.files.fs import FileSystem, storage_error
from raftlog.storage.files.run_file import load_run
from raftlog.storage.members import newest_above
from raftlog.storage.node_dir import NodeDir, open_node_dir
from raftlog.types import NodeId
from statemachine.broker_state import AppliedMark
from statemachine.rows.kv import KVError

logger = logging.getLogger(__name__)

TIMEOUT_MS = 5000
"""Milliseconds for one answer."""
ROUNDS = 2
"""Rounds over all peers. If all checkpoints were refused in the first, the peers may have made better ones by the
second."""


class CheckpointOffer(NamedTuple):
    """A checkpoint of a peer."""

    peer: NodeId
    name: str
    fits: bool
    """True if the checkpoint's last entry is in this node's log; otherwise the log has to be extended."""


class StateFetch:
    """Asks peers for a checkpoint and installs it in the node's directory. Nothing else may use the directory
    meanwhile."""

    def __init__(
        self, fs: FileSystem, directory: NodeDir, committed_index: int = -1, count_rows: CountRows = count_apart
    ) -> None:
        """`committed_index`: the index that this node knows to be committed, besides the one in its hard state."""
        self._fs = fs
        self._count_rows = count_rows
        self._directory = directory
        self._group_id = directory.identity.group_id
        self._log = directory.log
        self._committed = max(committed_index, directory.hard_state_store.load().commit_index)
        self._checkpoints = Checkpoints(fs, directory.path, self._group_id)
        self.refusals: list[str] = []
        """The reasons, for people, why checkpoints of peers were refused."""

    async def run(self, client: FetchClient, peers: Sequence[NodeId]) -> Checkpoint | None:
        """Returns the first checkpoint that passes all checks, added to this node's checkpoints; None if no peer has
        one. Raises StorageError."""
        for number in range(ROUNDS):
            offers = await self._offers(client, peers)
            for offer in sorted(offers, key=lambda offer: not offer.fits):
                try:
                    return await self._take(client, offer)
                except FetchError as error:
                    self._refuse(str(error))
                except (KVError, ValueError, TypeError, FrameError, OutOfRangeError) as error:
                    self._refuse(f"what {node_object(self._group_id, offer.peer)} sent is not sound: {error}")
                except OSError as error:
                    raise storage_error(self._fs, "fetching into", self._checkpoints.path, error) from error
            if not offers:
                break
            logger.warning("round %d: no peer provided a checkpoint: %s", number + 1, "; ".join(self.refusals))
        return None

    def _refuse(self, why: str) -> None:
        if why not in self.refusals:
            self.refusals.append(why)

    # --- the offers ---------------------------------------------------------------------------------------------------

    async def _offers(self, client: FetchClient, peers: Sequence[NodeId]) -> list[CheckpointOffer]:
        """Returns the offers of all peers, each peer's newest first."""
        listed = await asyncio.gather(*(self._list(client, peer) for peer in peers))
        return [offer for offers in listed for offer in offers]

    async def _list(self, client: FetchClient, peer: NodeId) -> list[CheckpointOffer]:
        try:
            fields = (await ask(client, peer, STATE, ["list"], TIMEOUT_MS)).fields
            offers = []
            for name, index, term, header_crc in fields:
                if int(index) + 1 < self._log.first_index:
                    self._refuse(
                        f"checkpoint {name} of {node_object(self._group_id, peer)} is older than this node's log"
                    )
                    continue
                offers.append(CheckpointOffer(peer, str(name), self._fits(AppliedMark(term, index, 0, 0, header_crc))))
        except FetchError as error:
            self._refuse(str(error))
        except (ValueError, TypeError) as error:
            self._refuse(f"the list of {node_object(self._group_id, peer)} cannot be read: {error}")
        else:
            return offers
        return []

    def _fits(self, mark: AppliedMark) -> bool:
        if not self._log.first_index - 1 <= mark.index <= self._log.tail.index:
            return False
        return is_of_log(self._log, mark) is not False

    # --- the copy -----------------------------------------------------------------------------------------------------

    async def _take(self, client: FetchClient, offer: CheckpointOffer) -> Checkpoint:
        """Copies an offered checkpoint, adds it to this node's checkpoints, and returns it. If this log does not
        contain the checkpoint's last entry, extends the log first, once all files are here and sound."""
        peer, name = offer.peer, offer.name
        folder = self._checkpoints.path / FETCHED
        copy = CheckpointCopy(self._fs, self._count_rows, folder, self._group_id, client, at_once)
        manifest = await copy.manifest(peer, name)
        if manifest.mark.index + 1 < self._log.first_index:
            raise ValueError(f"checkpoint {name} is older than this node's log")
        await copy.run(peer, manifest)
        logger.warning(
            "checkpoint %s fetched from %s, %d bytes", name, node_object(self._group_id, peer), manifest.size
        )
        note = f"checkpoint {name} was fetched from {node_object(self._group_id, peer)}"
        if not self._fits(manifest.mark):
            note += await self._forward(client, peer, manifest.mark)
        return self._checkpoints.adopt(folder, manifest._replace(peer=peer, note=note))

    async def _forward(self, client: FetchClient, peer: NodeId, mark: AppliedMark) -> str:
        done = await LogForward(self._directory, client, peer, self._committed).run(mark)
        if not self._fits(mark):
            raise FrameError(f"the log does not lead to entry {mark.index} of {node_object(self._group_id, peer)}")
        text = f", and with it entries {done.first}..{done.last} of the log, which ended at {done.ended}"
        cut = f"; what this node had from {done.first} on was never committed" if done.ended >= done.first else ""
        return text + cut


async def restore_from_peers(config: Config, environment: Environment, lost: StateLostError) -> None:
    """Fetches a checkpoint from peers, so that the node finds one when it is opened the next time. Nothing else of this
    node runs meanwhile.

    Raises StateLostError, with the text of `lost` and the answers of the peers, if no peer has a checkpoint, or if this
    node's disk fails. Does not raise for a missing checkpoint if the node's state has wrong rows (WRONG_ROWS): the
    answers are recorded, and the next opening decides whether to use the node's own checkpoint.
    """
    fs = environment.fs
    directory = open_node_dir(fs, Path(config.node.data_dir))
    try:
        membership = newest_above(directory.log, -1) or memberships.of_genesis(directory.log.genesis)
        known = {node: tried for node, tried in peer_addresses([membership], config).items() if tried}
        transport = PeerTransport(
            _handshake(directory, membership),
            known,
            (config.peer.bind, config.peer.port),
            keyring=load_keys(fs, config),
            entropy=environment.entropy,
            levels=PeerLevels(environment.level),
        )
        run = load_run(fs, directory.path, directory.identity.group_id)
        peers = [node for node in membership.voter_ids if node != config.node_id and node in known]
        fetch = StateFetch(fs, directory, run.synced_index if run else -1, environment.count_rows)
        async with early_client(transport, directory.identity.group_id) as client:
            taken = await fetch.run(client, peers)
            snapshot = None if taken else await _snapshot(environment, directory, client, peers)
        said = "; ".join(fetch.refusals) or "there is none"
        asked = snapshot is None and note_answer(fs, directory.path, taken, said)
    except StorageError as error:
        raise StateLostError(f"{lost}\n{error}") from error
    finally:
        directory.close(clean=True)  # everything that was appended is on disk
    if taken is None and snapshot is None and not asked:
        raise StateLostError(f"{lost}\nNo peer could help: {said}.")


async def _snapshot(
    environment: Environment, directory: NodeDir, client: FetchClient, peers: Sequence[NodeId]
) -> Snapshot | None:
    """Fetches a checkpoint above the end of this log, with the log that leads to it, and records it for the next
    opening. Returns None if no peer has one."""
    where = Where(environment.fs, directory.path, directory.identity.group_id, environment.count_rows)
    progress = InstallProgress(InstallMetrics(), asyncio.get_running_loop().time, directory.identity.group_id)
    least = directory.log.tail.index + 1
    snapshot = await SnapshotTake(where, client, at_once, progress, at_least=lambda: least).run(peers)
    if snapshot is not None:
        snapshot.commit(where, environment.clock.wall_ms())
    return snapshot


def note_answer(fs: FileSystem, directory: Path, taken: Checkpoint | None, said: str) -> bool:
    """Records for the next opening whether peers supplied a checkpoint in place of a state with wrong rows. Returns
    False if the state has another fault than wrong rows. Raises StorageError."""
    known = suspect_state.suspicion_of(fs, directory)
    if known is None or known.sound_index is None:
        return False
    try:
        suspect_state.peers_were_asked(fs, directory, taken.path.name if taken else "", said)
    except OSError as error:
        raise storage_error(fs, "writing", directory / suspect_state.SUSPECT, error) from error
    return True


def _handshake(directory: NodeDir, members: memberships.Membership) -> Membership:
    """Returns this node's identity and the members' uuids in the form that handshakes with peers need."""
    identity = directory.identity
    return Membership(
        str(identity.cluster_uuid),
        identity.group_id,
        identity.node_id,
        str(identity.node_uuid),
        {node_id: str(node_uuid) for node_id, node_uuid in members.node_uuids.items()},
    )
