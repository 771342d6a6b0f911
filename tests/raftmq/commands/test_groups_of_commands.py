"""Each command says here how it treats a cluster of several groups of brokers. A new command gets a row."""

from __future__ import annotations

import inspect
import sys
from types import FunctionType

import click

from raftmq.commands.data.table_steps import TableType
from raftmq.commands.shared_options import NodeDirectory
from raftmq.commands.value_types import NodeNameType
from tests.support.command_tree import commands
from tests.support.rows import each_row

ALL = "all groups: asks, judges or changes each, through `all_groups` or what it knows of the local cluster"
FIRST = "the first group, which decides for all"
NAMED = "the group of the node that is named, or that of --in-group"
CLIENT = "all groups, as a client reaches them"
FILES = "the files that are named; those of a node say its group"
NONE = "no cluster, or one of its own"

TABLE = {
    ALL: """
        up, down, logs, status, registry status, events, top, links, reload, config diff, recovery,
        inspect-consistency, repair,
        scrub, retention, tier ls, tier repair, tier seal, tier status, tier sweep, tier verify,
        rolling-restart, upgrade finalize, upgrade plan, upgrade run, node list, secret create, secret rotate,
        secret status, auth key, auth mode, auth show, topic alter, topic create, topic delete, topic
        describe, topic hot, topic list, group clone,
        group delete, group describe, group list, group reset, transactions list, writes abort, writes forget,
        writes list, backup create, metadata export, metadata import, alarm ack, alarm list, support bundle
    """,
    FIRST: """
        config history, config set, config show, user create, user delete, user disable, user enable, user list,
        user password, user revoke, user token, user tokens, user type, acl delete, acl import, acl list, acl
        set, acl test, quota delete, quota forget, quota import, quota learnt, quota list, quota set, login,
        logout, audit, topic gather, topic spread, group create, broker-group drain,
        broker-group list, broker-group retire
    """,
    NAMED: """
        kill, restart, node add, node can-stop, node drain, node maintenance, node move, node promote, node
        remove, node replace, node transfer
    """,
    CLIENT: """
        dlq list, dlq purge, dlq resend, produce, consume, export, messages browse, messages find, messages
        republish, bench open, spark export, spark report, spark table, spark traffic, table run, table status
    """,
    FILES: """
        fsck, rebuild, unsafe-recover, index check, index find, backup list, backup verify, restore, spark
        audit, spark rebuild, table compact
    """,
    NONE: """
        config check, config downgrade, config explain, config import, config init, cert ca, cert client, cert
        node, cert show, runbook, context add, context list, context remove, bench modes, completion, doctor,
        version, help, init, serve, registry run, chaos check, chaos doctor, chaos fuzz,
        chaos list, chaos run, demo, sim bugs, sim replay, sim run, sim shrink, testbed
    """,
}
KIND = {name: kind for kind, names in TABLE.items() for name in " ".join(names.split()).split(", ")}
DOORS = ("all_groups(", "LocalCluster(", "read_cluster(", "groups_of(", "of_group(")
"""How a command comes to all groups: the addresses of each, or the nodes of a local cluster."""
ONE_DOOR = ("admin_addresses(", "addresses(", "groups[FIRST_GROUP]")
WHERE = {"--admin", "--servers"}
ELSEWHERE = ("context add", "login", "logout", "config check")
"""Commands with such an option that ask no cluster for its state, or only who it is."""


def source_of(command: click.Command) -> str:
    """The source of a command's function, and of the functions of its own module that are reached from it."""
    assert isinstance(command.callback, FunctionType)
    found: dict[str, str] = {}
    left = [command.callback]
    while left:
        function = left.pop()
        text = inspect.getsource(function)
        found[function.__name__] = text
        for name, other in vars(sys.modules[function.__module__]).items():
            own = isinstance(other, FunctionType) and other.__module__ == function.__module__
            if own and name not in found and f"{name}(" in text:
                left.append(other)
    return "\n".join(found.values())


def test_every_command_says_how_it_treats_several_groups() -> None:
    assert sorted(KIND) == sorted(commands())
    assert sum(names.count(",") + 1 for names in TABLE.values()) == len(KIND), "a command is in two rows"


@each_row("name", sorted(KIND))
def test_a_command_does_what_its_row_says(name: str) -> None:
    command, kind = commands()[name], KIND[name]
    source = source_of(command)
    options = {option for parameter in command.params for option in parameter.opts}
    types = [parameter.type for parameter in command.params]
    if kind is ALL:
        assert any(door in source for door in DOORS)
    elif kind is FIRST:
        assert "all_groups(" not in source, "then it is of all groups"
        assert name in ELSEWHERE or any(door in source for door in (*ONE_DOOR, "api("))
    elif kind is NAMED:
        assert "--in-group" in options or any(isinstance(each, NodeNameType) for each in types)
    elif kind is CLIENT:
        assert "--servers" in options
    elif kind is FILES:
        assert not options & WHERE
        places = (NodeDirectory, TableType)
        assert any(isinstance(each, places) or "Path" in type(each).__name__ for each in types) or "path" in (
            source.lower()
        )
    else:
        assert name in ELSEWHERE or not options & WHERE
