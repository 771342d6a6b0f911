"""Enforces the quotas of users and addresses on the number of sends in flight at the leader.

A send is in flight from when it is taken until it is decided. A send that waits for a quota is not in flight. The
account of an owner adds to that of the node (`cluster.flow.gate`), so a send that ends leaves both at once. Owners have
no accounts while no quota has this limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from cluster.flow.hold import Account
from cluster.flow.quota_limits import REQUESTS
from cluster.flow.quota_rules import Refusals, Rule

if TYPE_CHECKING:
    from cluster.flow.quota_rules import QuotaRules
    from statemachine.access.quotas import Quota

OWNERS_MAX: Final = 20_000
"""The most owners that are remembered. Beyond that, owners with no request in flight are forgotten."""
OPEN_MS, CLOSED_MS = float("-inf"), float("inf")


class AtOnce(Refusals):
    """Limits the sends that one owner may have in flight. It has the interface of a
    `cluster.flow.quota_buckets.Bucket`, but nobody can know when it will allow the next send."""

    __slots__ = ("_reserved", "_reserving", "account", "key")

    def __init__(self, rule: Rule, account: Account, reserving: list[AtOnce]) -> None:
        """`reserving`: a list to which this object adds itself when sends are taken that do not count in `account`
        yet."""
        super().__init__(rule)
        self.key = rule[:3]
        self.account = account
        self._reserving = reserving
        self._reserved = 0
        """The number of sends that were allowed and are not in `account` yet. They are in `account` before `settle` is
        called."""

    def opens_ms(self) -> float:
        """Returns -infinity if one more send is allowed now, and +infinity if not."""
        return OPEN_MS if self.account.requests + self._reserved < self.rule.value else CLOSED_MS

    def fits(self, now_ms: int, requests: int, count: int, size: int) -> bool:
        """Returns True if this number of requests is allowed now. `now_ms`, `count` and `size` have no effect."""
        return self.account.requests + self._reserved + requests <= self.rule.value

    def take(self, now_ms: int, count: int, size: int, requests: int = 1) -> None:
        """Reserves this number of requests. `now_ms`, `count` and `size` have no effect."""
        if not self._reserved:
            self._reserving.append(self)
        self._reserved += requests

    def settle(self) -> None:
        """Forgets the reserved requests, because they are in the account now."""
        self._reserved = 0


class RequestsAtOnce:
    """The sends that each owner has in flight. Event loop only."""

    def __init__(self, rules: QuotaRules, above: Account) -> None:
        """`above`: the account of the node, to which the owners' accounts add."""
        self._rules, self._above = rules, above
        self._seen: Mapping[str, Quota] = {}
        self._accounts: dict[int | str, Account] = {}
        self._limits: dict[tuple[str, str], AtOnce] = {}
        """(subject, owner) -> the limit on that owner."""
        self._found: dict[int | str, AtOnce | None] = {}
        """User id or address -> the limit on that sender; None if no quota has one."""
        self._reserving: list[AtOnce] = []
        rules.judges.append(self.all)

    @property
    def active(self) -> bool:
        """True if any quota limits the number of sends in flight."""
        return self._rules.has(REQUESTS)

    def account(self, user: int, address: str) -> Account:
        """Returns the account of the sender's requests: that of the user, or that of the address if no user signed
        (`user` is 0)."""
        owner = user or address
        account = self._accounts.get(owner)
        if account is None:
            if len(self._accounts) >= OWNERS_MAX:
                self._forget_idle()
            account = self._accounts[owner] = Account(self._above)
        return account

    def _forget_idle(self) -> None:
        self._accounts = {key: each for key, each in self._accounts.items() if each.requests}
        self._limits = {key: each for key, each in self._limits.items() if each.account.requests}
        self._found.clear()

    def begin(self) -> None:
        """Forgets all reservations, because the sends for which they were made are in their accounts by now. The code
        that allows sends calls this first, each time it runs."""
        for each in self._reserving:
            each.settle()
        self._reserving.clear()

    def of(self, user: int, address: str) -> AtOnce | None:
        """Returns the limit on this sender; None if no quota has one. `user`: the id of the user who signed, 0 if
        nobody did."""
        if self._rules.rows is not self._seen:
            self._seen = self._rules.rows
            self._found.clear()
        owner = user or address
        if owner not in self._found:
            rule = self._rules.of_sender(REQUESTS, user, address)
            self._found[owner] = None if rule is None else self._limit(rule, self.account(user, address))
        return self._found[owner]

    def _limit(self, rule: Rule, account: Account) -> AtOnce:
        key = rule.subject, rule.owner
        found = self._limits.get(key)
        if found is None or found.rule != rule or found.account is not account:
            found = self._limits[key] = AtOnce(rule, account, self._reserving)
        return found

    def all(self) -> Iterable[Refusals]:
        """Returns one entry per owner that has, or had, a limit and has sent something."""
        return self._limits.values()
