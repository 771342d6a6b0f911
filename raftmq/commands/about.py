"""`raftmq help` and `raftmq version`, which people type before they think of --help and --version; and `raftmq
completion`."""

from __future__ import annotations

import click

from raftmq.commands.shared_options import json_option, show


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the version."""
    from importlib.metadata import version as installed

    show(as_json, {"version": installed("raftmq")}, f"raftmq {installed('raftmq')}")


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@json_option
@click.pass_context
def show_help(context: click.Context, words: tuple[str, ...], as_json: bool) -> None:
    """Show the help of a command, or all commands."""
    here = context.find_root()
    for word in words:
        group = here.command
        command = group.get_command(here, word) if isinstance(group, click.Group) else None
        if command is None:
            raise click.UsageError(f"No such command '{word}'.", here)
        here = click.Context(command, info_name=word, parent=here)
    show(as_json, {"help": here.get_help()}, here.get_help())


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def completion(shell: str, as_json: bool) -> None:
    """Print a script that makes SHELL complete commands, options and the names of topics, groups and nodes.

    For bash, write this into ~/.bashrc: eval "$(raftmq completion bash)"
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, shell
    script = kind(click.get_current_context().find_root().command, {}, "raftmq", "_RAFTMQ_COMPLETE").source()
    show(as_json, {"shell": shell, "script": script}, script)
