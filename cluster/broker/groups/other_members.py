"""Asks other groups of brokers for members of a consumer group, while this group of brokers may not know all of them.

A client sends heartbeats to all brokers of its topics' routes every 30 s, and looks for new routes every 30 s. So the
list of a consumer group's members may be incomplete for two intervals after the first member became known here, if its
topics have queues in another group of brokers too. A client that got an incomplete list would take queues that belong
to other members. During this time request 38 (GET_CONSUMER_LIST_BY_GROUP) is answered with the members that all these
groups of brokers know together (docs/adr/0111).

    MEMBERS         [number, consumer group]
    MEMBERS_REPLY   [number, whether all are there]    payload: msgpack [client id, ...]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgpack

from cluster.broker.groups.group_members import CLIENT_ID_MAX, FIRST_HEARTBEAT_MS
from cluster.runtime.peer_frames import Kind, WireError
from raftlog.work import ITEM_UNITS, charge
from statemachine.cluster_wide.broker_groups import living_groups

if TYPE_CHECKING:
    from cluster.broker.groups.consumer_group import ConsumerGroup
    from cluster.broker.groups.group_members import Members
    from cluster.broker.services import Services
    from cluster.peer.group_links import GroupLinks

FRESH_MS: Final = 2 * FIRST_HEARTBEAT_MS
"""Milliseconds after the first heartbeat of a consumer group in which other members may still be missing."""
ANSWER_MS: Final = 1_000
"""Milliseconds after which an unanswered question is given up."""
ASKED_MAX: Final = 1_000
"""The most questions that may wait for answers at a time."""
PAYLOAD_MAX: Final = 960 << 10
"""The most bytes of client ids in an answer. A frame of this channel may have more."""
_NUMBER_MAX: Final = 1 << 63

ClientsFound = Callable[[set[str] | None], None]
"""Gets the client ids that other groups of brokers know; None if one of the groups did not answer."""


class MemberLink(Protocol):
    """A connection to a node of another group of brokers. `cluster.peer.group_links.GroupLink` implements it."""

    @property
    def group(self) -> int:
        """The number of the group of brokers to which the node belongs."""

    def send(self, kind: Kind, header: list[Any], payload: bytes = b"") -> bool:
        """Sends a frame. Returns False if it cannot be sent."""


class _AskedGroups(NamedTuple):
    left: set[int]
    """The numbers of the groups of brokers that have not answered."""
    found: set[str]
    done: ClientsFound


class OtherMembers:
    """Asks other groups of brokers for members of a consumer group, and answers the same question of other groups.
    Event loop only."""

    def __init__(self, services: Services, members: Members) -> None:
        self._services, self._members = services, members
        self._links: GroupLinks | None = None
        self._number = 0
        self._asked: dict[int, _AskedGroups] = {}

    def serve(self, links: GroupLinks) -> None:
        """Uses these connections to ask and to answer from now on."""
        self._links = links
        links.takes(Kind.MEMBERS, self._on_question)
        links.takes(Kind.MEMBERS_REPLY, self._on_answer)

    def to_ask(self, group: ConsumerGroup) -> list[int]:
        """Returns the numbers of the groups of brokers that may know members which this one does not know yet. Empty if
        all members are RaftMQ's own clients, because those ask each group of brokers themselves."""
        state = self._services.state
        if not state.broker_groups.by_number or group.all_by_topic:
            return []
        if self._services.awake_ms() - group.since_ms >= FRESH_MS:
            return []
        charge(ITEM_UNITS * len(group.subscriptions))
        topics = [topic for name in group.subscriptions if (topic := state.topics.get(name)) is not None]
        named = {number for topic in topics for number in topic.queues_of_groups}
        return sorted((named & living_groups(state.broker_groups.by_number)) - {state.broker_groups.own})

    def ask(self, name: str, groups: Sequence[int], done: ClientsFound) -> None:
        """Asks these groups of brokers for the members of the consumer group `name`. Calls `done` with all their client
        ids, or with None if a group cannot be asked or does not answer within ANSWER_MS."""
        self._number += 1
        number, links = self._number, self._links
        sent = len(self._asked) < ASKED_MAX and all(
            links is not None and links.send(group, Kind.MEMBERS, [number, name]) for group in groups
        )
        if not sent:
            done(None)
            return
        self._asked[number] = _AskedGroups(set(groups), set(), done)
        self._services.call_later(ANSWER_MS, lambda: self._give_up(number))

    def _give_up(self, number: int) -> None:
        asked = self._asked.pop(number, None)
        if asked is not None:
            asked.done(None)

    def _on_question(self, link: MemberLink, header: list[Any], payload: bytes) -> None:
        """Handles a frame MEMBERS. Raises WireError if it is malformed."""
        match header:
            case [int(number), str(name)] if 0 <= number < _NUMBER_MAX:
                ids = self._members.consumer_ids(name)
            case _:
                raise WireError(f"malformed question for members: {header!r:.200}")
        charge(ITEM_UNITS * len(ids))
        packed = msgpack.packb(ids)
        if len(packed) <= PAYLOAD_MAX:
            link.send(Kind.MEMBERS_REPLY, [number, True], packed)
        else:
            link.send(Kind.MEMBERS_REPLY, [number, False], msgpack.packb([]))

    def _on_answer(self, link: MemberLink, header: list[Any], payload: bytes) -> None:
        """Handles a frame MEMBERS_REPLY. An answer to a question that was given up is ignored. Raises WireError if the
        frame is malformed."""
        match header:
            case [int(number), bool(complete)] if len(payload) <= PAYLOAD_MAX:
                ids = _ids(payload)
            case _:
                raise WireError(f"malformed answer about members, {len(payload)} bytes: {header!r:.200}")
        asked = self._asked.get(number)
        if asked is None or link.group not in asked.left:
            return
        charge(ITEM_UNITS * len(ids))
        asked.found.update(ids)
        asked.left.remove(link.group)
        if not complete or not asked.left:
            del self._asked[number]
            asked.done(asked.found if complete else None)


def _ids(payload: bytes) -> list[str]:
    try:
        ids = msgpack.unpackb(payload)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"malformed client ids: {error!s:.200}") from error
    if type(ids) is not list or not all(type(each) is str and len(each) <= CLIENT_ID_MAX for each in ids):
        raise WireError("malformed client ids")
    return ids
