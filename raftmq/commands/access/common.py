"""Parts that commands about users share: options that say which cluster is meant, and secrets that appear in no command
line."""

from __future__ import annotations

import base64
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from raftmq.commands.shared_options import cluster_options
from raftmq.local.http.admin_http import ADMIN_VARIABLE, AdminApi, GivenAddresses, admin_addresses, parse_addresses
from raftmq.local.http.credentials import Address, RemoteSecret
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

F = TypeVar("F", bound=Callable[..., Any])
LOOK = "raftmq user list"
ADMIN_DEFAULT = "127.0.0.1:9644"
SECRET_FILE_MAX = 1_024
GENERATED_BYTES = 24


def people_options(command: F) -> F:
    """Adds --data, --admin, --json, and --data-dir for an operator on the machine of a node."""
    return click.option(
        "--data-dir",
        type=LocalPath(path_type=Path, file_okay=False, exists=True),
        metavar="DIR",
        help=f"Data directory of a node on this machine: proves its secret at --admin (default {ADMIN_DEFAULT}).",
    )(cluster_options(command))


def addresses(admin: str | None, data: str | None, data_dir: Path | None) -> list[str]:
    """Returns the addresses of the cluster, with the caller's credentials. Raises LocalError."""
    if data_dir is None:
        return admin_addresses(admin, data)
    named = admin or os.environ.get(ADMIN_VARIABLE) or ADMIN_DEFAULT
    secret = secret_of(data_dir, named)
    return GivenAddresses(Address(each, RemoteSecret(each, secret)) for each in parse_addresses(named))


def api(admin: str | None, data: str | None, data_dir: Path | None, look: str = LOOK) -> AdminApi:
    """Returns a client of the HTTP API at these addresses. Raises LocalError."""
    return AdminApi(addresses(admin, data, data_dir), look)


def secret_of(data_dir: Path, named: str) -> Path:
    """Returns the path of the cluster's secret in a node's data directory. `data_dir`: that directory, or the folder
    that has it as `data`. `named`: the address of the HTTP API for which it is used. Raises LocalError."""
    for folder in (data_dir, data_dir / "data"):
        if (folder / "SECRET").exists():
            return folder / "SECRET"
    raise LocalError(
        f"there is no secret in {data_dir}",
        "a node keeps it as SECRET in node.data_dir, or in the file that peer.secret_file names",
        f"RAFTMQ_SECRET_FILE=FILE, and the same command with --admin {named} in place of --data-dir",
        ExitCode.USAGE,
    )


def secret_options(command: F) -> F:
    """Adds --secret-file and --generate; without either option, the command asks for the secret, or reads it from the
    first line of standard input."""
    file = click.option(
        "--secret-file",
        type=LocalPath(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Read the secret from the first line of FILE, which only its owner may read.",
    )
    return file(click.option("--generate", is_flag=True, help="Make a secret, and print it once.")(command))


def new_secret(name: str, file: Path | None, *, generate: bool) -> tuple[str, bool]:
    """Returns (the secret, True if it was generated here and has to be shown). Raises LocalError."""
    if generate and file is not None:
        raise click.UsageError("--generate and --secret-file exclude each other.", click.get_current_context())
    if generate:
        return base64.urlsafe_b64encode(os.urandom(GENERATED_BYTES)).decode(), True
    if file is not None:
        return _of_file(file), False
    instead = "the same command with --secret-file FILE    (or --generate)"
    return ask_secret(f"secret of {name}", instead, confirm=True), False


def ask_secret(prompt: str, instead: str, *, confirm: bool = False) -> str:
    """Asks for a secret on a terminal, without echo; without a terminal reads a line of standard input. `instead`: the
    command that the error advises if there is no secret. Raises LocalError."""
    if sys.stdin.isatty():
        return str(click.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True))
    line = sys.stdin.readline(SECRET_FILE_MAX).strip("\r\n")
    if not line:
        raise LocalError(
            "no secret was given",
            "standard input is no terminal, and has no line with one",
            instead,
            ExitCode.USAGE,
        )
    return line


def _of_file(path: Path) -> str:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        with path.open(encoding="utf-8") as file:
            line = file.readline(SECRET_FILE_MAX).strip("\r\n")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise LocalError(f"{path} cannot be read", why, f"ls -l {path}", ExitCode.USAGE) from None
    if mode & 0o077:
        why = f"its mode is {mode:04o}, so others may read it"
        raise LocalError(f"the secret in {path} is not used", why, f"chmod 600 {path}", ExitCode.USAGE)
    if not line:
        raise LocalError(f"{path} has no secret", "its first line is empty", f"$EDITOR {path}", ExitCode.USAGE)
    return line
