"""The gate: decides whether a node may take a request, before any work is done for it. So the memory of the node is
bounded.

It is the one place that knows how much a connection, a node or a user may have in flight. The kernel (the compiled hot
path, `raftmq_wire.kernel`) asks it for one number, `Gate.room`, once for the sends of one read, and has no limit of its
own.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto, unique
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cluster.flow.hold import Account, Hold, hold_each
from cluster.runtime.service_lifecycle import Part

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.config.config import Config
    from cluster.flow.hold import H
    from cluster.flow.requests_at_once import RequestsAtOnce


ITSELF: Final = -1
"""The user id of requests that the node makes itself. A client whose user is not proven has the id
`statemachine.access.users.NOBODY`."""


SEND_BYTES_MIN: Final = 32
"""The fewest bytes of a send that the kernel takes. So `n * SEND_BYTES_MIN` bytes hold at most n sends."""


class GateRequest(Enum):
    """The kind of a request at the gate. The callers pass it to `Gate.refusal` before any work for the request, and to
    `Gate.hold` when they take the request."""

    NEW = auto()
    """A client's send that, as far as this node knows, repeats no send that the node holds."""
    WAITING = auto()
    """A client's send that has to wait, for example for its topic to be created, and then asks again as NEW. Whether it
    repeats another send is not known yet."""
    REPEATED = auto()
    """A client's send that repeats another send, which was taken and is still undecided."""
    FORWARDED_SEND = auto()
    """A client's send that is forwarded to another node. That node's gate is asked as well."""
    FORWARDED = auto()
    """Any other request of a client that another node has to answer."""
    EARLY = auto()
    """A send of another node's client that was forwarded to this node before this node could handle the send."""
    OWN = auto()
    """A copy of a message that the node makes itself, for any user. The user id of this request is ITSELF."""


_NEW = GateRequest.NEW  # used twice per send; a global of the module is looked up faster than a member of an Enum


@unique
class Limit(StrEnum):
    """The kinds of limits. The value is the label `reason` of raftmq_requests_refused_total, in which `Gate.refused`
    counts."""

    BYTES = "busy"
    """The bytes in flight of a connection or of the node."""
    OVERLOAD = "overload"
    """More sends arrive than the log decides, so they wait too long (`cluster.flow.admission_limit`)."""
    QUOTA = "quota"
    """The quota of the owner, or of the topic (`cluster.flow.quota_buckets`)."""


class Over(NamedTuple):
    """The reason why a request must not be taken now. The code that refuses the request passes it to `Gate.refused`."""

    limit: Limit
    remark: str
    """The text for the client."""
    quota: str = ""
    """The name of the quota's limit if a quota is the reason, otherwise ""."""


class Holder(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An owner of requests in flight: a client's connection, the stand-in on the leader for a connection of another
    node, or the node itself. A Gate makes holders. Each request counts for one of them."""

    account: Account
    """The account of the holder's unanswered requests."""
    address: str
    """The client's own IP address, even if another node holds its connection; "" for the node itself."""

    @property
    def bytes(self) -> int:
        """The bytes of the holder's unanswered requests."""
        return self.account.bytes

    @property
    def requests(self) -> int:
        """The number of the holder's unanswered requests."""
        return self.account.requests


class Gate:
    """Keeps the accounts of one node, and checks their limits. Event loop only."""

    def __init__(
        self,
        config: Config,
        count: Callable[[str], None] = lambda _: None,
        count_quota: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`count` is called for a refused request with the label of its limit. `count_quota` is called too if a quota
        refused it, with the name of the quota's limit."""
        self._count, self._count_quota = count, count_quota
        self.reload(config)
        self.sends = Account()
        """The account of the sends without a final outcome: queued, proposed, or undecided after an UNKNOWN."""
        self.forwarded = Account()
        """The account of the requests of this node's clients that another node has to answer."""
        self.early = Account()
        """The account of the requests that were forwarded to this node before it could handle them."""
        self.paced = Account()
        """The account of the sends that wait for their quota."""
        self.at_once: RequestsAtOnce | None = None
        """The accounts of owners, below `sends`; None while no quota limits the number of sends in flight."""
        self.clients = Account()
        """The account of the unanswered requests of all holders. Each holder's account adds to this one."""

    def part(self) -> Part:
        """Returns the hook through which the node tells the gate of a changed configuration."""
        return Part(name="gate", reload=self.reload)

    def count_owners(self, at_once: RequestsAtOnce | None) -> None:
        """Counts new sends in these accounts of their owners too from now on. `at_once`: None while no quota limits the
        number of sends in flight; new sends then count for the node alone."""
        self.at_once = at_once

    def reload(self, config: Config) -> None:
        """Applies the limits of a changed configuration."""
        self._limits = config.limits

    def holder(self, address: str) -> Holder:
        """Makes a holder with no requests in flight. `address`: the client's IP address, "" for the node itself."""
        return Holder(Account(self.clients), address)

    # --- before the work ---------------------------------------------------------------------------------------------

    def refusal(self, holder: Holder, size: int, user: int, ask: GateRequest) -> Over | None:
        """Returns the reason why a request of `size` bytes must not be taken now; None if it may be taken.

        `user`: the id of the user who signed the request, 0 if no user is proven, ITSELF if the node makes the request.
        `ask`: the kind of the request. The refusal is not counted here, because a refused send may turn out to repeat a
        stored one. The caller then answers it without a refusal.
        """
        limits, connection = self._limits, holder.account
        node = self.sends if ask is _NEW else self._of_node(ask)
        if connection.bytes + size > limits.connection_inflight_bytes_max:
            name, value, have = "connection", limits.connection_inflight_bytes_max, connection.bytes
        elif node.bytes + size > limits.node_inflight_bytes_max:
            name, value, have = "node", limits.node_inflight_bytes_max, node.bytes
        else:
            return None
        return Over(
            Limit.BYTES,
            f"this {name} has {have} bytes in flight; with {size} more it passes "
            f"limits.{name}_inflight_bytes_max = {value}",
        )

    def room(self, holder: Holder, user: int) -> int:
        """Returns how many bytes of new sends of a user may certainly be taken now; 0 or less if none. The kernel calls
        it once for all sends that it finds in one read. More sends may be allowed: for the first send beyond the
        result, `refusal` decides, and then the kernel asks for the room again. `user` has no effect."""
        limits = self._limits
        return min(
            limits.connection_inflight_bytes_max - holder.account.bytes,
            limits.node_inflight_bytes_max - self.sends.bytes,
        )

    def refused(self, over: Over) -> None:
        """Counts a refused request under the limit that is the reason. The code that refuses the request calls this
        once. A send that is only delayed, or that repeats a stored one, is not a refused request."""
        self._count(over.limit)
        if over.quota:
            self._count_quota(over.quota)

    def _of_node(self, ask: GateRequest) -> Account:
        """Returns the node's account in which requests of this kind count."""
        if ask is GateRequest.EARLY:
            return self.early
        return self.forwarded if ask is GateRequest.FORWARDED_SEND or ask is GateRequest.FORWARDED else self.sends

    # --- taking ------------------------------------------------------------------------------------------------------

    def hold(self, holder: Holder, size: int, user: int, ask: GateRequest) -> Hold:
        """Takes a request and returns its Hold, which the caller must release. The arguments are those of `refusal`."""
        # Sends count in the owner's account if there is one, which adds to the node's account. `hold_each` does the
        # same.
        if ask is not _NEW:
            return Hold(holder.account, self._of_node(ask), size)
        node = self.sends if self.at_once is None else self.at_once.account(user, holder.address)
        return Hold(holder.account, node, size)

    def hold_each(self, holder: Holder, sends: list[H], user: int) -> int:
        """Takes new sends of one user and one holder, which `room` has allowed. Returns the sum of their bytes."""
        node = self.sends if self.at_once is None else self.at_once.account(user, holder.address)
        return hold_each(sends, holder.account, node)

    def hold_answer(self, holder: Holder, size: int) -> Hold:
        """Returns the Hold of a send that is already stored, until it is answered. It counts for the connection
        alone."""
        return Hold(holder.account, None, size)

    def pacing_account(self) -> Account:
        """Makes an account for the sends of one owner that wait for a quota."""
        return Account(self.paced)

    def hold_paced(self, holder: Holder, account: Account, size: int) -> Hold:
        """Takes a send that waits for its quota, and returns its Hold. `account`: one that `pacing_account` has
        made."""
        return Hold(holder.account, account, size)

    def hold_early(self, size: int) -> Hold | None:
        """Takes a request of `size` bytes that was forwarded to this node before this node could handle it. Returns its
        Hold, or None if there is no room. The request is not decoded yet, so it counts for no owner. When the node
        handles it, it is taken again, for its owner."""
        return Hold(None, self.early, size) if self.early.bytes + size <= self._limits.node_inflight_bytes_max else None

    # --- figures -----------------------------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        """The bytes of all requests that this node holds."""
        return self.sends.bytes + self.forwarded.bytes + self.early.bytes + self.paced.bytes

    def left(self) -> dict[str, tuple[int, int]]:
        """Returns name -> (number of requests, bytes) of each account that is not empty."""
        accounts = {name: getattr(self, name) for name in ("sends", "forwarded", "early", "paced", "clients")}
        return {name: (one.requests, one.bytes) for name, one in accounts.items() if one.requests or one.bytes}
