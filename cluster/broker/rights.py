"""Decides who may read or change a stored object, by the object itself and never by the name that a request gives it
(docs/security.md).

The check of requests (`cluster.remoting.admission`, `cluster.admin.access`) knows only what a request names. If a
request names an object by its position, id, handle, key or attempt, only its handler finds the object. Before the
object leaves the node, or is changed, the handler asks `Rights` with the topic and group of the object's *row*. A
client without the right gets the same answer as if the object did not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.broker.name_rules import DEAD_LETTER_PREFIX, RETRY_PREFIX
from statemachine.access.access_decision import Denied, judge
from statemachine.access.rules import Action, Kind, Need
from statemachine.access.user_rows import Mode
from statemachine.access.users import NOBODY
from statemachine.commands import is_same

if TYPE_CHECKING:
    from statemachine.access.users import Access

PUB, SUB, UPDATE = (Action.PUB,), (Action.SUB,), (Action.UPDATE,)
READ = (Action.SUB, Action.GET)
MANAGES: Final = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE})


def topic_need(name: str, actions: tuple[Action, ...]) -> Need:
    """Returns the right that `actions` on a topic need. For the retry topic of a group it is a right on the group: Sub,
    or `actions` if they create, change or delete the topic. The same holds for the group's dead-letter topic, except
    that a send to it needs the right on the topic."""
    on = actions if MANAGES.issuperset(actions) else SUB
    if name.startswith(RETRY_PREFIX):
        return Need(Kind.GROUP, name.removeprefix(RETRY_PREFIX), on)
    if name.startswith(DEAD_LETTER_PREFIX) and actions != PUB:
        return Need(Kind.GROUP, name.removeprefix(DEAD_LETTER_PREFIX), on)
    return Need(Kind.TOPIC, name, actions)


def group_need(name: str, actions: tuple[Action, ...]) -> Need:
    """Returns the right that `actions` on a group need. `name`: the name of the group, or of its retry topic."""
    return Need(Kind.GROUP, name.removeprefix(RETRY_PREFIX), actions)


class Party(NamedTuple):
    """The user and address that ask for a stored object, or for a change of it."""

    user: int
    """The id of the user who is proven; NOBODY if none is."""
    address: str
    """The client's IP address."""
    is_trusted: bool = False
    """True for the operator and for nodes of the cluster, which have proven the cluster's secret and need no right."""


Noted = Callable[[Party, str, str, bool], object]
"""(denied party, reason, what it asked for, True if the request was refused); called for each denial."""


class Rights:
    """Decides what parties may do, by the users, rules and mode in force. Event loop only."""

    def __init__(self, access: Access, noted: Noted = lambda *_: None) -> None:
        """`noted` is called for each denial, also for one that is only observed."""
        self._access = access
        self._noted = noted

    @property
    def judges(self) -> bool:
        """False if nothing is checked, so that every party may do everything."""
        return self._access.mode is not Mode.OFF

    @property
    def enforces(self) -> bool:
        """True if a party without the needed right is refused."""
        return self._access.mode is Mode.ENFORCE

    def allows(self, party: Party, needs: Sequence[Need], what: str) -> bool:
        """Returns True if the party has all of the rights `needs`, or if denials are only observed. Records a denial.
        `what`: the name of the request, for people."""
        mode = self._access.mode
        if mode is Mode.OFF:
            return True
        why = self._denied(party, needs)
        if not why:
            return True
        self._noted(party, why, what, mode is Mode.ENFORCE)
        return mode is not Mode.ENFORCE

    def may_read(self, party: Party, topic: str, what: str) -> bool:
        """Returns True if the party may read a stored message whose row is of the topic."""
        return self.allows(party, [topic_need(topic, READ)], what)

    def is_allowed(self, party: Party, needs: Sequence[Need]) -> bool:
        """Returns True in the same cases as `allows`, without recording a denial. For parties that have asked for
        nothing, and for repeated checks of one request."""
        return not self.enforces or not self._denied(party, needs)

    def denies(self, party: Party, why: str, what: str) -> bool:
        """Records a denial for another reason than a missing right, such as a name that another user has. Returns True
        if denials are enforced, False if the request passes."""
        mode = self._access.mode
        if mode is not Mode.OFF:
            self._noted(party, why, what, mode is Mode.ENFORCE)
        return mode is Mode.ENFORCE

    def is_user(self, owner: int, user: int) -> bool:
        """Returns True if an object of the user `owner` belongs to `user`. Also returns True where denials are not
        enforced and a client may not have proven its user."""
        return owner == user or (not self.enforces and is_same(owner, user))

    def _denied(self, party: Party, needs: Sequence[Need]) -> str:
        if party.is_trusted:
            return ""
        user = self._access.by_id.get(party.user) if party.user != NOBODY else None
        if user is None:
            return "no user is proven, or the user was removed"
        verdict = judge(user, party.address, needs)
        return verdict.reason if isinstance(verdict, Denied) else ""
