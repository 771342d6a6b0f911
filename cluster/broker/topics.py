"""Creates, changes and deletes topics for administrators, on the leader. Also defines the values that a topic's
attributes may have."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cluster.broker.name_rules import check_no_system_topic, check_topic_name
from cluster.broker.new_names import check_new_topic
from cluster.broker.reads.tier_read_policy import ATTRIBUTE as TIER_READ
from cluster.broker.reads.tier_read_policy import LEVELS
from cluster.broker.refusal import Reason, Refused
from cluster.runtime.request_limits import QUEUES_MAX
from statemachine.cluster_wide.broker_groups import is_inactive
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import (
    ACK_LEVELS,
    BACKLOG_POLICIES,
    BACKLOG_POLICY,
    DEDUP_MODES,
    DERIVED_NAMES,
    RETENTION,
    RETENTION_DIGITS_MAX,
    CreateTopic,
    is_retention,
    living_place,
    no_further,
    place_in,
    placed_in,
)

if TYPE_CHECKING:
    from cluster.broker.rights import Party
    from cluster.broker.services import Services
    from cluster.placement.route_map import BrokerGroup, QueueCounts
    from cluster.replication.outcome import Done
    from statemachine.topics.topics import TopicConfig

RANGES = {"read_queues": (1, QUEUES_MAX), "write_queues": (1, QUEUES_MAX), "perm": (0, 7)}
"""Field of a topic -> (its least value, its greatest value)."""

ATTRIBUTE_VALUES = {
    "dedup": DEDUP_MODES,
    "ack.level": ACK_LEVELS,
    TIER_READ: LEVELS,
    "message.type": ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "UNSPECIFIED"),
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
    BACKLOG_POLICY: BACKLOG_POLICIES,
}
"""Topic attribute -> its allowed values. Other values are refused, because nothing implements what they would
promise."""

SPREAD_HOME = "spread.home"
"""The attribute of a topic that was given queues in further groups of brokers because it was hot: the numbers of those
in which it was before, with commas between them (docs/adr/0114)."""
_NUMBERS = re.compile(r"[0-9]{1,2}(,[0-9]{1,2}){0,63}")
OTHER_ATTRIBUTES = {RETENTION: rf"^[0-9]{{1,{RETENTION_DIGITS_MAX}}}$", SPREAD_HOME: f"^{_NUMBERS.pattern}$"}
"""Topic attribute -> a regular expression of its allowed values, for attributes with too many values to list."""

UNREAD_ATTRIBUTES = ("message.type",)
"""Attributes that RocketMQ's brokers do not use either, only its gRPC proxy. mqadmin's guides set them, so they are
stored and shown. The answer says that they have no effect."""


def without_effect(attributes: Mapping[str, str]) -> str:
    """Returns a remark that names the attributes that are stored but have no effect; "" if there are none."""
    said = [f"{name}={attributes[name]}" for name in UNREAD_ATTRIBUTES if name in attributes]
    return f"{', '.join(said)} is kept and decides nothing: no RocketMQ broker reads it either" if said else ""


class Topics:
    """Proposes changes of topics. The methods call `done` when a change is applied or its outcome is unknown."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def put(
        self,
        config: Mapping[str, Any],
        done: Done,
        *,
        if_absent: bool = False,
        author: str = "",
        party: Party | None = None,
        groups: Collection[int] | None = None,
        here: bool = False,
    ) -> None:
        """Creates the topic `config["name"]`. If it exists, changes the given fields, or nothing if `if_absent`. A new
        topic gets the configured number of queues if `config` does not say. `author`: the person who asks. `party`: the
        user and address whose quota a new topic counts against; None for no quota. `groups`: the groups of brokers in
        which the topic gets this number of queues each, in addition to those that it has; None for no further ones.
        `here`: True if the numbers of queues are meant for this node's group alone, whichever groups the topic is in.
        Raises Refused if a field is not allowed, if a quota allows no new topic now, or, with `here`, if the topic may
        not have queues in this group."""
        services, name = self._services, config["name"]
        self.check(config)
        if name not in services.state.topics:
            queues = services.config.topics.default_queues
            config = {"name": name, "read_queues": queues, "write_queues": queues, **config}
            if party is not None:
                check_new_topic(services.creations, name, party)
        if groups is not None:
            known = services.state.topics.get(name)
            read, write = _queues_in_each(config, known)
            rest = {field: value for field, value in config.items() if field not in ("read_queues", "write_queues")}
            config = {**rest, "place": place_in(known, groups, read, write)}
        elif here and services.state.broker_groups.by_number:
            self._check_here(name)
            config = placed_in(services.state.broker_groups.own, config, services.state.topics.get(name))
        services.propose([CreateTopic(config, if_absent)], done, author=author)

    def gather(self, name: str, groups: Collection[int], done: Done, *, author: str = "") -> None:
        """Makes the existing topic take new messages in these groups of brokers only. Its queues in other groups are
        read to their end and then removed (`cluster.broker.gathering`). Raises Refused (INVALID) for a system topic."""
        self.check({"name": name})
        topic = self._services.state.topics[name]
        place = [[group, topic.queues_of_groups[group][0], 0] for group in sorted(topic.written_groups - set(groups))]
        config = {"name": name, "place": place, "attributes": without_home(topic.attributes)}
        self._services.propose([CreateTopic(config, False)], done, author=author)

    def _check_here(self, name: str) -> None:
        """Raises Refused (NO_PERMISSION) if the topic may not have queues in this node's group of brokers."""
        groups, known = self._services.state.broker_groups, self._services.state.topics.get(name)
        has = known.queues_of_groups if known is not None else {}
        if why := no_further(groups.by_number, name, [groups.own], has):
            raise Refused(Reason.NO_PERMISSION, f"{why}; other groups of brokers do")

    def check(self, config: Mapping[str, Any]) -> None:
        """Checks the fields that a request of any protocol asks for a topic. A value that the topic already has is
        never refused, because a request over HTTP repeats it. Raises Refused (INVALID) if the name or another value is
        not allowed."""
        name = config["name"]
        check_topic_name(name, self._services.config.limits.topic_length_max)
        check_no_system_topic(name)
        present = self._services.state.topics.get(name)
        for field, (first, last) in RANGES.items():
            value = config.get(field)
            if value is not None and not first <= value <= last and value != getattr(present, field, None):
                raise Refused(Reason.INVALID, f"{field} is {value}, only {first} to {last} is allowed")
        known = present.attributes if present is not None else {}
        for attribute, value in config.get("attributes", {}).items():
            if known.get(attribute) != value:
                check_attribute(attribute, value)

    def delete(self, name: str, done: Done) -> None:
        """Deletes a topic, its queues, and the offsets of all groups in it."""
        self._services.propose([DeleteTopic(name)], done)

    def changed_attributes(self, name: str, changes: Iterable[tuple[str, str | None]]) -> dict[str, str]:
        """Returns the topic's attributes after these changes, applied in their order. `changes`: attribute -> its
        value, None to remove it."""
        existing = self._services.state.topics.get(name)
        changed = dict(existing.attributes) if existing is not None else {}
        for attribute, value in changes:
            if value is None:
                changed.pop(attribute, None)
            else:
                changed[attribute] = value
        return changed


def _queues_in_each(config: Mapping[str, Any], known: TopicConfig | None) -> tuple[int, int]:
    """Returns the numbers of read and write queues that a topic gets in each new group of brokers. A number that the
    request does not give is that of the first of the topic's groups that takes messages."""
    read, write = (0, 0)
    if known is not None:
        read, write = next(queues for queues in known.queues_of_groups.values() if queues[1])
    return config.get("read_queues", read), config.get("write_queues", write)


def without_home(attributes: Mapping[str, str]) -> dict[str, str]:
    """Returns the attributes of a topic without SPREAD_HOME. Used when a topic is gathered, or when a person decides in
    which groups it is: the topic then no longer counts as spread automatically."""
    return {name: value for name, value in attributes.items() if name != SPREAD_HOME}


def home_of(topic: TopicConfig) -> set[int]:
    """Returns the groups of brokers in which the topic was before it was spread automatically; empty if it was not."""
    value = topic.attributes.get(SPREAD_HOME, "")
    return set(map(int, value.split(","))) if _NUMBERS.fullmatch(value) else set()


def place_of(services: Services, topic: TopicConfig) -> Mapping[int, QueueCounts]:
    """Returns the queues of a topic in each group of brokers, as (read, write), as clients see them. A group that
    drains has none to write, except for %RETRY% and %DLQ% topics, which receive messages whose consumption failed. A
    retired group has none at all."""
    groups = services.state.broker_groups.by_number
    place = living_place(groups, topic)
    if topic.name.startswith(DERIVED_NAMES) or not any(is_inactive(groups, number) for number in place):
        return place
    return {number: (read, 0 if is_inactive(groups, number) else write) for number, (read, write) in place.items()}


def placed_queues(services: Services, topic: TopicConfig) -> list[tuple[BrokerGroup, QueueCounts]]:
    """Returns the groups of brokers that have queues of a topic, in the order of their names as text, each with the
    queues that clients see. Raises Refused (UNAVAILABLE) if this node does not know the addresses of one."""
    placed = services.routes.placed(place_of(services, topic))
    if placed is None:
        remark = f"this node does not know yet where all queues of topic {topic.name} are; try again"
        raise Refused(Reason.UNAVAILABLE, remark)
    return placed


def check_attribute(name: str, value: str) -> None:
    """Raises Refused (INVALID) if topics have no such attribute, or if the value is not allowed."""
    if name == RETENTION:
        if not is_retention(value):
            remark = f"topic attribute {name} cannot be {value[:80]}, only a whole number of milliseconds (0: for ever)"
            raise Refused(Reason.INVALID, remark)
        return
    if name == SPREAD_HOME:
        if not _NUMBERS.fullmatch(value):
            remark = f"topic attribute {name} cannot be {value[:80]}, only numbers of groups of brokers, as 1 or 1,2"
            raise Refused(Reason.INVALID, remark)
        return
    allowed = ATTRIBUTE_VALUES.get(name)
    if allowed is None:
        known = [*ATTRIBUTE_VALUES, *OTHER_ATTRIBUTES]
        near = difflib.get_close_matches(name, known, 1)
        hint = f'; did you mean "{near[0]}"?' if near else f"; known are {', '.join(sorted(known))}"
        raise Refused(Reason.INVALID, f"unknown topic attribute {name[:80]}{hint}")
    if value not in allowed:
        remark = f"topic attribute {name} cannot be {value[:80]}, only {', '.join(allowed)}"
        raise Refused(Reason.INVALID, remark)
