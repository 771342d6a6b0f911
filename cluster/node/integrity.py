"""Makes the services of a node that repair, install, compare and scrub its log and its state."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.repair.consistency import Consistency
from cluster.repair.install_service import InstallService
from cluster.repair.repair_service import Repairs, moves_of
from cluster.runtime.service_lifecycle import PartList
from cluster.state.scrub import Scrubber
from cluster.state.suspect_state import give_up

if TYPE_CHECKING:
    from cluster.node.peers import Peers
    from cluster.runtime.context import NodeContext
    from cluster.runtime.listeners import Signal
    from cluster.runtime.read_leases import Leases
    from cluster.state.node_storage import NodeStorage

logger = logging.getLogger(__name__)


class Integrity:
    """Keeps the log and the state of a node equal to those of the other members. Event loop only."""

    def __init__(
        self, context: NodeContext, storage: NodeStorage, peers: Peers, leases: Leases, again: Signal[[str]]
    ) -> None:
        """Makes the services. `again` makes the process close the node and open it again."""
        self._context, self._storage = context, storage
        self.parts = parts = PartList()
        self.repairs = parts.of(Repairs(context, storage.directory, peers.transport))
        self.moves = moves_of(peers.membership, peers.transport, self.repairs, peers.tls.http_dialling())
        self.installs = parts.of(InstallService(context, storage, self.repairs, leases, restart=again))
        self.consistency = parts.of(Consistency(context, storage.state, self.repairs, mark_suspect=self._mark_suspect))
        self.scrubber = parts.of(
            Scrubber(
                context.config.node_id,
                storage.directory.path,
                config=context.config.consistency,
                wall_ms=context.clock.wall_ms,
                report=self.repairs.report,
                on_bad_rows=self.consistency.bad_checkpoint,
            )
        )

    def _mark_suspect(self, why: str, sound_index: int) -> None:
        storage, now_ms = self._storage, self._context.clock.wall_ms()
        moved = give_up(self._context.fs, storage.directory.path, storage.checkpointer, why, sound_index, now_ms)
        logger.error("the state is discarded, and so are the checkpoints %s", ", ".join(moved) or "(none)")
