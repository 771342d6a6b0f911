"""Changes and inspects consumer groups for administrators. Leader only. Before they read, callers wait for a ReadIndex
round: a majority then confirms that this node leads."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cluster.broker.groups.group_lag import QUEUES_PER_STEP, queue_lag, topics_of
from cluster.broker.name_rules import check_group_name, group_named, topic_named
from cluster.broker.new_names import check_new_group
from cluster.broker.refusal import Reason, Refused
from cluster.broker.retries import check_policy
from cluster.runtime.request_limits import ANSWER_QUEUES_MAX, QUEUES_MAX
from raftlog.work import ITEM_UNITS, charge
from statemachine.consuming.groups import PutGroup
from statemachine.levels import SETTINGS_LEVEL
from statemachine.removal_slices import DeleteGroup

if TYPE_CHECKING:
    from cluster.broker.groups.group_members import Members
    from cluster.broker.rights import Party
    from cluster.broker.services import Services
    from cluster.replication.outcome import Done
    from statemachine.broker_state import BrokerState
    from statemachine.topics.topics import TopicConfig

FIXED: Final[dict[str, tuple[str, object, str]]] = {
    "broker_id": ("brokerId", 0, "a group that keeps up reads from the leader"),
    "group_sys_flag": ("groupSysFlag", 0, "no flag of a group has a meaning here"),
    "attributes": ("attributes", {}, "RocketMQ knows no attribute of a group"),
}
"""Field of a group -> (its name in requests, the only value that is allowed, the reason). RocketMQ acts on other values
or refuses them; this broker has no such function."""
UNREAD: Final[dict[str, tuple[str, object]]] = {
    "consume_from_min_enable": ("consumeFromMinEnable", True),
    "consume_message_orderly": ("consumeMessageOrderly", False),
    "consume_timeout_minute": ("consumeTimeoutMinute", 15),
}
"""Field of a group that RocketMQ's brokers do not use either -> (its name in requests, its default). mqadmin sets some
of these fields unasked, so they are stored and shown. The answer says that they have no effect. Source: the users of
SubscriptionGroupConfig at 8fc57f14; only its gRPC proxy reads consumeMessageOrderly."""


def put_group(services: Services, config: dict[str, Any], done: Done, party: Party, *, if_absent: bool = False) -> None:
    """Creates the group `config["name"]`. If it exists, changes the given fields, or nothing if `if_absent`. Calls
    `done` when the change is applied or its outcome is unknown. `party`: the user and address that ask for it. Raises
    Refused if the name or a setting is not allowed, or if `party` may not create another group now."""
    name = config["name"]
    check_group_name(name)
    check_settings(services.state, config)
    if name not in services.state.groups:
        check_new_group(services.creations, name, party)
    services.propose([PutGroup(config, if_absent)], done)


def check_settings(state: BrokerState, config: Mapping[str, Any]) -> None:
    """Checks the settings that a request of any protocol asks for a group. A setting that the group already has is
    never refused, because a request may repeat it. Raises Refused (INVALID), which names the field."""
    present = state.groups.get(config["name"])
    changed = {name: value for name, value in config.items() if present is None or getattr(present, name) != value}
    for field, (name, only, why) in FIXED.items():
        value = changed.get(field, only)
        if value != only:
            raise Refused(Reason.INVALID, f"{name} is {str(value)[:80]}, only {only} is allowed: {why}")
    queues = changed.get("retry_queue_nums", 0)
    if queues > QUEUES_MAX:
        remark = f"retryQueueNums is {queues}, at most {QUEUES_MAX} are allowed: a topic has no more queues"
        raise Refused(Reason.INVALID, remark)
    check_policy(changed.get("group_retry_policy", ""))


def without_effect(state: BrokerState, config: Mapping[str, Any]) -> str:
    """Returns a remark that names the settings in `config` that are stored but have no effect; "" if there are none."""
    said = [
        f"{name}={str(value).lower()} is kept and decides nothing: no RocketMQ broker reads it either"
        for field, (name, default) in UNREAD.items()
        if (value := config.get(field, default)) != default
    ]
    if state.level < SETTINGS_LEVEL and not config.get("consume_broadcast_enable", True):
        said.append(
            f"consumeBroadcastEnable=false counts if it is set again at level {SETTINGS_LEVEL}: raftmq upgrade finalize"
        )
    return "; ".join(said)


def delete_group(services: Services, name: str, done: Done, *, clean_offsets: bool) -> None:
    """Deletes a group, and with `clean_offsets` also its committed offsets."""
    services.propose([DeleteGroup(name, clean_offsets)], done)


def group_deleted(*, clean_offsets: bool, offsets: int | None = None) -> str:
    """Returns the text of the event when a group was deleted. `offsets`: the number of its committed offsets, None if
    unknown."""
    its = "its offsets" if offsets is None else f"its {offsets} offsets"
    return f"the group was deleted {'with' if clean_offsets else 'without'} {its}"


class GroupProgress(NamedTuple):
    """The progress of a group in one queue."""

    topic: str
    queue_id: int
    max_offset: int
    offset: int
    """The committed offset. It is the queue's first offset if that is higher, or if the group never committed. It may
    lie beyond the queue's end, as in RocketMQ, whose tools then show a negative difference."""
    store_ms: int
    """The store time of the last message before `offset`, in milliseconds; 0 if there is none."""


class GroupReads:
    """Reads the progress and the readers of consumer groups."""

    def __init__(self, services: Services, members: Members) -> None:
        self._services = services
        self._members = members

    def progress(self, group: str, topic: str = "") -> Iterator[GroupProgress]:
        """Returns an iterator over the progress of the group in each queue of the topics to which it subscribes or in
        which it has committed; only in the queues of `topic` if that is not "". Raises Refused if there is no such
        group, or if the iterator would have more than ANSWER_QUEUES_MAX items."""
        state = self._services.state
        config = group_named(state, group)
        offsets = state.offsets_by_topic(group)
        topics = [each for name, each in topics_of(state, config, offsets) if topic in ("", name)]
        if sum(each.read_queues for each in topics) > ANSWER_QUEUES_MAX:
            remark = f"group {group} reads more than {ANSWER_QUEUES_MAX} queues; ask for one topic"
            raise Refused(Reason.ERROR, remark)
        return (
            self._progress(each, queue_id, offsets.get(each.id, {}).get(queue_id))
            for each in topics
            for queue_id in range(each.read_queues)
        )

    def _progress(self, topic: TopicConfig, queue_id: int, offset: int | None) -> GroupProgress:
        state = self._services.state
        each = queue_lag(state, topic, queue_id, offset)
        until = min(each.stands_at, each.max_offset)
        last = state.fetch(topic.id, queue_id, until - 1, 1) if each.min_offset < until else []
        return GroupProgress(
            topic.name, queue_id, each.max_offset, each.stands_at, last[0].store_time_ms if last else 0
        )

    def readers(self, topic: str) -> Generator[None, None, list[str]]:
        """Returns the names of the groups that subscribe to the topic or have committed in it, sorted. Works in steps.
        Raises Refused if there is no such topic."""
        state = self._services.state
        config = topic_named(state, topic)
        groups = set()
        for group, each in state.groups.items():
            yield
            charge(ITEM_UNITS)
            if topic in each.subscriptions or (yield from self._committed(group, config)):
                groups.add(group)
        for group in list(self._members.consumers):
            yield
            charge(ITEM_UNITS)
            found = self._members.consumers.get(group)
            if found is not None and topic in found.subscriptions:
                groups.add(group)
        return sorted(groups)

    def _committed(self, group: str, topic: TopicConfig) -> Generator[None, None, bool]:
        stored = self._services.state.stored_queues(topic)
        for queue_id in range(stored):
            if queue_id % QUEUES_PER_STEP == 0:
                charge(min(QUEUES_PER_STEP, stored))
                yield
            if self._services.state.offset(group, topic.id, queue_id) is not None:
                return True
        return False
