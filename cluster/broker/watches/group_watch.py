"""Finds consumer groups without consumers, groups whose members want different topics, and queues of a group that make
no progress. The leader checks them in slices.

Consumers send heartbeats to every node, so the leader knows the connected ones. The time of a group's last commit in a
queue is not in the log; it is what this node has observed since it began to watch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.broker.groups.group_lag import QueueLag, each_lag
from cluster.broker.name_rules import DEAD_LETTER_PREFIX, RETRY_PREFIX
from cluster.runtime.findings import Code, Condition
from cluster.runtime.service_lifecycle import Part
from cluster.runtime.turns.walk import Walk

if TYPE_CHECKING:
    from cluster.broker.services import Services

GROUP_WITHOUT_CONSUMERS: Final = Code("group_without_consumers", "warning", "raftmq group list")
QUEUE_STUCK: Final = Code("queue_stuck", "warning", "raftmq group list")
OFFSET_BEYOND_END: Final = Code("offset_beyond_end", "warning", "raftmq group list")
GROUP_TOPICS_DIFFER: Final = Code("group_topics_differ", "warning", "raftmq group list")
QUEUES_PER_LOOK: Final = 500
"""The number of queues that one look checks: some 5 ms of the event loop. The next look continues behind them."""
WATCHED_MAX: Final = 10_000
"""The most queues of one group that are watched."""
GROUPS_TOLD_MAX: Final = 200
"""The most groups that have findings at a time."""
NAMED_MAX: Final = 3
"""The most queues of one group that have a finding of their own."""
TOPICS_HOLD_MS: Final = 35_000
"""Milliseconds for which members must want different topics before that is a finding. Each client sends a heartbeat
every 30 s."""
BEYOND_HOLD_MS: Final = 3_000
"""Milliseconds for which an offset must lie beyond the queue's end before that is a finding. When entries are applied
together, their offsets are visible before the new ends of queues."""
_SYSTEM: Final = ("CID_RMQ_SYS_", "CID_ONSAPI_", "TOOLS_CONSUMER")


class Consumption(NamedTuple):
    """A group's progress in one queue, as this node has observed it."""

    committed: int | None
    since_ms: int
    """The monotonic time, in milliseconds, of the first look, or of the last one that found a changed offset or no
    lag."""
    changed_ms: int | None
    """The monotonic time, in milliseconds, of the last look that found a changed offset; None if there was none."""


class GroupWatch:
    """Finds consumer groups that make no progress. Event loop only."""

    def __init__(
        self,
        services: Services,
        *,
        member_count: Callable[[str], int],
        unread: Callable[[str], Mapping[str, Sequence[str]]],
        wall_ms: Callable[[], int],
        queues_per_look: int = QUEUES_PER_LOOK,
        watched_max: int = WATCHED_MAX,
        groups_told_max: int = GROUPS_TOLD_MAX,
    ) -> None:
        """`member_count` returns the number of a group's connected consumers. `unread` returns topic -> members that do
        not read their queues of it (`Members.unread`)."""
        self._services = services
        self._queues_per_look, self._watched_max = queues_per_look, watched_max
        self._groups_told_max = groups_told_max
        self._member_count, self._unread, self._wall_ms = member_count, unread, wall_ms
        self._seen: dict[str, dict[tuple[str, int], Consumption]] = {}
        self._conditions: dict[str, list[Condition]] = {}
        self._walk = Walk(self._judge_all)
        self._now_ms = 0
        """The monotonic time, in milliseconds, of the present look."""

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="group watch", findings=lambda: self.look(self._services.monotonic_ms()))

    def look(self, monotonic_ms: int) -> Iterator[Condition]:
        """Checks some groups, and yields the conditions of all groups. Yields nothing unless this node leads."""
        if not self._services.writes_open():
            self._seen.clear()
            self._conditions.clear()
            self._walk.forget()
            return
        self._now_ms = monotonic_ms
        self._walk.go_on(self._queues_per_look)
        groups = self._services.state.groups
        for name, told in islice(self._conditions.items(), self._groups_told_max):
            if name in groups:
                yield from told

    def _judge_all(self) -> Iterator[None]:
        """Checks one group after the other; yields after each queue."""
        state, groups = self._services.state, self._services.state.groups
        for gone in list(self._seen):
            if gone not in groups:
                del self._seen[gone]
                self._conditions.pop(gone, None)
                yield
        for name, config in groups.items():
            if name.startswith(_SYSTEM):
                continue
            yield
            lags: list[QueueLag] = []
            for each in islice(each_lag(state, config), self._watched_max):
                lags.append(each)
                yield
            if name in groups:
                found = self._judge(name, lags, self._now_ms)
                self._conditions.pop(name, None)
                if found:
                    self._conditions[name] = found

    def committed_age_ms(self, group: str, topic: str, queue_id: int, monotonic_ms: int) -> int | None:
        """Returns the milliseconds since the group's offset in that queue was last seen to change; None if this node
        has seen no change of it."""
        seen = self._seen.get(group, {}).get((topic, queue_id))
        return monotonic_ms - seen.changed_ms if seen is not None and seen.changed_ms is not None else None

    def _judge(self, name: str, lags: list[QueueLag], now_ms: int) -> list[Condition]:
        before = self._seen.get(name, {})
        seen = self._seen[name] = {}
        for each in lags:
            key = each.topic, each.queue_id
            was = before.get(key)
            if was is None:
                was = Consumption(each.committed, now_ms, None)
            elif was.committed != each.committed:
                was = Consumption(each.committed, now_ms, now_ms)
            elif not each.lag:
                was = was._replace(since_ms=now_ms)
            seen[key] = was
        beyond = [self._beyond(name, each) for each in lags if each.beyond_end][:NAMED_MAX]
        return [*beyond, *self._late(name, lags, now_ms)]

    def _late(self, name: str, lags: list[QueueLag], now_ms: int) -> list[Condition]:
        """Returns the conditions of a group that makes no progress. Hidden queues are left out, because they are a
        condition of their topic."""
        seen, health = self._seen[name], self._services.config.health
        behind = [
            each
            for each in lags
            if each.lag and not each.hidden and not each.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        ]
        apart = self._apart(name)
        if not behind:
            return apart
        lag = sum(each.lag for each in behind)
        if not self._member_count(name):
            says = f"group {name} has {lag} messages to consume, and no consumer is connected"
            do_now = f"raftmq group describe {name}"
            return [Condition(GROUP_WITHOUT_CONSUMERS, f"group {name}", says, do_now, hold_ms=health.group_idle_ms)]
        if apart:  # this is why the group makes no progress
            return apart
        stuck = [each for each in behind if now_ms - seen[each.topic, each.queue_id].since_ms >= health.queue_stuck_ms]
        return [
            self._stuck(name, each, now_ms - seen[each.topic, each.queue_id].since_ms) for each in stuck[:NAMED_MAX]
        ]

    def _beyond(self, name: str, each: QueueLag) -> Condition:
        return Condition(
            OFFSET_BEYOND_END,
            f"queue {each.topic}/{each.queue_id} of {name}",
            f"group {name} has committed offset {each.committed} in queue {each.queue_id} of {each.topic}, which ends "
            f"at {each.max_offset}: its lag shows 0, and it does not get the next {each.beyond_end} messages",
            f"raftmq group describe {name}"  # a hidden queue cannot be reset
            if each.hidden
            else f"raftmq group reset {name} --topic {each.topic} --queue {each.queue_id} --to latest",
            hold_ms=BEYOND_HOLD_MS,
        )

    def _apart(self, name: str) -> list[Condition]:
        """Returns the condition of a group some of whose topics are divided among members that do not want them."""
        unread = self._unread(name)
        if not unread:
            return []
        who = "; ".join(f"{topic}: not wanted by {', '.join(clients)}" for topic, clients in unread.items())
        says = (
            f"members of group {name} want different topics, and not all of them can divide queues by topic: queues "
            f"that fall to a member that does not want their topic are read by nobody ({who})"
        )
        do_now = f"raftmq group describe {name}"
        return [Condition(GROUP_TOPICS_DIFFER, f"group {name}", says, do_now, hold_ms=TOPICS_HOLD_MS)]

    def _stuck(self, name: str, each: QueueLag, stands_ms: int) -> Condition:
        at = "no offset" if each.committed is None else f"offset {each.committed}"
        return Condition(
            QUEUE_STUCK,
            f"queue {each.topic}/{each.queue_id} of {name}",
            f"group {name} has consumers and has committed nothing in queue {each.queue_id} of {each.topic} for "
            f"{stands_ms // 1000} s: it stands at {at}, {each.lag} messages are behind",
            f"raftmq group describe {name}",
            since_ms=self._wall_ms() - stands_ms,
        )
