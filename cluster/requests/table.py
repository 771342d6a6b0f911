"""Defines the table of all verbs, and computes sets of request codes from its rows, once, for the hot path. Also checks
that the handlers of a node fit the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from cluster.requests.verb import Cost, Repeats, Verb
from cluster.requests.verbs.consuming import CONSUMING
from cluster.requests.verbs.messages import MESSAGES
from cluster.requests.verbs.topics import TOPICS
from cluster.requests.verbs.users import USERS
from cluster.runtime.request_limits import OTHER_BODY_BYTES_MAX

ROWS: Final[tuple[Verb, ...]] = (*MESSAGES, *CONSUMING, *TOPICS, *USERS)
VERBS: Final[Mapping[int, Verb]] = {verb.code: verb for verb in ROWS}
"""Request code -> its row. Requests with a code that has no row are not served."""
SENT_BY_NODES: Final[Mapping[int, str]] = {
    39: "CHECK_TRANSACTION_STATE",
    40: "NOTIFY_CONSUMER_IDS_CHANGED",
    326: "PUSH_REPLY_MESSAGE_TO_CLIENT",
}
"""Code -> name of each request that a node sends to clients."""


def codes_where(is_so: Callable[[Verb], bool]) -> frozenset[int]:
    """Returns the codes of the rows for which `is_so` returns True."""
    return frozenset([verb.code for verb in ROWS if is_so(verb)])


SENDS: Final = codes_where(lambda verb: verb.is_send)
ONE_TRY: Final = codes_where(lambda verb: verb.repeats is Repeats.ONE_TRY)
IN_LINE: Final = codes_where(lambda verb: verb.in_line)
WRITES: Final = codes_where(lambda verb: verb.is_write)
KEPT: Final = codes_where(lambda verb: verb.is_kept)
SILENT: Final = codes_where(lambda verb: verb.is_silent)
COSTLY: Final = codes_where(lambda verb: verb.cost is not Cost.SMALL)
SUPERS_ALONE: Final = codes_where(lambda verb: verb.names is None)
"""Codes of the requests that only a Super may make, in every mode of `auth.mode`."""


def name_of(code: int) -> str:
    """Returns the name of a request code; the code as text if it has no row."""
    verb = VERBS.get(code)
    return str(code) if verb is None else verb.name


def too_long(code: int, size: int) -> str | None:
    """Returns the reason why a body of `size` bytes is too long for a request with that code; None if it is not. None
    for a body with messages too: the handler checks that one, because it knows the limits of a message."""
    verb = VERBS.get(code)
    most = OTHER_BODY_BYTES_MAX if verb is None else verb.body_bytes_max
    if most is None or size <= most:
        return None
    return f"the body of request {code} has {size} bytes, {most} are allowed"


def by_row(handlers: dict[int, Any]) -> dict[int, Any]:
    """Returns `handlers` (request code -> handler) as it is, if it fits the table. Raises ValueError if a handler has
    no row, if a row that is no send has no handler, or if a row for sends has one. The node then does not start."""
    wanted = VERBS.keys() - SENDS
    if both := sorted(handlers.keys() ^ wanted):
        raise ValueError(f"request codes {both} have a row in cluster.requests.table or a handler, and not both")
    return handlers


def _only_once(rows: Iterable[Verb]) -> None:
    seen: set[int | str] = set()
    for verb in rows:
        if verb.code in seen or verb.name in seen or verb.code in SENT_BY_NODES:
            raise ValueError(f"request code {verb.code} {verb.name} has two rows")
        seen |= {verb.code, verb.name}


_only_once(ROWS)
