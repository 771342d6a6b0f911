"""The options that choose topics and queues: `topic` or `subscribe` (lists), `subscribePattern`, or `assign` (by
queue)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from pyspark_raftmq.errors import OptionError, write

_WAYS = ("topic", "subscribe", "subscribePattern", "assign")


class Topics(NamedTuple):
    """The chosen topics: `names` in the order they were given, or a `pattern` that whole names match; `queues` limits
    the queues of a topic."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    queues: Mapping[str, tuple[int, ...]] = {}

    def has(self, topic: str, queue_id: int) -> bool:
        """Returns True if the read includes this queue of a chosen topic."""
        return topic not in self.queues or queue_id in self.queues[topic]


def parse_topics(given: Mapping[str, str]) -> Topics:
    """Parses the options, whose names are in lower case. Raises OptionError unless exactly one way to choose topics is
    used."""
    used = [way for way in _WAYS if given.get(way.lower(), "").strip()]
    if not used:
        raise OptionError(
            "the option topic is missing", "without it there is nothing to read", write("topic", "orders,payments")
        )
    if len(used) > 1:
        raise OptionError(
            f"the options {' and '.join(used)} are both given", "each says which topics are read", "keep one of them"
        )
    text = given[used[0].lower()].strip()
    if used[0] == "subscribePattern":
        return Topics(pattern=_pattern(text))
    if used[0] == "assign":
        return _assigned(text)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in names:
        raise OptionError(
            f"the option {used[0]} has an empty name: {text}",
            "names are separated by commas",
            write(used[0], "orders,payments"),
        )
    return Topics(names)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(
            f"the option subscribePattern is no regular expression: {text}",
            str(error),
            write("subscribePattern", "orders-.*"),
        ) from error
    return text


def _assigned(text: str) -> Topics:
    try:
        table = json.loads(text)
        if not isinstance(table, dict) or not table:
            raise ValueError("it is no object of topics")
        for queues in table.values():
            if not isinstance(queues, list) or not all(type(q) is int and q >= 0 for q in queues) or not queues:
                raise ValueError(f"{queues!r} is no list of queue ids")
    except ValueError as error:
        raise OptionError(
            f"the option assign is not understood: {text}",
            str(error),
            """write .option("assign", '{"orders": [0, 1]}')""",
        ) from error
    return Topics(tuple(table), queues={topic: tuple(queues) for topic, queues in table.items()})
