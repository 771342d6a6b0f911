"""The identity of a topic, without which an offset means nothing. A topic that is deleted and created again begins at
offset 0 under the same name, and other clusters may have topics of that name. Programs that store an offset therefore
store the identity of its topic with it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

IDENTITY_FIELD = "raftmqTopicId"
"""The ext field with the identity, in replies that name an offset or a topic's configuration."""
FORM = r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/([0-9]{1,10})/([0-9]{1,10})"
"""The form of an identity as text: CLUSTER-UUID/GROUP/TOPIC-ID."""


class TopicIdentity(NamedTuple):
    """The identity of one topic. `cluster` is the cluster's uuid, `group` the number of the Raft group, and `topic_id`
    the id that the topic got when it was created. No other topic of the cluster gets that id."""

    cluster: str
    group: int
    topic_id: int

    def __str__(self) -> str:
        return f"{self.cluster}/{self.group}/{self.topic_id}"


def parse_identity(text: str) -> TopicIdentity:
    """Parses an identity from the text that `str(identity)` returns. Raises ValueError for other texts."""
    found = re.fullmatch(FORM, text)
    if found is None:
        raise ValueError(f"{text!r} is no topic's identity: CLUSTER-UUID/GROUP/TOPIC-ID")
    return TopicIdentity(found[1], int(found[2]), int(found[3]))


def why_another(kept: TopicIdentity | None, met: TopicIdentity | None) -> str:
    """Returns the reason why an offset stored for the topic `kept` does not apply to the topic `met`; "" if both are
    the same topic. Returns "" too if one of them is None, because earlier releases stored offsets without an identity,
    and their nodes send none."""
    if kept is None or met is None or kept == met:
        return ""
    if kept.cluster != met.cluster:
        return f"it counts in a topic of cluster {kept.cluster}, and cluster {met.cluster} answers"
    if kept.group != met.group:
        return f"it counts in a topic of group {kept.group}, and the topic is in group {met.group}"
    return f"it counts in the topic with id {kept.topic_id}, which is gone; the one with id {met.topic_id} is another"


class Position(NamedTuple):
    """A stored offset, with the topic in which it counts. `counted_in` is None for offsets that earlier releases
    stored."""

    offset: int
    counted_in: TopicIdentity | None = None

    def why_not_in(self, met: TopicIdentity | None) -> str:
        """Returns the reason why this position does not apply to the present topic `met`; "" if it may be used."""
        return why_another(self.counted_in, met)
