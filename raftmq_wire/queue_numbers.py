"""The number of a queue in RaftMQ's client and in Spark: one integer that also names the queue's group of brokers.

A request names a queue by its number within the group of brokers of the node that gets the request. A program that uses
the client does not deal with groups, and may store data by queue. In the client, each queue of a topic therefore has a
unique number, `(group - 1) * 65,536 + queue`. For the first group that is the queue's number on the wire. It fits into
32 bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

FIRST_GROUP, GROUPS_MAX = 1, 64
QUEUES_PER_GROUP = 1 << 16
"""The range of numbers for the queues of one group. A topic has fewer queues in a group."""
_TEXT = re.compile(r"(?:(\d{1,4})/)?(\d{1,5})", re.ASCII)
_OFFSET = re.compile(r"(?:(\d{1,4})/)?(\d{1,18})", re.ASCII)


def number_of(group: int, queue: int) -> int:
    """Returns the number of a queue of a group; groups count from 1."""
    return (group - 1) * QUEUES_PER_GROUP + queue


def group_of(number: int) -> int:
    """Returns the group of the queue with this number. For a number that no queue can have, returns the first group,
    whose nodes answer that there is no such queue."""
    return number // QUEUES_PER_GROUP + 1 if number > 0 else FIRST_GROUP


def queue_in_group(number: int) -> int:
    """Returns the queue's number within its group, as requests name it."""
    return number % QUEUES_PER_GROUP if number > 0 else number


def queue_text(number: int) -> str:
    """Returns the number as people read and write it: "3" in the first group, "2/3" for queue 3 of group 2."""
    group = group_of(number)
    return str(number) if group == FIRST_GROUP else f"{group}/{queue_in_group(number)}"


def queues_text(numbers: Iterable[int]) -> str:
    """Returns the queues as text for people, such as "0 to 7", or "0 to 7, 2/0 to 2/7"; "none" if there are none.
    Assumes that each group has all queues from 0 up to its highest number."""
    last = {group_of(number): number for number in sorted(numbers)}
    parts = [f"{queue_text(number_of(group, 0))} to {queue_text(number)}" for group, number in last.items()]
    return ", ".join(parts) or "none"


def parse_queue(text: str) -> int:
    """Parses "3" or "2/3" into the queue's number. Raises ValueError for other texts."""
    found = _TEXT.fullmatch(text)
    group, queue = (int(found[1] or FIRST_GROUP), int(found[2])) if found else (0, 0)
    if not FIRST_GROUP <= group <= GROUPS_MAX or queue >= QUEUES_PER_GROUP:
        raise ValueError(f'"{text}" is no queue; write its number, or GROUP/NUMBER, for example 2/3')
    return number_of(group, queue)


def offset_text(group: int, offset: int) -> str:
    """Returns an offset with its group as people read and write it: "120" in the first group, "2/120" in group 2. The
    offset is a position in the group's log, or a queue offset in a topic that has one queue in each group."""
    return str(offset) if group == FIRST_GROUP else f"{group}/{offset}"


def parse_offset(text: str) -> tuple[int, int]:
    """Parses "120" or "2/120" into (group, offset). Raises ValueError for other texts."""
    found = _OFFSET.fullmatch(text)
    group = int(found[1] or FIRST_GROUP) if found else 0
    if found is None or not FIRST_GROUP <= group <= GROUPS_MAX:
        raise ValueError(f'"{text}" is none; write a number, or GROUP/NUMBER, for example 2/120')
    return group, int(found[2])
