"""Decides which requests a user may make, by the topics and groups that they name. The protocol of the request does not
matter.

Some requests name a message by its position, id or handle, or an attempt of a staged write by its number. Their
handlers check the rights again, for the topic or the group that is stored with it (`cluster.broker.rights`);
`Verb.stored` says which rights they check. A request code without a row in the table of verbs needs a Super (an
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
"""The most topics and groups that one request may name; one that names more is refused. All of them are judged in one
uninterrupted step of the event loop."""
NAME_LENGTH_MAX: Final = TOPIC_LENGTH_MAX
"""The most characters of a topic or group that a request may name; a request with a longer name is refused."""
NO_SUPER: Final = "there is no Super yet"


def needs_of(code: int, ext: Ext, body: bytes, cluster: str) -> Sequence[Need] | None:
    """Returns the rights that a request needs; None if only a Super may make it, an empty list if any user may. Raises
    Refused if its body cannot be read, if it names more than NAMES_MAX topics and groups, or if a name is too long."""
    verb = VERBS.get(code)
    # A code without a row, or one that no rule can allow, needs a Super. So a new code is closed to others until it has
    # a row.
    if verb is None or verb.names is None:
        return None
    found: list[Need] = []
    try:
        for need in verb.names(ext, body, cluster):
            if len(need.name) > NAME_LENGTH_MAX:
                kind = KIND_NAMES[need.kind].lower()
                raise Refused(Reason.INVALID, f"a {kind} of {len(need.name)} characters; {NAME_LENGTH_MAX} are allowed")
            found.append(need)
            # The whole request is refused. If only its first names were judged, the handler would act on names that
            # were not judged.
            if len(found) > NAMES_MAX:
                remark = f"request {code} names more than {NAMES_MAX} topics and groups: send it in parts"
                raise Refused(Reason.INVALID, remark)
    # A body that cannot be read cannot be judged, so the handler must not get the request.
    except MALFORMED as error:
        raise Refused(Reason.INVALID, f"the body of request {code} cannot be read: {error}") from None
    return found


class Judge:
    """Decides what callers may do, by the users, rules and mode in force. Event loop only.

    In every mode, requests about users, rules and the mode itself are judged, and refused if they are denied. In the
    mode `off`, no other request is judged. In the mode `observe`, every other request passes, and those that `enforce`
    would refuse are counted and logged. In the mode `enforce`, every denied request is refused.
    """

    def __init__(self, access: Access, denials: Denials, cluster: str) -> None:
        """`cluster` is the cluster's name."""
        self._access = access
        self._denials = denials
        self.cluster = cluster

    @property
    def enforces(self) -> bool:
        """True if the mode is `enforce`: a request whose user lacks a right is refused."""
        return self._access.mode is Mode.ENFORCE

    def needs_of(self, code: int, ext: Ext, body: bytes) -> Sequence[Need] | None:
        """Returns the rights that a request needs, as the function `needs_of` of this module does, for this cluster."""
        return needs_of(code, ext, body, self.cluster)

    @property
    def lacks_super(self) -> bool:
        """True if no user is an enabled Super, so that nobody may make requests that only a Super may make."""
        return not self._access.supers

    def why_no_super(self, user: User | None, address: str) -> str:
        """Returns the reason why a user may not do what only a Super may, in any mode; "" if the user may. `user`: None
        if the caller has proven no user, which is always a reason."""
        # While there is no Super, nobody may do this. Otherwise the first caller could make itself a Super.
        if self.lacks_super:
            return NO_SUPER
        if user is None:
            return "only a Super may do this: sign the request as one"
        return self.why_not(user, address, None)

    @staticmethod
    def why_not(user: User, address: str, needs: Sequence[Need] | None, known: Verdicts | None = None) -> str:
        """Returns the reason why a user at an address lacks one of `needs`; "" if the user has them all. `needs`: None
        if only a Super may do it. `known`: earlier verdicts on the same connection, which are looked up first; None if
        there are none."""
        # This comes before any rule, because no rule can give a user what only a Super may do.
        if needs is None and not user.is_super:
            return f"only a Super may do this, and user {user.name} is none"
        verdict = judge(user, address, needs or ()) if known is None else known.judge(user, needs or ())
        return verdict.reason if isinstance(verdict, Denied) else ""

    def refuses(self, user: int, address: str, why: str, what: str, *, always: bool = False) -> bool:
        """Records a denial. Returns True if the request must be refused, False if the mode only observes denials.
        `user`: the id of the user. `why`: the reason. `what`: the name of the request in the log. `always`: True for a
        request that is refused in every mode."""
        enforced = always or self.enforces
        self._denials.note(user, address, why, what, enforced=enforced)
        return enforced
