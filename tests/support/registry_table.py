"""A table of operations, given to three replicas of the registry over links in memory, or to the simulator's model of
them. pysyncobj replaces functions of `socket`, so the replicas are in a process of their own::

    python -m tests.support.registry_table DIRECTORY        prints what became of it, as JSON
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cluster.placement.group_map import Epoch, GroupMember, GroupRecord
from cluster.registry.records import Records, TopicPlace, beat_operation, groups_operation, topics_operation

CLUSTER, OTHER = bytes(range(16)), bytes(16)
MEMBERS = [GroupMember(node, f"10.0.0.{node}", 10912, "", {"broker": f"10.0.0.{node}:10911"}) for node in (1, 2, 3)]


class Step(NamedTuple):
    """Some operations, given to one replica, while some are away."""

    at: int
    away: tuple[int, ...]
    operations: tuple[bytes, ...]


def record(group: int, term: int, index: int, leader: int) -> GroupRecord:
    """Returns a record of a group."""
    return GroupRecord(group, f"g{group}", Epoch(term, index), leader, MEMBERS)


def groups(*records: GroupRecord) -> bytes:
    """Returns an operation with records of groups."""
    return groups_operation(CLUSTER, records)


NEWEST = record(1, 7, 3, 1)
TABLE = (
    Step(1, (), (groups(record(1, 2, 0, 1)), groups(record(1, 2, 0, 1)), groups(record(2, 5, 9, 3)))),
    Step(1, (), (groups(record(1, 1, 99, 2)), groups(record(1, 2, 4, 1)), groups(record(1, 2, 4, 2)))),
    Step(1, (), (b"", b"\xff" * 40, groups(NEWEST)[:-1], groups_operation(OTHER, [NEWEST]))),
    Step(1, (), (topics_operation(CLUSTER, {"a": TopicPlace(3, (1,)), "b": TopicPlace(1, (1, 2))}),)),
    Step(1, (), (topics_operation(CLUSTER, {"a": TopicPlace(2, (2,)), "b": TopicPlace(4, (2,))}),)),
    Step(1, (3,), (beat_operation(CLUSTER, 1, 5), beat_operation(CLUSTER, 1, 4), groups(NEWEST))),
    Step(1, (2, 3), (groups(record(2, 6, 0, 1)), groups(NEWEST), groups(record(1, 6, 0, 2)))),
    Step(1, (2,), (groups(record(2, 6, 0, 1)), topics_operation(CLUSTER, {"c": TopicPlace(9, (1,))}))),
    Step(1, (), (beat_operation(CLUSTER, 2, 1),)),
    Step(1, (), ()),
)
"""What is new, known, older, garbage, of another cluster, and what finds no majority. Replica 1 leads all the time. At
the end nothing happens until all replicas are equal."""

Outcome = tuple[str, str] | None
"""(error, value in hex); None without a majority."""


def outcomes(
    records: Callable[[int], Records], apply: Callable[[Step, bytes], Outcome], steps: Callable[[Step], None]
) -> dict[str, object]:
    """Plays the table; returns the answers, and the records of all replicas at its end. `apply` is asked for an
    operation that is not known, as a process of the registry does; `steps` is called before each step."""

    def answers() -> Iterator[Outcome]:
        for step in TABLE:
            steps(step)
            for operation in step.operations:
                known = records(step.at).known(operation)
                yield (known[0], known[1].hex()) if known is not None else apply(step, operation)

    told = list(answers())
    return {"answers": told, "records": [records(number).dump().hex() for number in (1, 2, 3)]}


def main(folder: Path) -> dict[str, object]:
    """Plays the table on the replicas of the product."""
    from tests.support.registry_links import World

    world = World(True, folder)
    world.elect(1)
    cut: set[int] = set()

    def arrange(step: Step) -> None:
        for number in (2, 3):
            if number in step.away and number not in cut:
                world.separate(1, number)
            elif number in cut and number not in step.away:
                world.connect(1, number)
        cut.clear()
        cut.update(step.away)
        if not step.operations:
            world.run([1, 2, 3], lambda: len({records.dump() for records in world.records.values()}) == 1)

    def apply(step: Step, operation: bytes) -> Outcome:
        found: list[Outcome] = []

        def done(answer: tuple[str, bytes] | None, reason: int) -> None:
            found.append((answer[0], answer[1].hex()) if answer is not None and reason == 0 else None)

        world.replicas[1].propose(operation, done)
        there = [number for number in (1, 2, 3) if number not in step.away]
        if 2 * len(there) <= 3:  # for less time than after which a leader alone steps down
            world.tick(1)
            return None
        world.run(there, lambda: bool(found))
        return found[0]

    return outcomes(world.records.__getitem__, apply, arrange)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))))
