"""The `raftmq` command: finds sub-commands without importing them, and reports every error in three lines.

Errors go to stderr as what happened, why, and what to type; with --json also as one object on stdout. Exit codes are
those of `raftmq_wire.errors.ExitCode`. Modules that take long to import are imported inside the commands that need
them: `raftmq --help` must not wait for a client.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import itertools
import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import click

from cluster.config.source import ConfigError, nearest
from cluster.runtime.host.private_files import private
from raftmq.commands.command_group import first_sentence
from raftmq_wire.errors import ExitCode, LocalError

ENTRY_POINT_GROUP = "raftmq.commands"
DEBUG_VARIABLE = "RAFTMQ_DEBUG"
_CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Numbers of OSErrors which, if the error names no file, mean that standard output could not be written."""


class _Listed(NamedTuple):
    module: str
    attribute: str
    help: str


def _here(name: str, help_text: str, attribute: str | None = None) -> _Listed:
    return _Listed(f"raftmq.commands.{name}", attribute or name.rpartition(".")[2], help_text)


COMMANDS = {
    "up": _here("nodes.up", "Start a cluster on this machine."),
    "down": _here("nodes.nodes", "Stop the cluster; nothing is deleted.", "down"),
    "status": _here("nodes.status", "Show the leader and the state of each node."),
    "events": _here("event_list", "Show what happened on the nodes.", "events"),
    "top": _here("nodes.top", "Show the cluster live."),
    "links": _here("nodes.links", "Show the state of the links between the nodes."),
    "reload": _here("nodes.links", "Make running nodes read their configuration again.", "reload"),
    "config": _here("nodes.config_keys", "Show, change and compare the configuration.", "config"),
    "recovery": _here("data.recovery", "Show what the last start of each node found and did."),
    "fsck": _here("data.fsck", "Check data directories of stopped nodes."),
    "rebuild": _here("data.rebuild", "Rebuild the state of a stopped node; shows a plan first."),
    "inspect-consistency": _here("data.inspect", "Compare the nodes with each other while they run.", "inspect"),
    "repair": _here("data.repair", "Repair damaged nodes with data from the others."),
    "scrub": _here("data.scrub", "Make nodes read and check everything on their disks."),
    "retention": _here("data.retention", "Show where the log begins; remove expired messages."),
    "tier": _here("data.tier", "Show what the object store holds of the log."),
    "kill": _here("nodes.nodes", "Kill one node (kill -9) to see what happens.", "kill"),
    "restart": _here("nodes.nodes", "Stop and start one node.", "restart"),
    "rolling-restart": _here("nodes.rolling_restart", "Restart the nodes one by one, the leader last."),
    "upgrade": _here("nodes.upgrade", "Upgrade the nodes to this version, one by one."),
    "node": _here("nodes.node", "Add, promote, replace and remove nodes; move leadership."),
    "secret": _here("nodes.secret", "Create, change and show the secret shared by the nodes."),
    "user": _here("access.user", "Create, list, change and delete users; give tokens."),
    "acl": _here("access.acl", "Set, list, delete and test the rules of users."),
    "quota": _here("access.quota", "Say how much users, addresses and topics may send."),
    "auth": _here("access.auth", "Show or change whether users and rules count."),
    "login": _here("access.login", "Log in as a user of a context."),
    "logout": _here("access.login", "Log out.", "logout"),
    "audit": _here("access.audit", "Show who changed users, rules and tokens."),
    "cert": _here("nodes.cert", "Make certificates for TLS."),
    "logs": _here("nodes.logs", "Show the output of the nodes."),
    "topic": _here("messages.topic", "Create, list, describe, change and delete topics."),
    "group": _here("messages.group", "Create, list, describe, reset and delete consumer groups."),
    "dlq": _here("messages.dlq", "List, resend and purge what consumer groups gave up."),
    "transactions": _here("messages.transactions", "List open transactions."),
    "writes": _here("messages.writes", "List and discard what Spark has staged."),
    "produce": _here("messages.produce", "Send each line of stdin or a file as a message."),
    "consume": _here("messages.consume", "Print the messages of a topic."),
    "export": _here("data.export", "Write the messages of a topic to a Parquet file."),
    "table": _here("data.table", "Keep Delta tables up to date with topics."),
    "messages": _here("messages.messages", "Browse and find messages; send some again.", "messages"),
    "index": _here("data.index", "Check index files and look into them."),
    "backup": _here("data.backup", "Create, list and verify backups."),
    "restore": _here("data.restore", "Create a new cluster from a backup."),
    "metadata": _here("data.metadata", "Export and import topics, groups and offsets as JSON."),
    "runbook": _here("runbook", "Show what a finding or alert means, and what to do."),
    "alarm": _here("alarm", "List alarms; acknowledge an alarm."),
    "context": _here("context", "Give clusters names for --admin and --servers."),
    "support": _here("support", "Collect what is needed to understand a problem."),
    "bench": _here("bench", "Measure this machine: its disk, and three nodes on it."),
    "unsafe-recover": _here("data.unsafe_recover", "Continue with one survivor when the majority is lost for good."),
    "completion": _here("about", "Print what makes the shell complete commands and names.", "completion"),
    "doctor": _here("doctor", "Examine this installation: Python, kernel, checksums."),
    "version": _here("about", "Show the version.", "version"),
    "help": _here("about", "Show the help of a command.", "show_help"),
    "init": _here("nodes.serve", "Create the data directories of a new cluster.", "init"),
    "serve": _here("nodes.serve", "Run one node in the foreground.", "serve"),
    "broker-group": _here("nodes.broker_group", "Drain and retire a group of brokers."),
    "registry": _here("nodes.registry", "Run a process of the registry of several groups."),
}
"""Every command of this package -> where it is implemented, and its help in one line. Commands of other packages come
from the entry points `raftmq.commands`."""

ALIASES = {
    "message": _here("messages.message", "Find messages by key, id or position."),
}
"""Older names of commands, which work and are not listed."""

SECTIONS = {
    "Start and stop": "up down status top logs kill restart rolling-restart upgrade init serve registry",
    "Topics and messages": "topic group produce consume messages dlq transactions writes",
    "Members and configuration": "node broker-group links config reload",
    "Users, secrets and certificates": "user acl quota auth login logout audit secret cert",
    "Storage and backups": "retention tier export table backup restore metadata index",
    "When something is wrong": (
        "doctor events alarm runbook recovery scrub inspect-consistency repair fsck rebuild unsafe-recover support"
    ),
    "Try, test and measure": "demo bench chaos sim testbed spark",
    "This command": "context completion help version",
}
"""Headings of --help -> the commands below them, in this order. Commands without a heading are listed at the end."""


class RootGroup(click.Group):
    """The group of all commands. It imports a command of this package only to run it, and lists them without importing
    any."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs the command line. As a program (`standalone_mode`) it prints errors in three lines and exits with the
        exit code."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        sys.exit(run(list(sys.argv[1:] if args is None else args)))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(name for name in sorted(_plugins()) if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if listed := COMMANDS.get(cmd_name) or ALIASES.get(cmd_name):
            command = getattr(importlib.import_module(listed.module), listed.attribute)
        elif cmd_name in (plugins := _plugins()):
            command = plugins[cmd_name].load()
        else:
            return None
        assert isinstance(command, click.Command), cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        left = {name: self._summary(ctx, name) for name in self.list_commands(ctx)}
        width = max(map(len, left))
        for title, words in SECTIONS.items():
            rows = [(name.ljust(width), left.pop(name)) for name in words.split() if name in left]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if left:
            with formatter.section("Others"):
                formatter.write_dl([(name.ljust(width), text) for name, text in left.items()])

    def _summary(self, ctx: click.Context, name: str) -> str:
        if name in COMMANDS:
            return COMMANDS[name].help
        command = self.get_command(ctx, name)
        return first_sentence(command) if command else ""


def _plugins() -> dict[str, Any]:
    """Returns the commands of the packages above this one, by name. Imports go down only, so these commands are found
    through entry points instead of being imported."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


@click.group(
    "raftmq", cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option("--debug", is_flag=True, expose_value=False, help="Print the traceback of an error.")
@click.version_option(package_name="raftmq", message="raftmq %(version)s")
def cli() -> None:
    """A replicated message log that RocketMQ clients can use.

    To try it: raftmq up --detach, then raftmq status.
    """


def main() -> NoReturn:
    """Runs a command as the console script and exits with its code. A defect is reported in three lines too."""
    arguments = sys.argv[1:]
    try:
        sys.exit(run(arguments))
    except Exception as error:
        if _is_debugged(arguments):
            raise
        told = " ".join(str(error).split())
        what = f"raftmq ended with {type(error).__name__}" + (f": {told}" if told else "")
        why = "this is a defect of raftmq; a change that the command began may have been carried out"
        sys.exit(_show(LocalError(what, why, "RAFTMQ_DEBUG=1 in front of the same command, and report it"), arguments))


def run(arguments: list[str]) -> int:
    """Runs a command line, prints its errors and returns the exit code. Only defects come out as exceptions.

    Commands of the packages above keep the user's umask, because they write histories, reports and Parquet files. The
    nodes that they start set their own.
    """
    try:
        with private() if arguments[:1] and arguments[0] in {*COMMANDS, *ALIASES} else contextlib.nullcontext():
            code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()  # `raftmq consume t | head`: the reader of the pipe has ended
        return ExitCode.OK
    except OSError as error:
        if error.filename is not None or error.errno not in _CANNOT_WRITE:
            raise
        _forget_output()
        why = f"standard output: {error.strerror}; the command itself may have succeeded"
        full = LocalError("the output could not be written", why, "free space, or redirect the output elsewhere")
        return _show(full, arguments)
    return code


def _forget_output() -> None:
    """Redirects standard output to /dev/null, so that the flush at exit does not fail on a stream that accepts no
    more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    try:
        result = cli.main(args=arguments, prog_name="raftmq", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "raftmq --help")
        return ExitCode.OK
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__context__, EOFError):
            click.echo(err=True)
            what, why = "the command asked, and nobody answered", "standard input ended; nothing was changed"
            return _show(LocalError(what, why, "the same command with --yes", ExitCode.USAGE), arguments)
        click.echo("stopped", err=True)
        return 130
    except Exception as error:
        explained = _explain(error, arguments)
        if explained is None:
            raise
        if _is_debugged(arguments):
            traceback.print_exc()
        return _show(explained, arguments)
    return int(result) if isinstance(result, int) else ExitCode.OK


def _is_debugged(arguments: list[str]) -> bool:
    """Returns True if debugging is asked for by the environment, or by --debug before the command's name; options
    behind the name belong to the command."""
    return bool(os.environ.get(DEBUG_VARIABLE)) or "--debug" in itertools.takewhile(_is_option, arguments)


def _is_option(word: str) -> bool:
    return word.startswith("-")


def _explain(error: Exception, arguments: list[str]) -> LocalError | None:
    """Returns the three lines and the exit code for an expected error; None for a defect."""
    if isinstance(error, LocalError):
        return error
    if isinstance(error, click.UsageError):
        return _usage_error(error, arguments)
    if isinstance(error, click.ClickException):
        return LocalError(_sentence(error.format_message()), "the command could not be carried out", "raftmq --help")
    if isinstance(error, ConfigError):
        return LocalError(error.what, error.why, error.fix, ExitCode.USAGE)
    if "raftmq.client" in sys.modules:  # only a command that has imported the client can raise the client's errors
        from raftmq.client.errors import RaftMQError

        if isinstance(error, RaftMQError):
            return client_error(error)
    return None


def _show(error: LocalError, arguments: list[str]) -> int:
    from raftmq.commands.aimed import aimed, group_in, kept, where
    from raftmq.commands.shared_options import show_error

    fix = aimed(kept(error.fix, cli, arguments), cli, where(arguments), error.group or group_in(arguments))
    show_error(error.what, error.why, fix)
    if "--json" in arguments or "json" in _outputs(arguments):
        told = {"what": error.what, "why": error.why, "type": fix, "exit_code": int(error.exit_code)}
        click.echo(json.dumps({"schema": 1, "error": told}))
    return error.exit_code


def _outputs(arguments: list[str]) -> list[str]:
    """Returns the values of --output, in either form."""
    after = [value for option, value in itertools.pairwise(arguments) if option == "--output"]
    return after + [each.partition("=")[2] for each in arguments if each.startswith("--output=")]


_CLIENT_ERRORS = {
    ExitCode.UNKNOWN: "the outcome is unknown: it may have been carried out",
    ExitCode.UNREACHABLE: "no server could be reached; nothing was carried out",
    ExitCode.REFUSED: "the cluster refused it; nothing was carried out",
    ExitCode.FAILED: "it was not carried out",
}


def client_error(error: Any) -> LocalError:
    """Returns the client's error as three lines. The outcome, as far as the client knows it, decides the exit code."""
    from raftmq.commands.shared_options import WHICH_CLUSTER, exit_code_of

    code = exit_code_of(error)
    fix = WHICH_CLUSTER if code is ExitCode.UNREACHABLE else error.hint or "raftmq status"
    return LocalError(str(error), _CLIENT_ERRORS[code], fix, code)


_ELSEWHERE = {"raftmq messages browse --key": "raftmq messages find --topic TOPIC --key KEY    (the index finds it)"}
"""A command and an option that it does not have -> the command that does what the user means."""
_HOW_MANY = ("-n", "--count", "--limit", "--max", "--max-messages", "--num")
_WHERE = ("--data", "--data-dir", "--datadir", "--dir", "--directory", "--path")
_SAME = (_HOW_MANY, _WHERE)
"""Groups of options that mean the same thing in different commands or tools. No command has two options of one
group."""
_PORTS = {
    "--servers": "--servers 127.0.0.1:9876    (the clients' port; this command does not ask the HTTP API)",
    "--admin": "--admin 127.0.0.1:9644    (the port of the HTTP API; this command has no client)",
}
"""The two options that say where a cluster is, for commands that have only one of them."""
_NEGATIVE = re.compile(r"-\d")


def _usage_error(error: click.UsageError, arguments: list[str]) -> LocalError:
    """Returns the error of a wrong command line; it names the possible words and the one that is most similar."""
    context = error.ctx
    path = context.command_path if context else "raftmq"
    known: list[str] = []
    word = ""
    if isinstance(error, click.NoSuchOption) and context is not None:
        word = error.option_name
        known = [name for param in context.command.get_params(context) for name in param.opts if name.startswith("--")]
    elif context is not None and isinstance(context.command, click.Group) and "No such command" in error.message:
        known = context.command.list_commands(context)
        word = error.message.partition("'")[2].rpartition("'")[0]
    if not known:
        usage = context.get_usage().removeprefix("Usage: ") if context else "raftmq --help"
        return LocalError(_sentence(error.format_message()), f"usage: {usage}", f"{path} --help", ExitCode.USAGE)
    match = next((each for same in _SAME if word in same for each in known if each in same), None)
    if match is None:  # compared without dashes, because the dashes make any two options look similar
        names = {name.lstrip("-"): name for name in known}
        match = names.get(nearest(word.lstrip("-"), names) or "")
    is_option = word.startswith("-")
    what = f"{path} has no {'option' if is_option else 'command'} {word}"
    port = next((f"{path} {advice}" for name, advice in _PORTS.items() if name in known and word in _PORTS), "")
    elsewhere = _ELSEWHERE.get(f"{path} {word}", port)
    at = next((at for at, each in enumerate(arguments) if each.partition("=")[0] == word), None)
    if _NEGATIVE.match(word):
        fix = f"the same command with -- before {word}    (a value that begins with - looks like an option)"
    elif elsewhere:
        fix = elsewhere
    elif match is not None and at is not None:
        fix = shlex.join(["raftmq", *arguments[:at], match + arguments[at][len(word) :], *arguments[at + 1 :]])
    else:
        fix = f"{path} {match or '--help'}"
    return LocalError(what, f"it has {', '.join(known)}", fix, ExitCode.USAGE)


def _sentence(text: str) -> str:
    text = text.rstrip(".")
    return text[:1].lower() + text[1:]


if __name__ == "__main__":
    main()
