"""Judges requests by what they name.

A request that finds something by its position, id, handle or attempt is judged again by its handler, by what is stored
there (`cluster.broker.rights`); `Verb.stored` says what that needs. A code without a row needs a Super (an
administrator).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cluster.broker.refusal import Reason, Refused
from cluster.requests.table import VERBS, too_long
from cluster.requests.verb import Ext
from cluster.runtime.request_limits import TOPIC_LENGTH_MAX
from raftmq_wire.json_text import MALFORMED
from statemachine.access.rules import KIND_NAMES, Need

NAMES_MAX: Final = 2_048
"""The most topics and groups of one request that are judged. Judging is one piece of work of the event loop."""
NAME_LENGTH_MAX: Final = TOPIC_LENGTH_MAX
"""The most characters of a name that is judged: no topic and no group has a longer one."""


def needs_of(code: int, ext: Ext, body: bytes, cluster: str) -> Sequence[Need] | None:
    """Returns the needed rights of a request; None if only a Super may make it. Raises Refused if its body cannot be
    read, or names more than is judged."""
    verb = VERBS.get(code)
    if verb is None or verb.names is None:
        return None
    if remark := too_long(code, len(body)):
        raise Refused(Reason.INVALID, remark)
    found: list[Need] = []
    try:
        for need in verb.names(ext, body, cluster):
            if len(need.name) > NAME_LENGTH_MAX:
                kind = KIND_NAMES[need.kind].lower()
                raise Refused(Reason.INVALID, f"a {kind} of {len(need.name)} characters; {NAME_LENGTH_MAX} are allowed")
            found.append(need)
            if len(found) > NAMES_MAX:
                remark = f"request {code} names more than {NAMES_MAX} topics and groups: send it in parts"
                raise Refused(Reason.INVALID, remark)
    except MALFORMED as error:
        raise Refused(Reason.INVALID, f"the body of request {code} cannot be read: {error}") from None
    return found
