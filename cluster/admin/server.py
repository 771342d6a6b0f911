"""Serves the HTTP API: makes aiohttp's routes from the table of routes, and aiohttp's responses from answers and
errors.

It runs on the node's own event loop. Importing this module imports aiohttp, which takes 0.13 s of CPU. The node
therefore imports it after everything else has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from cluster.admin.access import STRANGER, Caller
from cluster.admin.errors import ApiError, HandedOver
from cluster.admin.findings.watch import FindingsWatch
from cluster.admin.forward import CALLER, HOPS_HEADER, OF_NODE, LeaderForwarder, asker_of
from cluster.admin.handler_request import Call, JsonAnswer, Raw, ReadConsistency, Stream, comes_true, confirm_read
from cluster.admin.handlers.history import Sampler
from cluster.admin.handlers.member_requests import member_id
from cluster.admin.node_interface import AdminPort
from cluster.admin.refusals import error_of
from cluster.admin.request_parsing import BODY_BYTES_MAX, check_query, consistency_of, decode_body, group_of
from cluster.admin.resource_limits import PATIENCE_S, Guard, guarded
from cluster.admin.route import Route
from cluster.admin.routes import ROUTES
from cluster.admin.signed_identity import PASS_HEADER
from cluster.admin.streamed_json import Pieces, in_pieces, sent
from cluster.broker.refusal import Refused
from cluster.config.address import split_address
from cluster.config.source import ConfigError, nearest
from cluster.requests.verb import Serves
from cluster.runtime import metered_json
from cluster.runtime.tls.acceptor import Acceptor
from statemachine.access.user_rows import Mode

logger = logging.getLogger(__name__)

PREFIX: Final = "/v1/"
"""The beginning of nearly every path."""
SHUTDOWN_S: Final = 1.0
LOOK_S: Final = 0.5
"""Seconds between two checks that the client of a stream still has the right to read it."""
PLAIN_REFUSAL: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    b'{"error":{"code":"bad_request","message":"this port takes https alone","hint":"ask https://"}}\n'
)
"""The answer to a request in plain text if `admin.tls` requires TLS."""
LINGER_S: Final = 0.5
"""Seconds for which the rest of a request is read and dropped if it was answered before it was complete. Otherwise its
client might not read the answer. aiohttp waits this long even if the connection is gone: with its default of 10 s,
strangers who began 1,800 requests a second and ended none took 136 MiB."""
WebHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminServer:
    """Serves one node's HTTP API at the address of `admin.bind` and `admin.port`."""

    def __init__(self, port: AdminPort, guard: Guard | None = None) -> None:
        self._port = port
        self._guard = guard
        self._runner: web.AppRunner | None = None
        self._acceptor: Acceptor | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts to listen. Raises ConfigError if the address cannot be bound."""
        admin, loop = self._port.config.admin, asyncio.get_running_loop()
        guard = self._guard or _guard_of(self._port)
        watch = FindingsWatch(self._port)
        app = build_app(self._port, guard, watch)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, lingering_time=LINGER_S)
        await self._runner.setup()
        assert self._runner.server is not None
        security = self._port.configuration.tls.security("admin", admin.tls, PLAIN_REFUSAL)
        made = guarded(guard, self._runner.server)
        self._acceptor = Acceptor(loop, made, guard.room, security, guard.may_have_all)
        self._tasks = [
            loop.create_task(guard.run(), name="admin-guard"),
            loop.create_task(watch.run(), name="findings-watch"),
            loop.create_task(Sampler(self._port).run(), name="admin-history"),
        ]
        try:
            await self._acceptor.open(admin.bind, admin.port)
        except OSError as error:
            await self.close()
            why = "another process listens there" if error.errno == errno.EADDRINUSE else str(error)
            raise ConfigError(
                f"admin.port: cannot listen at {admin.bind}:{admin.port}",
                why,
                "stop that process, or set another admin.port (RAFTMQ_ADMIN__PORT)",
            ) from error

    async def close(self) -> None:
        """Stops listening. Requests in progress have SHUTDOWN_S seconds to finish."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


def _guard_of(port: AdminPort) -> Guard:
    state = port.access.state
    return Guard(asyncio.get_running_loop().time, port.services.turns, lambda: state.mode is Mode.ENFORCE)


def build_app(
    port: AdminPort,
    guard: Guard | None = None,
    watch: FindingsWatch | None = None,
    routes: Sequence[Route] = ROUTES,
) -> web.Application:
    """Makes the aiohttp application with these routes. Tests run it without the server, too."""
    guard = guard or _guard_of(port)
    watch = watch or FindingsWatch(port)
    tell_in_one_line()
    app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[_errors_as_json])
    forwarder = LeaderForwarder(port)
    for route in routes:
        served = _serve(route, port, forwarder, watch)
        handler = _sheltered(_admit(route, port, guard), served, route, guard, port)
        app.router.add_route(route.method, route.path, handler)
        if route.method == "GET":  # HTTP: HEAD has the same answer without the body
            app.router.add_route("HEAD", route.path, handler)

    async def close_forwarder(_: web.Application) -> None:
        await forwarder.close()
        await watch.close()

    app.on_cleanup.append(close_forwarder)
    return app


class _Admitted(NamedTuple):
    """A request that has been judged and may be answered."""

    caller: Caller
    consistency: ReadConsistency
    body: Any
    version: int
    """The version of users and rules by which the request was last judged."""


def _sheltered(
    admit: Callable[[web.Request], Awaitable[_Admitted]],
    handler: Callable[[web.Request, _Admitted], Awaitable[web.StreamResponse]],
    route: Route,
    guard: Guard,
    port: AdminPort,
) -> WebHandler:
    async def handle(request: web.Request) -> web.StreamResponse:
        async with guard.serving(request):
            admitted = await admit(request)  # first, so that a denied request takes no memory
            if not route.cost.grows or route.streams:
                return await handler(request, admitted)
            async with guard.answering(request, route.cost.bytes_max(port.config.limits)):
                return await sent(request, await handler(request, admitted))

    return handle


def _admit(route: Route, port: AdminPort, guard: Guard) -> Callable[[web.Request], Awaitable[_Admitted]]:
    async def admit(request: web.Request) -> _Admitted:
        own = _methods_of(request.path)
        if own and request.method not in own:
            raise web.HTTPMethodNotAllowed(request.method, own)
        check_site(port, request.headers.get("Host"), request.headers.get("Origin"), secure=request.secure)
        check_query(request.query, route.query)
        consistency = consistency_of(request.query)
        access, what = port.access, f"{request.method} {route.path}"
        request[CALLER] = caller = await _caller(port, request, route)
        if caller.is_proven:
            guard.proven(request)
        request[OF_NODE] = caller.by != 0 or (not access.passes.proven and HOPS_HEADER in request.headers)
        version = access.state.version  # read first: a change during the check is then noticed later
        if not route.needs.reads_body:
            caller = await access.admit(caller, route.needs, request.match_info, None, what)
        body = await _body(request, route)
        if route.needs.reads_body:
            version = access.state.version
            caller = await access.admit(access.as_it_is_now(caller), route.needs, request.match_info, body, what)
        request[CALLER] = caller
        return _Admitted(caller, consistency, body, version)

    return admit


def _serve(
    route: Route, port: AdminPort, forwarder: LeaderForwarder, watch: FindingsWatch
) -> Callable[[web.Request, _Admitted], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request, admitted: _Admitted) -> web.StreamResponse:
        caller, consistency, body, version = admitted
        access, changes = port.access, request.method not in ("GET", "HEAD")
        if access.state.version != version:  # users or rules have changed during a wait
            what, now = f"{request.method} {route.path}", access.as_it_is_now(caller)
            request[CALLER] = caller = await access.admit(now, route.needs, request.match_info, body, what)
        own_group = port.config.cluster.group
        group = group_of(request.query, own_group) if route.of_any_group else own_group
        if group != own_group:
            member = member_id(request.match_info["id"]) if route.serves is Serves.MEMBER else None
            return await forwarder.pass_to_group(group, member, request, route, changes=changes)
        leads = not route.serves.is_leader or port.services.writes_open() or await _opens(port)
        if not leads and route.serves is Serves.LEADER_ALONE:
            raise forwarder.not_passed_on()
        if not leads:
            return await forwarder.pass_on(request, route, changes=changes)
        if route.serves is Serves.MEMBER:
            node = member_id(request.match_info["id"])
            if node != port.config.node.id:
                return await forwarder.pass_to(node, request, route, changes=changes)
        if consistency == "linearizable":
            if port.services.routes.own.leader() != port.config.node.id:
                return await forwarder.pass_on(request, route, changes=False)
            await confirm_read(port, settles=route.needs.settled(request.match_info, body))
        elif route.serves is Serves.CONFIRMED:
            await confirm_read(port, settles=route.needs.settled(request.match_info, body), may_be_local=False)
            consistency = "linearizable"
        try:
            owner = request.transport or request
            asker = asker_of(request, proven=access.passes.proven)
            call = Call(
                port, watch, request.match_info, body, consistency, request.query, request.headers, owner, asker, caller
            )
            call = call._replace(ask_leader=forwarder.ask_leader, secure=request.secure)
            port.services.catch_up()
            answer = await route.handler(call)
            if isinstance(answer, Stream):
                return await _streamed(request, answer, lambda: access.goes_on(caller, route.needs, request.match_info))
            return await in_pieces(request, answer) if isinstance(answer, Pieces) else _response(answer)
        except HandedOver:
            return await forwarder.pass_on(request, route, changes=True)

    return handle


async def _caller(port: AdminPort, request: web.Request, route: Route) -> Caller:
    if route.needs.is_open and not route.needs.named and PASS_HEADER not in request.headers:
        return STRANGER._replace(address=request.remote or STRANGER.address)
    return await port.access.caller(request, partial(_read, request))


async def _opens(port: AdminPort) -> bool:
    """Returns True if this node leads, and accepts writes now or within `waits.opens_s` seconds. Only a leader that was
    just elected waits."""
    leads = port.services.routes.own.leader() == port.config.node.id
    return leads and await comes_true(port.services.writes_open, port.waits.opens_s)


async def _body(request: web.Request, route: Route) -> Any:
    if route.body is None:
        return None
    if request.content_type != "application/json":
        raise ApiError("not_json", f"the body is {request.content_type}", "send it with Content-Type: application/json")
    return decode_body(await _read(request), route.body)


async def _read(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await request.read()
    except TimeoutError:
        raise ApiError("bad_request", f"the body was not here after {PATIENCE_S:g} s", "send it faster") from None
    except (ConnectionError, RuntimeError):  # aiohttp raises RuntimeError if the connection had ended
        raise ApiError("bad_request", "the connection ended before the body was here", "send it again") from None


def _response(result: msgspec.Struct | JsonAnswer | Raw) -> web.Response:
    if isinstance(result, Raw):
        headers = {"Content-Type": result.content_type, "X-Content-Type-Options": "nosniff", **result.headers}
        return web.Response(body=result.body, headers=headers)
    answer = result if isinstance(result, JsonAnswer) else JsonAnswer(200, result)
    response = _json(answer.status, answer.view)
    response.headers.update(answer.headers)
    return response


async def _streamed(request: web.Request, stream: Stream, goes_on: Callable[[], bool]) -> web.StreamResponse:
    """Sends the parts of a stream as they come. The stream ends within LOOK_S seconds after `goes_on` returns False,
    because the client may no longer read it."""
    headers = {"Content-Type": stream.content_type, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    if request.method != "HEAD":
        with contextlib.suppress(ConnectionError):
            async with contextlib.aclosing(_while_allowed(stream.parts, goes_on)) as parts:
                async for part in parts:
                    await response.write(part)
    return response


async def _while_allowed(parts: AsyncIterator[bytes], goes_on: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    following = asyncio.ensure_future(anext(parts))
    try:
        while goes_on():
            done, _ = await asyncio.wait([following], timeout=LOOK_S)
            if done and goes_on():
                yield following.result()
                following = asyncio.ensure_future(anext(parts))
    except StopAsyncIteration:
        return
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def _json(status: int, view: msgspec.Struct, again_ms: int = 0) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    if status == 503 or again_ms:
        headers["Retry-After"] = str(max(1, -(-again_ms // 1000)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(status=status, body=metered_json.encode(view), content_type="application/json", headers=headers)


@web.middleware
async def _errors_as_json(request: web.Request, handler: WebHandler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return _json(error.status, error.view, error.again_ms)
    except Refused as refused:  # raised by the broker, and not caught by the handler
        told = error_of(refused)
        return _json(told.status, told.view, told.again_ms)
    except web.HTTPException as error:
        api_error = _from_aiohttp(request, error)
        response = _json(api_error.status, api_error.view)
        if error.status == 405:
            response.headers["Allow"] = ",".join(_allowed(request.path, error))
        return response
    except Exception:
        logger.exception("%s %s failed", request.method, request.path)
        error_view = ApiError("internal", "the node failed to answer; its log says why", "report it with that log").view
        return _json(500, error_view)


def _methods_of(path: str) -> list[str]:
    """Returns the HTTP methods of a path that is listed literally; [] for any other path.

    Routes whose pattern happens to match do not count: /v1/members/join is not /v1/members/{id}. But /v1/acl/test is
    also /v1/acl/{user}, because a user may be called "test".
    """
    own = {route.method for route in ROUTES if route.path == path}
    if own:
        folder = path.rpartition("/")[0]
        own |= {route.method for route in ROUTES if route.path in (f"{folder}/{{user}}", f"{folder}/{{name}}")}
    return sorted(own | {"HEAD"} if "GET" in own else own)


def _allowed(path: str, error: web.HTTPException) -> list[str]:
    return _methods_of(path) or sorted(error.headers.get("Allow", "").split(","))


def _from_aiohttp(request: web.Request, error: web.HTTPException) -> ApiError:
    if error.status == 404:
        # The prefix that nearly all paths have is left out, because it would make any two of them similar.
        known = {route.path.removeprefix(PREFIX): route.path for route in ROUTES}
        match = nearest(request.path.removeprefix(PREFIX), known)
        hint = f"did you mean {known[match]}?" if match else "/openapi.json lists every address"
        return ApiError("not_found", f"there is nothing at {request.path}", hint)
    if error.status == 405:
        allowed = ", ".join(_allowed(request.path, error))
        return ApiError("bad_method", f"{request.path} does not take {request.method}", f"it takes {allowed}")
    if error.status == 413:
        return ApiError("too_large", f"the body is larger than {BODY_BYTES_MAX} bytes", "send less at once")
    return ApiError("bad_request", error.reason or "the request cannot be read", "correct the request")


_LOGGER = logging.getLogger("aiohttp.server")
_SHOWN = 200
_BYTES = re.compile("[:'\"]")
"""Separates, in an error message of aiohttp, the description from the bytes of the request."""


class _OneLine(logging.Filter):
    """Shortens aiohttp's log record of an invalid request to a warning in one line. The traceback and the received
    bytes, which may contain a token, are removed. All other records pass unchanged."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shortens the record if it is about an invalid request. Returns True, so that every record is logged."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            told = " ".join(_BYTES.split(str(error.message), 1)[0].split())
            record.msg, record.args = f"{record.getMessage()}: {told[:_SHOWN]!a}", ()
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.exc_info = record.exc_text = None
        return True


_ONE_LINE = _OneLine()


def tell_in_one_line() -> None:
    """Makes this process log invalid requests in one line from now on. A second call changes nothing."""
    _LOGGER.addFilter(_ONE_LINE)


# The following functions decide which browsers may use the HTTP API: by the host name that they ask for, and by the
# site of the page that asks. A web page can make its own host name point to 127.0.0.1 (DNS rebinding). Its requests
# then have that name as Host, and the browser lets the page read the answers. Unknown names are therefore refused. IP
# addresses cannot be rebound and are accepted.


def check_site(port: AdminPort, host: str | None, origin: str | None, *, secure: bool = False) -> None:
    """Checks the headers Host and Origin of a request. Raises ApiError(`foreign_host` or `cross_origin`).

    `secure`: True if the request came over TLS. Then a page that was loaded without TLS is refused, because it may have
    been forged. A request without Host (HTTP/1.0) is accepted, because no browser sends one.
    """
    if host is not None and not _is_ours(_name_of(host), port):
        raise ApiError(
            "foreign_host",
            f"this node is not called {host[:255]}",
            "ask by an address, by localhost or by an advertised name, or list the name in admin.allowed_hosts",
        )
    site = urlsplit(origin) if origin is not None else None
    if origin is not None and site is not None and (site.netloc != host or (secure and site.scheme != "https")):
        raise ApiError(
            "cross_origin", f"a page of {origin[:255]} may not use this node", "use the command line or this page"
        )


def _name_of(host: str) -> str:
    """Returns the host name in lower case, without the port and a final dot."""
    try:
        name = split_address(host)[0]
    except ValueError:
        name = host.removeprefix("[").removesuffix("]")
    return name.removesuffix(".").lower()


def _is_ours(name: str, port: AdminPort) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        allowed = port.config.admin.allowed_hosts.lower().split(";")
        return any(fnmatchcase(name, each.strip()) for each in allowed) or name in set(_advertised(port))
    return True


def _advertised(port: AdminPort) -> Iterable[str]:
    """Yields the host names of this node's addresses, and of all addresses that members have announced."""
    yield port.config.admin.bind.lower()
    for listener in port.config.listeners:
        yield _name_of(listener.advertised)
    for known in port.nodes.membership.addresses.values():
        yield known.host.lower()
        yield from (_name_of(address) for address in (known.admin, *known.listeners.values()) if address)
