"""Checks that the messages of a producer are stored, within a queue, in the order of its calls (docs/client.md).

A send that a node refused for now, or that a node or the client gave up with an unknown outcome, may be stored after
later ones that were accepted before it. All others keep their order, through every change of leader and of connection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator


def overtaken(stored: Iterable[tuple[int, int, str]], refused: Collection[str]) -> Iterator[str]:
    """Yields a line for each message in the wrong order. `stored`: (queue, offset, id) of a topic's messages on one
    node. An id is the producer's name, a hyphen and a number that ascends with its calls. Messages in `refused` are
    ignored."""
    newest: dict[tuple[int, str], tuple[int, str]] = {}
    for queue, offset, message_id in sorted(stored):
        if message_id in refused:
            continue
        name, _, number = message_id.rpartition("-")
        before, which = newest.get((queue, name), (0, ""))
        if int(number) < before:
            yield f"{message_id} stands at {offset} in queue {queue}, behind {which}, which was sent later"
        else:
            newest[queue, name] = int(number), message_id
