"""The types of options and arguments that name a server, a store or a place where Spark runs.

A value of another kind is refused before anything is done.
"""

from __future__ import annotations

import re
from typing import Any

import click

from raftmq.local_path import param_name
from raftmq_wire.errors import ExitCode, LocalError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_MASTER = re.compile(r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|yarn|(spark|k8s)://.+")


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


class ListenerType(AddressType):
    """The address of a listener of a node, NAME=HOST:PORT."""

    name = "listener"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the text. Raises BadParameter for anything else."""
        listener, _, address = str(value).partition("=")
        if not listener or not address:
            self.fail(f'"{value}" is not NAME=HOST:PORT, for example "broker=10.0.0.4:10911"', param, ctx)
        super().convert(address, param, ctx)
        return str(value)


class ApiType(click.ParamType[str]):
    """The address of the HTTP API of a node, with or without http:// or https:// before it, or a context."""

    name = "api"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the text. Raises LocalError for anything else."""
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
