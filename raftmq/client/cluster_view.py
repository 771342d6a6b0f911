"""The client's knowledge of the cluster (the leader, the other nodes, each topic's queues), and calls to the leader.

To find the leader, the client asks every server (request 106) in a separate task, each with a short growing back-off,
and the node that a server names must itself answer that it leads. The first confirmed one wins, so a dead leader that
other servers still name does not delay the search. Any node forwards requests to the leader; when no leader is
confirmed for a while, the client uses a node that answers instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import re
import socket
from collections.abc import Callable, Coroutine, Iterable
from typing import Final, NamedTuple, TypeVar

import msgspec

from raftmq.client.connection import Connection, ConnectionPool, Reply
from raftmq.client.discovery import split_address
from raftmq.client.environment import Environment
from raftmq.client.errors import (
    TRY_AGAIN,
    Denied,
    Failed,
    NotFound,
    RaftMQError,
    Unknown,
    Unreachable,
    error_of,
)
from raftmq.client.group_views import GroupViews
from raftmq.client.port_probe import hint_for
from raftmq.client.retries import OnRetry, Retries, Retry
from raftmq.client.route import BrokerData, Route, RouteBody, read_route, route_over
from raftmq.client.tls import TlsError
from raftmq_wire.codec import CodecError
from raftmq_wire.codes import GROUPS_FIELD, RETIRED_FIELD, RequestCode, ResponseCode, is_unknown
from raftmq_wire.denial import how_to_allow
from raftmq_wire.queue_numbers import FIRST_GROUP

logger = logging.getLogger("raftmq")

_T = TypeVar("_T")
CLUSTERS_FIELD = "raftmqClusters"
"""The ext field of 106 replies with the cluster's uuid, and the uuids of the clusters from which it was restored,
separated by blanks."""
AUTO_CREATE_TOPIC = "TBW102"
AUTO_CREATE_QUEUES = 8
ROUTE_LIFE_S = 30.0
_ASK_TIMEOUT_S = 0.5
_BACKOFF_START_S = 0.02
_BACKOFF_MAX_S = 0.25
_BACKOFF_GROWTH = 1.3
_REFRESH_TIMEOUT_S = 3.0
_SAY_AGAIN_AFTER_S = 30.0
_HEARD_MAX = 32
_OTHERS_FIRST_S = 0.2
"""Seconds for which an answer that names a doubted leader waits for another answer. A leader that is cut off from the
other nodes still claims to lead for up to an election timeout."""
_STAND_IN_S = 5.0
"""Time in seconds for which the client keeps a node that only forwards requests, before it looks for the leader
again."""


class _MembersBody(msgspec.Struct):
    brokerAddrTable: dict[str, BrokerData] = {}  # the protocol's field name


class Contact(NamedTuple):
    """The result of a first search for the leader."""

    leader: str | None
    """The leader's address; None if it was not found in time."""
    hopeless: bool
    """True if waiting longer is pointless: no leader was found, and each server refuses connections, has an unknown
    name, or speaks something else."""
    why: str
    """Each server's address with what it answered, or why it could not be asked, in words; "" if the leader was
    found."""


class _AllRefuseError(Exception):
    """Raised when every known server refuses connections."""


class _Trouble(NamedTuple):
    """A failed attempt without a usable answer: which server was asked, what happened, and whether the request may have
    been carried out."""

    address: str
    cause: str
    maybe: bool


class Backoff:
    """Makes growing pauses, from 20 ms to 250 ms, with jitter."""

    def __init__(self, jitter: random.Random) -> None:
        self._jitter = jitter
        self.delay_s = _BACKOFF_START_S
        self.used = False

    def next_s(self) -> float:
        """Returns the next pause, in seconds."""
        self.used = True
        delay = self.delay_s * self._jitter.uniform(0.75, 1.0)
        self.delay_s = min(self.delay_s * _BACKOFF_GROWTH, _BACKOFF_MAX_S)
        return delay

    async def pause(self) -> None:
        """Sleeps for the next pause."""
        await asyncio.sleep(self.next_s())


_REFUSED = "refuses connections"


def _what_it_said(reply: Reply, found: tuple[str | None, tuple[str, ...]] | None) -> str:
    """Returns what a server answered when asked for the leader, worded to follow the server's address in a sentence."""
    if found is None and reply.code != ResponseCode.SUCCESS:
        return f"does not say who leads ({reply.remark or f'code {reply.code}'})"
    if found is None:
        return "belongs to another cluster"
    return f"names {found[0]} as the leader" if found[0] else "knows no leader"


def why_not(error: OSError) -> str:
    """Returns, in words, why a connection could not be made, worded to follow the server's address in a sentence."""
    if isinstance(error, ConnectionRefusedError):
        return _REFUSED
    if isinstance(error, TlsError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "does not answer"
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return "ended the connection"
    if isinstance(error, socket.gaierror):
        return "is a name that is not known"
    return f"cannot be connected to ({error.strerror or error})"


_HANGS_UP: Final = re.compile(r"(?:closed|ended) the connection")
_IS_IT_TLS: Final = (
    "This client speaks plain text. If the servers take TLS alone, name their CA: connect(..., tls=Tls(ca=FILE)), or "
    "RAFTMQ_TLS_CA=FILE. Else check the addresses: they are those of the name servers, by default port 9876."
)


class ClusterView:
    """The view of the cluster that all parts of one client share. Invariant: the node at `leader` has answered over a
    connection in `links` that is still open. When that connection ends, `leader` is cleared, because after a reconnect
    the node at that address may be a lagging follower."""

    def __init__(
        self,
        environment: Environment,
        servers: Iterable[str],
        on_retry: OnRetry | None = None,
        *,
        group: int = FIRST_GROUP,
        first: ClusterView | None = None,
    ) -> None:
        """`group`: the group of brokers that this view is about. `first`: the client's view of the first group, with
        which this one shares its connections; None if this is the view of the first group."""
        self.environment = environment
        self._patience = environment.patience
        self.group = group
        self.groups: GroupViews[ClusterView] = GroupViews(self) if first is None else first.groups
        self.retries: Retries = Retries(on_retry) if first is None else first.retries
        self._loop: asyncio.AbstractEventLoop | None = None
        self.servers = tuple(servers)
        self.brokers: tuple[str, ...] = ()
        self.by_id: dict[str, str] = {}
        """Broker id -> address, as the last server that was asked sees it; "0" is the leader."""
        self.leader: str | None = None
        self._doubted: str | None = None
        """The leader that is connected but answers nothing, during the present search; else None."""
        self._heard: tuple[str, ...] = ()
        """The addresses that servers have named, newest first. The search for a leader also asks these."""
        self._refresh_timer: asyncio.TimerHandle | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self.links: ConnectionPool = (
            ConnectionPool(environment, on_lost=self.groups.lost) if first is None else first.links
        )
        self._seed = environment.entropy(8)
        self._sessions = 0
        self.jitter = random.Random(self._seed)
        self._routes: dict[str, Route] = {} if first is None else first._routes
        self.missing: set[str] = set() if first is None else first.missing
        """The topics that did not exist when a send asked for their route. The first stored send creates the topic."""
        self._search: asyncio.Task[str] | None = None
        self._searching = 0
        self._refusing: dict[str, float] = {}
        """During the present search: server that could not be connected to -> loop time of its first failure."""
        self._silent_since: dict[str, float] = {}
        """Server that did not answer when last asked -> loop time of the first question that it left unanswered."""
        self._refusals: dict[str, str] = {}
        """Servers that could not be connected to -> the reason, in words."""
        self._wrong: set[str] = set()
        """The servers that refused connections or gave no sensible answer when last asked in the present search."""
        self._kinds: dict[str, str] = {}
        """During the present search: server that hung up -> what it speaks instead, in words; "" if that is not the
        reason."""
        self._said = ("", 0.0)
        """The last reason that was logged, and the loop time of that log line."""
        self._troubles: dict[str, str] = {}
        """During the present search: server that did not help to find a leader -> the reason, in words."""

    def of_group(self, group: int) -> ClusterView:
        """Returns a new view of another group of the same cluster."""
        return ClusterView(self.environment, self.servers, group=group, first=self.groups.first)

    def close(self) -> None:
        """Ends the searches for leaders and closes all connections of all views of the client."""
        for view in self.groups.views():
            view._end()

    def _end(self) -> None:
        if self._search is not None:
            self._search.cancel()
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
        if self._refreshing is not None:
            self._refreshing.cancel()
        self.links.close()

    def bind_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the running loop, which must be the one of the first use, because connections belong to it. Raises
        RuntimeError on any other loop."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if loop is not self._loop:
            state = "has ended" if self._loop.is_closed() else "is another one"
            raise RuntimeError(
                f"this client belongs to the event loop of its first use, which {state}: "
                "make a client with aconnect() inside each asyncio.run(), or share one loop"
            )
        return loop

    def suspect(self, address: str | None) -> None:
        """Marks the leader as lost if it is at `address`: the next call searches for the leader. A wrong suspicion
        costs only a search."""
        if address is not None and address == self.leader:
            self.leader = None

    def doubt(self, address: str) -> None:
        """Records that `address` answers nothing although it is connected: the next call searches for a leader, and
        trusts the other nodes' answers before this node's."""
        if self.leader in (None, address):  # if another node leads by now, no search begins
            self._doubted, self.leader = address, None

    async def find_leader(self) -> str:
        """Returns the leader's address; searches for it if it is not known. Waits without limit: the caller sets a
        timeout."""
        self.bind_loop()
        if self.leader is not None:
            return self.leader
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._run_search())
        self._searching += 1
        try:
            return await asyncio.shield(self._search)
        finally:
            self._searching -= 1
            if not self._searching and self._search is not None:
                self._search.cancel()
                self._search = None  # a new caller must not join the search that is being cancelled

    async def _run_search(self) -> str:
        self._refusing.clear()
        self._troubles.clear()
        self._wrong.clear()
        self._kinds.clear()
        probes = [asyncio.create_task(self._probe(a)) for a in dict.fromkeys(self.servers + self.brokers + self._heard)]
        try:
            done, _ = await asyncio.wait(
                probes, timeout=self._patience.say_why_after_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self._say_why()
                done, _ = await asyncio.wait(probes, return_when=asyncio.FIRST_COMPLETED)
            self.leader, confirmed = next(probe for probe in probes if probe in done).result()
            if not confirmed:
                asyncio.get_running_loop().call_later(_STAND_IN_S, self.suspect, self.leader)
            if self._refresh_timer is None and self.environment.members_every_s:
                self._refresh_later()
            return self.leader
        finally:
            self._doubted = None
            for probe in probes:
                probe.cancel()

    def _say_why(self) -> None:
        """Logs why no leader is found, unless the same reason was logged in the last 30 s."""
        why, now = self.why_no_leader(), asyncio.get_running_loop().time()
        if why != self._said[0] or now - self._said[1] >= _SAY_AGAIN_AFTER_S:
            self._said = (why, now)
            logger.warning("no leader found yet: %s", why)

    async def contact(self, wait_s: float) -> Contact:
        """Searches for the leader for at most `wait_s` seconds, and returns at once when it is found. Does not give up
        earlier if no server can be asked, because each of them may be starting: then it refuses connections, has no
        name yet, or a proxy before it hangs up."""
        finding = asyncio.create_task(self.find_leader())
        try:
            await asyncio.wait((finding,), timeout=wait_s)
            leader = finding.result() if finding.done() else None
            hopeless = leader is None and self._wrong >= {*self.servers}
            return Contact(leader, hopeless, "" if leader else self.why_no_leader())
        finally:
            finding.cancel()

    def _refresh_later(self) -> None:
        loop, every_s = asyncio.get_running_loop(), self.environment.members_every_s
        self._refresh_timer = loop.call_later(every_s * self.jitter.uniform(0.8, 1.2), self._refresh)

    def _refresh(self) -> None:
        """Asks the leader again for the list of nodes, at intervals: nodes come and go while a leader stays, and a
        client that asked only on trouble might know none of the remaining ones."""
        self._refresh_later()
        if self.leader is not None and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.get_running_loop().create_task(self._ask_again(self.leader))

    async def _ask_again(self, leader: str) -> None:
        with contextlib.suppress(OSError, CodecError, msgspec.DecodeError):
            link = await self.links.get(leader)
            reply = await link.call(RequestCode.GET_BROKER_CLUSTER_INFO, {}, timeout_s=_REFRESH_TIMEOUT_S)
            if self._take_members(leader, reply) is None:
                self.suspect(leader)

    async def _probe(self, server: str) -> tuple[str, bool]:
        """Asks `server` who leads until the named node confirms it; returns (address of the leader, True). After
        `accept_any_after_s`, a node that answers is enough; then returns (its address, False)."""
        backoff = Backoff(self.jitter)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._patience.accept_any_after_s
        while True:
            found = await self._ask_who_leads(server)
            if found is not None:
                leader, others = found
                if leader is not None:
                    if leader == self._doubted:
                        await asyncio.sleep(_OTHERS_FIRST_S)
                    confirmed = await self._ask_who_leads(leader)
                    if confirmed is not None and confirmed[0] == leader:
                        return leader, True
                if loop.time() >= give_up_at:
                    for address in (leader, *others):
                        if address is not None and await self._ask_who_leads(address) is not None:
                            return address, False
            await backoff.pause()

    async def _ask_who_leads(self, server: str) -> tuple[str | None, tuple[str, ...]] | None:
        """Asks `server` for the leader. Returns (leader or None, the other brokers); None if it does not answer
        sensibly."""
        try:
            link = await self._link_of(server)
            reply = await link.call(RequestCode.GET_BROKER_CLUSTER_INFO, {}, timeout_s=_ASK_TIMEOUT_S)
            found = self._take_members(server, reply)
            self._troubles[server] = _what_it_said(reply, found)
            self._wrong.discard(server)
            self._silent_since.pop(server, None)
            return found
        except TimeoutError:
            self._wrong.discard(server)
            self._troubles[server] = "does not answer"
            self._has_been_silent(server)
            return None
        except (OSError, CodecError, msgspec.DecodeError) as error:
            self._silent_since.pop(server, None)
            refused = server in self._refusing
            told = str(error) if isinstance(error, TlsError) else f"answers nothing sensible ({error})"
            if other := await self._other_kind(server, error):
                self._refusals[server] = told = other
            self._troubles[server] = self._refusals[server] if refused else told
            self._wrong.add(server)  # only now: readers of `_wrong` expect the reason in `_troubles`
            return None

    def _has_been_silent(self, server: str) -> None:
        """Gives up the connection to a server that has answered nothing for `silent_s`. Until then it is asked again
        over the same connection, because a new connection, with its TLS handshake, costs an overloaded server the
        most."""
        now = asyncio.get_running_loop().time()
        if now - self._silent_since.setdefault(server, now) >= self._patience.silent_s:
            del self._silent_since[server]
            self.links.drop(server)

    async def _other_kind(self, server: str, error: Exception) -> str:
        """Finds out whether a server that hung up speaks TLS while this client does not, or the reverse. Returns this
        in words, or "" if it is not the reason. Each server is probed at most once per search. A client that has ever
        had an answer does not probe: then a server that hangs up has most likely stopped."""
        probe, may_be = self.environment.probe, CodecError | ConnectionResetError | ConnectionAbortedError | TlsError
        if probe is None or self._heard or not isinstance(error, may_be):
            return ""
        if server not in self._kinds:
            self._kinds[server] = await probe(*split_address(server), self.environment.speaks_tls)
        return self._kinds[server]

    def why_no_leader(self) -> str:
        """Returns the trouble with each server in the last search, in words; before any search, only the addresses."""
        troubles = {server: self._troubles.get(server, "has not been asked") for server in self.servers}
        others = {server: self._troubles[server] for server in sorted(self._troubles)}
        return "; ".join(f"{server} {trouble}" for server, trouble in (troubles | others).items())

    def _take_members(self, server: str, reply: Reply) -> tuple[str | None, tuple[str, ...]] | None:
        """Reads the members from a server's reply. Returns (address of the leader or None, addresses of the other
        brokers). If this user may not list members, returns the server as the leader. Returns None if the reply is no
        success or comes from another cluster. Raises msgspec.DecodeError."""
        if reply.code == ResponseCode.NO_PERMISSION:
            self.groups.take("")
            return server, ()  # the user may not list members; any node forwards requests to the leader
        if reply.code != ResponseCode.SUCCESS or not self._is_ours(server, reply.ext.get(CLUSTERS_FIELD, "")):
            return None
        table = msgspec.json.decode(reply.body, type=_MembersBody).brokerAddrTable
        self.groups.take(reply.ext.get(GROUPS_FIELD, ""), reply.ext.get(RETIRED_FIELD, ""))
        known = {name: self.groups.group_of_name(name) for name in table}
        addresses = [data.brokerAddrs for name, data in table.items() if known[name] == self.group]
        self.by_id = {k: v for each in addresses for k, v in each.items()}
        leader = next((a["0"] for a in addresses if "0" in a), None)
        others = tuple(v for a in addresses for k, v in a.items() if k != "0")
        named = (*((leader,) if leader else ()), *others)
        others_too = (
            address for name in table if known[name] != self.group for address in table[name].brokerAddrs.values()
        )
        self._heard = tuple(dict.fromkeys((*named, *self._heard, *others_too)))[:_HEARD_MAX]
        # A leader names all members. The list of any other node may be old, so it only adds members.
        self.brokers = named if leader == server else tuple(dict.fromkeys((*named, *self.brokers)))[:_HEARD_MAX]
        return leader, others

    def _is_ours(self, server: str, said: str) -> bool:
        """Returns False if a server belongs to another cluster than this client, and not to one that was restored from
        the client's: the address of a removed node may be another cluster's by now."""
        clusters = tuple(said.split())
        ours = self.groups.clusters
        if clusters and ours and ours[0] not in clusters:
            logger.warning("%s belongs to another cluster, %s and not %s: not used", server, clusters[0], ours[0])
            return False
        self.groups.belong_to(clusters or ours)
        return True

    async def _link_of(self, server: str) -> Connection:
        try:
            link = await self.links.get(server)
        except TimeoutError:
            self._refusing.pop(server, None)  # a stopped node does not answer, but may come back
            raise
        except OSError as error:
            self._refusing.setdefault(server, asyncio.get_running_loop().time())
            self._refusals[server] = why_not(error)
            raise
        self._refusing.pop(server, None)
        return link

    def _all_refuse_for(self, patience_s: float) -> bool:
        """Returns True once every known server has refused connections for `patience_s`."""
        if not self._refusing.keys() >= {*self.servers, *self.brokers}:
            return False
        return asyncio.get_running_loop().time() - max(self._refusing.values()) >= patience_s

    def _all_refuse(self, patience_s: float | None) -> str:
        whys = {server: self._refusals.get(server, _REFUSED) for server in self._refusing}
        if set(whys.values()) <= {_REFUSED}:
            return f"every server has refused connections for {patience_s:g} s"
        return "no server can be reached: " + ", ".join(f"{server} {why}" for server, why in sorted(whys.items()))

    async def _find_leader_unless_refused(self, patience_s: float | None, any_group: bool) -> str:
        """Returns the leader's address; with `any_group`, the leader of another group if that is found earlier. Raises
        _AllRefuseError once every server has refused connections for `patience_s` (None: never)."""
        find: Callable[[], Coroutine[None, None, str]] = self.find_leader
        if any_group and self.leader is None:
            find = self.groups.any_leader
        if self.leader is not None or patience_s is None:
            return await find()
        finding = asyncio.create_task(find())
        try:
            while not finding.done():
                await asyncio.wait((finding,), timeout=_BACKOFF_MAX_S)
                if not finding.done() and self._all_refuse_for(patience_s):
                    raise _AllRefuseError
            return finding.result()
        finally:
            finding.cancel()

    def new_session(self) -> bytes:
        """Returns 16 random bytes that identify a new session."""
        if self.groups.first is not self:
            return self.groups.first.new_session()
        self._sessions += 1
        return hashlib.blake2b(self._seed + self._sessions.to_bytes(8, "big"), digest_size=16).digest()

    async def members(self, timeout_s: float, refused_s: float | None = None) -> dict[str, str]:
        """Returns the nodes of the group as broker id -> "host:port", as its leader sees them; "0" is the leader."""
        reply = await self.call(
            RequestCode.GET_BROKER_CLUSTER_INFO, {}, what="cluster info", timeout_s=timeout_s, refused_s=refused_s
        )
        table = _decode(reply, _MembersBody, "cluster info").brokerAddrTable
        own = (data for name, data in table.items() if self.groups.group_of_name(name) == self.group)
        return {k: v for data in own for k, v in data.brokerAddrs.items()}

    async def call(
        self,
        code: int,
        ext: dict[str, str],
        body: bytes = b"",
        *,
        what: str,
        timeout_s: float,
        attempt_s: float = 3.0,
        writes: bool = False,
        accept: tuple[int, ...] = (0,),
        refused_s: float | None = None,
        links: ConnectionPool | None = None,
        any_group: bool = False,
    ) -> Reply:
        """Sends a request to the leader, and repeats it until it is answered or `timeout_s` is over. Use it only for
        requests that may safely be carried out twice.

        `links`: the connections to use, if the cluster must recognise the client by its connection. With `any_group`,
        for a request that all groups of brokers answer alike, the leader of another group is asked while this one has
        none. With `refused_s` the call ends earlier if every server refuses connections for that long. Raises
        RaftMQError. If `writes`, the error is Unknown when an attempt without an answer may have been carried out.
        """
        deadline = self.bind_loop().time() + timeout_s
        least_s = min(attempt_s, timeout_s) / 10
        backoff, maybe, last = Backoff(self.jitter), False, None
        trouble: _Trouble | None = None
        while True:
            try:
                attempt = await self._attempt(
                    code, ext, body, deadline, attempt_s, refused_s, links or self.links, any_group
                )
            except _AllRefuseError:
                raise self._gave_up(f"{what}: {self._all_refuse(refused_s)}", maybe, None, trouble) from None
            if isinstance(attempt, Reply):
                if attempt.code in accept:
                    return attempt
                unknown = is_unknown(attempt.code, attempt.remark)
                if attempt.code not in TRY_AGAIN and not unknown:
                    raise error_of(attempt.code, attempt.remark, what, maybe=maybe)
                last = error_of(attempt.code, attempt.remark, what, maybe=maybe)
                maybe = maybe or (writes and unknown)
                retry = Retry(what, "", f"says: {attempt.remark}", attempt.code)
            else:
                trouble = attempt
                maybe = maybe or (writes and trouble.maybe)
                retry = Retry(what, trouble.address, trouble.cause)
            pause = backoff.next_s()
            # An attempt too short for an answer could only turn a refused write into an unknown one.
            if asyncio.get_running_loop().time() + pause + least_s >= deadline:
                raise self._gave_up(f"{what}: no answer within {timeout_s:g} s", maybe, last, trouble)
            self.retries.tell(retry)
            await asyncio.sleep(pause)

    async def _attempt(
        self,
        code: int,
        ext: dict[str, str],
        body: bytes,
        deadline: float,
        attempt_s: float,
        refused_s: float | None,
        links: ConnectionPool,
        any_group: bool,
    ) -> Reply | _Trouble:
        """Makes one attempt; returns the reply, or a _Trouble that says why there is none. Raises _AllRefuseError."""
        sent, leader = False, None
        suspect = self.groups.lost if any_group else self.suspect
        try:
            async with asyncio.timeout_at(deadline):
                leader = await self._find_leader_unless_refused(refused_s, any_group)
                link = await links.get(leader)
            left = deadline - asyncio.get_running_loop().time()
            sent = True
            reply = await link.call(code, ext, body, timeout_s=max(0.0, min(attempt_s, left)))
        except TimeoutError:
            suspect(leader)
            if sent and leader is not None:
                links.drop(leader)
            return _Trouble(leader or "", "does not answer" if leader else "is not found", sent)
        except OSError as error:
            suspect(leader)
            told = not sent or isinstance(error, TlsError)
            cause = why_not(error) if told else f"ended the connection ({error.strerror or error})"
            return _Trouble(leader or "", cause, sent)
        if reply.code == ResponseCode.SERVICE_NOT_AVAILABLE or is_unknown(reply.code, reply.remark):
            suspect(leader)
        return reply

    def _gave_up(self, text: str, maybe: bool, last: RaftMQError | None, trouble: _Trouble | None) -> RaftMQError:
        if maybe:
            why = f" ({trouble.address} {trouble.cause})" if trouble is not None and trouble.address else ""
            return Unknown(f"{text}{why}; an attempt may have been carried out")
        why = self.why_no_leader()
        hint = _IS_IT_TLS if not self.environment.speaks_tls and _HANGS_UP.search(why + text) else ""
        said = text if why in text else f"{text} ({why})"
        return last or Unreachable(said, retryable=True, hint=hint_for(said) or hint)

    async def route(
        self,
        topic: str,
        *,
        timeout_s: float,
        refused_s: float | None = None,
        auto_create: bool = False,
        fresh: bool = False,
    ) -> Route:
        """Returns the topic's queues, at most 30 s old, or fetched now with `fresh`. With `auto_create`, returns for a
        missing topic the route that its first message would create. Raises NotFound if there is no such topic, Denied
        if the user has no right to it, and other RaftMQErrors."""
        now = asyncio.get_running_loop().time()
        known = self._routes.get(topic)
        if known is not None and known.exists and not fresh and now - known.fetched_at < ROUTE_LIFE_S:
            return known
        try:
            route = await self._fetch_route(topic, topic, timeout_s, refused_s, True)
        except Denied as denied:  # any right on the topic gives the route; the hint names the needed one
            denied.advise(how_to_allow(str(denied), "Pub" if auto_create else "Sub"))
            raise
        except NotFound:
            if not auto_create:
                raise
            route = await self._fetch_route(AUTO_CREATE_TOPIC, topic, timeout_s, refused_s, False)
            (made, *_) = route.groups
            queues = min(AUTO_CREATE_QUEUES, made.write)
            route = route_over(topic, [made._replace(read=queues, write=queues)], route.fetched_at, route.exists)
            self.missing.add(topic)
        self._routes[topic] = route
        return route

    def known_route(self, topic: str) -> Route | None:
        """Returns the last route fetched, however old; None if there is none."""
        return self._routes.get(topic)

    def forget_route(self, topic: str) -> None:
        """Forgets the route of a topic that has changed: the next `route` fetches it."""
        self._routes.pop(topic, None)

    async def _fetch_route(
        self, asked: str, topic: str, timeout_s: float, refused_s: float | None, exists: bool
    ) -> Route:
        what = f"route of topic {topic}"
        ext = {"topic": asked, "acceptStandardJsonOnly": "true"}
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        reply = await self.call(code, ext, what=what, timeout_s=timeout_s, refused_s=refused_s, any_group=True)
        queues = _decode(reply, RouteBody, what).queueDatas
        self.groups.take(reply.ext.get(GROUPS_FIELD, ""), reply.ext.get(RETIRED_FIELD, ""))
        route = read_route(topic, queues, asyncio.get_running_loop().time(), exists, self.groups.group_of_name)
        if route is None:
            raise Failed(f"{what}: the answer names no queues", retryable=True)
        return route


def _decode(reply: Reply, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except msgspec.DecodeError as error:
        raise Failed(f"{what}: the answer is not understood: {error}", code=reply.code) from error
