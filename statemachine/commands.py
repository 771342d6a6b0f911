"""Commands: what a COMMAND entry (one msgpack array of commands) or the effects of a MESSAGES entry hold.

A command is `[name, argument...]`, names and arguments below. Decided at propose, never at apply: apply answers with a
result, and only commands that a client sent may be answered with an error; none depends on a clock.

    create_topic    config: map, if_absent: bool        id is given by apply; updates the config unless if_absent
    delete_topic    name
    put_group       config: map, if_absent: bool
    delete_group    name, clean_offsets: bool
    subscribe       group, [[topic, expression_type, sub_string, sub_version], ...]   replaces the group's subscriptions
    commit_offsets  [[group, topic_id, queue_id, offset], ...]     last value wins, also backwards (RocketMQ allows it)
    expire          before_ms      forget producer sessions and unique rows idle since before that log time
"""

from __future__ import annotations

from typing import Any

import msgpack

CREATE_TOPIC = "create_topic"
DELETE_TOPIC = "delete_topic"
PUT_GROUP = "put_group"
DELETE_GROUP = "delete_group"
SUBSCRIBE = "subscribe"
COMMIT_OFFSETS = "commit_offsets"
EXPIRE = "expire"

Command = list[Any]


def pack(commands: list[Command]) -> bytes:
    """The payload of a COMMAND entry, or the effects section of a MESSAGES entry."""
    packed: bytes = msgpack.packb(commands, use_bin_type=True)
    return packed


def unpack(data: bytes) -> list[Command]:
    """The commands; [] for no bytes. Raises ValueError on anything else than an array of arrays."""
    if not data:
        return []
    commands = msgpack.unpackb(data, raw=False, strict_map_key=False)
    if not isinstance(commands, list) or not all(isinstance(c, list) and c for c in commands):
        raise ValueError("not an array of commands")
    return commands
