"""Groups of commands whose help shows the whole first sentence of each command. Click itself would cut the sentence to
one line."""

from __future__ import annotations

import re
from collections.abc import Callable

import click

_END_OF_SENTENCE = re.compile(r"(?<=\.)\s")


def first_sentence(command: click.Command) -> str:
    """Returns the first sentence of a command's help, on one line; empty for a command without help."""
    text = " ".join((command.short_help or command.help or "").split("\n\n")[0].split())
    return _END_OF_SENTENCE.split(text, maxsplit=1)[0]


class CommandGroup(click.Group):
    """A group that lists its commands with whole first sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, first_sentence(each)) for name, each in self._listed(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def _listed(self, ctx: click.Context) -> list[tuple[str, click.Command]]:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [(name, each) for name, each in found if each is not None and not each.hidden]


def command_group(name: str | None = None) -> Callable[[Callable[..., None]], CommandGroup]:
    """Returns the decorator that makes a group below `raftmq`, as `click.group` does."""
    return click.group(name, cls=CommandGroup)
