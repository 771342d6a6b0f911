"""Logs slow requests: which request, of which client, how long it took, and the stage that was slow.

Sends are examined once per entry, any other request when it is answered. At most one line a second is logged, with the
number of requests that got no line. All slow requests are counted.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Protocol

from cluster.replication.hot_spots import STRIDE, HotSpots
from cluster.replication.outcome import Outcome
from cluster.replication.pending_requests import PendingEntry
from statemachine.broker_state import BrokerState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cluster.config.config import Config
    from cluster.replication.metrics import ModeMetrics
    from cluster.runtime.context import NodeContext
    from cluster.runtime.figures.stage_times import StageTimes


logger = logging.getLogger(__name__)

LINE_EVERY_MS = 1000
ENTRY_STAGES = ("queue", "sync", "majority", "apply")
"""The stages of a write on the leader. queue: from receipt, or the end of QUOTA, until it is proposed. sync:
until it is on the leader's own disk. majority: until it is committed. apply: until it is applied and answered."""
QUOTA = "quota"
"""The stage of a send that waited for a quota: from receipt until it might go on."""
LEADER = "leader"
"""The stage of a request that a node held to forward it to the leader: from its arrival until the node no longer held
it. Any other request that makes no entry has the stage of its verb (`cluster.requests.verb.Stage`)."""
TOLD = ("topic", "consumerGroup", "producerGroup", "group")
"""The header fields that name the topic or group of a request. The log line contains their values."""


class AnsweredRequest(Protocol):
    """An answered request, with the attributes that the log of slow requests needs."""

    code: int

    @property
    def name(self) -> str:
        """The name of its verb."""

    @property
    def stage(self) -> str:
        """The stage in which a request of that verb spends its time, unless it makes an entry."""

    @property
    def ext(self) -> dict[str, str]:
        """The ext fields of the request's header."""

    @property
    def client(self) -> tuple[str, int]:
        """The ip and port of the client that sent the request."""


class RequestFigures(Protocol):
    """The metrics of requests (`cluster.requests.request_metrics`)."""

    @property
    def sends(self) -> str:
        """The name under which all sends are logged and counted, because one entry may contain sends of several
        verbs."""

    def answered(self, code: int, response: int, seconds: float) -> None:
        """Counts a request of that code that was answered after that many seconds."""

    def sent(self, outcome: Outcome, seconds: float, sends: int) -> None:
        """Counts the sends of one entry."""

    def slow(self, name: str, stage: str, requests: int) -> None:
        """Counts slow requests of one verb, which spent most of their time in this stage."""


class SlowRequests:
    """Finds slow requests, logs and counts them. Event loop only."""

    def __init__(
        self, config: Config, clock_s: Callable[[], float], stages: StageTimes, figures: RequestFigures | None
    ) -> None:
        """`clock_s`: returns monotonic seconds. `figures`: the metrics; None counts nothing."""
        self.clock_s = clock_s
        self._stages = stages
        self._figures = figures
        self._sends = "sends" if figures is None else figures.sends
        self.bound_ms = math.inf
        """The milliseconds from which on a request is slow; infinite if no request counts as slow. Callers of `settled`
        and `passed_on` compare with it first."""
        self._entry: dict[str, float] | None = None
        """The stages, with their milliseconds, of the slow entry whose commands are being answered; None if there is
        none."""
        self._next_ms = 0.0
        self._left_out = 0
        self.reload(config)

    def reload(self, config: Config) -> None:
        """Applies changed bounds."""
        self.bound_ms = config.log_output.slow_request_ms or math.inf

    # --- sends and commands: once per entry --------------------------------------------------------------------------

    def settled(self, waiter: PendingEntry, outcome: Outcome, sends: int, now_ms: float) -> None:
        """Examines an entry of which `sends` sends, and the callers of its commands, get `outcome` at `now_ms`
        (monotonic milliseconds). The callers are answered next (`answered`); then `told` is called."""
        if now_ms - waiter.arrived_ms < self.bound_ms:
            return
        stages = self._stages_of(waiter, waiter.arrived_ms, now_ms)
        if not waiter.sends:
            self._entry = stages
            return
        first = waiter.sends[0]
        self._slow(
            self._sends,
            stages,
            sends,
            now_ms,
            {
                "client": _address(getattr(first.connection, "peer_address", None)),  # the broker's copies have none
                "topic": first.slot.name,
                "requests": sends,
                "term": waiter.id.term,
                "index": waiter.id.index,
                "outcome": outcome.name.lower(),
            },
        )

    def told(self) -> None:
        """Ends the examination of an entry: all its requests have been answered."""
        self._entry = None

    def _stages_of(self, waiter: PendingEntry, arrived_ms: float, now_ms: float) -> dict[str, float]:
        """Returns the milliseconds that each stage of an entry took. A stage that has not ended gets all the time since
        the end of the stage before it."""
        synced_ms, committed_ms = self._stages.of(waiter.id.index)
        ended, spent = arrived_ms, dict[str, float]()
        paced_ms = max([send.paced_ms for send in waiter.sends if send.received_ms <= arrived_ms], default=0)
        if paced_ms:
            ended = min(max(paced_ms, arrived_ms), now_ms)
            spent[QUOTA] = ended - arrived_ms
        for name, end_ms in zip(ENTRY_STAGES, (1000 * waiter.proposed_s, synced_ms, committed_ms, now_ms), strict=True):
            until = now_ms if end_ms is None else min(max(end_ms, ended), now_ms)
            spent[name] = until - ended
            ended = until
        return spent

    # --- all other requests ------------------------------------------------------------------------------------------

    def answered(self, request: AnsweredRequest, response: int, arrived_s: float) -> None:
        """Examines a request that came at `arrived_s` (monotonic seconds) and is answered now. `arrived_s` is infinite
        for a pull that was held, which never counts as slow."""
        now_s = self.clock_s()
        seconds = now_s - arrived_s
        if seconds < 0:
            return
        if self._figures is not None:
            self._figures.answered(request.code, response, seconds)
        if 1000 * seconds >= self.bound_ms:
            stages = self._entry or {request.stage: 1000 * seconds}
            more = {"client": _address(request.client), **_objects(request.ext), "response_code": response}
            self._slow(request.name, stages, 1, 1000 * now_s, more)

    def passed_on(
        self, name: str, client: tuple[str, int], ext: Mapping[str, str], took_ms: float, now_ms: int
    ) -> None:
        """Logs a request that this node held for a leader and has answered or given up, `took_ms` milliseconds after
        its arrival."""
        self._slow(name, {LEADER: took_ms}, 1, now_ms, {"client": _address(client), **_objects(ext)})

    # --- the line ----------------------------------------------------------------------------------------------------

    def _slow(self, name: str, stages: dict[str, float], requests: int, now_ms: float, more: dict[str, object]) -> None:
        stage = max(stages, key=stages.__getitem__)
        if self._figures is not None:
            self._figures.slow(name, stage, requests)
        if now_ms < self._next_ms:
            self._left_out += 1
            return
        self._next_ms = now_ms + LINE_EVERY_MS
        left_out, self._left_out = self._left_out, 0
        total_ms = sum(stages.values())
        fields = {
            "request_code": name,
            **more,
            "total_ms": round(total_ms),
            "slow_stage": stage,
            **{f"{name}_ms": round(spent) for name, spent in stages.items()},
        }
        logger.warning(
            "slow: %s took %.0f ms, %.0f ms of it in stage %s%s",
            fields["request_code"],
            total_ms,
            stages[stage],
            stage,
            f"; {left_out} more were slow since the line before" if left_out else "",
            extra=fields,
        )


def _address(peer: tuple[str, int] | None) -> str:
    return "" if peer is None else f"{peer[0]}:{peer[1]}"


def _objects(ext: Mapping[str, str]) -> dict[str, object]:
    """Returns the topic and the group that the header names, each cut to 255 characters, under the keys "topic" and
    "group". A key is absent if the header does not name it."""
    found: dict[str, object] = {}
    for name in TOLD:
        if name in ext:
            found.setdefault("topic" if name == "topic" else "group", ext[name][:255])
    return found


class ProposalFigures(Protocol):
    """The metrics of proposals, as `cluster.node.metrics` keeps them."""

    @property
    def requests(self) -> RequestFigures:
        """The metrics of requests."""

    @property
    def modes(self) -> ModeMetrics:
        """The metrics of early answers."""

    def proposed(self, messages: int, size_bytes: int) -> None:
        """Counts one proposed entry; `messages` is 0 for a COMMAND entry."""

    def settled(self, outcome: Outcome, sends: int, calls: int, seconds: float) -> None:
        """Counts one entry whose outcome is known, or whose requests timed out. So many sends and calls (commands of
        one caller) waited for it."""

    def messages_in(self, topic: str, messages: int, size_bytes: int) -> None:
        """Counts messages of one topic that were acknowledged; called once per topic and entry."""

    def learnt(self, outcome: str, messages: int) -> None:
        """Counts messages of a topic with learnt limits. `outcome`: "within" or "over" the limits, or "cut" for
        messages that were refused in an overload because their topic was over its limits."""


class ProposalMetrics:
    """Counts and times proposed entries, with two clock calls per entry. Does nothing if there are no metrics."""

    def __init__(self, metrics: ProposalFigures | None, context: NodeContext, state: BrokerState) -> None:
        self._metrics = metrics
        self._clock = context.clock
        self._state = state
        requests = None if metrics is None else metrics.requests
        self.slow = SlowRequests(context.config, context.clock.monotonic_s, context.stages, requests)
        self.hot = HotSpots(context.clock.monotonic_ms())
        self._until_look = STRIDE
        """The number of acknowledged messages until the next one that `hot` samples."""

    def reload(self, config: Config) -> None:
        """Applies changed bounds."""
        self.slow.reload(config)

    def proposed(self, pending: PendingEntry, messages: int, size_bytes: int) -> None:
        """Counts an entry that has got its place in the leader's log."""
        if self._metrics is not None:
            pending.proposed_s = self._clock.monotonic_s()
            self._metrics.proposed(messages, size_bytes)

    def settled(self, waiter: PendingEntry, outcome: Outcome, sends: int, calls: int) -> float:
        """Counts an entry that is decided, or of which `sends` sends and `calls` calls are answered with UNKNOWN.
        Returns the seconds since its proposal; 0.0 if there are no metrics."""
        metrics = self._metrics
        if metrics is None:
            return 0.0
        now_s = self._clock.monotonic_s()
        took_s = now_s - waiter.proposed_s
        metrics.settled(outcome, sends, calls, took_s)
        if sends:
            metrics.requests.sent(outcome, took_s, sends)
        if 1000 * now_s - waiter.arrived_ms >= self.slow.bound_ms:
            self.slow.settled(waiter, outcome, sends, 1000 * now_s)
        if outcome is Outcome.OK and waiter.built is not None:
            names, until_look = self._state.topics_by_id, self._until_look
            for cursor, _, count, size in waiter.built.touched:
                topic = names.get(cursor.topic_id)
                if topic is not None:
                    metrics.messages_in(topic.name, count, size)
                until_look -= count
                if until_look < 0:  # saves a call for messages that are not examined
                    until_look = self.hot.look(cursor, until_look, waiter.sends)
            self._until_look = until_look
        return took_s
