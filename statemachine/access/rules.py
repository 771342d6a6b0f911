"""Access rules in the model of RocketMQ's ACL 2.0: resources, actions, source addresses, and the needs of a request.

A resource is written as RocketMQ writes it: `Topic:orders` is one topic, `Topic:orders*` is every topic whose name
begins with "orders", `Topic:*` is every topic, and `*` is everything.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from raftlog.work import charge
from statemachine.commands import InvalidCommandError

RESOURCE_LENGTH_MAX: Final = 300
"""The most characters of a resource as written. The longest name of a topic with its kind ("Topic:") fits."""
SOURCES_MAX: Final = 64
"""The most source addresses of one rule."""
RULES_OF_USER_MAX: Final = 1_000
"""The most rules of one user. Removing the user removes that many rows in one entry."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Kind(IntEnum):
    """The kinds of resources."""

    ANY = 1
    CLUSTER = 2
    TOPIC = 4
    GROUP = 5


class Pattern(IntEnum):
    """The way a rule's resource matches names. A larger value is more specific."""

    ALL = 1
    PREFIX = 2
    LITERAL = 3


class Action(IntEnum):
    """The actions that rules allow or deny."""

    ALL = 1
    PUB = 3
    SUB = 4
    CREATE = 5
    UPDATE = 6
    DELETE = 7
    GET = 8
    LIST = 9


class Policy(IntEnum):
    """The two lists of a user's rules, custom and default. Default rules count only where no custom rule matches."""

    CUSTOM = 1
    DEFAULT = 2


KIND_NAMES: Final = {Kind.CLUSTER: "Cluster", Kind.TOPIC: "Topic", Kind.GROUP: "Group"}
ACTION_NAMES: Final = {action: action.name.capitalize() for action in Action}
_KINDS: Final = {name.lower(): kind for kind, name in KIND_NAMES.items()}
_ACTIONS: Final = {name.lower(): action for action, name in ACTION_NAMES.items()}


class Resource(NamedTuple):
    """The resource of a rule: one name, a prefix of names, all names of a kind, or everything."""

    kind: Kind
    pattern: Pattern
    name: str
    """The literal name or the prefix; "" if all names match."""

    def __str__(self) -> str:
        if self.kind is Kind.ANY:
            return "*"
        star = "" if self.pattern is Pattern.LITERAL else "*"
        return f"{KIND_NAMES[self.kind]}:{self.name}{star}"

    @property
    def rank(self) -> tuple[int, int, int]:
        """A sort key that is larger the more specific the resource is: literal, then the longest prefix, then all of a
        kind, then everything."""
        return (self.kind is not Kind.ANY, self.pattern, len(self.name))


EVERYTHING: Final = Resource(Kind.ANY, Pattern.ALL, "")


class Rule(NamedTuple):
    """One rule of a user: it allows or denies some actions on a resource to clients at some addresses."""

    policy: Policy
    resource: Resource
    actions: frozenset[Action]
    sources: tuple[str, ...]
    """The addresses and networks of the clients to which the rule applies; if empty, it applies to all clients."""
    allow: bool


PolicyNumber = Annotated[int, Meta(ge=int(min(Policy)), le=int(max(Policy)))]
RuleRow = tuple[
    PolicyNumber,
    str,
    Annotated[Sequence[str], Meta(min_length=1, max_length=len(Action))],
    Annotated[Sequence[str], Meta(max_length=SOURCES_MAX)],
    bool,
]
"""A rule in commands and rows: (policy, resource, names of actions, sources, allow)."""


class RuleIndex:
    """The rules of one user, found by the resource to which they apply. The index is built at its first use, because
    only few users send requests to this node."""

    __slots__ = ("_everything", "_lengths", "_literal", "_made", "_prefixes", "_rules")

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._made = False
        self._everything: list[Rule] = []
        self._literal: dict[tuple[Kind, str], list[Rule]] = {}
        self._prefixes: dict[tuple[Kind, str], list[Rule]] = {}
        """(kind, prefix) -> the rules for all names with this prefix. The prefix "" stands for all names of the
        kind."""
        self._lengths: dict[Kind, list[int]] = {}
        """The lengths of the prefixes of each kind."""

    def fitting(self, kind: Kind, name: str) -> list[Rule]:
        """Returns the rules whose resource covers the resource of that kind and name."""
        if not self._made:
            self._make()
        found = [*self._everything, *self._literal.get((kind, name), ())]
        for length in self._lengths.get(kind, ()):
            if length > len(name):
                break
            found += self._prefixes.get((kind, name[:length]), ())
        return found

    @property
    def looks(self) -> int:
        """The most prefixes of one name that `fitting` looks up."""
        return max(map(len, self._lengths.values()), default=0)

    def _make(self) -> None:
        charge(len(self._rules))
        for rule in self._rules:
            kind, pattern, name = rule.resource
            if kind is Kind.ANY:
                self._everything.append(rule)
                continue
            rows = self._literal if pattern is Pattern.LITERAL else self._prefixes
            rows.setdefault((kind, name), []).append(rule)
        for kind in Kind:
            if lengths := sorted({len(prefix) for of, prefix in self._prefixes if of is kind}):
                self._lengths[kind] = lengths
        self._made = True


class Need(NamedTuple):
    """One resource that a request touches, and the actions on it of which the user must be allowed at least one."""

    kind: Kind
    name: str
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        actions = " or ".join([ACTION_NAMES[action] for action in self.actions])
        return f"{actions} on {KIND_NAMES[self.kind]}:{self.name}"


def parse_resource(words: str) -> Resource:
    """Parses a resource as RocketMQ writes it. Raises InvalidCommandError, which says what is wrong with it."""
    if len(words) > RESOURCE_LENGTH_MAX:
        raise InvalidCommandError(f"a resource has at most {RESOURCE_LENGTH_MAX} characters, not {len(words)}")
    if words == "*":
        return EVERYTHING
    kind, colon, name = words.partition(":")
    if kind.lower() not in _KINDS or not colon:
        raise InvalidCommandError(f"resource {words!r} must begin with Topic:, Group: or Cluster:, or be * alone")
    if not name:
        raise InvalidCommandError(f"resource {words!r} names nothing: write {words}* for all of them")
    prefix = name.removesuffix("*")
    if "*" in prefix or not prefix.isprintable():
        raise InvalidCommandError(f"resource {words!r} may have a * only at its end")
    if prefix == name:
        return Resource(_KINDS[kind.lower()], Pattern.LITERAL, name)
    return Resource(_KINDS[kind.lower()], Pattern.PREFIX if prefix else Pattern.ALL, prefix)


def parse_actions(names: Sequence[str]) -> frozenset[Action]:
    """Parses the names of actions, in upper or lower case. Raises InvalidCommandError if one of them is unknown."""
    found = [_ACTIONS.get(name.lower()) for name in names]
    if None in found:
        known = ", ".join(ACTION_NAMES.values())
        raise InvalidCommandError(f"actions are {known}, not {names!r:.200}")
    return frozenset([action for action in found if action is not None])


def parse_rule(row: RuleRow) -> Rule:
    """Parses a rule as commands carry it. Raises InvalidCommandError if its resource, an action or a source is
    malformed."""
    policy, resource, actions, sources, allow = row
    return Rule(Policy(policy), parse_resource(resource), parse_actions(actions), _parse_sources(sources), allow)


def _parse_sources(sources: Sequence[str]) -> tuple[str, ...]:
    for source in sources:
        try:
            network(source)
        except ValueError as error:
            raise InvalidCommandError(f"source {source!r:.100} is no address and no network: {error}") from None
    return tuple(sorted(set(sources)))


@lru_cache(maxsize=4096)
def network(text: str) -> Network:
    """Parses an address, or a network such as 10.0.0.0/8. Raises ValueError if the text is neither."""
    return ipaddress.ip_network(text, strict=False)


@lru_cache(maxsize=4096)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def comes_from(source: str, sources: Iterable[str]) -> bool:
    """Returns True if the client's address `source` is one of `sources` or lies in a network among them. Returns False
    if `source` is not an IP address."""
    address = _address(source)
    return address is not None and any(address in network(text) for text in sources)


def rule_row(rule: Rule) -> RuleRow:
    """Returns the rule in the form that `parse_rule` reads."""
    actions = [ACTION_NAMES[action] for action in sorted(rule.actions)]
    return int(rule.policy), str(rule.resource), actions, rule.sources, rule.allow
