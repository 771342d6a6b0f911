"""The levels of a cluster: which commands, rows and entries its log may have (docs/adr/0094).

This is the only list of levels; `.ci/levels.py` writes docs/levels.toml from it. Code names a level by its constant,
and never relative to LEVEL, which changes with each new level.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raftlog.format_versions import BASELINE


class Level(NamedTuple):
    """A level of clusters. `name`: the name of its constant. `what`: a text for people that says what the level
    brings."""

    number: int
    name: str
    what: str


_list: list[Level] = []


def _level(number: int, name: str, what: str) -> int:
    """Adds a level to the list; returns its number."""
    _list.append(Level(number, name, what))
    return number


_level(
    BASELINE,
    "baseline",
    "every command, row and entry of the baseline: the first builds of 0.1.0, which were never mixed with later ones",
)
ACCESS_LEVEL: Final = _level(11, "access", "users, rules and tokens")
CHANGES_LEVEL: Final = _level(
    12,
    "changes",
    "CHANGE entries with an author; topics say when and by whom they were made and changed; the key of users' secrets "
    "can be replaced",
)
OWNERS_LEVEL: Final = _level(
    13,
    "owners",
    "half messages and queue locks have the user whose they are; sessions of senders are named by kind and user; "
    "tokens of a user end with a change of its secret; the audit keeps the newest rows of each user; "
    "consumeBroadcastEnable of a group counts; members of a group may divide each topic among those that want it",
)
"""The level of owners (docs/adr/0098)."""
GROUPS_LEVEL: Final = _level(
    14,
    "groups",
    "a cluster may have several groups of brokers: topics say in which groups they have queues, and the first group "
    "keeps a journal of what the others copy",
)
"""The level of broker groups (docs/adr/0108)."""
DRAINS_LEVEL: Final = _level(
    15, "drains", "a group of brokers may be drained, which takes no new messages then, and retired for ever"
)
"""The level of drains (docs/adr/0113)."""
QUOTAS_LEVEL: Final = _level(
    16,
    "quotas",
    "quotas say how much a user, an address or a topic may ask of the cluster; learnt limits say what a topic usually "
    "gets",
)
"""The level of quotas (docs/adr/0115)."""
GATHERS_LEVEL: Final = _level(
    17,
    "gathers",
    "a topic may have queues in a group of brokers that are only read, and leave a group",
)
"""The level from which on topics may be gathered in fewer groups of brokers (docs/adr/0114)."""
SESSIONS_LEVEL: Final = _level(
    18,
    "sessions",
    "the session of a producer that has the messages of one entry is one row",
)
"""The level of sessions in one row (docs/adr/0121)."""

LEVELS: Final = tuple(_list)
"""All levels, each one above the level before it."""
LEVEL: Final = LEVELS[-1].number
"""The highest level that this version knows. A node that meets a command it does not know stops, so a leader proposes a
command of some level only in a cluster that has reached the level (`finalize`, docs/adr/0094)."""

# Further names of levels, for changes that the level's own name does not mention.
ROTATION_LEVEL: Final = CHANGES_LEVEL
"""The level of the commands that replace the key of users' secrets."""
SETTINGS_LEVEL: Final = OWNERS_LEVEL
"""The level from which on `put_group` says if a group's broadcasting consumers are refused."""
BY_TOPIC_LEVEL: Final = OWNERS_LEVEL
"""The level from which on the members of a consumer group may divide each topic's queues among only those members that
subscribe to the topic."""
