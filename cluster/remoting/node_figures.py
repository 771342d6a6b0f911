"""Figures of a node for mqadmin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.runtime.host.versions import versions
from raftmq_wire.codec import VERSION_SENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.broker.services import Services
    from cluster.runtime.clock import Clock
    from cluster.runtime.figures.rates import Rates


class NodeFigures:
    """Figures of one node. Event loop only."""

    def __init__(
        self, services: Services, clock: Clock, used_percent: Callable[[], float], rates: Rates, started_ms: int
    ) -> None:
        """`used_percent`: of the disk; `started_ms`: on the monotonic clock."""
        self._services = services
        self._clock = clock
        self._used_percent = used_percent
        self._rates = rates
        self._started_ms = started_ms

    def by_name(self) -> dict[str, str]:
        """Returns what mqadmin's `clusterList` and `brokerStatus` show, by RocketMQ's names. "N", as in RocketMQ,
        stands for what does not exist here: sends and pulls wait in no queue of threads, and nothing locks the page
        cache."""
        uptime_ms = self._services.monotonic_ms() - self._started_ms
        given = self._rates.given()
        rates = {
            "putTps": self._rates.taken(),
            "getTransferredTps": given,
            "getTransferedTps": given,
        }  # 4.9 spells it so
        waits = [
            f"{pool}ThreadPoolQueue{what}" for pool in ("send", "pull", "ack") for what in ("Size", "HeadWaitTimeMills")
        ]
        return {
            "bootTimestamp": str(self._clock.wall_ms() - uptime_ms),
            "brokerActive": "true" if self._services.writes_open() else "false",
            "brokerVersion": str(VERSION_SENT),
            "brokerVersionDesc": f"RaftMQ {versions()['raftmq']}",
            "commitLogDiskRatio": f"{self._used_percent() / 100:.3f}",
            "pageCacheLockTimeMills": "N",
            "runtime": f"[ {uptime_ms // 1000} seconds ]",
            "timerCongestNum": str(self._services.state.timers.counts.pending),
            **{name: " ".join(f"{rate:.2f}" for rate in each) for name, each in rates.items()},
            **dict.fromkeys(waits, "N"),
        }
