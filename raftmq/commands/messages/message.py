"""`raftmq messages find`: finds single messages by key, by id, or by position."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from raftmq.commands.messages.printing import remark_on, to_json, undecoded
from raftmq.commands.point_in_time import PointInTime, time_text
from raftmq.commands.shared_options import connect, console, json_option, print_json, servers_option
from raftmq.commands.value_types import NameType, OffsetType
from raftmq_wire.errors import ExitCode, LocalError
from raftmq_wire.queue_numbers import FIRST_GROUP, group_of, offset_text

if TYPE_CHECKING:
    from raftmq.client import Client, Message

MOST = 64
"""The most messages of one answer."""


@click.command()
@click.option(
    "--topic",
    type=NameType("topic"),
    metavar="NAME",
    help="The topic; required with --key, and with --id of a message.",
)
@click.option("--key", metavar="KEY", help="A key of the message (one word), or its id.")
@click.option("--id", "message_id", metavar="ID", help="The id of a message, or a RocketMQ offsetMsgId.")
@click.option("--position", type=OffsetType(), metavar="N", help="Where the message begins in the commit log.")
@click.option(
    "--since",
    type=PointInTime(ages=True),
    metavar="TIME",
    help="With --key: only messages stored then or later; a time (UTC), or an age such as 2h.",
)
@click.option(
    "--until",
    type=PointInTime(ages=True),
    metavar="TIME",
    help="With --key: only messages stored then or earlier; a time (UTC), or an age such as 2h.",
)
@click.option(
    "--max",
    "most",
    type=click.IntRange(1, MOST),
    default=32,
    show_default=True,
    help="With --key: maximum number of messages.",
)
@servers_option
@json_option
def message(
    topic: str | None,
    key: str | None,
    message_id: str | None,
    position: tuple[int, int] | None,
    since: int | None,
    until: int | None,
    most: int,
    servers: str | None,
    as_json: bool,
) -> None:
    """Find messages by key, newest first, or one message by its id or position.

    Every message that is shown is stored. If the outcome of a send was unknown, look here before you send it again.
    """
    if sum(given is not None for given in (key, message_id, position)) != 1:
        raise _usage("give one of --key, --id and --position", "raftmq messages find --topic orders --key order-1")
    if key is not None and not topic:
        raise _usage("--key needs --topic: keys are indexed by topic", f"raftmq messages find --topic NAME --key {key}")
    if (since is not None or until is not None) and key is None:
        raise _usage("--since and --until need --key", "raftmq messages find --topic orders --key order-1 --since …")
    found: list[Message]
    more = False
    with connect(servers) as mq:
        if key is not None and topic:
            begin_ms, end_ms = since or 0, (1 << 63) - 1 if until is None else until
            some = mq.admin.query_messages(topic, key, begin_ms=begin_ms, end_ms=end_ms, count_max=most, as_stored=True)
            found, more = some, some.more
            nothing = f"no message of {topic} has the key {key}"
        elif message_id is not None:
            found = _by_id(mq, topic, message_id)
            nothing = f"no message{f' of {topic}' if topic else ''} has the id {message_id}"
        else:
            found, nothing = _at(mq, topic, *(position or (FIRST_GROUP, 0))), ""
    if not found:
        why = "a majority confirmed that no such message is stored now"
        raise LocalError(nothing, why, f"raftmq consume {topic} --json" if topic else "raftmq topic list")
    count = 0
    for one in (each.decoded() for each in found):
        count += bool(one.undecoded)
        if as_json:
            print_json({"schema": 1, **to_json(one), "position": one.position, "properties": one.properties})
        else:
            _print(one)
    if count:
        click.echo(undecoded(count).removeprefix("; "), err=True)
    if more:
        click.echo(_older(found, most), err=True)


def _older(found: list[Message], most: int) -> str:
    """Returns the note that not all messages with the key are shown, with the command that shows older ones. That
    command may show messages of the last second again."""
    until = time_text((found[-1].store_ms // 1000 + 1) * 1000)
    wider = ", or a larger --max" if len(found) == most < MOST else ""
    return f"there may be more than these {len(found)}: --until {until} shows older ones{wider}"


def _by_id(mq: Client, topic: str | None, message_id: str) -> list[Message]:
    """Returns messages with this id. Two kinds of ids look alike: an id that a client gave the message (searched for in
    a topic), and one that encodes the message's position in the log."""
    from raftmq.client.message import position_of

    found = mq.admin.query_messages(topic, message_id, unique=True, as_stored=True) if topic else []
    position = position_of(message_id)
    if found or position < 0:
        if not topic:
            raise _usage(
                f"{message_id} is not an offsetMsgId; to find a message by its id, name its topic",
                f"raftmq messages find --topic NAME --id {message_id}",
            )
        return found
    return _at(mq, topic, _group_of_id(mq, message_id, position), position)


def _group_of_id(mq: Client, message_id: str, position: int) -> int:
    """Returns the group of brokers whose log an offsetMsgId points to. The id has the address of the node that stored
    the message. Raises LocalError."""
    from cluster.config.address import join_address
    from raftmq_wire.message_format import MessageFormatError, decode_message_id

    groups = mq.admin.broker_groups()
    if len(groups) == 1:
        return groups[0]
    address = "no address"
    with contextlib.suppress(MessageFormatError):
        address = join_address(*decode_message_id(message_id)[0])
    for group in groups:
        if address in mq.admin.members(group=group).values():
            return group
    raise LocalError(
        f"{message_id} does not tell the group of brokers that has the message",
        f"no node of the cluster is at {address} now, and each group has a log of its own",
        f"raftmq messages find --position GROUP/{position}",
        ExitCode.REFUSED,
    )


def _at(mq: Client, topic: str | None, group: int, position: int) -> list[Message]:
    """Returns the message at a position of the log of a group of brokers. Raises LocalError, with one text for both
    cases, if there is no message or its bytes have changed."""
    from raftmq.client.errors import NotFound

    try:
        return [mq.admin.view_message(topic or "", position, group=group)]
    except NotFound as error:
        why = "a message is shown if a queue of a topic refers to its position and the node can read it intact"
        raise LocalError(str(error), why, "raftmq inspect-consistency") from None


def _print(one: Message) -> None:
    stored = time_text(one.store_ms, exact=True)
    position = offset_text(group_of(one.queue_id), one.position)
    console().print(f"{one.place}, position {position}, stored {stored}", markup=False)
    for name, value in one.properties.items():
        console().print(f"  {name}: {value}", markup=False)
    if one.undecoded:
        console().print(f"  ({remark_on(one)})", markup=False)
    console().print(f"  {one.body.decode(errors='backslashreplace')}", markup=False)


def _usage(what: str, fix: str) -> LocalError:
    return LocalError(
        what, "a message is found by a key of its topic, by its id, or by its position", fix, ExitCode.USAGE
    )
