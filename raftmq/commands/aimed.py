"""Completes advice so that its commands reach the same cluster: they get the options by which the running command found
its cluster. Without them it might find another cluster, that of the working directory.

A group of brokers calls its nodes by their ids. In advice of a further group they get their names, "2/1": the id alone
is that of a node of the first group.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

import click
from click.core import ParameterSource

from cluster.config.local_layout import name_of
from raftlog.types import FIRST_GROUP
from raftmq.commands.value_types import NodeNameType

WHERE = ("--data", "--admin", "--servers")
"""The options that say which cluster is meant."""
_IN_GROUP = re.compile(r"(\d{1,2})/\d+", re.ASCII)
_COMMAND = re.compile(r"(?<![\w/.-])raftmq [a-z][^(`&;,\n]*?(?=\s*(?:[(`&;,\n]|$))")


def where(arguments: Sequence[str]) -> dict[str, str]:
    """Returns the options of WHERE that a command line has, with their values."""
    found = {}
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in WHERE:
            found[name] = value if equals else "".join(arguments[at + 1 : at + 2])
    return {name: value for name, value in found.items() if value}


def kept(text: str, root: click.Group, arguments: Sequence[str]) -> str:
    """Returns the text in which `raftmq up` has the options of the running `raftmq up`, unless the text gives them
    itself, so that the advised command makes the same cluster."""
    up = root.get_command(click.Context(root), "up") if arguments[:1] == ["up"] else None
    if up is None:
        return text
    try:
        values, _, order = up.make_parser(click.Context(up, resilient_parsing=True)).parse_args(list(arguments[1:]))
    except click.UsageError:
        return text
    options = {}
    for parameter in order:
        value = values.get(parameter.name or "")
        if isinstance(parameter, click.Option) and value is not None:
            options[parameter.opts[-1]] = [] if parameter.is_flag else [shlex.quote(str(value))]

    def whole(found: re.Match[str]) -> str:
        line = found[0]
        more = [" ".join([name, *value]) for name, value in options.items() if name not in line.split()]
        return " ".join([line, *more]) if line.split()[1] == "up" else line

    return _COMMAND.sub(whole, text)


def group_in(arguments: Sequence[str]) -> int:
    """Returns the group of brokers that a command line names, as in "2/1"; the first if it names none."""
    found = (_IN_GROUP.fullmatch(word.rpartition("=")[2]) for word in arguments)
    return next((int(each[1]) for each in found if each), FIRST_GROUP)


def aimed_here(text: str, group: int = FIRST_GROUP) -> str:
    """Returns the text `aimed` by the options of the running command, if there is one. `group`: the group whose nodes
    the text names by ids."""
    context = click.get_current_context(silent=True)
    if context is None:
        return text
    given = {}
    for name in WHERE:
        value = context.params.get(name[2:]) or context.meta.get(f"raftmq.{name[2:]}")
        if value and context.get_parameter_source(name[2:]) is not ParameterSource.ENVIRONMENT:
            given[name] = str(value)
    return aimed(text, context.find_root().command, given, group)


def aimed(text: str, root: click.Command, given: Mapping[str, str], group: int = FIRST_GROUP) -> str:
    """Returns the text, in which each command of `root` has those options of `given` that it accepts, unless it names a
    cluster itself. Node ids become names of nodes of `group`. Other text is unchanged."""
    if not given and group == FIRST_GROUP:
        return text
    return _COMMAND.sub(lambda found: _aimed(found[0], root, given, group), text)


def _aimed(line: str, root: click.Command, given: Mapping[str, str], group: int) -> str:
    try:
        words = shlex.split(line)[1:]
    except ValueError:
        return line
    command = root
    context = click.Context(command, info_name="raftmq", resilient_parsing=True)
    while words and isinstance(command, click.Group):
        below = command.get_command(context, words[0])
        if below is None:
            return line
        command, words = below, words[1:]
    taken = {option for parameter in command.params for option in parameter.opts}
    if isinstance(command, click.Group) or any(word.partition("=")[0] in (*WHERE, "--help") for word in words):
        return line
    try:
        values, left, _ = command.make_parser(click.Context(command, resilient_parsing=True)).parse_args(list(words))
    except click.UsageError:
        return line
    if left:  # a sentence that begins with a command, and goes on in words
        return line
    for parameter in command.params:
        value = values.get(parameter.name or "")
        if isinstance(parameter.type, NodeNameType) and isinstance(value, str) and value.isdecimal():
            line = re.sub(rf"(?<= ){value}(?![\w/])", str(name_of(group, int(value))), line, count=1)
    if group != FIRST_GROUP and "--in-group" in taken and "--in-group" not in words:
        line += f" --in-group {group}"
    return " ".join([line, *(f"{name} {shlex.quote(value)}" for name, value in given.items() if name in taken)])
