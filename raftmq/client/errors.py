"""The client's errors, and what each says about the outcome of the operation.

Every operation ends as ok, fail or unknown; the class of the error tells fail from unknown. `retryable` is True if
repeating the same call can help. `code` is the protocol's response code (0 when no server answered). `hint` says what
the user can do.
"""

from __future__ import annotations

import re
from typing import ClassVar

from raftmq_wire.codes import ResponseCode, is_unknown
from raftmq_wire.denial import NOT_SIGNED, WRONG_SIGNATURE, how_to_allow
from raftmq_wire.denial import is_switched_off as says_switched_off


class RaftMQError(Exception):
    """The base class of all errors that the client raises for operations on the cluster.

    `message_ids` names the messages of a failed send (empty otherwise), so that a message with an unknown outcome can
    be looked up.
    """

    default_hint: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        code: int = 0,
        retryable: bool = False,
        hint: str = "",
        message_ids: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.hint = hint or self.default_hint
        self.message_ids = message_ids
        if self.hint:
            self.add_note(self.hint)  # the note is printed below the message in a traceback

    def about(self, message_ids: tuple[str, ...]) -> RaftMQError:
        """Returns a copy of the error with these message ids. Each future needs its own exception object."""
        return type(self)(str(self), code=self.code, retryable=self.retryable, hint=self.hint, message_ids=message_ids)


class Failed(RaftMQError):
    """The operation did not happen: the cluster, the path to it, or stored data is at fault."""

    default_hint = "See `raftmq status` and the nodes' logs."


class Unreachable(Failed):
    """The operation did not happen: no server could be asked within the time allowed."""

    default_hint = "Check that the cluster runs (`raftmq status`) and that these are the addresses of its name servers."


class Unknown(RaftMQError):
    """The operation may have happened, may still happen, or may not: no answer came in time."""

    default_hint = "Look the message up by its id before sending it again under a new one."


class Refused(RaftMQError):
    """The operation did not happen: the cluster refused it before doing anything."""


class Denied(Refused):
    """The operation did not happen: the user has no right to it, or the cluster requires signed requests and this one
    was not signed."""

    switched_off = False
    """True if the user lacks no right: an operator has switched off reading of the topic, or consuming by the group.
    Consumers wait until it is switched on again."""

    def advise(self, hint: str) -> None:
        """Replaces the hint of the error by `hint`, unless that is ""."""
        if hint and hint != self.hint:
            self.__notes__ = [hint if note == self.hint else note for note in self.__notes__]
            self.hint = hint


class NotFound(RaftMQError):
    """The operation did not happen: the named topic, group or offset does not exist."""

    default_hint = "Check the name with `raftmq topic list` or `raftmq group list`."


_HINTS: dict[int, str] = {
    ResponseCode.SYSTEM_BUSY: "The node is at a limit that the remark names; send slower or raise that limit.",
    ResponseCode.FLOW_CONTROL: "Send more slowly, or have a Super raise the quota: `raftmq quota list` shows all.",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "The server does not know this request; is it a RaftMQ of this version?",
    ResponseCode.MESSAGE_ILLEGAL: "Correct what the remark names; `raftmq config explain KEY` tells about a limit.",
    ResponseCode.SERVICE_NOT_AVAILABLE: "No leader takes writes; see `raftmq status` and wait for an election.",
    ResponseCode.NO_PERMISSION: "Check the topic's permission (`raftmq topic describe NAME`) and the user's rights.",
    ResponseCode.TOPIC_NOT_EXIST: "Create it with `raftmq topic create NAME`.",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "Correct the filter; `raftmq consume --help` has an example.",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "Groups exist once a consumer joined; check `raftmq group list`.",
    ResponseCode.INVALID_PARAMETER: "Correct the value that the remark names.",
    ResponseCode.ILLEGAL_OPERATION: "Recall a message before it is due, with the handle of its own send.",
}
_USERS = {
    NOT_SIGNED: "Give the client a user: access_key and secret_key, or RAFTMQ_ACCESS_KEY and RAFTMQ_SECRET_KEY.",
    WRONG_SIGNATURE: (
        "Check the user's name and secret (RAFTMQ_ACCESS_KEY, RAFTMQ_SECRET_KEY); "
        "a Super gives another secret with `raftmq user password NAME`."
    ),
}
"""The remark of a refusal with NO_PERMISSION that concerns the user and no particular right -> the hint."""
_DISK_FULL = (
    "Free space on the leader's disk, shorten `retention.hours`, or raise `retention.disk_refuse_writes_percent`; "
    "`raftmq status` names the node."
)
_UNREADABLE = (
    "Only object storage has these messages, and it does not give them: `raftmq tier verify` names what is damaged, "
    "`raftmq tier repair` writes it again if a node still has it. To go on behind them, read from a later offset."
)
_SWITCH_ON = (
    "An operator has switched this off: see `raftmq topic describe NAME` for the topic's permission, and "
    "`raftmq group create NAME --consume yes --if-exists update` for the group."
)
_NOT_FOUND = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )
)
_REFUSED = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.ILLEGAL_OPERATION,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.INVALID_PARAMETER,
    )
)
TOO_MUCH = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL))
"""Response codes of requests that a leader refused because it has enough to do, or its client is over a quota."""
TRY_AGAIN = TOO_MUCH | {ResponseCode.SERVICE_NOT_AVAILABLE}
"""Response codes of requests that were refused before they were proposed, for a reason that passes by itself."""


def is_disk_full(code: int, remark: str | None) -> bool:
    """Returns True for a refusal because the disk is full. It lasts until space is freed; no election ends it."""
    return code == ResponseCode.SERVICE_NOT_AVAILABLE and (remark or "").startswith("the disk is full")


def is_switched_off(code: int, remark: str | None) -> bool:
    """Returns True for a refused pull from a topic without read permission, or by a group that may not consume."""
    return code == ResponseCode.NO_PERMISSION and says_switched_off(remark or "")


def is_unreadable(code: int, remark: str | None) -> bool:
    """Returns True for a failed pull of messages that only the tier holds and that cannot be read from it."""
    return code == ResponseCode.SYSTEM_BUSY and (remark or "").startswith("the tier does not give")


_KEY = re.compile(r"\b(?:limits|send|dedup|timer|transaction)\.[a-z_]+")
_TOPIC = re.compile(r"\btopic[ \[\"']+([%|a-zA-Z0-9_-]+)")
"""Finds the name of a topic in a server's remark."""


def hint_of(code: int, remark: str | None) -> str:
    """Returns advice about an unsuccessful reply; "" if there is none. The advice repeats the topic or key that the
    remark names."""
    hint = _hint_of(code, remark)
    if found := _KEY.search(remark or ""):
        hint = hint.replace("explain KEY", f"explain {found[0]}")
    if code == ResponseCode.TOPIC_NOT_EXIST and (named := _TOPIC.search(remark or "")):
        hint = hint.replace("create NAME", f"create {named[1]}")
    return hint


def _hint_of(code: int, remark: str | None) -> str:
    if is_disk_full(code, remark):
        return _DISK_FULL
    if is_switched_off(code, remark):
        return _SWITCH_ON
    if code == ResponseCode.NO_PERMISSION and (who := _USERS.get(remark or "")):
        return who
    if code == ResponseCode.NO_PERMISSION and (command := how_to_allow(remark or "")):
        return command
    return _UNREADABLE if is_unreadable(code, remark) else _HINTS.get(code, "")


def error_of(
    code: int, remark: str | None, what: str, *, maybe: bool = False, message_ids: tuple[str, ...] = ()
) -> RaftMQError:
    """Returns the error for a reply that is not a success. `maybe` says that an earlier attempt may have been carried
    out, which makes every later refusal an Unknown. A code that this module does not know gives Unknown too: nothing
    proves that the refusal came before the write."""
    text = f"{what}: {remark or _in_words(code)}"
    hint = hint_of(code, remark)
    again = code in TRY_AGAIN
    if maybe or is_unknown(code, remark):
        return Unknown(f"{text} (an attempt may have been carried out)", code=code, message_ids=message_ids)
    if code in _NOT_FOUND:
        return NotFound(text, code=code, hint=hint, message_ids=message_ids)
    if code in _REFUSED:
        if code == ResponseCode.NO_PERMISSION:
            denied = Denied(text, code=code, hint=hint, message_ids=message_ids)
            denied.switched_off = is_switched_off(code, remark)
            return denied
        return Refused(text, code=code, retryable=again, hint=hint, message_ids=message_ids)
    if code == ResponseCode.SYSTEM_ERROR:
        return Failed(text, code=code, message_ids=message_ids)
    return Unknown(text, code=code, message_ids=message_ids)


_WORDS: dict[int, str] = {
    ResponseCode.SYSTEM_ERROR: "the server met an error",
    ResponseCode.SYSTEM_BUSY: "the server is busy",
    ResponseCode.FLOW_CONTROL: "more was sent than a quota allows",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the server does not know this request",
    ResponseCode.MESSAGE_ILLEGAL: "the message is not valid",
    ResponseCode.SERVICE_NOT_AVAILABLE: "no leader takes writes",
    ResponseCode.NO_PERMISSION: "permission denied",
    ResponseCode.TOPIC_NOT_EXIST: "there is no such topic",
    ResponseCode.QUERY_NOT_FOUND: "nothing was found",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "the filter is not understood",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "there is no such group",
    ResponseCode.INVALID_PARAMETER: "a value is not possible",
}


def _in_words(code: int) -> str:
    """Returns the words for a reply that has no remark."""
    return f"{_WORDS.get(code, 'the server answered without a reason')} (code {code})"
