"""Finds the quota that applies to a user, an address or a topic: the one place that knows which rows take precedence.

Each limit is looked up by itself, as Kafka does: a narrow row takes the place of a wider one for the limits that it
has, and leaves the others to that. So a row with nothing but `requests` does not free its user from the rates of
`user=*`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cluster.flow.quota_limits import LIMITS

if TYPE_CHECKING:
    from statemachine.access.quotas import Quota, Quotas
    from statemachine.access.users import Access


class Rule(NamedTuple):
    """One limit that counts for one owner."""

    subject: str
    """The subject of the quota."""
    owner: str
    """Whom it limits here, in the words of a subject: `*` is everybody for himself."""
    limit: str
    value: int


class Refusals:
    """Counts what was refused to one owner for one limit."""

    __slots__ = ("refused", "refused_ms", "rule")
    advice = "send more slowly"
    """The remedy for clients."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.refused = 0
        """The requests that were refused for it."""
        self.refused_ms = 0
        """The time of the last one, of the monotonic clock."""

    @property
    def subject(self) -> str:
        """The subject of the quota."""
        return self.rule.subject

    @property
    def owner(self) -> str:
        """The one who is limited, in the words of a subject."""
        return self.rule.owner

    @property
    def asked_per_s(self) -> float | None:
        """The amount that was asked for in the last seconds; None if this is no rate a second."""
        return None

    def refuse(self, now_ms: int) -> None:
        """Counts a refused request."""
        self.refused += 1
        self.refused_ms = now_ms

    def told(self) -> str:
        """Returns the limit, for people."""
        return LIMITS[self.rule.limit].told(self.rule.value)

    def why(self) -> str:
        """Returns who may have how much, by which quota: the reason of a refusal."""
        return f"{self.owner} may have {self.told()} (quota {self.subject})"


R = TypeVar("R", bound=Refusals)


class QuotaRules:
    """The quotas of a cluster, as a node judges by them. Event loop only."""

    def __init__(self, quotas: Quotas, access: Access) -> None:
        self._quotas, self._access = quotas, access
        self.judges: list[Callable[[], Iterable[Refusals]]] = []
        """The owners and limits that each judge of this node knows, also by quotas that are no more: they are shown
        together."""

    def refusals(self) -> list[Refusals]:
        """Returns what was refused on this node, by owner and limit, and also the owners that were never refused: all
        that the judges know, of which `in_force` takes those that still count."""
        return [each for judge in self.judges for each in judge()]

    def refused_since(self, from_ms: int) -> list[Refusals]:
        """Returns the owners and limits for which something was refused after that time."""
        known = self.refusals()
        return list(self.in_force([each for each in known if each.refused and each.refused_ms > from_ms]))

    def in_force(self, known: Iterable[R]) -> Iterator[R]:
        """Yields those whose limit there still is, with its value."""
        return (each for each in known if self.holds(each.rule))

    @property
    def rows(self) -> Mapping[str, Quota]:
        """The rows, by the text of their subject. Another object after each change."""
        return self._quotas.by_subject

    @property
    def limited(self) -> Collection[str]:
        """The limits that any quota has."""
        return self._quotas.limited

    def has(self, limit: str) -> bool:
        """Returns True if any quota has this limit."""
        return limit in self._quotas.limited

    def has_any(self, limits: Iterable[str]) -> bool:
        """Returns True if any quota has one of these limits."""
        return not self._quotas.limited.isdisjoint(limits)

    def of_sender(self, limit: str, user: int, address: str, topic: str = "") -> Rule | None:
        """Returns the rule for the client that asks. `user`: the id of the user who signed the request, 0 if nobody
        did. `topic`: the topic of the request; "" for a limit that does not depend on one."""
        if not user:
            owner = f"address={address}"
            return self._first(limit, owner, owner) or self._first(limit, "address=*", owner)
        known = self._access.by_id.get(user)
        name = "" if known is None else known.name
        owner, of_topic = f"user={name}", f"user={name},topic={topic}"
        # From the narrowest to the widest; what Kafka has for (user, client id).
        return (
            (topic and self._first(limit, of_topic, of_topic))
            or self._first(limit, owner, owner)
            or (topic and self._first(limit, f"user=*,topic={topic}", of_topic))
            or self._first(limit, "user=*", owner)
            or None
        )

    def of_topic(self, limit: str, topic: str) -> Rule | None:
        """Returns the rule for a topic, whichever client asks."""
        owner = f"topic={topic}"
        rule = self._first(limit, owner, owner)
        if rule is None and topic[:1] != "%":  # a topic made by the cluster: only a quota that names it applies
            rule = self._first(limit, "topic=*", owner)
        return rule

    def holds(self, rule: Rule) -> bool:
        """Returns True if there still is this limit, with this value."""
        quota = self.rows.get(rule.subject)
        return quota is not None and quota.limits.get(rule.limit) == rule.value

    def _first(self, limit: str, subject: str, owner: str) -> Rule | None:
        quota = self.rows.get(subject)
        value = None if quota is None else quota.limits.get(limit)
        return None if value is None else Rule(subject, owner, limit, value)


def rules_of(rules: QuotaRules, limit: str, user: int, address: str, topic: str) -> Iterator[Rule]:
    """Yields the rules of a limit that apply to a sender and a topic: that of the sender, and that of the topic."""
    for rule in (rules.of_sender(limit, user, address, topic), rules.of_topic(limit, topic)):
        if rule is not None:
            yield rule
