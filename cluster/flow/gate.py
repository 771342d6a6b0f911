"""The gate: asked before a request is taken, so that the memory of a node is bounded before the work begins.

It is the one place that knows how much a connection, a node or a user may have in flight. The kernel asks it for one
number, `Gate.room`, once for the sends of one read, and has no limit of its own.
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
"""The user of what the node asks for itself. A client whose user is not proven is
`statemachine.access.users.NOBODY`."""


SEND_BYTES_MIN: Final = 32
"""The fewest bytes of a send that the kernel takes: `n * SEND_BYTES_MIN` bytes are room for at most n sends."""


class GateRequest(Enum):
    """The kind of a request at the gate, which is asked before the request's work and again when the request is
    taken."""

    NEW = auto()
    """A client's send that does not repeat one which this node holds, or is not known to. It is taken once."""
    WAITING = auto()
    """A client's send that waits, for its topic for instance, and then asks as NEW. Nothing is known of it yet."""
    REPEATED = auto()
    """A client's send that repeats one which was taken and is under way."""
    FORWARDED_SEND = auto()
    """A client's send that another node has to answer, which is asked as well."""
    FORWARDED = auto()
    """Any other request of a client that another node has to answer."""
    EARLY = auto()
    """A send of another node's client that was forwarded to this node before it could handle it."""
    OWN = auto()
    """A copy of a message that the node makes itself, on whosever account. Its user is ITSELF."""


_NEW = GateRequest.NEW  # used twice per send; a module's name is cheaper to look up than an Enum's


@unique
class Limit(StrEnum):
    """The kinds of limits. The value is the label `reason` of raftmq_requests_refused_total, in which `Gate.refused`
    counts."""

    BYTES = "busy"
    """The bytes in flight of a connection or of the node."""
    OVERLOAD = "overload"
    """The time in the house: more sends arrive than the log takes (`cluster.flow.admission_limit`)."""
    QUOTA = "quota"
    """The quota of the owner, or of the topic (`cluster.flow.quota_buckets`)."""


class Over(NamedTuple):
    """The reason why a request must not be taken now. Who refuses it tells `Gate.refused`."""

    limit: Limit
    remark: str
    """The text for the client."""
    quota: str = ""
    """The name of the quota's limit, if it is one."""


class Holder(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An owner of requests in flight: a client's connection, its stand-in on the leader, or the node itself. A Gate
    makes it, and each request counts for one."""

    account: Account
    """Its unanswered requests."""
    address: str
    """The client's own ip, also if another node holds its connection; "" for the node itself."""

    @property
    def bytes(self) -> int:
        """The bytes of its unanswered requests."""
        return self.account.bytes

    @property
    def requests(self) -> int:
        """The number of its unanswered requests."""
        return self.account.requests


class Gate:
    """The accounts of one node, and their limits. Event loop only."""

    def __init__(
        self,
        config: Config,
        count: Callable[[str], None] = lambda _: None,
        count_quota: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`count` counts a refused request under the label of its limit, `count_quota` one that a quota refused under
        the name of the quota's limit."""
        self._count, self._count_quota = count, count_quota
        self.reload(config)
        self.sends = Account()
        """Sends without a final outcome: queued, proposed, or undecided after an UNKNOWN."""
        self.forwarded = Account()
        """Requests of this node's clients that another node has to answer."""
        self.early = Account()
        """Requests that were forwarded to this node before it could handle them."""
        self.paced = Account()
        """Sends that wait for their quota."""
        self.at_once: RequestsAtOnce | None = None
        """The accounts of owners, below `sends`, while a quota limits how much they may have under way."""
        self.clients = Account()
        """Unanswered requests of all holders. The account of each is below this one."""

    def part(self) -> Part:
        """Returns the gate as a Part of the node: its name and callback."""
        return Part(name="gate", reload=self.reload)

    def count_owners(self, at_once: RequestsAtOnce | None) -> None:
        """Counts new sends for their owners too, in these accounts, while any quota limits how much they may have under
        way; None: does not."""
        self.at_once = at_once

    def reload(self, config: Config) -> None:
        """Applies other limits."""
        self._limits = config.limits

    def holder(self, address: str) -> Holder:
        """Makes a holder, which has nothing in flight."""
        return Holder(Account(self.clients), address)

    # --- before the work ---------------------------------------------------------------------------------------------

    def refusal(self, holder: Holder, size: int, user: int, ask: GateRequest) -> Over | None:
        """Returns the reason why a request of `size` bytes must not be taken now; None if it may be taken.

        `user`: id of the user who signed it, 0 if none is proven, ITSELF if the node asks. Nothing is counted
        here: what is refused may turn out to repeat what is stored, and is answered then.
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
        """Returns the number of bytes of new sends of a user that may certainly be taken now, for the sends that the
        kernel finds in one read; 0 or less: none. More may be allowed: for the first send beyond it `refusal` decides,
        and then the kernel asks again. So a limit of `n` more requests leaves `n * SEND_BYTES_MIN`."""
        limits = self._limits
        return min(
            limits.connection_inflight_bytes_max - holder.account.bytes,
            limits.node_inflight_bytes_max - self.sends.bytes,
        )

    def refused(self, over: Over) -> None:
        """Counts a request that is refused for this reason. Called once, by the code that refuses it. A send that is
        only delayed, or that repeats a stored one, is not refused."""
        self._count(over.limit)
        if over.quota:
            self._count_quota(over.quota)

    def _of_node(self, ask: GateRequest) -> Account:
        """Returns the node's account of such requests."""
        if ask is GateRequest.EARLY:
            return self.early
        return self.forwarded if ask is GateRequest.FORWARDED_SEND or ask is GateRequest.FORWARDED else self.sends

    # --- taking ------------------------------------------------------------------------------------------------------

    def hold(self, holder: Holder, size: int, user: int, ask: GateRequest) -> Hold:
        """Takes a request; the caller must release the returned Hold. The arguments are those of `refusal`."""
        # An account of a narrower limit stands here and in `hold_each`, below that of the node.
        if ask is not _NEW:
            return Hold(holder.account, self._of_node(ask), size)
        node = self.sends if self.at_once is None else self.at_once.account(user, holder.address)
        return Hold(holder.account, node, size)

    def hold_each(self, holder: Holder, sends: list[H], user: int) -> int:
        """Takes new sends of one user and one holder, which `room` has allowed. Returns their bytes."""
        node = self.sends if self.at_once is None else self.at_once.account(user, holder.address)
        return hold_each(sends, holder.account, node)

    def hold_answer(self, holder: Holder, size: int) -> Hold:
        """Takes a send that is already stored, until it is answered."""
        return Hold(holder.account, None, size)

    def pacing_account(self) -> Account:
        """Makes an account for the sends of one owner that wait for a quota."""
        return Account(self.paced)

    def hold_paced(self, holder: Holder, account: Account, size: int) -> Hold:
        """Takes a send that waits for its quota, on an account of `pacing_account`."""
        return Hold(holder.account, account, size)

    def hold_early(self, size: int) -> Hold | None:
        """Takes a request that was forwarded to this node before it could handle it; None if there is no room. It was
        not read yet, so it counts for no owner. When it is handled, it is taken again, for its owner."""
        return Hold(None, self.early, size) if self.early.bytes + size <= self._limits.node_inflight_bytes_max else None

    # --- figures -----------------------------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        """The bytes of all requests that this node holds."""
        return self.sends.bytes + self.forwarded.bytes + self.early.bytes + self.paced.bytes

    def left(self) -> dict[str, tuple[int, int]]:
        """Returns name -> (requests, bytes) of each account that is not empty."""
        accounts = {name: getattr(self, name) for name in ("sends", "forwarded", "early", "paced", "clients")}
        return {name: (one.requests, one.bytes) for name, one in accounts.items() if one.requests or one.bytes}
