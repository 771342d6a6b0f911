"""Identifies the user of a request and decides if that user may make it (admission). Called before every request. While
`auth.mode` is off, it only identifies the users of requests about users and rules.

The node that holds the client's connection verifies the signature and decides. When it forwards the request, it sends
the user's id to the leader in the header of FORWARD, and the leader decides once more by its own state, so a rule that
was removed in the meantime no longer counts. Of all fields that a client writes, only the signature proves who it is.

    off       nothing is judged here; requests about users and rules are for a Super (an administrator) in every mode
    observe   every request passes; what enforcing would deny is counted and logged
    enforce   a denied request is answered with code 16; with 14 while this node cannot tell

A follower may not have applied a new user, secret or right yet. So a request that it would deny waits until the
follower has applied everything that was acknowledged before (`cluster.peer.confirmed_index`). The request is then
judged again, and only that verdict counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from cluster.broker.refusal import Reason, Refused
from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.reply_path import ReplyPath
from cluster.requests.judge import Judge
from cluster.requests.named_rights import pull_needs
from cluster.requests.table import SUPERS_ALONE
from cluster.runtime.listeners import Signal
from cluster.runtime.service_lifecycle import Part
from raftlog.kept_errors import bare
from raftlog.work import charge
from raftmq_wire.codec import CodecError, ext_of
from raftmq_wire.codes import RequestCode, name_of_request
from raftmq_wire.denial import NOT_SIGNED, WRONG_SIGNATURE
from raftmq_wire.signature import ACCESS_KEY, SIGNATURE, begun, content, is_right
from statemachine.access.access_decision import Verdicts

if TYPE_CHECKING:
    from hashlib import _Hash

    from cluster.broker.access.guesses import Guesses
    from cluster.broker.access.secrets import Secrets
    from cluster.broker.pulls.long_poll import LongPolls
    from cluster.broker.reads.pull_values import Pull
    from cluster.peer.confirmed_index import ConfirmedIndex
    from cluster.remoting.request import Request
    from cluster.runtime.turns.work import Turns, WorkSteps
    from statemachine.access.user_rows import User
    from statemachine.access.users import Access

SIGNED_BYTES_PER_UNIT: Final = 512
VERIFY_UNITS: Final = 5
CLIENTS_PER_STEP: Final = 64
HELD_MAX: Final = 64
HELD_BYTES_MAX: Final = 256 << 10
"""The most requests (HELD_MAX), and their bytes, that wait on one connection for the check of a signature. Further
requests are refused."""


UNSURE: Final = "this node cannot tell who may do this: no leader confirms that it has all changes of users; try again"


SendRight = tuple[int, "_Hash", "_Hash", bytes]
"""The right of a user to send to a topic: the user's id, the begun HMAC of its secret (`raftmq_wire.signature.begun`),
and the secret as it is stored."""


class SendJudge:
    """The users that have signed requests on one connection, and earlier decisions about them. The native kernel checks
    the signatures of sends and asks this object for the users' rights. The keys of rights are the user's name, a zero
    byte and the name of the topic."""

    __slots__ = (
        "_right",
        "_told",
        "address",
        "guessed",
        "held",
        "held_bytes",
        "rights",
        "sure",
        "turn",
        "users",
        "verdicts",
        "version",
    )

    RIGHTS_MAX: Final = 64

    def __init__(
        self, address: str, right: Callable[[bytes, SendJudge], SendRight | None], told: Callable[[int], None]
    ) -> None:
        """`right` returns the right that a key of `rights` names; None if the user does not have it. `told` is called
        with the first user that has signed a request."""
        self.verdicts = Verdicts(address)
        self.address = address
        self.held: list[Frame] = []
        """Requests that wait until the signature of the first of them may be checked, or its denial is confirmed."""
        self.held_bytes = 0
        self.guessed = False
        """True if the first request in `held` had to wait for the turn in which its signature is checked."""
        self.sure: Frame | None = None
        """The request that is judged for the second time, by all changes that were made before it came: this verdict is
        final. None if there is none."""
        self.turn: Frame | None = None
        """The request whose signature may be checked now, although other requests with the same user and address wait.
        None if there is none."""
        self._right = right
        self._told = told
        self.users: dict[int, bytes] = {}
        """User id -> the encrypted secret with which its signature was verified."""
        self.version = -1
        """The version of users and rules by which the rights in `rights` were decided."""
        self.rights: dict[bytes, SendRight] = {}

    def judge_by(self, version: int) -> None:
        """Uses this version of users and rules from now on. Forgets all rights if they were decided by another version,
        or if there are more than RIGHTS_MAX."""
        if version != self.version or len(self.rights) > self.RIGHTS_MAX:
            self.version = version
            self.rights.clear()

    def admit(self, key: bytes) -> SendRight | None:
        """Returns the right of a user to send to a topic; None if it has none."""
        return self._right(key, self)

    def proven(self, key: bytes, right: SendRight) -> None:
        """Records that a valid signature has made use of this right."""
        user_id, _, _, secret = self.rights[key] = right
        self.signed(user_id, secret)

    def signed(self, user_id: int, secret: bytes) -> None:
        """Records that the user has signed a request. `secret` is the secret that the user used, encrypted as it is
        stored."""
        if not self.users:
            self._told(user_id)
        self.users[user_id] = secret


Take = Callable[[ReplyPath, bytes, list[tuple[int, int]], int, SendJudge], int]
"""The signature of `cluster.remoting.handlers.send.Intake.take`."""


class Admission:
    """Decides for one node if requests may be made. Event loop only."""

    def __init__(
        self,
        access: Access,
        secrets: Secrets,
        judge: Judge,
        *,
        polls: LongPolls,
        stale: Callable[[], str],
        refuse: Callable[[Frame, Refused], None],
        turns: Turns,
        guesses: Guesses,
        confirms: ConfirmedIndex,
    ) -> None:
        """`polls` are the waiting pulls, which are judged again after a change. `stale` returns the reason why this
        node cannot tell what users may do now; "" if it can. `refuse` answers a request with a refusal."""
        self._access = access
        self._secrets = secrets
        self._judge = judge
        self._stale = stale
        self._refuse = refuse
        self._turns = turns
        self._polls = polls
        self._guesses = guesses
        self._confirms = confirms
        self._clients: dict[ReplyPath, SendJudge] = {}
        self.proven: Signal[[ReplyPath, int]] = Signal()
        """Sent when a signature on a connection is valid for the first time, with the connection and the id of the
        user."""
        self.released: Signal[[Frame]] = Signal()
        """Sent with requests that have waited (`admits` returned False for them), to be handled as if they came now."""
        self.rules_changed: Signal[[]] = Signal()
        """Sent after each change of users, rules or the mode."""
        self.version = -1
        """The newest version of users and rules by which open connections were checked."""
        self.changed()

    # --- requests ----------------------------------------------------------------------------------------------------

    def admits(self, frame: Frame) -> bool:
        """Decides whether a request on one of this node's connections may be handled, and records its user. Returns
        False if the request was refused and answered, or waits."""
        frame.judged = self._access.version  # a change during the check counts as newer
        client = self._client(frame.path)
        enforced = self._judge.enforces
        # In mode observe every request passes, so nobody can guess a secret by trying signatures. Only requests that
        # are judged in every mode (SUPERS_ALONE) must wait there.
        if (enforced or frame.header.code in SUPERS_ALONE) and self._waits(frame, client):
            return False
        refused = self._judged(frame, client)
        # The request is denied by rules that may be out of date. A right that the user got before the request came must
        # not be refused.
        if enforced and refused is not None and self._is_unsure(frame, refused, client):
            client.held, client.held_bytes = [frame], frame.size
            self._confirms.ask(lambda ok: self._confirmed(frame.path, client, ok))
            return False
        return self._goes_on(frame, refused)

    def _is_unsure(self, frame: Frame, refused: Refused, client: SendJudge) -> bool:
        """Returns True if a change of users and rules that this node has not applied yet may allow the request. No
        change allows a request that is not signed."""
        # A request waits only once: the second verdict takes all earlier changes into account and is final.
        if refused.reason is not Reason.NO_PERMISSION or frame is client.sure or not self._confirms.is_possible:
            return False
        return bool(ext_of(frame.header).get(ACCESS_KEY))

    def names(self, frame: Frame) -> bool:
        """Records the user of a request that is not judged here, if its signature is valid. Returns False if the
        request has to wait for the check of its signature, or was refused because too many wait."""
        client = self._client(frame.path)
        if self._waits(frame, client):
            return False
        with contextlib.suppress(CodecError):  # the request's handler refuses malformed fields
            user = self._identified(frame, ext_of(frame.header), client)
            frame.user = 0 if isinstance(user, Refused) else user.id
        return True

    # --- signatures that wait ----------------------------------------------------------------------------------------

    def _waits(self, frame: Frame, client: SendJudge) -> bool:
        """Holds the request, or refuses it, if its signature, or that of an earlier request of the connection, may not
        be checked yet. Returns False if it need not wait, as for a user who is already proven on the connection."""
        # This request has already waited. If it were held again, it would wait for itself.
        if frame is client.turn or frame is client.sure:
            return False
        if not client.held:
            try:
                name = ext_of(frame.header).get(ACCESS_KEY, "")
            except CodecError:
                return False
            if not name or self._is_proven(name, client) or not self._guesses.must_wait(name, client.address):
                return False
            client.held, client.held_bytes = [frame], frame.size
            self._guesses.wait(name, client.address, lambda may: self._turn(frame.path, client, may))
            return True
        # A client that has proven no signature may not make this node keep more requests than this.
        if len(client.held) >= HELD_MAX or client.held_bytes + frame.size > HELD_BYTES_MAX:
            self._refuse(frame, Refused(Reason.BUSY, "a signature of this connection waits to be checked: try later"))
            return True
        # Every later request waits behind the first one, because requests of a connection keep their order.
        client.held.append(frame)
        client.held_bytes += frame.size
        return True

    def _turn(self, path: ReplyPath, client: SendJudge, may: bool) -> None:
        """Handles the requests of a connection that have waited for the check of a signature. `may`: False if too many
        signatures wait, so that all are refused. If the signature is wrong and users are enforced, the connection ends
        and its later requests are refused unread."""
        held, client.held, client.held_bytes = client.held, [], 0
        if path.closed or not held:
            return
        # Refused as busy and not denied: a client with a valid signature can simply try again.
        if not may:
            why = "too many signatures for this user from this address wait to be checked: try later"
            for frame in held:
                self._refuse(frame, Refused(Reason.BUSY, why))
            return
        client.turn, client.guessed = held[0], True
        self._release(path, client, held)
        client.turn = None

    def _confirmed(self, path: ReplyPath, client: SendJudge, ok: bool) -> None:
        """Decides again about the requests of a connection that this node would have denied. `ok`: True if this node
        has now applied all changes that were made before they came. If False, the first request is refused as
        UNAVAILABLE, and the later ones are judged."""
        held, client.held, client.held_bytes = client.held, [], 0
        if path.closed or not held:
            return
        if not ok:
            client.guessed = False
            self._refuse(held[0], Refused(Reason.UNAVAILABLE, UNSURE))
            for frame in held[1:]:
                self.released(frame)
            return
        client.sure = held[0]
        self._release(path, client, held)
        client.sure = None

    def _release(self, path: ReplyPath, client: SendJudge, held: list[Frame]) -> None:
        """Handles the requests that have waited, in their order. If the first has to wait again, the later ones wait
        behind it."""
        first, proven = held[0], len(client.users)
        self.released(first)
        if client.guessed and not client.held:
            client.guessed = False
            # The signature was wrong. The connection is closed, because otherwise it could try secrets without end.
            if len(client.users) == proven and self._judge.enforces:
                for frame in held[1:]:
                    self._refuse(frame, Refused(Reason.NO_PERMISSION, "the signature of a request before it was wrong"))
                path.leave_now()
                return
        for frame in held[1:]:
            self.released(frame)

    def _is_proven(self, name: str, client: SendJudge) -> bool:
        user = self._access.users.get(name)
        return user is not None and client.users.get(user.id) == user.secret

    def admits_again(self, frame: Frame) -> bool:
        """Decides about a request that was forwarded, or held for a leader, by the user id that the node with the
        client's connection has recorded. Returns False if the request was refused and answered."""
        frame.judged = self._access.version
        # No node has verified the signature of this request yet. This node does so, as for a request of its own client.
        if not frame.user:
            return self._goes_on(frame, self._judged(frame, None))
        user = self._access.by_id.get(frame.user)
        if user is None:
            gone = Refused(Reason.NO_PERMISSION, "the user of this request was removed")
            return self._goes_on(frame, gone)
        try:
            return self._goes_on(frame, self._verdict(frame, user, ext_of(frame.header), None))
        except CodecError as error:
            return self._goes_on(frame, Refused(Reason.INVALID, str(error)))

    def denied_since(self, request: Request) -> Refused | None:
        """Judges a request again that has waited, if users or rules have changed since it was judged. Returns None if
        it may go on, else the refusal: UNAVAILABLE if this node may lack a change that allows it, or NO_PERMISSION."""
        # The common case: the rules have not changed since the request was judged.
        if request.judged in (0, self._access.version) or not self._judge.enforces:
            return None
        user = self._access.by_id.get(request.user)
        if user is None:
            return Refused(Reason.NO_PERMISSION, "the user of this request was removed")
        address, what = request.connection.peer_address[0], name_of_request(request.code)
        why = self._judge.why_not(user, address, self._judge.needs_of(request.code, request.ext, request.body))
        if not why:
            return None
        # This node may lack a change that restores the right. So the answer is "not now", because "never" might be
        # wrong.
        if self._confirms.is_possible:
            return Refused(Reason.UNAVAILABLE, UNSURE)
        self._judge.refuses(user.id, address, why, what)
        return Refused(Reason.NO_PERMISSION, why)

    def take_sends(self, take: Take, path: ReplyPath, data: bytes, frames: list[tuple[int, int]], at: int) -> int:
        """Passes the frames of a read from index `at` on to `take`, which takes the plain sends that are signed and
        allowed. Returns the index of the first other frame, which `admits` must judge."""
        # The rules may be out of date, so nothing is decided here. `admits` tells the client so.
        if self._secrets.problem or self._stale():
            return at
        client = self._client(path)
        # A request of this connection waits. If the kernel took these sends, they would overtake it.
        if client.held:
            return at
        client.judge_by(self._access.version)
        taken = take(path, data, frames, at, client)
        if taken > at:
            size = frames[taken - 1][1] - frames[at][0]
            charge((taken - at) * VERIFY_UNITS + size // SIGNED_BYTES_PER_UNIT)
        return taken

    def _send_right(self, key: bytes, client: SendJudge) -> SendRight | None:
        """Returns the right to send that a key of `SendJudge` names; None if the user does not have it, or if the
        user's signature has to wait for its check."""
        name, _, topic = key.decode().partition("\0")
        # The user is not proven on this connection, and other requests in the user's name wait for their check. The
        # kernel must not bypass that queue.
        if not self._is_proven(name, client) and self._guesses.must_wait(name, client.address):
            return None
        user = self._access.users.get(name)
        secret = None if user is None else self._secrets.of(user)
        if user is None or secret is None:
            return None
        # A batch (320) needs the same rights as a single send.
        needs = self._judge.needs_of(RequestCode.SEND_MESSAGE_V2, {"b": topic}, b"")
        if self._judge.why_not(user, client.address, needs, client.verdicts):
            return None
        return user.id, *begun(secret), user.secret

    def _judged(self, frame: Frame, client: SendJudge | None) -> Refused | None:
        try:
            ext = ext_of(frame.header)
            user = self._identified(frame, ext, client)
            if isinstance(user, Refused):
                return user
            frame.user = user.id
            return self._verdict(frame, user, ext, client)
        except CodecError as error:
            return Refused(Reason.INVALID, str(error))

    def _identified(self, frame: Frame, ext: Mapping[str, str], client: SendJudge | None) -> User | Refused:
        """Returns the user whose valid signature the request has; else the refusal."""
        name, signature = ext.get(ACCESS_KEY), ext.get(SIGNATURE)
        if not name or not signature:
            return Refused(Reason.NO_PERMISSION, NOT_SIGNED)
        # Checked before the signature: a verdict about the signature would rest on rules that may be out of date.
        if why := self._secrets.problem or self._stale():
            return Refused(Reason.UNAVAILABLE, f"this node can verify no signature now: {why}")
        charge(VERIFY_UNITS + frame.size // SIGNED_BYTES_PER_UNIT)
        user = self._access.users.get(name)
        secret = None if user is None else self._secrets.of(user)
        signed = content(ext, frame.body, version=frame.header.version)
        # An unknown user and a wrong signature get the same answer, so a stranger cannot find out user names.
        if user is None or secret is None or not is_right(secret, signed, signature):
            if client is None or frame is not client.sure:  # the request `sure` was counted at its first verdict
                self._guesses.wrong(name, frame.path.peer_address[0])
            return Refused(Reason.NO_PERMISSION, WRONG_SIGNATURE)
        if client is not None:
            if frame is client.sure:
                self._guesses.right(name, client.address)
            client.signed(user.id, user.secret)
        return user

    def _verdict(self, frame: Frame, user: User, ext: Mapping[str, str], client: SendJudge | None) -> Refused | None:
        try:
            needs = self._judge.needs_of(frame.header.code, ext, frame.body)
        except Refused as refused:
            return bare(refused)
        why = self._judge.why_not(user, frame.path.peer_address[0], needs, None if client is None else client.verdicts)
        return Refused(Reason.NO_PERMISSION, why) if why else None

    def _goes_on(self, frame: Frame, refused: Refused | None) -> bool:
        if refused is None:
            return True
        if refused.reason is Reason.NO_PERMISSION:
            address, what = frame.path.peer_address[0], name_of_request(frame.header.code)
            stands = self._judge.refuses(frame.user, address, refused.remark, what)
        else:
            stands = self._judge.enforces
        # Mode observe: the request goes on as if there were no rules.
        if stands:
            self._refuse(frame, refused)
        return not stands

    def _client(self, path: ReplyPath) -> SendJudge:
        client = self._clients.get(path)
        if client is None:
            client = SendJudge(path.peer_address[0], self._send_right, lambda user: self.proven(path, user))
            if not path.closed:
                self._clients[path] = client
                path.on_close.append(lambda: self._forget(path))
        return client

    def _forget(self, path: ReplyPath) -> None:
        client = self._clients.pop(path, None)
        if client is not None:
            client.held = []

    # --- changes -----------------------------------------------------------------------------------------------------

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="admission",
            reload=lambda config: self._secrets.reload(config.auth.key_file),
        )

    def changed(self) -> None:
        """Reacts to a change of users, rules or the mode: judges waiting pulls again, and closes connections of users
        that were removed or disabled, or that have another secret now."""
        began, self.version = self.version < 0, self._access.version
        self._secrets.tell()
        if began:
            self._polls.judge_by(self._denied_now, lambda: self._confirms.is_possible)
        else:
            self._polls.judge_again(self._begin_closing)
            self.rules_changed()

    def _begin_closing(self) -> None:
        """Begins to close the connections of users that are gone (`_is_gone`), after the waiting pulls were judged."""
        if self._clients:
            self._turns.begin_later("connections of changed users", self._close_gone())

    def _denied_now(self, pull: Pull) -> Refused | None:
        """Returns the refusal of a waiting pull by the present rules; None if it may go on waiting."""
        if not self._judge.enforces:
            return None
        puller = pull.puller
        user = self._access.by_id.get(puller.user)
        if user is None:
            return Refused(Reason.NO_PERMISSION, "no user has signed this request, or the user was removed")
        path = puller.client
        client = self._clients.get(path) if isinstance(path, ReplyPath) else None
        proven = None if client is None else client.users.get(user.id)
        # The sender of this pull knew the old secret. A changed secret ends what was opened with the old one.
        if client is not None and (proven is None or not self._secrets.same(user, proven)):
            return Refused(Reason.NO_PERMISSION, f"user {user.name} has another secret by now")
        why = self._judge.why_not(user, puller.client.peer_address[0], pull_needs(pull.topic, pull.group))
        return Refused(Reason.NO_PERMISSION, why) if why else None

    def _close_gone(self) -> WorkSteps:
        for at, (path, client) in enumerate(list(self._clients.items())):
            if at % CLIENTS_PER_STEP == 0:
                yield
            charge(1)
            # A connection is closed if any user who has signed on it is gone, even if other users have signed on it
            # too.
            if not path.closed and any(self._is_gone(user_id, secret) for user_id, secret in client.users.items()):
                path.leave_now()

    def _is_gone(self, user_id: int, secret: bytes) -> bool:
        """Returns True if the user was removed or disabled, or has another secret than the connection has proven."""
        user = self._access.by_id.get(user_id)
        return user is None or not user.enabled or not self._secrets.same(user, secret)
