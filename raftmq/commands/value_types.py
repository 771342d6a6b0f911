"""The types of options and arguments that name a server, a store, a duration or a place where Spark runs.

An invalid value is refused before the command does anything.
"""

from __future__ import annotations

import re
from typing import Any

import click

from cluster.config.local_layout import NodeName, key_of, name_of
from raftmq.local_path import param_name
from raftmq_wire.errors import ExitCode, LocalError
from raftmq_wire.queue_numbers import FIRST_GROUP, parse_offset, parse_queue

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MASTER = re.compile(r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|yarn|(spark|k8s)://.+")


class NodeNameType(click.ParamType[NodeName]):
    """The name of a node: its id, or in a further group GROUP/ID."""

    name = "node"

    def __init__(self, ids: click.ParamType[int] = click.INT) -> None:
        """`ids`: the click type that checks an id."""
        self._ids = ids

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> NodeName:
        """Returns the name. Raises BadParameter, and LocalError for a text with "/" that is no name."""
        return name_of(*key_of(value)) if "/" in str(value) else self._ids.convert(value, param, ctx)


class QueueType(click.ParamType[int]):
    """A queue of a topic: its number, or in a further group of brokers GROUP/NUMBER."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the queue's number (`raftmq_wire.queue_numbers`). Raises BadParameter."""
        if "/" not in str(value):
            return click.IntRange(0).convert(value, param, ctx)
        try:
            return parse_queue(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class OffsetType(click.ParamType[tuple[int, int]]):
    """A position in a group's log, or an offset in the group's queue of a topic that has one queue in each group: a
    number, or in a further group GROUP/NUMBER. The value is (group, number)."""

    name = "offset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Returns (group, number). Raises BadParameter."""
        if isinstance(value, tuple):
            return value
        if "/" not in str(value):
            return FIRST_GROUP, click.IntRange(0).convert(value, param, ctx)
        try:
            return parse_offset(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class AddressType(click.ParamType[str]):
    """The address of a server, HOST:PORT."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the address. Raises BadParameter for anything else."""
        from raftmq.client.discovery import split_address

        try:
            split_address(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class NameType(click.ParamType[str]):
    """The name of a topic or a group."""

    name = "name"

    def __init__(self, kind: str) -> None:
        """`kind`: topic or group."""
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the name. Raises LocalError for a text that can be no name."""
        from cluster.runtime.request_limits import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX
        from raftmq_wire.names import SIGNS, check_name, nearest_name

        name = str(value)
        longest = TOPIC_LENGTH_MAX if self.kind == "topic" else GROUP_LENGTH_MAX
        if len(name) > longest:
            what = f"{name[:40]!r}... is no name of a {self.kind}: it has {len(name)} characters"
            raise LocalError(what, f"a name has at most {longest}", "Choose a shorter name.", ExitCode.USAGE)
        try:
            check_name(self.kind, name)
        except ValueError as error:
            usual = "orders" if self.kind == "topic" else "billing"
            fix = f"{nearest_name(name) or usual}, for example"
            what, _, _ = str(error).partition(": it")
            raise LocalError(what, f"a name may hold only {SIGNS}", fix, ExitCode.USAGE) from None
        return name


class UserNameType(click.ParamType[str]):
    """The name of a new user."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the name. Raises LocalError for a text that can be no name."""
        from statemachine.access.user_rows import NAME

        name = str(value)
        if not NAME.fullmatch(name):
            why = "a name has 1 to 64 letters, digits and the signs . _ @ -, and begins with a letter or digit"
            fix = f"{re.sub('[^A-Za-z0-9._@-]+', '-', name).strip('-._@')[:64] or 'shop'}, for example"
            raise LocalError(f"{name[:80]!r} is no name of a user", why, fix, ExitCode.USAGE)
        return name


class ListenerType(AddressType):
    """The address of a listener of a node, NAME=HOST:PORT."""

    name = "listener"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the text if it is NAME=HOST:PORT. Raises BadParameter otherwise."""
        listener, _, address = str(value).partition("=")
        if not listener or not address:
            self.fail(f'"{value}" is not NAME=HOST:PORT, for example "broker=10.0.0.4:10911"', param, ctx)
        super().convert(address, param, ctx)
        return str(value)


class ApiType(click.ParamType[str]):
    """The address of the HTTP API of a node, with or without http:// or https:// before it, or a context."""

    name = "api"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the text if it is an address, or the name of a context. Raises LocalError otherwise."""
        from raftmq.local.http.admin_http import parse_addresses
        from raftmq.local.http.contexts import find_context

        if ":" in str(value):
            parse_addresses(str(value))
        else:
            find_context(str(value))
        return str(value)


class StoreType(click.ParamType[str]):
    """The URL of an object store; with `paths` also a path of this machine."""

    name = "store"

    def __init__(self, *, paths: bool) -> None:
        self.paths = paths

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the text. Raises LocalError for a URL that is not one of a store, and without `paths` for a path."""
        from cluster.tier.store.store_by_url import check_url

        if not self.paths or _URL.match(str(value)):
            try:
                check_url(str(value))
            except LocalError as error:
                what = f"{param_name(param)}: {error.what}"
                raise LocalError(what, error.why, error.fix, ExitCode.USAGE) from None
        return str(value)


class SparkMasterType(click.ParamType[str]):
    """A place where Spark runs tasks, as spark-submit names it."""

    name = "master"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the text. Raises BadParameter for anything else."""
        if not _MASTER.fullmatch(str(value)):
            self.fail(f'"{value}" is not local[N], spark://HOST:PORT, yarn or k8s://…', param, ctx)
        return str(value)


class DurationType(click.ParamType[float]):
    """A duration on the command line: 90s, 15m, 1h, 1d -> seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"(\d+)([smhd])", str(value))
        if match is None or int(match[1]) == 0:
            self.fail(f"{value} is not an interval: write 90s, 15m, 1h or 1d", param, ctx)
        return float(int(match[1]) * _SECONDS[match[2]])
