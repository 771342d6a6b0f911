"""Identifies the author of each request to the HTTP API. Judges the request by the same users and rules as the clients'
ports do.

A client identifies its user by a token: `Authorization: Bearer TOKEN`, or the cookie of a page that has logged in. A
node that forwards a request names the user in a pass (`cluster.admin.signed_identity`). No other header or field of a
request says anything about its author. The node that answers judges by the users and rules that it has applied.

The operator is the person who can read the cluster's secret, and proves that with a pass. The operator may do
everything in every mode, and need not be a user. So the operator can create the first Super (an administrator), and can
maintain a cluster without a leader.

    off       only requests about users, rules, tokens and the mode are judged
    observe   every request passes; requests that `enforce` would deny are counted and logged
    enforce   401 without a user, 403 without the right, 503 while this node cannot judge
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cluster.admin.errors import ApiError
from cluster.admin.route_rights import Needs, Params
from cluster.admin.signed_identity import NODE, NONE, OPERATOR, PASS_HEADER, TOOL
from cluster.broker.access.guesses import WAITING_MAX
from cluster.broker.access.user_admin import Asker, RecentChanges
from cluster.broker.rights import Party
from cluster.config.local_layout import NodeName
from cluster.requests.judge import NO_SUPER, Judge
from cluster.runtime.awaited import told
from raftmq_wire.denial import how_to_allow
from statemachine.access.user_rows import Mode
from statemachine.access.users import NOBODY

if TYPE_CHECKING:
    from aiohttp import web

    from cluster.admin.signed_identity import Passes
    from cluster.broker.access.denials import Denials
    from cluster.broker.access.guesses import Guesses
    from cluster.broker.access.secrets import Secrets
    from cluster.broker.access.user_admin import UserAdmin
    from cluster.peer.confirmed_index import ConfirmedIndex
    from statemachine.access.user_rows import User
    from statemachine.access.users import Access

COOKIE: Final = "raftmq_"
"""Beginning of the cookie's name; the first 8 characters of the cluster's uuid follow. A browser sends a cookie to
every port of a host, and each port may belong to another cluster, so clusters need different names."""
COOKIE_SITES: Final = ("same-origin", "none")
"""Values of Sec-Fetch-Site with which a cookie is accepted: the request comes from the cluster's own page, or from an
address that a person typed."""
TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{16,128}")
SLOW_AFTER: Final = 5
"""Number of wrong tokens in a row from one address. Later wrong ones are answered after SLOW_S seconds. A right token
never waits."""
SLOW_S: Final = 0.5
ADDRESSES_MAX: Final = 1_024
NO_USER: Final = "the request names no user"
FIRST_SUPER: Final = "the operator makes the first one, on a node's machine: raftmq user create NAME --super"


def digest_of(token: str) -> bytes:
    """Returns the SHA-256 of a token. The replicated state stores this instead of the token."""
    return hashlib.sha256(token.encode()).digest()


class Caller(NamedTuple):
    """The author of a request, as far as the request proves one."""

    user: User | None
    address: str
    """The client's address, also if another node forwarded the request and proved its identity."""
    why: str = ""
    """The reason why no user is identified; "" if one is."""
    by: NodeName = 0
    """The name of the node that forwarded the request and proved it with a pass; 0 (TOOL) if none did."""
    is_node: bool = False
    """True if a node of the cluster sent the request on its own behalf."""
    token: bytes = b""
    """The SHA-256 of the token; b"" if a pass named the user."""
    operator: bytes = b""
    """The id of the key with which the caller has proven to be the operator; b"" for all others."""

    @property
    def is_proven(self) -> bool:
        """True if a user, a node of the cluster, or the operator is proven."""
        return self.user is not None or self.by != 0 or bool(self.operator)

    @property
    def party(self) -> Party:
        """The author in the form that `cluster.broker.rights` judges. The operator and the cluster's nodes are
        trusted."""
        user = NOBODY if self.user is None else self.user.id
        return Party(user, self.address, is_trusted=bool(self.operator) or self.is_node)

    def __str__(self) -> str:
        name = f"user {self.user.name} at {self.address}" if self.user is not None else self.address
        if self.operator:
            name = f"the operator at {self.address}"
        return f"{name} by way of node {self.by}" if self.by else name


STRANGER: Final = Caller(None, "an unknown address", NO_USER)


class HttpAccess:
    """Decides which requests to one node's HTTP API are allowed. Event loop only."""

    def __init__(
        self,
        access: Access,
        users: UserAdmin,
        passes: Passes,
        *,
        cluster: str,
        uuid: Callable[[], str],
        stale: Callable[[], str],
        entropy: Callable[[int], bytes],
        log_time_ms: Callable[[], int],
        secrets: Secrets,
        denials: Denials,
        guesses: Guesses,
        confirms: ConfirmedIndex,
    ) -> None:
        """Keeps the arguments. `cluster` is the cluster's name, and `uuid` returns its id. `stale` returns the reason
        why this node cannot tell now what users may do; "" if it can."""
        self.secrets = secrets
        """Encrypts and decrypts the secrets of users."""
        self.denials = denials
        self.guesses = guesses
        """Counts the wrong secrets in logins, and the wrong signatures at the clients' ports."""
        self.recent = RecentChanges(access)
        """The newest changes of users, which the findings report."""
        self.users = users
        """Changes users and rules."""
        self.passes = passes
        self.state = access
        """Users and rules, as this node has applied them."""
        self.entropy = entropy
        """Returns as many random bytes as its argument says."""
        self.log_time_ms = log_time_ms
        """Returns the log time, by which tokens expire."""
        self._judge = Judge(access, denials, cluster)
        self._uuid = uuid
        self._stale = stale
        self._confirms = confirms
        self._wrong: OrderedDict[str, int] = OrderedDict()
        """Address -> number of wrong tokens in a row. At most ADDRESSES_MAX addresses, the last one with a wrong token
        at the end."""

    # --- the author of a request -------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        """The cluster's uuid."""
        return self._uuid()

    @property
    def cookie(self) -> str:
        """The name of the cookie in which a browser keeps this cluster's token."""
        return COOKIE + self._uuid()[:8]

    async def caller(self, request: web.Request, read: Callable[[], Awaitable[bytes]]) -> Caller:
        """Returns the author of a request. `read` returns the request's body. A request without a token, or with an
        unknown one, has an author without a user. Raises ApiError for an invalid pass."""
        address = request.remote or STRANGER.address
        given = request.headers.get(PASS_HEADER)
        if given is not None:
            return self._passed(given, request.method, request.raw_path, await read(), address)
        token, why = self._token_of(request)
        if not token:
            return Caller(None, address, why)
        user = self._user_of(digest_of(token)) if TOKEN.fullmatch(token) else None
        if user is None and TOKEN.fullmatch(token) and await self._lacks_nothing():
            user = self._user_of(digest_of(token))
        if user is None:
            await self.slow_down(address)
            return Caller(None, address, "the token is not known here, or has ended")
        self.forgive(address)
        return Caller(user, address, token=digest_of(token))

    def _token_of(self, request: web.Request) -> tuple[str, str]:
        """Returns (token, reason). The token is "" if the request has none. The reason says why the token is
        missing."""
        given = request.headers.get("Authorization")
        if given is not None:
            scheme, _, token = given.partition(" ")
            if scheme.lower() != "bearer":
                return "", "Authorization has another scheme than Bearer"
            return token.strip(), "Authorization has no token"
        token = request.cookies.get(self.cookie, "")
        site = request.headers.get("Sec-Fetch-Site", "none")
        if token and site not in COOKIE_SITES:
            return "", "a page of another site sent the request, so that its cookie does not count"
        return token, NO_USER

    def _user_of(self, digest: bytes) -> User | None:
        row = self.state.tokens.get(digest)
        if row is None or row.ends_ms <= self.log_time_ms():
            return None
        return self.state.by_id.get(row.user_id)

    def forgive(self, address: str) -> None:
        """Forgets the wrong tokens of an address that has now sent a right one."""
        self._wrong.pop(address, None)

    async def turn_of(self, name: str, address: str) -> None:
        """Waits until a secret for the user `name` from that address may be checked. Raises ApiError if too many others
        wait."""
        if not self.guesses.must_wait(name, address):
            return
        if not await told(partial(self.guesses.wait, name, address)):
            raise ApiError(
                "busy", f"{WAITING_MAX} secrets for this user from {address} wait to be checked", "ask again"
            )

    async def slow_down(self, address: str) -> None:
        """Counts a wrong token of an address. From the sixth wrong one in a row, it also waits SLOW_S, which delays the
        answer."""
        wrong = self._wrong[address] = self._wrong.pop(address, 0) + 1
        if len(self._wrong) > ADDRESSES_MAX:
            self._wrong.popitem(last=False)
        if wrong > SLOW_AFTER:
            await asyncio.sleep(SLOW_S)

    def _passed(self, given: str, method: str, path: str, body: bytes, remote: str) -> Caller:
        by, who, address, key = self.passes.check(given, method, path, body)
        if who == OPERATOR:
            return Caller(None, remote if by == TOOL else address, by=by, operator=key)
        if who == NODE:
            return Caller(None, address, by=by, is_node=True)
        if who == NONE:
            return Caller(None, address, NO_USER, by)
        user = self.state.by_id.get(int(who))
        return Caller(user, address, "" if user is not None else "the user of this request was removed", by)

    def pass_for(self, caller: Caller, to: NodeName, method: str, path: str, body: bytes) -> dict[str, str]:
        """Returns the header that names the caller in a request to the node `to`; {} in a cluster without a secret."""
        who = NODE if caller.is_node else str(caller.user.id) if caller.user is not None else NONE
        if caller.operator:
            who = OPERATOR
        return self.passes.made(who, caller.address, to, method, path, body)

    def own_pass(self, to: NodeName, path: str) -> dict[str, str]:
        """Returns the header for a GET that this node sends to the node `to` on its own behalf; {} in a cluster without
        a secret."""
        return self.passes.made(NODE, "-", to, "GET", path, b"")

    # --- the verdict -------------------------------------------------------------------------------------------------

    async def admit(self, caller: Caller, needs: Needs, params: Params, body: Any, what: str) -> Caller:
        """Returns the caller of a request that is allowed, with the user as it was when the request was judged. Raises
        ApiError if the request is denied. `what` names the request in the log. If a follower would deny the request, it
        first applies all changes that were acknowledged before, and then judges again."""
        if needs.is_open:
            return caller
        is_certain = caller.user is None and not caller.token
        if not is_certain and self._confirms.is_possible and self._denied(caller, needs, params, body, "") is not None:
            if not await self._lacks_nothing():
                why = "no leader confirms that this node has all changes of users"
                raise ApiError("cannot_judge", f"this node cannot tell who may do this: {why}", "try again")
            caller = self.as_it_is_now(caller)
        refused = self._denied(caller, needs, params, body, what)
        if refused is not None:
            raise refused
        return caller

    async def _lacks_nothing(self) -> bool:
        """Waits until this node, a follower, has applied all that was acknowledged before this call, and returns True.
        Returns False if this node leads, or if no leader confirms that nothing is missing."""
        return self._confirms.is_possible and await told(self._confirms.ask)

    def _denied(self, caller: Caller, needs: Needs, params: Params, body: Any, what: str) -> ApiError | None:
        """Returns the error of a request that is denied. Returns None for an allowed one, and for a denied one if the
        mode only observes. Records the denial unless `what` is ""."""
        if self.state.mode is Mode.OFF and not needs.always:
            return None
        refused = self._refused(caller, needs, params, body)
        if refused is not None and what and refused.code != "cannot_judge":
            return refused if self._refuses(caller, refused, what, always=needs.always) else None
        return refused if needs.always or self._judge.enforces else None

    def goes_on(self, caller: Caller, needs: Needs, params: Params) -> bool:
        """Returns True if an answer that is still being sent may go on. Returns False if it must end, because the
        token, the user or the user's rules have changed since it began."""
        if needs.is_open or not (self._judge.enforces or needs.always):
            return True
        if caller.operator and not self.passes.knows(caller.operator):
            caller = caller._replace(operator=b"", why="the secret that proved the operator was replaced")
        return self._refused(self.as_it_is_now(caller), needs, params, None) is None

    def as_it_is_now(self, caller: Caller) -> Caller:
        """Returns the caller with the newest version of the user that this node has applied; with None if that user or
        the token has gone."""
        if caller.token:
            return caller._replace(user=self._user_of(caller.token))
        if caller.user is not None:
            return caller._replace(user=self.state.by_id.get(caller.user.id))
        return caller

    def _refused(self, caller: Caller, needs: Needs, params: Params, body: Any) -> ApiError | None:
        if caller.operator:
            return None
        if caller.is_node and needs.of is not None and not needs.always:
            return None  # a node has the same users and rules as this one, so it may read what it asks for
        if needs.always and self._judge.lacks_super:
            return ApiError("denied", NO_SUPER, FIRST_SUPER)
        if why := self._stale():
            return ApiError("cannot_judge", f"this node cannot tell who may do this: {why}", "ask another node")
        user = caller.user
        if user is None:
            return ApiError("unauthenticated", caller.why, "send Authorization: Bearer TOKEN; raftmq login makes one")
        named = None if needs.of is None else list(needs.of(params, body, self._judge.cluster))
        if why := self._judge.why_not(user, caller.address, named):
            fix = "ask one who is" if named is None else how_to_allow(why) or "a Super gives rights: raftmq acl set"
            return ApiError("denied", why, fix)
        return None

    def why_not_now(self) -> str:
        """Returns the reason why this node cannot verify a user's secret now; "" if it can."""
        return self.secrets.problem or self._stale()

    async def note_wrong_login(self, address: str, name: str) -> None:
        """Records a failed login. If this user and address have failed often, it waits SLOW_S before it returns."""
        self.guesses.wrong(name, address)
        why = f"wrong user or secret, for user {name[:64]!a}"
        self._refuses(Caller(None, address), ApiError("unauthenticated", why, ""), "POST /v1/session", always=True)
        if self.guesses.must_wait(name, address):
            await asyncio.sleep(SLOW_S)

    def _refuses(self, caller: Caller, refused: ApiError, what: str, *, always: bool) -> bool:
        user = 0 if caller.user is None else caller.user.id
        return self._judge.refuses(user, caller.address, refused.message, what, always=always)

    @staticmethod
    def asker(caller: Caller) -> Asker:
        """Returns the user, or the operator, who asks for a change of users or tokens."""
        if caller.operator:
            return Asker(OPERATOR, caller.address)
        assert caller.user is not None, "such a route is judged in every mode"
        return Asker(caller.user.name, caller.address)

    def may_list(self, caller: Caller, name: str) -> bool:
        """Returns True if the caller may see the tokens of the user `name`. It does not check that this user exists."""
        user = caller.user
        return bool(caller.operator) or (user is not None and (user.is_super or user.name == name))

    def may_change_tokens_of(self, caller: Caller, user_id: int) -> bool:
        """Returns True if the caller may add and remove tokens of the user with that id."""
        user = caller.user
        return bool(caller.operator) or (user is not None and (user.is_super or user.id == user_id))
