"""Enforces the quotas of users and addresses on the number of sends in flight at the leader.

A send is in flight once it was taken and until it is decided; one that waits for a quota is not. The account of an
owner lies below that of the node (`cluster.flow.gate`), so it is given back in the same ways, and nothing is counted
while nobody is limited.
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
"""The most owners that are remembered; those who have nothing under way are forgotten first."""
OPEN_MS, CLOSED_MS = float("-inf"), float("inf")


class AtOnce(Refusals):
    """The limit on what one owner may have in flight. It has the interface of a `cluster.flow.quota_buckets.Bucket`,
    but the time at which it opens cannot be known."""

    __slots__ = ("_reserved", "_reserving", "account", "key")

    def __init__(self, rule: Rule, account: Account, reserving: list[AtOnce]) -> None:
        """`reserving`: a list of those from which something was taken in this turn's call."""
        super().__init__(rule)
        self.key = rule[:3]
        self.account = account
        self._reserving = reserving
        self._reserved = 0
        """The requests that may go and are not in the account yet: they are when the call ends."""

    def opens_ms(self) -> float:
        """Returns a time in the past if one more send may go, and one that never comes if not."""
        return OPEN_MS if self.account.requests + self._reserved < self.rule.value else CLOSED_MS

    def fits(self, now_ms: int, requests: int, count: int, size: int) -> bool:
        """Returns True if this number of requests may be taken."""
        return self.account.requests + self._reserved + requests <= self.rule.value

    def take(self, now_ms: int, count: int, size: int, requests: int = 1) -> None:
        """Takes requests, however many messages they have."""
        if not self._reserved:
            self._reserving.append(self)
        self._reserved += requests

    def settle(self) -> None:
        """Forgets the reservation, because what was taken is in the account now."""
        self._reserved = 0


class RequestsAtOnce:
    """The sends that each owner has in flight. Event loop only."""

    def __init__(self, rules: QuotaRules, above: Account) -> None:
        """`above`: the account of the node in which all of it counts."""
        self._rules, self._above = rules, above
        self._seen: Mapping[str, Quota] = {}
        self._accounts: dict[int | str, Account] = {}
        self._limits: dict[tuple[str, str], AtOnce] = {}
        """(subject, owner) -> what limits him."""
        self._found: dict[int | str, AtOnce | None] = {}
        """User or address -> what limits it; None if nothing does."""
        self._reserving: list[AtOnce] = []
        rules.judges.append(self.all)

    @property
    def active(self) -> bool:
        """True if any quota has this limit."""
        return self._rules.has(REQUESTS)

    def account(self, user: int, address: str) -> Account:
        """Returns the account of the sender's requests: that of the user, or that of the address if nobody has
        signed."""
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
        """Begins to judge: what was allowed before is in its account by now."""
        for each in self._reserving:
            each.settle()
        self._reserving.clear()

    def of(self, user: int, address: str) -> AtOnce | None:
        """Returns the limit for this sender; None if nothing limits it."""
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
        """Returns the owners that have, or had, a limit, and have sent something."""
        return self._limits.values()
