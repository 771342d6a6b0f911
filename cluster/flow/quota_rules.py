"""Finds the quota that applies to a user, an address or a topic. No other module knows which quotas take precedence.

Each limit is looked up by itself, as Kafka does. A quota with a narrow subject replaces one with a wider subject, but
only for the limits that it has. So a quota of one user that has only the limit `requests` does not free that user from
the rates of `user=*`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cluster.flow.quota_limits import LIMITS

if TYPE_CHECKING:
    from statemachine.access.quotas import Quota, Quotas
    from statemachine.access.users import Access


class Rule(NamedTuple):
    """One limit of a quota, as it applies to one owner."""

    subject: str
    """The subject of the quota that has the limit."""
    owner: str
    """The owner whom the rule limits, written like a subject. If the subject has a `*`, each user, address or topic has
    a rule of its own."""
    limit: str
    value: int


class Refusals:
    """Counts the requests of one owner that were refused because of one limit."""

    __slots__ = ("refused", "refused_ms", "rule")
    advice = "send more slowly"
    """The advice to clients whose requests are refused."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.refused = 0
        """The number of refused requests."""
        self.refused_ms = 0
        """The time of the last refusal, in milliseconds of the monotonic clock; 0 if there was none."""

    @property
    def subject(self) -> str:
        """The subject of the quota that has the limit."""
        return self.rule.subject

    @property
    def owner(self) -> str:
        """The owner who is limited, written like a subject."""
        return self.rule.owner

    @property
    def asked_per_s(self) -> float | None:
        """The amount per second that was asked for in the last seconds; None if the limit is not per second."""
        return None

    def refuse(self, now_ms: int) -> None:
        """Counts a refused request."""
        self.refused += 1
        self.refused_ms = now_ms

    def told(self) -> str:
        """Returns a text for people with the limit and its value."""
        return LIMITS[self.rule.limit].told(self.rule.value)

    def why(self) -> str:
        """Returns the reason of a refusal: the owner, the limit with its value, and the quota."""
        return f"{self.owner} may have {self.told()} (quota {self.subject})"


R = TypeVar("R", bound=Refusals)


class QuotaRules:
    """Looks up the quotas of a cluster for the judges of one node: the objects that enforce them. Event loop only."""

    def __init__(self, quotas: Quotas, access: Access) -> None:
        self._quotas, self._access = quotas, access
        self.judges: list[Callable[[], Iterable[Refusals]]] = []
        """One function of each judge, which returns the judge's Refusals: one for each owner and limit that the judge
        knows, also of deleted quotas."""

    def refusals(self) -> list[Refusals]:
        """Returns the Refusals of all judges of this node: one per owner and limit, also if nothing was refused, and
        also of deleted quotas (see `in_force`)."""
        return [each for judge in self.judges for each in judge()]

    def refused_since(self, from_ms: int) -> list[Refusals]:
        """Returns the Refusals with a refusal after that time (monotonic milliseconds), unless the limit was changed or
        deleted since."""
        known = self.refusals()
        return list(self.in_force([each for each in known if each.refused and each.refused_ms > from_ms]))

    def in_force(self, known: Iterable[R]) -> Iterator[R]:
        """Yields those of `known` whose limit still exists with the same value."""
        return (each for each in known if self.holds(each.rule))

    @property
    def rows(self) -> Mapping[str, Quota]:
        """Subject, as text -> its quota. After each change of the quotas this is another object."""
        return self._quotas.by_subject

    @property
    def limited(self) -> Collection[str]:
        """The names of the limits that at least one quota has."""
        return self._quotas.limited

    def has(self, limit: str) -> bool:
        """Returns True if any quota has this limit."""
        return limit in self._quotas.limited

    def has_any(self, limits: Iterable[str]) -> bool:
        """Returns True if any quota has one of these limits."""
        return not self._quotas.limited.isdisjoint(limits)

    def of_sender(self, limit: str, user: int, address: str, topic: str = "") -> Rule | None:
        """Returns the rule that limits a sender; None if no quota does. `user`: the id of the user who signed the
        request, 0 if nobody did; then the address counts. `topic`: the topic of the request; "" for a limit that does
        not depend on one."""
        if not user:
            owner = f"address={address}"
            return self._first(limit, owner, owner) or self._first(limit, "address=*", owner)
        known = self._access.by_id.get(user)
        name = "" if known is None else known.name
        owner, of_topic = f"user={name}", f"user={name},topic={topic}"
        # The order is from the narrowest to the widest subject, as Kafka orders (user, client id).
        return (
            (topic and self._first(limit, of_topic, of_topic))
            or self._first(limit, owner, owner)
            or (topic and self._first(limit, f"user=*,topic={topic}", of_topic))
            or self._first(limit, "user=*", owner)
            or None
        )

    def of_topic(self, limit: str, topic: str) -> Rule | None:
        """Returns the rule that limits a topic, whichever client asks; None if no quota does."""
        owner = f"topic={topic}"
        rule = self._first(limit, owner, owner)
        if rule is None and topic[:1] != "%":  # "%": the cluster made the topic; only a quota with its name limits it
            rule = self._first(limit, "topic=*", owner)
        return rule

    def holds(self, rule: Rule) -> bool:
        """Returns True if the quota still has the rule's limit with the same value."""
        quota = self.rows.get(rule.subject)
        return quota is not None and quota.limits.get(rule.limit) == rule.value

    def _first(self, limit: str, subject: str, owner: str) -> Rule | None:
        quota = self.rows.get(subject)
        value = None if quota is None else quota.limits.get(limit)
        return None if value is None else Rule(subject, owner, limit, value)


def rules_of(rules: QuotaRules, limit: str, user: int, address: str, topic: str) -> Iterator[Rule]:
    """Yields the rules of a limit that apply to a request: the sender's, then the topic's, as far as they exist."""
    for rule in (rules.of_sender(limit, user, address, topic), rules.of_topic(limit, topic)):
        if rule is not None:
            yield rule
