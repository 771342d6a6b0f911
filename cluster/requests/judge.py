"""Decides which requests are allowed, by what they name and whatever protocol they came by.

A request that finds something by its position, id, handle or attempt is checked again by its handler, by what is stored
there (`cluster.broker.rights`); `Verb.stored` says which right that needs. A code without a row needs a Super (an
administrator).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cluster.broker.refusal import Reason, Refused
from cluster.requests.table import VERBS
from cluster.requests.verb import Ext
from cluster.runtime.request_limits import TOPIC_LENGTH_MAX
from raftmq_wire.json_text import MALFORMED
from statemachine.access.access_decision import Denied, Verdicts, judge
from statemachine.access.rules import KIND_NAMES, Need
from statemachine.access.user_rows import Mode

if TYPE_CHECKING:
    from cluster.broker.access.denials import Denials
    from statemachine.access.user_rows import User
    from statemachine.access.users import Access

NAMES_MAX: Final = 2_048
"""The most topics and groups of one request that are judged. Judging is one piece of work of the event loop."""
NAME_LENGTH_MAX: Final = TOPIC_LENGTH_MAX
"""The most characters of a name that is judged: no topic and no group has a longer one."""
NO_SUPER: Final = "there is no Super yet"


def needs_of(code: int, ext: Ext, body: bytes, cluster: str) -> Sequence[Need] | None:
    """Returns the needed rights of a request; None if only a Super may make it. Raises Refused if its body cannot be
    read, or names more than is judged."""
    verb = VERBS.get(code)
    # Unknown, or naming nothing that a rule could allow: a Super alone, so a new code is closed until it has a row.
    if verb is None or verb.names is None:
        return None
    found: list[Need] = []
    try:
        for need in verb.names(ext, body, cluster):
            if len(need.name) > NAME_LENGTH_MAX:
                kind = KIND_NAMES[need.kind].lower()
                raise Refused(Reason.INVALID, f"a {kind} of {len(need.name)} characters; {NAME_LENGTH_MAX} are allowed")
            found.append(need)
            # Refused, not cut: a name that is not judged would be allowed.
            if len(found) > NAMES_MAX:
                remark = f"request {code} names more than {NAMES_MAX} topics and groups: send it in parts"
                raise Refused(Reason.INVALID, remark)
    # What cannot be read cannot be judged, so no handler may read it either.
    except MALFORMED as error:
        raise Refused(Reason.INVALID, f"the body of request {code} cannot be read: {error}") from None
    return found


class Judge:
    """Decides what callers may do, by the users, rules and mode in force. Event loop only.

    off       nothing is judged, except requests about users, rules and the mode observe   every request passes; what
    enforcing would deny is counted and logged enforce   a denied request is refused
    """

    def __init__(self, access: Access, denials: Denials, cluster: str) -> None:
        """`cluster` is the cluster's name."""
        self._access = access
        self._denials = denials
        self.cluster = cluster

    @property
    def enforces(self) -> bool:
        """True if who has no right is refused."""
        return self._access.mode is Mode.ENFORCE

    def needs_of(self, code: int, ext: Ext, body: bytes) -> Sequence[Need] | None:
        """Returns the needed rights of a request by its code; see the function of that name."""
        return needs_of(code, ext, body, self.cluster)

    @property
    def lacks_super(self) -> bool:
        """True if no user is an enabled Super, so that nobody may make requests that only a Super may make."""
        return not self._access.supers

    def why_no_super(self, user: User | None, address: str) -> str:
        """Returns the reason why a user (None: none is proven) may not do what only a Super may, whatever the mode; ""
        if it may."""
        # Closed while there is no Super: else the first to come could make itself one.
        if self.lacks_super:
            return NO_SUPER
        if user is None:
            return "only a Super may do this: sign the request as one"
        return self.why_not(user, address, None)

    @staticmethod
    def why_not(user: User, address: str, needs: Sequence[Need] | None, known: Verdicts | None = None) -> str:
        """Returns the reason why a user at an address may not do what needs all of `needs` (None: a Super alone may);
        "" if it may. `known` are earlier verdicts on the same connection."""
        # Before any rule: no rule gives what a Super alone may do.
        if needs is None and not user.is_super:
            return f"only a Super may do this, and user {user.name} is none"
        verdict = judge(user, address, needs or ()) if known is None else known.judge(user, needs or ())
        return verdict.reason if isinstance(verdict, Denied) else ""

    def refuses(self, user: int, address: str, why: str, what: str, *, always: bool = False) -> bool:
        """Records a denial; returns False if denials are only observed. `what`: the name of the request in the log.
        `always`: True for a request that is checked in every mode."""
        enforced = always or self.enforces
        self._denials.note(user, address, why, what, enforced=enforced)
        return enforced
