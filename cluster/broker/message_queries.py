"""Finds single messages for the remoting protocol and the HTTP API: by key, and by position in the commit log.

Any node answers from its applied state, which is committed and never changes, and from the tier. Before a client is
told that there is no such message, a majority must confirm that this node does not merely lag (ReadIndex), unless the
client names another consistency (`by_key`, `by_position`). Only the leader can be confirmed: on other nodes the refusal
is UNAVAILABLE, and the request goes to the leader (`cluster.remoting.forward.handover`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator

from cluster.broker.evicted.evicted_key_search import EvictedKeys, complete, is_evicted, told
from cluster.broker.name_rules import no_topic
from cluster.broker.reads.message_lookup import (
    KeyLookup,
    KeyQuery,
    QueryResult,
    StoredMessage,
    UnreadableError,
    message_at,
    why_none,
)
from cluster.broker.refusal import Reason, Refused
from cluster.broker.rights import Party, Rights
from cluster.broker.services import Client, Services, begin_steps, node_told
from raftlog.kept_errors import bare
from statemachine.topics.topics import TopicConfig

logger = logging.getLogger(__name__)

Failed = Callable[[Exception], None]
"""Called in place of `done` if this node cannot read a row of its state."""


class MessageQueries:
    """Finds messages on any node. Each query calls `done` or `failed` once. A query that finds nothing is refused as
    UNAVAILABLE if no leader confirms that there is no such message."""

    def __init__(self, services: Services, rights: Rights, evicted: EvictedKeys | None = None) -> None:
        """`evicted`: access to evicted messages; None if this node has no tier."""
        self._services = services
        self._rights = rights
        self._old = evicted

    def by_key(
        self, client: Client, topic: str, query: KeyQuery, done: Callable[[QueryResult | Refused], None], failed: Failed
    ) -> None:
        """Finds the topic's messages with a key. If there is none, the leader must confirm it. Neither `done` nor
        `failed` is called if the client disconnects."""

        def look(confirmed: bool) -> None:
            config = self._services.state.topics.get(topic)
            if config is None:
                done(_none(no_topic(topic), confirmed))
                return

            def answer(found: QueryResult | Refused) -> None:
                if isinstance(found, Refused) or found.messages:
                    done(found)
                else:
                    done(_none(self._why_none(query.shown, found), confirmed))

            def steps() -> Generator[None, None, None]:
                try:
                    found = yield from _while_there(client, self.search(config, query))
                except Exception as error:  # noqa: BLE001 - a row that cannot be read ends this request, not the loop
                    failed(error)
                    return
                if found is not None:
                    self.complete(config, query, found, answer)

            begin_steps(self._services.turns.patient, client, steps())

        self._services.read_index(look)

    def search(self, topic: TopicConfig, query: KeyQuery) -> Generator[None, None, QueryResult]:
        """Searches this node's own index in steps, each of one message or one bucket. Returns the result."""
        return KeyLookup(self._services, topic, query).steps()

    def complete(
        self, topic: TopicConfig, query: KeyQuery, found: QueryResult, done: Callable[[QueryResult | Refused], None]
    ) -> None:
        """Calls `done` with the result `found` of `search`, completed by older messages from the tier."""
        complete(self._services.state, self._old, topic, query, found, done)

    def by_position(
        self, party: Party, position: int, done: Callable[[StoredMessage | Refused], None], failed: Failed
    ) -> None:
        """Finds the message as `at` does, with another refusal if there is no message for the party: ERROR if the
        leader has confirmed that this node does not merely lag, UNAVAILABLE if nobody can confirm it now."""

        def look(confirmed: bool) -> None:
            try:
                here = self._here(position)
            except Exception as error:  # noqa: BLE001 - after a ReadIndex round no request handler would catch it
                failed(error)
                return

            def answer(found: StoredMessage | Refused) -> None:
                if isinstance(found, Refused) and found.reason is Reason.NOT_FOUND:
                    why = f"can not find message by the offset, {position}: {found.remark}"
                    found = _none(Refused(Reason.ERROR, why), confirmed)
                done(found)

            self._judged(party, position, here, "a message by its id", answer)

        if position < self._services.state.applied_mark.end_position:
            look(True)  # a message that is applied stays applied, so it needs no confirmation
        else:
            self._services.read_index(look)

    def at(self, party: Party, position: int, what: str, done: Callable[[StoredMessage | Refused], None]) -> None:
        """Calls `done` with the message that begins at the position, on this node or in the tier, if the party may read
        the topic of its row. `what`: the name of the request, for the log of denials. Calls it with a Refused
        (NOT_FOUND) if there is no such message or the party may not read it, in the same words, or with UNAVAILABLE if
        the tier cannot be read."""
        self._judged(party, position, self._here(position), what, done)

    def _here(self, position: int) -> StoredMessage | Refused:
        """Returns the message at the position on this node, or a Refused if there is none."""
        unreadable: UnreadableError | None = None
        try:
            stored = message_at(self._services, position, waiting=True)
        except UnreadableError as error:
            stored, unreadable = None, bare(error)
        return stored or Refused(Reason.NOT_FOUND, why_none(self._services, position, unreadable))

    def _judged(
        self,
        party: Party,
        position: int,
        here: StoredMessage | Refused,
        what: str,
        done: Callable[[StoredMessage | Refused], None],
    ) -> None:
        def answer(found: StoredMessage | Refused | None) -> None:
            if isinstance(found, StoredMessage) and not self._rights.may_read(party, found.topic, what):
                found = None
            done(found or (here if isinstance(here, Refused) else self._none_at(position)))

        if isinstance(here, Refused) and self._old is not None and is_evicted(self._services.state, position):
            self._old.at(position, lambda found: answer(told(found)))
        else:
            answer(here)

    def _none_at(self, position: int) -> Refused:
        return Refused(Reason.NOT_FOUND, why_none(self._services, position))

    def _why_none(self, key: str, found: QueryResult) -> Refused:
        if found.unreadable is not None:
            position, node = found.unreadable, node_told(self._services)
            logger.error("the message at position %d cannot be read intact on %s", position, node)
            remark = f"a message at position {position} cannot be read intact on {node}; another node may have it"
            return Refused(Reason.ERROR, remark)
        if found.stopped:
            return Refused(Reason.ERROR, f"the search for {key} was stopped: too many other keys have its hash")
        return Refused(Reason.NOT_FOUND, f"no message with key {key} between these times")


def _while_there(
    client: Client, search: Generator[None, None, QueryResult]
) -> Generator[None, None, QueryResult | None]:
    """Runs the search in steps and returns its result; None if the client disconnects before it ends."""
    while not client.closed:
        try:
            next(search)
        except StopIteration as end:
            found: QueryResult = end.value
            return found
        yield
    return None


def _none(refusal: Refused, confirmed: bool) -> Refused:
    """Returns `refusal`, which says that there is no such message, if `confirmed` is True: this node does not merely
    lag. Otherwise returns a Refused (UNAVAILABLE) with the same remark."""
    return refusal if confirmed else Refused(Reason.UNAVAILABLE, f"no leader can confirm it now: {refusal.remark}")
