"""Parts that commands share: the options --json, --data and --servers, and output."""

from __future__ import annotations

import contextlib
import getpass
import itertools
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import click

from cluster.config.local_layout import REGISTRY_GROUP, NodeName, find_data_dir, key_of, read_cluster
from raftmq.local.http.admin_http import admin_option
from raftmq.local.http.contexts import ClusterContext, check_cluster, find_servers_context
from raftmq.local_path import LocalPath, param_name
from raftmq_wire.errors import ExitCode, LocalError, fix_label
from raftmq_wire.local_path import check_local
from raftmq_wire.user_file import USER_VARIABLES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from raftmq.client import Client, Tls
    from raftmq.client.retries import Retry

WHICH_CLUSTER = "raftmq status    (is it running? Is it at --servers, RAFTMQ_SERVERS or --data?)"
"""The advice when no server can be reached."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command that has started processes."""

WIDTH_MAX = 1_000_000
"""The width, in columns, of a table that is not printed to a terminal."""

_DATA = "raftmq.data"
_FOUND = "raftmq.found"
_OUTPUT = "raftmq.output"
INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells count it: 128 and the number of the signal."""
_DATA_HELP = "Data directory (default: RAFTMQ_DATA, else the nearest .raftmq in this folder or above, else ./.raftmq)."
_TLS_OPTIONS = {
    "--tls-ca": "CAs that the servers' certificates come from: speaks TLS (default: RAFTMQ_TLS_CA).",
    "--tls-cert": "Certificate to show, where nodes ask for one (default: RAFTMQ_TLS_CERT).",
    "--tls-key": "Its key (default: RAFTMQ_TLS_KEY).",
}
_TLS_VARIABLES = ("RAFTMQ_TLS_CA", "RAFTMQ_TLS_CERT", "RAFTMQ_TLS_KEY")

F = TypeVar("F", bound=Callable[..., Any])


def exit_code_of(error: BaseException) -> ExitCode:
    """Returns the exit code of a command for an error that the client raised."""
    from raftmq.client import errors
    from raftmq_wire.codes import ResponseCode

    by_input = (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    if isinstance(error, errors.Unknown):
        return ExitCode.UNKNOWN
    if isinstance(error, errors.Unreachable):
        return ExitCode.UNREACHABLE
    if isinstance(error, errors.NotFound) or (isinstance(error, errors.Refused) and error.code not in by_input):
        return ExitCode.REFUSED
    return ExitCode.FAILED


def json_option(command: F) -> F:
    """Adds --json and --output: print one object (or one per message) on stdout instead of text; as YAML if asked
    for."""

    def remember(context: click.Context, param: click.Parameter, value: str | None) -> None:
        context.meta[_OUTPUT] = value

    def is_structured(context: click.Context, param: click.Parameter, value: bool) -> bool:
        return value or context.meta.get(_OUTPUT) in ("json", "yaml")

    command = click.option(
        "--output",
        type=click.Choice(["json", "table", "yaml"]),
        is_eager=True,
        expose_value=False,
        callback=remember,
        help="Print JSON, YAML or, as without it, text and tables.",
    )(command)
    return click.option("--json", "as_json", is_flag=True, callback=is_structured, help="Print JSON: --output json.")(
        command
    )


def yaml_wanted() -> bool:
    """Returns True if the running command was asked for YAML."""
    context = click.get_current_context(silent=True)
    return context is not None and context.meta.get(_OUTPUT) == "yaml"


def yaml_document(value: object) -> str:
    """Returns the value as one YAML document, which begins with `---`."""
    import yaml

    text: str = yaml.safe_dump(value, allow_unicode=True, sort_keys=False, explicit_start=True)
    return text


def data_option(command: F) -> F:
    """Adds --data: the local cluster's directory."""
    return click.option(
        "--data",
        type=LocalPath(),
        metavar="DIR",
        help=_DATA_HELP,
    )(command)


NOW = click.option("--now", is_flag=True, help="Hide messages that are not consumed, if fewer queues do that.")
"""The switch of commands that change the number of a topic's queues."""


def grace_option(text: str) -> Callable[[F], F]:
    """Returns the option --grace of a command that drains nodes; `text` is its help."""
    return click.option("--grace", "grace_s", type=click.FloatRange(min=0), default=0, metavar="SECONDS", help=text)


def cluster_options(command: F) -> F:
    """Adds --data, --admin and --json: a cluster by its directory or its HTTP addresses, and JSON instead of text."""
    return data_option(admin_option(json_option(command)))


def servers_option(command: F) -> F:
    """Adds --servers for a cluster elsewhere, --data for one on this machine, and the options for TLS, which `connect`
    reads."""

    def remember(context: click.Context, param: click.Parameter, value: str | None) -> None:
        context.meta[f"raftmq.{param.name}"] = value

    servers = click.option(
        "--servers",
        metavar="HOST:PORT;…",
        help="Name servers of the cluster, or a context (default: RAFTMQ_SERVERS, else the local cluster's).",
    )
    data = click.option(
        "--data", type=LocalPath(), metavar="DIR", help=_DATA_HELP, expose_value=False, callback=remember
    )
    for option, what in _TLS_OPTIONS.items():
        path = LocalPath(dir_okay=False)
        command = click.option(option, type=path, metavar="FILE", help=what, expose_value=False, callback=remember)(
            command
        )
    return servers(data(command))


def given_tls() -> Tls | None:
    """Returns the TLS that this command's options ask for; None if there are no such options."""
    from raftmq.client import Tls

    meta = click.get_current_context().meta
    files = [meta.get(f"raftmq.{option.removeprefix('--').replace('-', '_')}") or "" for option in _TLS_OPTIONS]
    return Tls(*files) if any(files) else None


def named_cluster(servers: str | None) -> dict[str, str] | None:
    """Returns the environment in which clients find the cluster that --data names; None if it names none, or if
    --servers comes before it. Raises LocalError for a directory without a cluster."""
    data = click.get_current_context().meta.get(_DATA)
    if data is None or servers is not None:
        return None
    read_cluster(data_dir(data))
    return {"RAFTMQ_DATA": str(data_dir(data))}


def names_cluster(servers: str | None) -> bool:
    """Returns True if --servers or --data of this command names a cluster."""
    return servers is not None or click.get_current_context().meta.get(_DATA) is not None


def tell_found(servers: str | None) -> None:
    """Reports on stderr, once per command, that the command uses a CA or a user that was not named: those of the local
    cluster that was found from the working directory. Raises ValueError for a user's file that cannot be used."""
    from raftmq.client.discovery import LOCAL_CA, LOCAL_USER, found_folder, local_file
    from raftmq.client.environment import user_of
    from raftmq.client.tls import find_tls

    folder = found_folder(servers)
    context = click.get_current_context()
    if folder is None or os.environ.get("RAFTMQ_DATA") or context.meta.get(_FOUND):
        return
    context.meta[_FOUND] = True
    user = local_file(folder, LOCAL_USER)
    counts = []
    if local_file(folder, LOCAL_CA) and find_tls(given_tls()) is None and not os.environ.get("RAFTMQ_TLS"):
        counts.append("over TLS")
    if user and not any(os.environ.get(name) for name in USER_VARIABLES):
        counts.append(f"as the user {plain(user_of(Path(user))[0])}")
    if counts:
        click.secho(f"{folder} was found by the working directory: {' and '.join(counts)}", dim=True, err=True)


def data_dir(given: str | None) -> Path:
    """Returns the local cluster's directory, decided by --data, the environment and the working directory."""
    return find_data_dir(given)


@contextlib.contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Makes a closed terminal (SIGHUP) or SIGTERM raise KeyboardInterrupt, so that the nodes are stopped instead of
    left running."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_json(value: object) -> None:
    """Prints one object: as one line of JSON, or as a YAML document."""
    if yaml_wanted():
        click.echo(yaml_document(value), nl=False)
    else:
        click.echo(json_line(value))


def show(as_json: bool, answer: Mapping[str, object], *lines: str, markup: bool = False) -> None:
    """Prints a command's result: one object with --json, else lines for people. `markup`: the lines use rich's
    markup."""
    if as_json:
        print_json({"schema": 1, **answer})
        return
    for line in map(plain, lines):
        if markup:
            console().print(line)
        else:
            click.echo(line)


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """Returns the text as it may be sent to a terminal: control characters are escaped in Python's notation, because
    client names and other text can come from anybody. Line feeds and tabs stay."""
    return _UNSEEN.sub(lambda found: ascii(found.group())[1:-1], text)


def json_line(value: object) -> str:
    """Returns the value as one line of JSON that is safe on a terminal: characters that `plain` escapes become JSON's
    own escapes."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", json.dumps(value, ensure_ascii=False))


def told_in_lines(what: str, why: str, fix: str) -> LocalError:
    """Returns an error for a command of a package above this one. It is printed like all other errors, and its exit
    code is 1."""
    return LocalError(what, why, fix)


def show_problems(problems: Iterable[str]) -> None:
    """Prints problems on stderr, separate from the result."""
    for problem in problems:
        click.secho(plain(problem), fg="red", err=True)


def tell_group(group: int, shown: Sized) -> None:
    """Prints the number of a group, if `shown`, the groups that are shown, has more than one."""
    if len(shown) > 1:
        click.echo(f"group      {group}")


def author() -> str:
    """Returns the name of the user who types the command, for the history of changes."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()}"[:200]


def counted(count: int, noun: str = "message") -> str:
    """Returns "1 message", "2 messages" and so on."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def told_of(names: Sequence[NodeName]) -> str:
    """Returns in words how many of the names are nodes, and how many are processes of the registry: "2 nodes and 3 of
    the registry"."""
    registry = sum(key_of(name)[0] == REGISTRY_GROUP for name in names)
    nodes = counted(len(names) - registry, "node")
    return f"{nodes} and {registry} of the registry" if registry else nodes


def console(*, stderr: bool = False) -> Console:
    """Returns the rich console for human readers: stdout, or stderr for progress besides real output. Only a terminal
    has a width, so text that goes to a file or a pipe is never truncated."""
    from rich.console import Console

    out = Console(stderr=stderr, highlight=False, soft_wrap=True)
    return out if out.is_terminal else Console(stderr=stderr, highlight=False, soft_wrap=True, width=WIDTH_MAX)


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[object]], *, none: str = "", left: Collection[str] | None = None
) -> None:
    """Prints a table for people, with a dash for None. The columns named in `left` (default: columns of texts) are
    aligned left, all others right. A cell that is rich's Text keeps its style; any other is printed as it is, brackets
    included. `none` is printed in place of a table without rows."""
    if none and not rows:
        click.echo(none)
        return
    if left is None:
        left = {title for i, title in enumerate(titles) if rows and isinstance(rows[0][i], str)}
    show_table(table_of(titles, rows, left), console())


def print_pages(
    titles: Sequence[str], pages: Iterable[Sequence[Sequence[object]]], *, none: str, left: Collection[str]
) -> None:
    """Prints a table that arrives in pages, each page at once. A single page is printed as a table; several are printed
    as plain lines, whose columns grow if a later page needs it."""
    following = iter(pages)
    rows, second = list(next(following)), next(following, None)
    if second is None:
        print_table(titles, rows, none=none, left=left)
        return
    widths = [0] * len(titles)
    whole: Iterable[Sequence[Sequence[object]]] = itertools.chain([[titles], rows, second], following)
    for page in whole:
        cells = [["-" if each is None else plain(str(each)) for each in row] for row in page]
        for at in range(len(titles)):
            widths[at] = max([widths[at], *(len(row[at]) for row in cells)])
        for row in cells:
            padded = [
                cell.ljust(width) if title in left else cell.rjust(width)
                for cell, width, title in zip(row, widths, titles, strict=True)
            ]
            click.echo("  ".join(padded).rstrip())


def table_of(titles: Sequence[str], rows: Sequence[Sequence[object]], left: Collection[str]) -> Table:
    """Returns the table of `print_table`, for a console that is wide enough."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, justify="left" if title in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            *(each if isinstance(each, Text) else Text("-" if each is None else plain(str(each))) for each in row)
        )
    return table


def natural_width(table: Table, out: Console) -> int:
    """Returns the terminal width, in columns, at which no cell of the table is cut."""
    return max(1, out.measure(table, options=out.options.update(max_width=WIDTH_MAX)).maximum)


def show_table(table: Table, out: Console) -> None:
    """Prints a table without cutting any cell. On a terminal that is too narrow for it, each row becomes a block of
    `title  value` lines."""
    from rich.text import Text

    if natural_width(table, out) <= out.width:
        out.print(table)
        return
    titles = [str(column.header) for column in table.columns]
    width = max(map(len, titles))
    for number, row in enumerate(zip(*(column.cells for column in table.columns), strict=True)):
        if number:
            out.print()
        for title, value in zip(titles, row, strict=True):
            shown = value if isinstance(value, Text) else Text.from_markup(str(value))
            out.print(Text.assemble((f"{title:<{width}}", "bold"), "  ", shown))


def is_context(servers: str | None) -> TypeGuard[str]:
    """Returns True if --servers names a context instead of addresses."""
    return servers is not None and servers != "" and ":" not in servers


class NodeDirectory(click.ParamType[Path]):
    """A node's data directory, given directly or, in a local cluster, as the node's folder that contains it."""

    name = "directory"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Returns the directory that contains IDENTITY. A directory without it is returned as it is, for the command to
        refuse."""
        from raftlog.storage.files import layout

        check_local(value, param_name(param))
        path = Path(value)
        within = path / "data"
        return within if not (path / layout.IDENTITY).exists() and (within / layout.IDENTITY).exists() else path


_REPEATED_S = 0.4
"""Seconds since the first failed attempt after which a command says that it tries again."""
_CONTACT_S = 0.9
"""Seconds in which a command looks for the leader before it says why there is none."""


def connect(servers: str | None) -> Client:
    """Returns a connected client of the cluster that --servers, --data or the environment names, in this order.

    Raises LocalError for malformed addresses, for a directory without a cluster, for a context at whose addresses
    another cluster answers, and after _CONTACT_S if no server can know a leader. If one could, but none is known by
    then, says so on stderr; the command's next request waits for a leader.
    """
    client = _open_client(servers)
    try:
        contact = client.contact(_CONTACT_S)
        if contact.hopeless:
            raise LocalError(
                "no server of the cluster can be reached",
                contact.why,
                _cure(contact.why),
                ExitCode.UNREACHABLE,
            )
    except BaseException:
        client.close()
        raise
    if contact.leader is None:
        show_error(
            "the cluster has no leader now; waiting for one",
            contact.why,
            "raftmq status    (in another terminal; Ctrl-C ends the waiting)",
        )
    return client


def _cure(why: str) -> str:
    """Returns the advice for the reason `why` no server can be reached."""
    from raftmq.client.port_probe import PLAIN_ALONE, TLS_ALONE

    if "speaks HTTP" in why:
        host = _host_before(" answers nothing", why) or "HOST"
        return f"--servers {host}:9876    (the clients' port; the HTTP API's is for --admin)"
    if "a name that is not known" in why:
        host = _host_before(" is a name that is not known", why)
        return f"getent hosts {host}    (the name is in --servers or RAFTMQ_SERVERS)"
    if TLS_ALONE in why or "is not trusted" in why:
        return "--tls-ca FILE    (or RAFTMQ_TLS_CA: the CA that the servers' certificates come from)"
    if PLAIN_ALONE in why or "this client's TLS: it hung up" in why:
        return "the same without --tls-ca, RAFTMQ_TLS_CA and RAFTMQ_TLS    (that port speaks plain text)"
    if "closed the connection" in why or "reset by peer" in why:
        host = _host_before(" answers nothing", why) or _host_before(" closed the connection", why) or "HOST"
        return f"--servers {host}:9876    (the clients' port), with --tls-ca FILE if it speaks TLS"
    return WHICH_CLUSTER


def _host_before(words: str, why: str) -> str:
    """Returns the host of the address that stands before `words` in the reason `why`; "" if `why` does not contain
    them."""
    before, found, _ = why.partition(words)
    return before.rpartition(" ")[2].rpartition(":")[0] if found else ""


class _Repeated:
    """Reports on stderr, once, that attempts have failed for a while and are repeated: the command may wait for
    long."""

    def __init__(self) -> None:
        self._first_s = 0.0
        self._told = False

    def __call__(self, retry: Retry) -> None:
        now = time.monotonic()
        self._first_s = self._first_s or now
        if not self._told and now - self._first_s >= _REPEATED_S:
            self._told = True
            why = f"{retry.address} {retry.cause}" if retry.address else retry.cause
            fix = "raftmq status    (in another terminal; Ctrl-C ends the waiting)"
            show_error(f"{retry.what}: no success yet; it is tried again", why, fix)


def show_error(what: str, why: str, fix: str) -> None:
    """Prints what happened, why, and what to type, or to do, on stderr."""
    for label, text, colour in (("", what, "red"), ("because: ", why, None), (fix_label(fix), fix, "green")):
        click.secho(label + " ".join(plain(text).split("\n")), fg=colour, err=True)


def _open_client(servers: str | None) -> Client:
    """Returns a client that has not connected yet. Raises LocalError, and RaftMQError if no server answers at the
    addresses of a context."""
    from raftmq.client import connect as open_client
    from raftmq.client.discovery import find_servers
    from raftmq.local.local_users import ClientOptions, client_options

    try:
        if is_context(servers):
            return _open_context(find_servers_context(servers))
        environ = named_cluster(servers)
        if environ is None:
            tell_found(servers)
            return open_client(servers, tls=given_tls(), on_retry=_Repeated())
        servers_there = find_servers(environ=environ)
        options = client_options(Path(environ["RAFTMQ_DATA"]))
        # As without --data, environment variables take precedence over the stored user.
        if any(os.environ.get(name) for name in USER_VARIABLES):
            options = ClientOptions(tls=options["tls"])
        return open_client(servers_there, on_retry=_Repeated(), **(options | {"tls": given_tls() or options["tls"]}))
    except ValueError as error:
        raise _bad_option(error) from None


def _open_context(context: ClusterContext) -> Client:
    """Returns a client of a context's cluster. Raises ValueError, LocalError, RaftMQError."""
    from raftmq.client import Tls
    from raftmq.client import connect as open_client

    tls = given_tls() or (Tls(ca=context.tls_ca) if context.tls_ca else None)
    client = open_client(context.servers, tls=tls, on_retry=_Repeated())
    try:
        if context.cluster_id:
            client.admin.members()
            check_cluster(context, *client.cluster_ids)
    except BaseException:
        client.close()
        raise
    return client


def _bad_option(error: ValueError) -> LocalError:
    """Returns the error for a setting that the client cannot use: a user, files of TLS, or addresses."""
    from raftmq.client import Tls
    from raftmq.client.environment import IncompleteUser

    told = str(error)
    if isinstance(error, IncompleteUser):  # no option names a user, so the values come from environment variables
        told = f"{error.given} is set, and {error.missing} is not"
        what = "USER" if error.missing == USER_VARIABLES[0] else "SECRET"
        why, fix = "a user has a name and a secret", f"export {error.missing}={what}"
    elif told.startswith("tls: "):
        why = "the files come from --tls-ca, --tls-cert and --tls-key, or RAFTMQ_TLS_CA and the like"
        named = [
            file
            for file in (given_tls() or Tls(*(os.environ.get(name, "") for name in _TLS_VARIABLES)))
            if file and file in told
        ]
        fix = f"ls -l {' '.join(named) or 'FILE'}"
    else:
        why = "the servers come from --servers, RAFTMQ_SERVERS or the local cluster's cluster.json"
        url = re.match(r'"[a-z]+://([^/":]+:\d+)', told)
        fix = f"--servers {url[1] if url else '127.0.0.1:9876'}"
    return LocalError(told, why, fix, ExitCode.USAGE)
