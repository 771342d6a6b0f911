"""Makes the services that deliver waiting messages, with their lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.broker.timers.timer_delivery import TimerDelivery
from cluster.broker.transactions.staged_delivery import StagedDelivery
from cluster.broker.transactions.staged_writes import StagedWriteRequests

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.broker.sends.send_service import Sends
    from cluster.broker.services import Services
    from cluster.broker.timers.due_reads import DueAsk, DueFound, DueReads
    from cluster.broker.transactions.staged_delivery import StagedAsk, StagedFound, StagedReads
    from cluster.replication.proposals import Proposals
    from cluster.runtime.context import NodeContext
    from cluster.runtime.lanes import LaneRunner


def timers_of(context: NodeContext, services: Services, proposals: Proposals) -> TimerDelivery:
    """Makes the service that delivers scheduled messages."""

    def lane(reads: DueReads, answered: Callable[[list[DueFound]], None]) -> LaneRunner[DueAsk]:
        return context.environment.runner("timers", reads, context.loop, answered, context.fail)

    return TimerDelivery(services, proposals, lane)


def staged_of(
    context: NodeContext, services: Services, proposals: Proposals, sends: Sends[Any]
) -> tuple[StagedDelivery, StagedWriteRequests]:
    """Makes the service that finishes attempts at staged writes, and the service that takes their requests."""

    def lane(reads: StagedReads, answered: Callable[[list[StagedFound]], None]) -> LaneRunner[StagedAsk]:
        return context.environment.runner("staged", reads, context.loop, answered, context.fail)

    return StagedDelivery(services, proposals, context.alarms, lane), StagedWriteRequests(
        services, proposals, sends.split_batch
    )
