"""Counters and gauges of a node that several services update, for its metrics and its status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.broker.broker_metrics import DeadLetterMetrics
from cluster.replication.metrics import AppendMetrics, HaMetrics
from cluster.replication.traffic_metrics import TrafficMetrics
from cluster.requests.request_metrics import RequestMetrics
from cluster.runtime.figures.counters import Rates, Totals
from cluster.runtime.service_lifecycle import Closing, Part, Starting
from cluster.runtime.turns.turn_watch import LoopLagSampler

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState


class Meters:
    """The meters that several services of the node share. They are made before these services."""

    def __init__(self, state: BrokerState, show_ha: Callable[[HaMetrics], None], given: Callable[[], int]) -> None:
        """Makes the meters. `show_ha` sets the gauges of replication. `given` returns the number of messages delivered
        to consumers."""
        self.appends = AppendMetrics()
        self.loop_lag = LoopLagSampler(asyncio.get_running_loop())
        self.requests = RequestMetrics()
        self.traffic = TrafficMetrics(state, self.requests, HaMetrics(show_ha))
        self.rates = Rates(lambda: Totals(self.traffic.messages_taken, given()))
        self.parts = (
            Part(name="rates", tick=self.rates.tick),
            Part(
                name="loop lag",
                start=self.loop_lag.start,
                starts=Starting.WORK,
                close=self.loop_lag.stop,
                closes=Closing.WORK,
                metrics=(self.loop_lag.metrics,),
            ),
            Part(
                name="meters",
                metrics=(
                    self.requests,
                    self.traffic,
                    self.traffic.ha,
                    DeadLetterMetrics(self.traffic.stored),
                    self.appends,
                ),
            ),
        )
