"""`raftmq login` and `raftmq logout`: log a user in to a context and out. The token is kept in a file that only this
user may read."""

from __future__ import annotations

import os

import click

from raftmq.commands.access.common import ask_secret
from raftmq.commands.point_in_time import told_time
from raftmq.commands.shared_options import json_option, show
from raftmq.local.http.admin_http import ADMIN_VARIABLE, AdminApi, ApiRefusal, GivenAddresses, cluster_at
from raftmq.local.http.contexts import check_cluster, find_context, read_token, token_file, write_token
from raftmq.local.http.credentials import Address, Bearer
from raftmq_wire.errors import ExitCode, LocalError

_CONTEXT = click.option(
    "--admin", metavar="CONTEXT", help=f"A context of raftmq context add (default: {ADMIN_VARIABLE})."
)


@click.command()
@click.argument("user")
@_CONTEXT
@click.option("--hours", type=click.IntRange(1, 2160), default=12, show_default=True, help="It ends then.")
@json_option
def login(user: str, admin: str | None, hours: int, as_json: bool) -> None:
    """Log in as USER: --admin CONTEXT then acts as that user.

    The secret is asked for, or is the first line of standard input. The token is kept beside the contexts, in a file
    of mode 0600. For a script, give RAFTMQ_TOKEN a token of `raftmq user token`.
    """
    name, addresses = _context(admin, user)
    secret = ask_secret(
        f"secret of {user}", f"raftmq login {user} --admin {name} < FILE    (its first line is the secret)"
    )
    body = {"user": user, "secret": secret, "answer": "token", "hours": hours}
    answer = AdminApi(addresses, "raftmq login").post("/v1/session", body)
    write_token(name, str(answer.pop("token")))
    told = f"{user} is logged in at {name} until {told_time(answer['ends'])}; the token is in {token_file(name)}"
    show(as_json, {**answer, "file": str(token_file(name))}, told)


@click.command()
@_CONTEXT
@json_option
def logout(admin: str | None, as_json: bool) -> None:
    """Log out: the token is taken away and its file removed."""
    name, addresses = _context(admin, "")
    token, told = _token(name), f"nobody was logged in at {name}"
    if token:
        told = f"logged out at {name}"
        proven = GivenAddresses(Address(address, Bearer(token)) for address in addresses)
        try:
            AdminApi(proven, "raftmq logout").delete("/v1/session")
        except ApiRefusal as refusal:
            if refusal.code != "unauthenticated":
                raise
    write_token(name, "")
    show(as_json, {"context": name, "was_logged_in": bool(token)}, told)


def _token(name: str) -> str:
    try:
        return read_token(name)
    except LocalError:
        return ""  # the file goes, as others may have read it; the token ends by itself, or by raftmq user revoke


def _context(admin: str | None, user: str) -> tuple[str, list[str]]:
    """Returns the context's name and addresses, after checking that its own cluster answers there. `user`: the user who
    logs in; "" for a logout. Raises LocalError."""
    name = (admin or os.environ.get(ADMIN_VARIABLE, "")).strip()
    if not name or ":" in name:
        raise LocalError(
            "a login needs a context",
            "the token is kept for a name; a local cluster needs none, since whoever reads its secret is its operator",
            f"raftmq context add prod --admin {name or 'HOST:9644'} && raftmq login {user} --admin prod"
            if user
            else "raftmq context list    (the names to log out of: raftmq logout --admin NAME)",
            ExitCode.USAGE,
        )
    context = find_context(name)
    check_cluster(context, cluster_at(context.addresses))
    return name, GivenAddresses(context.addresses)
