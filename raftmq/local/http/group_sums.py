"""Combines the answers of several groups of brokers about topics and consumer groups into one.

Topics and consumer groups are the same in all groups of brokers, but each has its own queues of a topic, and knows only
the messages and offsets of those. In the combined answer a queue has its cluster-wide number
(`raftmq_wire.queue_numbers`), and sums are over all groups. Where all groups must answer alike, the first answer
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raftmq_wire.queue_numbers import FIRST_GROUP, number_of

GroupAnswer = dict[str, Any]
GroupAnswers = Mapping[int, GroupAnswer]
"""Group of brokers -> its answer."""
_ADDED = ("lag", "hidden", "beyond_end", "messages", "evicted", "read_queues", "write_queues", "offsets")


def one_list(answers: GroupAnswers, field: str, merged: Callable[[GroupAnswers], GroupAnswer]) -> GroupAnswer:
    """Returns one answer whose list `field` has the items of all answers, sorted by name; `merged` combines items with
    the same name."""
    if _is_first_alone(answers):
        return _first(answers)
    named: dict[str, dict[int, GroupAnswer]] = {}
    for group, answer in answers.items():
        for item in answer[field]:
            named.setdefault(item["name"], {})[group] = item
    return {**_first(answers), field: [merged(items) for _, items in sorted(named.items())]}


def one_group(answers: GroupAnswers) -> GroupAnswer:
    """Combines answers about one consumer group: items of the list, its details, or the effects of its deletion."""
    if _is_first_alone(answers):
        return _first(answers)
    told = {**_first(answers), **_sums(answers)}
    if "topics" in told:
        told["topics"] = sorted({topic for answer in answers.values() for topic in answer["topics"]})
    if "lag_ms" in told:
        told["lag_ms"] = max(answer["lag_ms"] for answer in answers.values())
    if isinstance(told.get("members"), int):  # each group of brokers lists the same consumers
        told["members"] = max(answer["members"] for answer in answers.values())
    elif "members" in told:
        told["members"] = _members(answer["members"] for answer in answers.values())
        told["members_total"] = max(len(told["members"]), *(a.get("members_total", 0) for a in answers.values()))
    if isinstance(told.get("offsets"), list):
        told["offsets"] = sorted(_queues(answers, "offsets"), key=lambda each: (each["topic"], each["queue_id"]))
    return told


def one_topic(answers: GroupAnswers) -> GroupAnswer:
    """Combines answers about one topic."""
    if _is_first_alone(answers):
        return _first(answers)
    told = {**_first(answers), **_sums(answers)}
    sizes = [answer.get("bytes") for answer in answers.values()]
    told["bytes"] = None if None in sizes else sum(sizes)
    told["bytes_exact"] = all(answer.get("bytes_exact", True) for answer in answers.values())
    return told


def one_topic_with_queues(answers: GroupAnswers) -> GroupAnswer:
    """Combines answers about one topic, with all its queues."""
    if _is_first_alone(answers):
        return _first(answers)
    topic = one_topic({group: answer["topic"] for group, answer in answers.items()})
    return {**_first(answers), "topic": topic, "queues": _queues(answers, "queues")}


def one_change(answers: GroupAnswers, field: str) -> GroupAnswer:
    """Combines the answers to a change of offsets: returns one with the queues of all groups of brokers in its list
    `field`."""
    if _is_first_alone(answers):
        return _first(answers)
    return {**_first(answers), field: _queues(answers, field)}


def _is_first_alone(answers: GroupAnswers) -> bool:
    """Returns True for the answer of a cluster of one group, which is passed on unchanged."""
    return [*answers] == [FIRST_GROUP]


def _first(answers: GroupAnswers) -> GroupAnswer:
    return next(iter(answers.values()))


def _sums(answers: GroupAnswers) -> GroupAnswer:
    """Returns field -> sum over all answers, for those fields of the first answer that are counts."""
    return {
        name: sum(answer.get(name, 0) for answer in answers.values())
        for name, value in _first(answers).items()
        if name in _ADDED and isinstance(value, int)
    }


def _queues(answers: GroupAnswers, field: str) -> list[GroupAnswer]:
    return [
        {**queue, "queue_id": number_of(group, queue["queue_id"])}
        for group, answer in answers.items()
        for queue in answer[field]
    ]


def _members(lists: Iterable[list[GroupAnswer]]) -> list[GroupAnswer]:
    """Returns the members that any group of brokers knows. A consumer has another connection to each group of brokers,
    so members with the same client id are taken only from the first group that lists it."""
    known: dict[str, list[GroupAnswer]] = {}
    for members in lists:
        fresh: dict[str, list[GroupAnswer]] = {}
        for member in members:
            fresh.setdefault(member["client_id"], []).append(member)
        known = fresh | known
    return [member for _, members in sorted(known.items()) for member in members]
