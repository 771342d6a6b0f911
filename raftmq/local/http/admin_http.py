"""The command line's client of the HTTP API: it asks any node that answers, and raises errors of three lines."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click

from cluster.config.local_layout import NodeName, find_data_dir, key_of, read_cluster
from raftlog.types import FIRST_GROUP
from raftmq.local.http.answers import ForeignAnswerError, answered
from raftmq.local.http.contexts import check_cluster, find_context, read_token
from raftmq.local.http.credentials import addresses_of, author_of, node_at
from raftmq.local.http.credentials import given as with_proof
from raftmq.local.http.http_exchange import connected, exchanged
from raftmq.local.http.https import chosen_tls, forget_tls, speak_tls
from raftmq.local.http.list_pages import AFTER, pages, whole_answer, whole_list
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError
from raftmq_wire.user_file import USER_VARIABLES

F = TypeVar("F", bound=Callable[..., Any])

ADMIN_VARIABLE = "RAFTMQ_ADMIN"
ADMIN_PORT = "9644"
"""The usual port of the HTTP API."""
_TIMEOUT_S = 10.0
_LOOK_S = 2.0
_SCRUB_POLL_S = 0.3
HTTPS_ALONE = "this port takes https alone"
"""The text with which a node refuses plain HTTP if `admin.tls` is enforcing (`cluster.admin.server`)."""

_NO_ROUTE = re.compile(r"^there is nothing at /|^/\S* does not take [A-Z]+$")
_NO_PART = re.compile(r"unknown (field|query) (.+)", re.DOTALL)
"""Texts with which an older node refuses a route (`cluster.admin.server`), or a field of a request
(`cluster.admin.request_parsing`), that it does not know."""

_EXIT_CODES = {
    "not_found": ExitCode.REFUSED,
    "exists": ExitCode.REFUSED,
    "refused": ExitCode.REFUSED,
    "unconfirmed": ExitCode.REFUSED,
    "over_quota": ExitCode.REFUSED,
    "no_leader": ExitCode.REFUSED,
    "not_leader": ExitCode.REFUSED,
    "leader_unreachable": ExitCode.REFUSED,
    "unreachable": ExitCode.REFUSED,
    "denied": ExitCode.REFUSED,
    "unauthenticated": ExitCode.REFUSED,
    "cannot_judge": ExitCode.REFUSED,
    "bad_pass": ExitCode.REFUSED,
    "path_not_allowed": ExitCode.REFUSED,
    "bad_field": ExitCode.USAGE,
    "bad_query": ExitCode.USAGE,
    "bad_command": ExitCode.USAGE,
    "unknown_outcome": ExitCode.UNKNOWN,
}


_TOLD = "raftmq.unused_user"
LISTS = {
    "/v1/topics/{name}": "raftmq topic describe NAME",
    "/v1/topics": "raftmq topic list",
    "/v1/groups": "raftmq group list",
    "/v1/broker-groups": "raftmq broker-group list",
    "/v1/writes": "raftmq writes list",
    "/v1/members": "raftmq node list",
    "/v1/consistency": "raftmq inspect-consistency",
    "/v1/tokens": "raftmq user tokens NAME",
    "/v1/users": "raftmq user list",
    "/v1/quotas": "raftmq quota list",
    "/v1/config": "raftmq config show",
    "/v1/tier/scrub": "raftmq tier verify",
    "/v1/tier": "raftmq tier status",
    "/v1/retention": "raftmq retention",
}
"""A path of the HTTP API that a hint names -> the command that shows the same."""


class ApiRefusal(LocalError):
    """An error that the HTTP API returned."""

    def __init__(self, code: str, what: str, why: str, fix: str, exit_code: ExitCode) -> None:
        super().__init__(what, why, fix, exit_code)
        self.code = code
        """The error code, one of those in docs/http-api.md."""

    @property
    def is_passing(self) -> bool:
        """True if nothing was changed and the same request may succeed in a moment."""
        return self.code in ("no_leader", "not_leader", "leader_unreachable", "failed")

    @property
    def is_unsettled(self) -> bool:
        """True if nothing was changed because another change of the members is not committed yet."""
        from cluster.members.checks import IN_PROGRESS

        return self.code == "refused" and self.what.startswith(IN_PROGRESS)


def admin_option(command: F) -> F:
    """Adds the options --admin (the addresses of the HTTP API) and --tls-ca (a CA, for TLS) to a command."""

    def take(context: click.Context, param: click.Parameter, value: str | None) -> None:
        forget_tls()
        if value is not None:
            speak_tls(value, os.environ.get("RAFTMQ_TLS_CERT", ""), os.environ.get("RAFTMQ_TLS_KEY", ""))

    admin = click.option(
        "--admin",
        metavar="HOST:PORT,…",
        help=f"HTTP API of one or more nodes, or a context (default: {ADMIN_VARIABLE}, else the local cluster's).",
    )
    tls = click.option(
        "--tls-ca",
        type=LocalPath(dir_okay=False),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=take,
        help="CAs that the nodes' certificates come from: asks over https (default: RAFTMQ_TLS_CA).",
    )
    return admin(tls(command))


class GivenAddresses(list[str]):
    """Addresses that the user gave explicitly. Errors about them do not advise `raftmq up`, because it cannot start
    nodes on other machines."""


def admin_addresses(given: str | None, data: str | None = None, group: int = FIRST_GROUP) -> list[str]:
    """Returns the "host:port" of the HTTP APIs to ask, in order, from --admin, RAFTMQ_ADMIN or cluster.json. `group`:
    the group of the local cluster that is meant. Raises LocalError."""
    named = given or ("" if data else os.environ.get(ADMIN_VARIABLE, ""))
    if not named:
        return addresses_of(read_cluster(find_data_dir(data)).of_group(group))
    return GivenAddresses(with_proof(parse_addresses(named)) if ":" in named else _of_context(named.strip()))


def node_addresses(given: str | None, data: str | None = None) -> list[str]:
    """Returns the addresses of all nodes: if the user named some nodes of a cluster, adds the others. Raises
    LocalError."""
    from raftmq.local.status import with_members

    addresses = admin_addresses(given, data)
    return GivenAddresses(with_members(addresses)) if isinstance(addresses, GivenAddresses) else addresses


def _of_context(name: str) -> list[str]:
    """Returns the addresses of a context, and checks that they still lead to the cluster for which it was added. Raises
    LocalError."""
    context = find_context(name)
    if context.tls_ca:
        speak_tls(context.tls_ca)
    if context.cluster_id:
        check_cluster(context, cluster_at(context.addresses))  # checked before credentials are sent there
    return with_proof(context.addresses, read_token(name))


def cluster_at(addresses: list[str]) -> str:
    """Returns the id of the cluster that answers at these addresses; "" if none can be reached. Raises LocalError."""
    for address in addresses:
        if (told := node_at(address)) is not None:
            return told[1]
    try:
        return str(AdminApi(addresses).local("/v1/status")["cluster_id"])  # a node of an earlier release
    except LocalError as error:
        if error.exit_code is not ExitCode.UNREACHABLE:
            raise
        return ""  # the next request reports it


def parse_addresses(named: str) -> list[str]:
    """Parses "http://a:1,b:2" into a list of "host:port". With https:// all are asked over TLS. Raises LocalError."""
    parts = [part.strip().rstrip("/") for part in named.split(",") if part.strip()]
    if any(part.startswith("https://") for part in parts) and chosen_tls() is None:
        speak_tls()
    addresses = [part.removeprefix("https://").removeprefix("http://") for part in parts]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal()):
            raise LocalError(
                f"{address} is not the address of an HTTP API",
                f"an address is host:port; it comes from --admin or {ADMIN_VARIABLE}",
                "--admin 127.0.0.1:9644",
                ExitCode.USAGE,
            )
    return addresses


class AdminApi:
    """A client of the HTTP API. It asks the first node that can be reached. It asks the next one if that node knows no
    leader, if the leader has just changed, or if the node's release does not know the request. In all other cases it
    sends a request only once, because a request may be carried out although its answer is lost."""

    def __init__(
        self, addresses: Sequence[str], look: str = "raftmq topic list", *, timeout_s: float = _TIMEOUT_S
    ) -> None:
        """`look`: the command that shows if a change has happened; errors advise it."""
        self._addresses = list(addresses)
        self._look = look
        self._timeout_s = timeout_s
        given = isinstance(addresses, GivenAddresses) and self._addresses
        self._fix = status_of(self._addresses[0]) if given else "raftmq up --detach    (or raftmq status)"

    def get(self, path: str) -> dict[str, Any]:
        """Sends a GET for data that a majority has confirmed. Raises LocalError."""
        return self.local(f"{path}?consistency=linearizable")

    def pages(self, path: str, consistency: str = "linearizable") -> Iterator[dict[str, Any]]:
        """Yields the pages of a list as they arrive. A node of an earlier release returns the complete list at once.
        Raises LocalError."""
        yield from pages(self.page, f"{path}?consistency={consistency}")

    def whole(self, path: str, field: str) -> dict[str, Any]:
        """Returns the first page with the items of all pages; a majority has confirmed each page. Raises LocalError."""
        return whole_list(self.page, f"{path}?consistency=linearizable", field)

    def local_pages(self, path: str, cursor: str = AFTER) -> Iterator[dict[str, Any]]:
        """Yields the pages of a list about the answering node itself. Raises LocalError."""
        yield from pages(self.page, path, cursor)

    def local(self, path: str) -> dict[str, Any]:
        """Sends a GET that the answering node answers about itself. Raises LocalError, or UnfollowedPageError if the
        answer is a page that is not the last."""
        answer: dict[str, Any] = whole_answer(path, self.page(path))
        return answer

    def page(self, path: str) -> dict[str, Any]:
        """Sends a GET as `local` does, and returns one page of a list even if further pages follow. Raises
        LocalError."""
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Sends a POST, which makes a change. Raises LocalError."""
        return self._call("POST", path, body)

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Sends a PUT, which changes an existing thing. Raises LocalError."""
        return self._call("PUT", path, body)

    def delete(self, path: str) -> dict[str, Any]:
        """Sends a DELETE. Raises LocalError."""
        return self._call("DELETE", path, None)

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        if method != "GET":
            _tell_unused_user(self._addresses)
        refused: ApiRefusal | None = None
        older: tuple[str, str] | None = None
        why, fix = "", self._fix
        for number, address in enumerate(self._addresses * 2):
            if number >= len(self._addresses) and (refused is None or refused.code != "not_leader"):
                break
            try:
                connection = connected(address, self._timeout_s)
            except OSError as error:
                from raftmq.client.tls import TlsError

                of_tls = isinstance(error, TlsError)
                why = f"{address} {error}" if of_tls else f"{address}: {error.strerror or error}"
                fix = _tls_cure(why) if of_tls else self._fix
                if isinstance(error, socket.gaierror):
                    fix = f"getent hosts {host_of(address)}    (the name is in --admin or {ADMIN_VARIABLE})"
                continue
            try:
                return self._exchange(connection, address, method, path, body)
            except ApiRefusal as refusal:
                if lack := _lack_of(refusal, method, path):
                    older = older or (address, lack)
                    continue
                # Both codes mean that nothing was done. A node without a leader may only be cut off from the others.
                if refusal.code not in ("no_leader", "not_leader"):
                    raise
                refused = refusal
        if refused is not None:
            raise refused
        if older is not None:
            raise _older_node(*older)
        raise LocalError(
            f"no node answers at {', '.join(self._addresses)}",
            why,
            fix,
            ExitCode.UNREACHABLE,
        )

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        address: str,
        method: str,
        path: str,
        body: dict[str, Any] | None,
    ) -> dict[str, Any]:
        data = json.dumps(body).encode() if body is not None else None
        try:
            reply = exchanged(connection, address, method, path, data)
            answer = answered(reply.status, reply.body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _broken(method, address, error, self._look) from None
        finally:
            connection.close()
        if reply.status >= 400:
            raise _refused(answer, self._look)
        return answer


def _tls_cure(why: str) -> str:
    from raftmq.client.port_probe import PLAIN_ALONE

    if PLAIN_ALONE in why:
        return "the same without --tls-ca, https://, RAFTMQ_TLS_CA and RAFTMQ_TLS    (that port speaks plain text)"
    return "--tls-ca FILE    (the CA that the nodes' certificates come from)"


def _tell_unused_user(addresses: Sequence[str]) -> None:
    """Warns on stderr, once per command, that the user in the environment variables is not the one who makes this
    change over HTTP."""
    context = click.get_current_context(silent=True)
    if context is None or context.meta.get(_TOLD) or not any(os.environ.get(name) for name in USER_VARIABLES):
        return
    context.meta[_TOLD] = True
    who = author_of(addresses[0]) if addresses else "nobody"
    what = f"{USER_VARIABLES[0]} does not count for this command, which acts as {who}"
    click.secho(f"{what}; a user is named by: raftmq login", fg="yellow", err=True)


def raise_if_refused(addresses: Sequence[str]) -> LocalError | None:
    """Raises the refusal of the first node that answers, if it refuses to report its status. Returns the error why no
    node answers; None if one answers."""
    try:
        AdminApi(addresses, timeout_s=_LOOK_S).local("/v1/status")
    except ApiRefusal:
        raise
    except LocalError as error:
        return error
    return None


def status_of(address: str) -> str:
    """Returns the advice for an address that the user named and at which no HTTP API answers."""
    if address.endswith(f":{ADMIN_PORT}"):
        return f"raftmq status --admin {address}    (once a node runs there)"
    usual = f"{host_of(address)}:{ADMIN_PORT}"
    return f"raftmq status --admin {usual}    (the port is admin.port, by default {ADMIN_PORT} and not a client's)"


def host_of(address: str) -> str:
    """Returns the host of "host:port", with or without a scheme before it."""
    return address.rpartition("://")[2].rpartition(":")[0]


def _broken(method: str, address: str, error: Exception, look: str) -> LocalError:
    if method == "GET":
        foreign = isinstance(error, ForeignAnswerError)
        return LocalError(
            f"{address} is not the HTTP API of a node" if foreign else f"{address} closed the connection",
            str(error) or type(error).__name__,
            status_of(address),
            ExitCode.UNREACHABLE,
        )
    return LocalError(
        f"{address} did not report the outcome of the change",
        f"{str(error) or type(error).__name__}; the change may have been made",
        f"check first, then repeat the command if needed: {look}",
        ExitCode.UNKNOWN,
    )


def _refused(answer: Any, look: str) -> ApiRefusal:
    """Returns the error with the API's own words; advice that names HTTP requests is reworded to commands."""
    error = answer["error"]
    code, hint = error["code"], error["hint"]
    if "GET /" in hint:
        hint = in_commands(hint) or (look if code == "not_found" else hint)
    if error["message"] == HTTPS_ALONE:
        hint = "--tls-ca FILE    (or RAFTMQ_TLS_CA=FILE: the CA that the nodes' certificates come from)"
    if code == "exists":
        kind = "group" if error["message"].startswith("group ") else "topic"
        named = re.match(r"(?:group|topic) ([%|a-zA-Z0-9_-]+) ", error["message"])
        hint = f"raftmq {kind} create {named[1] if named else 'NAME'} --update    (or --keep, to leave it as it is)"
    if code == "unauthenticated" and hint.startswith("send Authorization"):
        hint = f"{_login()}    (or RAFTMQ_TOKEN, or RAFTMQ_SECRET_FILE for the operator)"
    if code == "unknown_outcome":
        hint = f"check first, then repeat the command if needed: {look}"
    message = error["message"].removeprefix("nothing was changed: ")
    if code == "bad_field" and hint.startswith("correct "):
        hint = "the same command with another value"
    if code == "no_leader":
        why = "a change and a confirmed answer need a majority of the nodes; nothing was changed"
        return ApiRefusal(
            code, message, why, "raftmq status    (and the same again once a node leads)", ExitCode.REFUSED
        )
    is_sentence = code in ("refused", "unconfirmed", "failed") or message.startswith("field ")
    if is_sentence and ": " in message:
        what, why = message.split(": ", 1)
        return ApiRefusal(code, what, why, hint, _EXIT_CODES.get(code, ExitCode.FAILED))
    if code == "unauthenticated" and any(os.environ.get(name) for name in USER_VARIABLES):
        why = f"{USER_VARIABLES[0]} and {USER_VARIABLES[1]} do not count for the HTTP API; nothing was changed"
        return ApiRefusal(code, message, why, hint, ExitCode.REFUSED)
    reason = {
        "not_found": "the cluster has nothing with that name",
        "exists": "nothing was changed",
        "unknown_outcome": "the outcome is unknown",
        "internal": "the outcome is unknown",
    }.get(code, "nothing was changed")
    return ApiRefusal(code, message, reason, hint, _EXIT_CODES.get(code, ExitCode.FAILED))


def in_commands(hint: str) -> str:
    """Returns advice of the API that names a GET request, rewritten to name a command; "" if no command makes that
    request."""
    before, _, asked = hint.partition("GET ")
    typed = next((typed for path, typed in LISTS.items() if asked.startswith(path)), "")
    return f"{typed}    ({before.rstrip(': ')})" if before and typed else typed


def _login() -> str:
    """Returns the command that logs in at the cluster which the present command asks."""
    context = click.get_current_context(silent=True)
    named = str((context.params.get("admin") if context is not None else "") or os.environ.get(ADMIN_VARIABLE, ""))
    if ":" not in named:
        return f"raftmq login USER --admin {named or 'CONTEXT'}"
    return f"raftmq context add prod --admin {named} && raftmq login USER --admin prod"


def _lack_of(refusal: ApiRefusal, method: str, path: str) -> str:
    """Returns the part of the request that the node refused because its older release does not know it; "" if the
    refusal has another reason."""
    verb, said = f"{method} {path.split('?')[0]}", refusal.what
    if refusal.code in ("not_found", "bad_method") and _NO_ROUTE.search(said):
        return verb
    if refusal.code in ("bad_field", "bad_query") and (unknown := _NO_PART.fullmatch(said)):
        return f"{unknown[1]} {unknown[2]} in {verb}"
    return ""


def _older_node(address: str, lack: str) -> LocalError:
    from cluster.runtime.host.versions import versions
    from raftmq.local.status import fetch_status

    own, status = versions()["raftmq"], fetch_status(address) or {}
    version = status.get("versions", {}).get("raftmq", "unknown")
    return LocalError(
        f"the node at {address} does not know {lack}",
        f"it runs version {version}, this command is of version {own} and asks for more; nothing was changed",
        "raftmq upgrade plan    (or use the command of the node's version)",
        ExitCode.REFUSED,
    )


def drain_node(node: NodeName, addresses: Sequence[str], *, undo: bool = False) -> dict[str, Any]:
    """Drains the node, to whose group the addresses belong: it hands leadership over and sends clients elsewhere.
    `undo`: True to end the drain. Raises LocalError."""
    return AdminApi(addresses, "raftmq node list").post(f"/v1/members/{key_of(node)[1]}/drain", {"drain": not undo})


def scrubbed(api: AdminApi, wishes: dict[str, bool], timeout_s: float = math.inf) -> dict[str, Any] | None:
    """Runs the leader's scrub and returns its result (GET /v1/tier/scrub); None if it has not ended in time, or another
    node leads now. `wishes`: the body of the POST that starts it. Raises LocalError."""
    deadline = time.monotonic() + timeout_s
    begun = view = api.post("/v1/tier/scrub", wishes)
    while view["running"] and _is_same_scrub(begun, view) and time.monotonic() < deadline:
        time.sleep(_SCRUB_POLL_S)
        view = api.local("/v1/tier/scrub")
    return view if _is_same_scrub(begun, view) and not view["running"] else None


def _is_same_scrub(begun: dict[str, Any], view: dict[str, Any]) -> bool:
    return bool((begun["node"], begun["number"]) == (view["node"], view["number"]))
