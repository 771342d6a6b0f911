"""Makes the services of a node that back up, trim, index and tier its stored data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.backup.service import Backups
from cluster.broker.reads.log_reads import read_intact
from cluster.retention.assembly import retention_of
from cluster.runtime.service_lifecycle import PartList
from cluster.tier.tier_assembly import expiry_of, index_files_of, reading_part, scrubs_of, tier_of

if TYPE_CHECKING:
    from cluster.node.serving import Serving
    from cluster.runtime.context import NodeContext
    from cluster.runtime.read_leases import Leases
    from cluster.state.node_storage import NodeStorage


class Keeping:
    """The services that decide for how long, and where, the log is kept: retention, backups and the tier. Event loop
    only."""

    def __init__(self, context: NodeContext, storage: NodeStorage, serving: Serving, leases: Leases) -> None:
        services, access = serving.services, serving.tier_access
        self.parts = parts = PartList()
        self.backups = Backups(
            context.config,
            storage.directory.identity,
            storage.kv,
            context.alarms,
            context.clock.wall_ms,
            leases,
            serving.confirm_applied,
        )
        if context.environment.serves_admin:
            parts.of(self.backups)
        self.retention = parts.of(
            retention_of(
                context,
                storage,
                serving.proposals,
                leases,
                writes_open=services.writes_open,
                read_intact=read_intact,
                report_damage=services.report_damage,
                tier_known=lambda: self.tier.known,
            )
        )
        self.index_files = index_files = parts.of(index_files_of(context, storage))
        expiry = expiry_of(self.retention, storage.state, access)
        self.tier = parts.of(tier_of(context, storage, services, leases, index_files, access, expiry))
        parts.append(reading_part(access))
        self.tier_scrubs = scrubs_of(context, storage, services, access, self.tier)
        if self.tier_scrubs is not None:
            parts.of(self.tier_scrubs)
