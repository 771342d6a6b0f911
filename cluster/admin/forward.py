"""Forwards a request to the leader's HTTP API, over one hop at most. If the outcome of a forwarded change is unknown,
the client gets `unknown_outcome`.

The client's token stays on this node: a pass names the client's user to the other node
(`cluster.admin.signed_identity`). The other node's answer is not trusted: no more of it is read than the route's limit
plus CONSTANT_BYTES_MAX.
"""

from __future__ import annotations

from typing import Final

import aiohttp
from aiohttp import web

from cluster.admin.access import STRANGER, Caller
from cluster.admin.errors import ApiError, unknown_outcome
from cluster.admin.node_interface import AdminPort
from cluster.admin.peer_http_client import NodeSession
from cluster.admin.route import CONSTANT_BYTES_MAX, Route
from cluster.admin.streamed_json import Pieces, in_pieces
from cluster.config.local_layout import NodeName, name_of, names_of
from cluster.runtime.request_limits import TooLongError, read_at_most
from raftlog.kept_errors import bare
from raftlog.types import NodeId
from statemachine.cluster_wide.broker_groups import is_retired

HOPS_HEADER: Final = "X-RaftMQ-Hops"
FOR_HEADER: Final = "X-RaftMQ-For"
"""Name of the header in which a forwarding node states the client's address. It proves nothing; only a pass does."""
PASSED_BACK: Final = ("Retry-After",)
"""Names of the headers of the other node's answer that are copied to the client."""
CALLER: Final = web.RequestKey("caller", Caller)
"""Key under which a request stores its author, as far as the author is proven."""
OF_NODE: Final = web.RequestKey("of_node", bool)
"""Key under which a request stores a bool: True if a node forwarded it. In a cluster without a secret, anybody can
claim that."""
CONNECT_TIMEOUT_S: Final = 1.0
ASK_THERE: Final = "ask a node of that group: GET /v1/broker-groups lists them"


def asker_of(request: web.Request, *, proven: bool) -> str:
    """Returns the origin of a request, for the record of a change. `proven`: True if this cluster has a secret. Then
    the header X-RaftMQ-For is ignored, because a node would have sent a pass."""
    caller = request.get(CALLER, STRANGER)
    if not proven and caller.user is None and HOPS_HEADER in request.headers:
        first = request.headers.get(FOR_HEADER, "")[:64]
        if first and first.isprintable():
            return f"{first} by way of {caller.address}"
    return str(caller)


def _path_of(request: web.Request) -> str:
    """Returns the path and the query of a request. A client may send a whole URL, as to a proxy; its host is dropped,
    because it is not the node to which the request is forwarded."""
    return request.rel_url.raw_path_qs


class LeaderForwarder:
    """Forwards requests to the leader, to other members, and to other groups of brokers."""

    def __init__(self, port: AdminPort) -> None:
        self._port = port
        self._session = NodeSession(port.configuration.tls.http_dialling())

    async def close(self) -> None:
        """Closes the connections to the other nodes."""
        await self._session.close()

    async def pass_on(self, request: web.Request, route: Route, *, changes: bool) -> web.StreamResponse:
        """Returns the leader's answer to a request, or a 307 with the leader's address if the client sent `Prefer:
        redirect`. `changes`: True if the request may change something, so that a lost answer is an unknown outcome.
        Raises ApiError if no other node is known to lead, if another node has forwarded the request already, or if the
        leader does not answer."""
        leader = self._port.services.routes.own.leader()
        if leader == self._port.config.node.id:
            raise ApiError(
                "not_leader", "this node was elected just now and does not take writes yet", "ask again in a moment"
            )
        if not leader:
            raise ApiError("no_leader", "no leader is known", "ask again; nothing was changed")
        if HOPS_HEADER in request.headers:
            raise ApiError(
                "not_leader",
                f"passed on once already; {self._port.object_of(leader)} leads",
                "ask again; nothing was changed",
            )
        address = self._address(leader)
        if not address:
            raise ApiError(
                "leader_unreachable",
                f"{self._port.object_of(leader)} leads, and its HTTP address is not configured here",
                f"write admin in the [[peers]] table of {self._port.object_of(leader)}, or ask that node",
            )
        if "redirect" in request.headers.get("Prefer", ""):
            if "Authorization" in request.headers or "Cookie" in request.headers:
                why = "a client that follows it would send its token to an address that it did not choose"
                raise ApiError("bad_request", f"no redirect with a token: {why}", "leave out Prefer: redirect")
            return web.Response(
                status=307,
                headers={"Location": f"{request.scheme}://{address}{_path_of(request)}", "X-Raft-Leader": str(leader)},
            )
        return await self._send(request, self._port.name_of(leader), address, self._most(route), changes)

    async def pass_to(self, node: NodeId, request: web.Request, route: Route, *, changes: bool) -> web.StreamResponse:
        """Returns the answer of the member `node` to a request about itself. Raises ApiError if the node is no member,
        or cannot be asked."""
        members = self._port.nodes.membership.in_force.node_uuids
        if node not in members:
            names = names_of(self._port.config.cluster.group, members)
            raise ApiError(
                "not_found",
                f"there is no {self._port.object_of(node)}",
                f"use one of {names}; raftmq node list shows them",
            )
        address = self._address(node)
        if not address or HOPS_HEADER in request.headers:
            raise ApiError(
                "unreachable",
                f"the HTTP address of {self._port.object_of(node)} is not known here",
                "ask that node itself",
            )
        return await self._send(request, self._port.name_of(node), address, self._most(route), changes)

    async def pass_to_group(
        self, group: int, member: NodeId | None, request: web.Request, route: Route, *, changes: bool
    ) -> web.StreamResponse:
        """Returns the answer of another group of brokers. If `member` is given, that node is asked. Otherwise the
        group's leader is asked, and, unless the request changes something, its other members in turn while none can be
        reached. Raises ApiError if the group is unknown or retired, if another node has forwarded the request already,
        or if no asked node answers."""
        record = self._port.services.routes.others().get(group)
        if record is None and is_retired(self._port.state.broker_groups.by_number, group):
            raise ApiError("refused", f"group {group} of brokers has retired", "GET /v1/broker-groups lists all")
        if record is None:
            why = f"this node knows no group {group} of brokers"
            raise ApiError("not_found", why, "GET /v1/broker-groups lists all")
        if HOPS_HEADER in request.headers:
            raise ApiError("unreachable", f"passed on once already, for group {group}", "ask a node of that group")
        members = {each.node: each.http for each in record.members}
        asked = sorted(members, key=lambda node: (node != record.leader, node in record.away, node))
        if member is not None:
            asked = [member]
        elif changes:
            asked = [record.leader]
        refused = ApiError("unreachable", f"group {group} has no such member, or its address is not known", ASK_THERE)
        for node in asked:
            if address := members.get(node, ""):
                try:
                    return await self._send(request, name_of(group, node), address, self._most(route), changes)
                except ApiError as error:
                    if error.code != "leader_unreachable":
                        raise
                    refused = bare(error)
        raise refused

    def not_passed_on(self) -> ApiError:
        """Returns the error for a request whose body has a secret. No node forwards such a request; the client must ask
        the leader itself."""
        leader = self._port.services.routes.own.leader()
        if not leader or leader == self._port.config.node.id:
            return ApiError("no_leader", "no leader takes writes now", "ask again in a moment; nothing was changed")
        why = "no node sends a secret on to another one"
        where = self._address(leader) or "raftmq node list shows where"
        return ApiError("not_leader", f"{self._port.object_of(leader)} leads, and {why}", f"ask that node: {where}")

    async def ask_leader(self, caller: Caller, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Asks the leader in the name of a caller, and returns (HTTP status, body) of its answer.

        Raises ApiError: `no_leader` if no leader is known or this node leads, `unknown_outcome` if the leader does not
        answer.
        """
        leader = self._port.services.routes.own.leader()
        address = self._address(leader) if leader else ""
        if not address or leader == self._port.config.node.id:
            raise ApiError("no_leader", "no leader takes writes now", "ask again in a moment; nothing was changed")
        wait_s = 2 * self._port.config.send.deadline_ms / 1000 + CONNECT_TIMEOUT_S
        headers = {HOPS_HEADER: "1", "Content-Type": "application/json"}
        headers |= self._port.access.pass_for(caller, self._port.name_of(leader), method, path, body)
        try:
            async with self._session.request(
                method,
                address,
                path,
                body=body or None,
                headers=headers,
                limits=aiohttp.ClientTimeout(total=wait_s, sock_connect=CONNECT_TIMEOUT_S),
            ) as answer:
                return answer.status, b"".join(await read_at_most(answer.content, CONSTANT_BYTES_MAX))
        except (aiohttp.ClientError, TimeoutError, TooLongError) as error:
            why = f"{self._port.object_of(leader)} was asked and did not answer: {error!r}"
            raise unknown_outcome(why) from None

    def _address(self, node: NodeId) -> str:
        return self._port.services.routes.own.http_address(node)

    def _most(self, route: Route) -> int:
        """Returns the most bytes that are read of an answer to that route."""
        return CONSTANT_BYTES_MAX + route.cost.bytes_max(self._port.config.limits)

    async def _send(
        self, request: web.Request, node: NodeName, address: str, most: int, changes: bool
    ) -> web.StreamResponse:
        wait_s, told = 2 * self._port.config.send.deadline_ms / 1000 + CONNECT_TIMEOUT_S, f"node {node}"
        body, access = await request.read(), self._port.access
        caller, path = request.get(CALLER, STRANGER), _path_of(request)
        headers = {HOPS_HEADER: "1", FOR_HEADER: request.remote or ""}
        headers |= access.pass_for(caller, node, request.method, path, body)
        if request.content_type == "application/json":
            headers["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                request.method,
                address,
                path,
                body=body or None,
                headers=headers,
                limits=aiohttp.ClientTimeout(total=wait_s, sock_connect=CONNECT_TIMEOUT_S),
            ) as answer:
                parts = await read_at_most(answer.content, most)
            more = {name: answer.headers[name] for name in PASSED_BACK if name in answer.headers}
            return await in_pieces(request, Pieces(parts), answer.status, answer.content_type, more)
        except TooLongError as error:
            if changes:
                raise unknown_outcome(f"{told} was asked, and {error}") from None
            raise ApiError("failed", f"{told} was asked, and {error}", "ask that node itself") from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ApiError(
                "leader_unreachable",
                f"{told} cannot be reached: {error}",
                "ask again; nothing was changed",
            ) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            if changes:
                raise unknown_outcome(f"{told} was asked and did not answer: {error!r}") from None
            raise ApiError("leader_unreachable", f"{told} did not answer: {error!r}", "ask again") from None
