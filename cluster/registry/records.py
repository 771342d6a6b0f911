"""Merges the records of the registry: the groups of brokers, and the groups of each topic. Does no I/O and reads no
clock.

The records only grow: of two records about one group or topic, the one with the greater rank stays, in whatever order
and however often they arrive. So replicas that applied the same operations in different orders are equal, and nothing
is ever removed (docs/adr/0112-the-registry-is-pysyncobj-hardened.md). An operation is msgpack::

    [cluster 16 bytes, "groups", payload of a frame GROUPS]
    [cluster 16 bytes, "topics", [[topic, version of the truth, [group, ...]], ...]]
    [cluster 16 bytes, "beat",   [registry node, number]]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from cluster.placement.group_map import GroupRecord, GroupRecords, decode, news
from cluster.placement.group_map import encode as encode_groups
from cluster.runtime.peer_frames import WireError
from raftlog.types import FIRST_GROUP, GROUPS_MAX

CLUSTER_BYTES = 16
OPERATION_BYTES_MAX = 32 << 10
TOPICS_MAX = 50_000
"""The most topics. Names of deleted topics stay, so a cluster may have had more. Further topics are left out, and the
processes may have left out different ones."""
NODES_MAX = 9
"""The most processes of a registry; their numbers begin with 1."""
RECORDS_BYTES_MAX = 64 << 20
"""The most bytes of all records, encoded: more than the other limits allow."""
_NUMBER_MAX = 1 << 62
_NAME_MAX = 255

_Number = Annotated[int, Meta(ge=0, le=_NUMBER_MAX)]
_Group = Annotated[int, Meta(ge=FIRST_GROUP, le=GROUPS_MAX)]
_Node = Annotated[int, Meta(ge=1, le=NODES_MAX)]
_Cluster = Annotated[bytes, Meta(min_length=CLUSTER_BYTES, max_length=CLUSTER_BYTES)]
_Name = Annotated[str, Meta(min_length=1, max_length=_NAME_MAX)]

RegistryAnswer = tuple[str, bytes]
"""(error, value). `error` is "" if the records now contain the operation or something newer; `value` is then msgpack of
the ranks that they contain. Else `value` is b""."""


class TopicPlace(NamedTuple):
    """The groups that have a topic, as of a version of the state that all groups share. Of two places, the greater
    tuple has the greater rank."""

    version: _Number
    groups: Annotated[tuple[_Group, ...], Meta(min_length=1, max_length=GROUPS_MAX)]
    """The numbers of the groups, ascending."""


class View(NamedTuple):
    """All records at one moment. A View is never changed."""

    groups: GroupRecords
    topics: Mapping[str, TopicPlace]
    beats: Mapping[int, int]
    """Registry node -> the greatest number that its watchdog has sent."""


NOTHING = View({}, {}, {})

_Topic = tuple[_Name, _Number, Annotated[tuple[_Group, ...], Meta(min_length=1, max_length=GROUPS_MAX)]]
_Topics = Annotated[list[_Topic], Meta(max_length=TOPICS_MAX)]
_Beat = tuple[_Node, _Number]
_All = tuple[_Cluster, bytes, _Topics, Annotated[list[_Beat], Meta(max_length=NODES_MAX)]]

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder(order="sorted")
_operation = msgspec.msgpack.Decoder(tuple[_Cluster, str, msgspec.Raw])
_payload = msgspec.msgpack.Decoder(bytes)
_topics = msgspec.msgpack.Decoder(_Topics)
_beat = msgspec.msgpack.Decoder(_Beat)
_all = msgspec.msgpack.Decoder(_All)


class Records:
    """The state machine of the registry, for one cluster. One thread applies; any thread may read `view`."""

    def __init__(self, cluster: bytes, topics_max: int = TOPICS_MAX) -> None:
        self._cluster = cluster
        self._topics_max = topics_max
        self.view = NOTHING

    def apply(self, operation: bytes) -> RegistryAnswer:
        """Applies an operation and returns its answer. Never raises: malformed bytes and operations of another cluster
        change nothing, and the answer has an error."""
        try:
            self.view, held = self._merged(operation)
        except WireError as error:
            return str(error), b""
        return "", _encoder.encode(held)

    def known(self, operation: bytes) -> RegistryAnswer | None:
        """Returns the answer to an operation that would change nothing, which need not be written to the log. Returns
        None if the operation must be written."""
        try:
            view = self.view
            after, held = self._merged(operation)
        except WireError as error:
            return str(error), b""
        return ("", _encoder.encode(held)) if after == view else None

    def _merged(self, operation: bytes) -> tuple[View, object]:
        """Returns the view with the operation merged into it, and the ranks that this view has for the operation's
        groups, topics or beat. Raises WireError if the operation is malformed or of another cluster."""
        if len(operation) > OPERATION_BYTES_MAX:
            raise WireError(f"an operation of {len(operation)} bytes")
        cluster, kind, rest = _decoded(_operation, operation)
        if cluster != self._cluster:
            raise WireError(f"an operation of another cluster, {cluster.hex()}")
        view = self.view
        if kind == "groups":
            heard = decode(_decoded(_payload, rest))
            groups = {**view.groups, **news(view.groups, heard)}
            return view._replace(groups=groups), [[each.group, *groups[each.group].epoch] for each in heard]
        if kind == "topics":
            places = [(name, TopicPlace(version, groups)) for name, version, groups in _decoded(_topics, rest)]
            topics = _with_topics(view.topics, places, self._topics_max)
            return view._replace(topics=topics), [[name, topics[name].version] for name, _ in places if name in topics]
        if kind == "beat":
            node, number = _decoded(_beat, rest)
            number = max(number, view.beats.get(node, 0))
            return view._replace(beats={**view.beats, node: number}), number
        raise WireError(f"an operation of an unknown kind, {kind!r:.40}")

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """Returns all records, encoded. Equal states have equal bytes."""
        view = self.view
        topics = [[name, *view.topics[name]] for name in sorted(view.topics)]
        return _encoder.encode(
            [
                self._cluster,
                encode_groups(view.groups.values()),
                topics,
                [[n, view.beats[n]] for n in sorted(view.beats)],
            ]
        )

    def merge(self, data: bytes) -> None:
        """Merges all records of a `dump` into these; a record with a smaller rank changes nothing. Raises WireError for
        other bytes; the records are then unchanged."""
        self.view = self.merged(self.view, data)

    def replace(self, before: View, after: View) -> bool:
        """Replaces all records by `after`, which `merged` has made of `before`. Returns False, and does nothing, if
        `view` is no longer `before`."""
        if self.view is not before:
            return False
        self.view = after
        return True

    def merged(self, view: View, data: bytes) -> View:
        """Returns `view` with all records of a `dump` merged into it; `view` itself is not changed. Any thread may call
        this. Raises WireError for other bytes."""
        if len(data) > RECORDS_BYTES_MAX:
            raise WireError(f"records of {len(data)} bytes")
        cluster, payload, topics, beats = _decoded(_all, data)
        if cluster != self._cluster:
            raise WireError(f"records of another cluster, {cluster.hex()}")
        return View(
            {**view.groups, **news(view.groups, decode(payload))},
            _with_topics(
                view.topics,
                [(name, TopicPlace(version, groups)) for name, version, groups in topics],
                self._topics_max,
            ),
            {**view.beats, **{node: max(number, view.beats.get(node, 0)) for node, number in beats}},
        )


def _with_topics(
    known: Mapping[str, TopicPlace], heard: Iterable[tuple[str, TopicPlace]], topics_max: int = TOPICS_MAX
) -> dict[str, TopicPlace]:
    """Returns the topics `known` with the topics `heard` merged into them. New topics above `topics_max` are left out.
    Raises WireError if `heard` is invalid."""
    merged = dict(known)
    for name, place in heard:
        if not name.isprintable() or " " in name:
            raise WireError("a topic with a character that no name has")
        if not all(a < b for a, b in pairwise(place.groups)):
            raise WireError("the groups of a topic do not rise")
        if name in merged:
            merged[name] = max(place, merged[name])
        elif len(merged) < topics_max:
            merged[name] = place
    return merged


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"malformed: {error!s:.200}") from error


# --- operations ------------------------------------------------------------------------------------------------------


RECORDS_PER_OPERATION = 3
"""Records of groups in one operation: each record takes at most a quarter of the bytes of an operation."""


def groups_operation(cluster: bytes, records: Iterable[GroupRecord]) -> bytes:
    """Returns the operation that merges records of groups; RECORDS_PER_OPERATION records always fit."""
    return _encoder.encode([cluster, "groups", encode_groups(records)])


PLACES_PER_OPERATION = 90
"""Topics in one operation: this many fit, however long their names are."""


def read_places(payload: bytes) -> dict[str, TopicPlace]:
    """Returns the places of topics in the payload of a frame PLACES. Raises WireError if it is malformed."""
    if len(payload) > OPERATION_BYTES_MAX:
        raise WireError(f"places of topics in {len(payload)} bytes")
    return _with_topics(
        {}, [(name, TopicPlace(version, groups)) for name, version, groups in _decoded(_topics, payload)]
    )


def topics_operation(cluster: bytes, places: Mapping[str, TopicPlace]) -> bytes:
    """Returns the operation that merges the places of topics; PLACES_PER_OPERATION places always fit."""
    return _encoder.encode([cluster, "topics", [[name, *places[name]] for name in sorted(places)]])


def beat_operation(cluster: bytes, node: int, number: int) -> bytes:
    """Returns the operation with which a watchdog asks whether the registry takes operations."""
    return _encoder.encode([cluster, "beat", [node, number]])
