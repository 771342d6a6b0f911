"""The type of options and arguments of commands that are files or folders of this machine."""

from __future__ import annotations

from typing import Any

import click

from raftmq_wire.local_path import check_local


class LocalPath(click.Path):
    """click's type of paths, which refuses URLs."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path. Raises LocalError for a URL, and BadParameter as click does."""
        check_local(value, param_name(param))
        return super().convert(value, param, ctx)


def param_name(param: click.Parameter | None) -> str:
    """Returns the name of an option or an argument as a person types it."""
    if param is None:
        return "a path"
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
