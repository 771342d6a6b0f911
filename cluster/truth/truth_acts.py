"""Carries out acts: changes of the truth that clients request from a node of another group than the first.

The leader of the asked group sends the commands to the leader of the first group. That leader proposes them like its
own, and replies with their results and the version of the truth that includes them. The caller gets the results once
the asked group has copied that version, so that a client can use what it just made at the node that it asked. Commands
are not sent twice: if no reply comes in time, the outcome is unknown. If the first group has no leader, the commands
fail and nothing was done. Only commands that take rights away are then written to the log of the asked group instead
(`statemachine.access.revocations`).

    ACT         [number, author]                     payload: the commands, as in a COMMAND entry
    ACT_REPLY   [number, outcome, version, remark]   payload: msgpack [[ok, code, value], ...], one for each command
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from cluster.peer.wire import INDEX_MAX
from cluster.replication.outcome import Done, Outcome, ProposeResult
from cluster.runtime.peer_frames import Kind, WireError
from cluster.runtime.service_lifecycle import Part
from cluster.truth.truth_frames import NUMBER_MAX, PAYLOAD_MAX, too_low
from raftlog.types import FIRST_GROUP
from statemachine.access.revocations import Revoke, revocation_of
from statemachine.cluster_wide.truth_journal import ForgetEnds
from statemachine.command_table import unpack
from statemachine.commands import Command, CommandResult, level_of, pack
from statemachine.consuming.groups import PutGroup
from statemachine.levels import GROUPS_LEVEL
from statemachine.topics.topics import CreateTopic, placed_in
from statemachine.truth import JournalNames

if TYPE_CHECKING:
    from cluster.truth.truth_source import Submit, TruthLink, TruthReads
    from statemachine.broker_state import BrokerState

ACTS_MAX: Final = 1_000
"""The most acts of one leader that wait for a reply or for the copy of their changes. Further ones fail."""
REMARK_MAX: Final = 2_000
_OWN: Final = (JournalNames, ForgetEnds)
"""Commands of the truth that only the first group itself proposes. Other groups may not send them."""


class _WaitingAct(NamedTuple):
    commands: list[Command]
    done: Done
    deadline_ms: int
    is_offer: bool


class _Copying(NamedTuple):
    version: int
    waiting: _WaitingAct
    result: ProposeResult


class ActsAsked:
    """Sends acts to the first group and waits for their results, in the group that a client asked. Event loop only."""

    def __init__(
        self,
        state: BrokerState,
        group: int,
        *,
        submit: Submit,
        source: Callable[[], TruthLink | None],
        hurry: Callable[[], None],
        monotonic_ms: Callable[[], int],
        deadline_ms: int,
    ) -> None:
        """`submit` proposes commands to this group. `source` returns a connection to the leader of the first group,
        None if there is none. `hurry` makes this node copy the truth at once. `deadline_ms`: milliseconds that a caller
        waits for a result."""
        self._state, self._group, self._submit = state, group, submit
        self._source, self._hurry, self._monotonic_ms, self._deadline_ms = source, hurry, monotonic_ms, deadline_ms
        self._number = 0
        self._asked: dict[int, tuple[TruthLink, _WaitingAct]] = {}
        self._copying: list[_Copying] = []

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="truth acts", tick=self.tick, applied=lambda applied: self.look())

    def ask(self, commands: list[Command], done: Done, author: str) -> None:
        """Sends the commands to the first group, which carries them out in one entry, and calls `done` with their
        results. The value of a result is a text or a number, or, for a topic or consumer group that was created, its
        row in this group. If all commands only take rights away, and the first group cannot be asked or does not reply
        in time, they are applied in this group as revocations."""
        revocations = [act for command in commands if (act := revocation_of(command)) is not None]
        if len(revocations) < len(commands) or self._state.level < GROUPS_LEVEL:
            self._ask(commands, done, author, is_offer=False)
            return

        def or_here(result: ProposeResult) -> None:
            if result.outcome is Outcome.OK or result.unacceptable:
                done(result)
            else:
                self._submit([Revoke(pack([act])) for act in revocations], done, None, author)

        self._ask(commands, or_here, author, is_offer=False)

    def offer(self, revocations: Sequence[Command], done: Done) -> None:
        """Sends revocations of this group to the first group, which carries them out. Calls `done` with the results:
        on success once this group has copied the changes, however long that takes; on failure at once."""
        self._ask([*revocations], done, "", is_offer=True)

    def _ask(self, commands: list[Command], done: Done, author: str, *, is_offer: bool) -> None:
        link = self._source()
        if (level := self._state.level) < GROUPS_LEVEL:
            done(_failed(f"{too_low(level)}; nothing was done"))
            return
        if link is None:
            done(_failed(f"group {FIRST_GROUP} has no leader now, and decides this; nothing was done, try again"))
            return
        if len(self._asked) + len(self._copying) >= ACTS_MAX:
            done(_failed(f"{ACTS_MAX} changes wait for group {FIRST_GROUP} already; nothing was done, try again"))
            return
        try:
            packed = pack([self._placed(command) for command in commands])
        except (ValueError, OverflowError, TypeError) as error:
            done(ProposeResult(Outcome.FAIL, [], None, f"no entry can hold this: {error}", unacceptable=True))
            return
        self._number += 1
        if len(packed) > PAYLOAD_MAX:
            done(ProposeResult(Outcome.FAIL, [], None, f"{PAYLOAD_MAX} bytes are allowed at a time", unacceptable=True))
        elif link.send(Kind.ACT, [self._number, author], packed):
            waiting = _WaitingAct(commands, done, self._monotonic_ms() + self._deadline_ms, is_offer)
            self._asked[self._number] = link, waiting
        else:
            done(_failed(f"the connection to group {FIRST_GROUP} was lost; nothing was done, try again"))

    def _placed(self, command: Command) -> Command:
        """Returns the command in the form in which it is sent to the first group. If it creates a topic and gives
        numbers of queues without a group, they become the numbers of queues in this node's group."""
        if not isinstance(command, CreateTopic):
            return command
        known = self._state.topics.get(str(command.config.get("name")))
        return CreateTopic(placed_in(self._group, command.config, known), command.if_absent)

    def on_reply(self, link: TruthLink, header: list[Any], payload: bytes) -> None:
        """Handles the reply to an act. Ignores it if nobody waits for that act any more. Raises WireError if it is
        malformed."""
        match header:
            case [int(number), int(outcome), int(version), str(remark)] if (
                0 <= number < NUMBER_MAX and outcome in list(Outcome) and 0 <= version <= INDEX_MAX
            ):
                results = _results(payload)
            case _:
                raise WireError(f"malformed answer to an act: {header!r:.200}")
        asked = self._asked.get(number)
        if asked is None or asked[0] is not link:
            return
        waiting = asked[1]
        if Outcome(outcome) is Outcome.OK and len(results) != len(waiting.commands):
            raise WireError(f"{len(results)} results of {len(waiting.commands)} commands")
        del self._asked[number]
        result = ProposeResult(Outcome(outcome), results, None, remark[:REMARK_MAX])
        if result.outcome is not Outcome.OK:
            waiting.done(result._replace(results=[]))
            return
        self._copying.append(_Copying(version, waiting, result))
        self._hurry()
        self.look()

    def look(self) -> None:
        """Gives their results to the callers whose changes this group has copied by now."""
        if not self._copying:
            return
        copied = self._state.truth.copied
        for each in [each for each in self._copying if each.version <= copied]:
            self._copying.remove(each)
            self._tell(each)

    def tick(self, now_ms: int) -> None:
        """Ends acts that have waited for too long. The outcome of an act without a reply is unknown. An act that was
        done but is not copied yet gets its results."""
        self.look()
        for number in [number for number, (_, waiting) in self._asked.items() if waiting.deadline_ms <= now_ms]:
            _, waiting = self._asked.pop(number)
            remark = f"group {FIRST_GROUP} did not answer within {self._deadline_ms} ms; it may still be done"
            waiting.done(ProposeResult(Outcome.UNKNOWN, [], None, remark))
        late = [each for each in self._copying if each.waiting.deadline_ms <= now_ms and not each.waiting.is_offer]
        for each in late:
            self._copying.remove(each)
            self._tell(each)

    def _tell(self, each: _Copying) -> None:
        pairs = zip(each.waiting.commands, each.result.results, strict=True)
        results = [self._with_value(command, result) for command, result in pairs]
        each.waiting.done(each.result._replace(results=results, entry_id=self._state.applied))

    def _with_value(self, command: Command, result: CommandResult) -> CommandResult:
        name = str(command.config.get("name")) if isinstance(command, (CreateTopic, PutGroup)) else ""
        if not result.ok or not name:
            return result
        made = self._state.topics.get(name) if isinstance(command, CreateTopic) else self._state.groups.get(name)
        return result if made is None else result._replace(value=made)


class ActsTaken:
    """Carries out the acts that other groups send, on the leader of the first group. Event loop only."""

    def __init__(self, state: BrokerState, reads: TruthReads, submit: Submit) -> None:
        self._state, self._reads, self._submit = state, reads, submit

    def on_act(self, link: TruthLink, header: list[Any], payload: bytes) -> None:
        """Proposes the commands of an act, and replies with their results, or with the reason why nothing was done.
        Raises WireError if the frame is malformed."""
        match header:
            case [int(number), str(author)] if 0 <= number < NUMBER_MAX and len(author) <= REMARK_MAX:
                commands = _commands(payload)
            case _:
                raise WireError(f"malformed act: {header!r:.200}")

        def decided(result: ProposeResult) -> None:
            self._reply(link, number, result)

        if (level := self._state.level) < GROUPS_LEVEL:
            decided(_failed(f"group {FIRST_GROUP}: {too_low(level)}; nothing was done"))
        elif (needed := level_of(commands)) > level:
            # happens if the asking group's level was raised before this group's
            remark = f"group {FIRST_GROUP} has level {level}, and this needs {needed}: raftmq upgrade finalize"
            decided(_failed(f"{remark}; nothing was done"))
        elif not self._reads.writes_open():
            decided(_failed(f"this node does not lead group {FIRST_GROUP} any more; nothing was done, try again"))
        else:
            self._submit(commands, decided, None, author)

    def _reply(self, link: TruthLink, number: int, result: ProposeResult) -> None:
        rows = [
            [each.ok, each.code, each.value if type(each.value) in (str, int, bool) else None]
            for each in result.results
        ]
        header = [number, int(result.outcome), self._state.truth_journal.version, result.remark[:REMARK_MAX]]
        link.send(Kind.ACT_REPLY, header, msgpack.packb(rows))


def _failed(remark: str) -> ProposeResult:
    return ProposeResult(Outcome.FAIL, [], None, remark)


def _commands(payload: bytes) -> list[Command]:
    """Returns the commands in the payload of an act, at least one. Raises WireError if the payload is malformed or has
    a command that other groups may not request."""
    if len(payload) > PAYLOAD_MAX:
        raise WireError(f"an act of {len(payload)} bytes")
    try:
        found = unpack(payload)
    except (ValueError, RecursionError, TypeError) as error:
        raise WireError(f"malformed commands of an act: {error!s:.200}") from error
    commands = [each for each in found if isinstance(each, Command) and each.OF_TRUTH and not isinstance(each, _OWN)]
    if not commands or len(commands) != len(found):
        raise WireError("an act that is no change of the truth")
    return commands


def _results(payload: bytes) -> list[CommandResult]:
    try:
        rows = msgpack.unpackb(payload, use_list=False) if len(payload) <= PAYLOAD_MAX else None
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"malformed results of an act: {error!s:.200}") from error
    if type(rows) is not tuple or not all(
        type(row) is tuple and len(row) == 3 and type(row[0]) is bool and type(row[1]) is str for row in rows
    ):
        raise WireError("malformed results of an act")
    return [CommandResult(*row) for row in rows]
