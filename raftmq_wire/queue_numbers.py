"""A queue's number in our client and in Spark: one integer for a queue of any group of brokers.

On the wire, a queue is named by its number within the group of the node that is asked. A program does not deal with
groups, and may store data by queue: so in the client, each queue of a topic has a unique number, `(group - 1) * 65,536
+ queue`. In the first group it is the queue's number there. It fits 32 bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

FIRST_GROUP, GROUPS_MAX = 1, 64
QUEUES_PER_GROUP = 1 << 16
"""More than a topic may have in one group."""
_TEXT = re.compile(r"(?:(\d{1,4})/)?(\d{1,5})", re.ASCII)
_OFFSET = re.compile(r"(?:(\d{1,4})/)?(\d{1,18})", re.ASCII)


def number_of(group: int, queue: int) -> int:
    """Returns the number of a queue of a group; groups count from 1."""
    return (group - 1) * QUEUES_PER_GROUP + queue


def group_of(number: int) -> int:
    """Returns the group of a queue. A number that no queue has is one of the first group, which says so."""
    return number // QUEUES_PER_GROUP + 1 if number > 0 else FIRST_GROUP


def queue_in_group(number: int) -> int:
    """Returns the queue's number within its group, as requests name it."""
    return number % QUEUES_PER_GROUP if number > 0 else number


def queue_text(number: int) -> str:
    """Returns how people read and write the number: "3", or "2/3" for queue 3 of group 2."""
    group = group_of(number)
    return str(number) if group == FIRST_GROUP else f"{group}/{queue_in_group(number)}"


def queues_text(numbers: Iterable[int]) -> str:
    """Returns which queues there are, in words: "0 to 7", or "0 to 7, 2/0 to 2/7"; "none"."""
    last = {group_of(number): number for number in sorted(numbers)}
    parts = [f"{queue_text(number_of(group, 0))} to {queue_text(number)}" for group, number in last.items()]
    return ", ".join(parts) or "none"


def parse_queue(text: str) -> int:
    """Returns the number of "3" or "2/3". Raises ValueError."""
    found = _TEXT.fullmatch(text)
    group, queue = (int(found[1] or FIRST_GROUP), int(found[2])) if found else (0, 0)
    if not FIRST_GROUP <= group <= GROUPS_MAX or queue >= QUEUES_PER_GROUP:
        raise ValueError(f'"{text}" is no queue; write its number, or GROUP/NUMBER, for example 2/3')
    return number_of(group, queue)


def offset_text(group: int, offset: int) -> str:
    """Returns how people read and write a position of a group's log, or an offset in a queue that each group has one
    of: "120", or "2/120" in group 2."""
    return str(offset) if group == FIRST_GROUP else f"{group}/{offset}"


def parse_offset(text: str) -> tuple[int, int]:
    """Returns (group, offset) of "120" or "2/120". Raises ValueError."""
    found = _OFFSET.fullmatch(text)
    group = int(found[1] or FIRST_GROUP) if found else 0
    if found is None or not FIRST_GROUP <= group <= GROUPS_MAX:
        raise ValueError(f'"{text}" is none; write a number, or GROUP/NUMBER, for example 2/120')
    return group, int(found[2])
