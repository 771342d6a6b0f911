"""Admin: the blocking form of AsyncAdmin, for threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raftmq.client.admin import AsyncAdmin, GroupOffset, TopicInfo
from raftmq.client.loop_thread import LoopThread
from raftmq.client.message import FoundMessages, Message
from raftmq_wire.topic_identity import Position, TopicIdentity


class Admin:
    """Manages topics, groups, offsets and users, and lists members; each call waits for its answer. AsyncAdmin
    describes the calls and their errors."""

    def __init__(self, admin: AsyncAdmin, thread: LoopThread) -> None:
        self._admin = admin
        self._run = thread.run

    def create_topic(
        self,
        name: str,
        queues: int = 8,
        attributes: Mapping[str, str] | None = None,
        *,
        perm: int = 6,
        now: bool = False,
        groups: Iterable[int] | None = None,
    ) -> None:
        """Creates the topic, or changes it to these values. Without `now`, fewer queues are refused if that hides
        messages that are not consumed. `groups`: see AsyncAdmin.create_topic."""
        self._run(self._admin.create_topic(name, queues, attributes, perm=perm, now=now, groups=groups))

    def delete_topic(self, name: str) -> None:
        """Deletes the topic with its queues. Raises NotFound."""
        self._run(self._admin.delete_topic(name))

    def topics(self) -> list[str]:
        """Returns the names of all topics, sorted, including the topics that the cluster creates for itself."""
        return self._run(self._admin.topics())

    def system_topics(self) -> list[str]:
        """Returns the names of the topics that the cluster creates for itself."""
        return self._run(self._admin.system_topics())

    def describe_topic(self, name: str) -> TopicInfo:
        """Returns the topic's configuration and the range of each of its queues."""
        return self._run(self._admin.describe_topic(name))

    def identity(self, topic: str, node: str | None = None, *, queue_id: int | None = None) -> TopicIdentity | None:
        """Returns the identity of the topic in which offsets count; None if the node does not report it. See
        AsyncAdmin.identity."""
        return self._run(self._admin.identity(topic, node, queue_id=queue_id))

    def broker_groups(self, topic: str | None = None) -> list[int]:
        """Returns the numbers of the cluster's groups of brokers, ascending; with `topic`, only those with queues of
        the topic."""
        return self._run(self._admin.broker_groups(topic))

    def groups(self) -> list[str]:
        """Returns the names of all consumer groups, sorted."""
        return self._run(self._admin.groups())

    def group_members(self, group: str) -> list[str]:
        """Returns the client ids of the group's connected members."""
        return self._run(self._admin.group_members(group))

    def create_group(self, group: str) -> None:
        """Creates the group with RocketMQ's defaults."""
        self._run(self._admin.create_group(group))

    def delete_group(self, group: str, *, clean_offsets: bool = True) -> None:
        """Deletes the group, and its committed offsets unless `clean_offsets` is False."""
        self._run(self._admin.delete_group(group, clean_offsets=clean_offsets))

    def offsets(self, group: str, topic: str) -> list[GroupOffset]:
        """Returns the group's committed offset in each queue of the topic."""
        return self._run(self._admin.offsets(group, topic))

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Returns the group's committed offset in the queue; None if it has none."""
        return self._run(self._admin.committed(group, topic, queue_id))

    def commit(self, group: str, topic: str, queue_id: int, offset: int | Position) -> None:
        """Moves the group's committed offset, forwards or backwards. Raises NotFound for a Position in another
        topic."""
        self._run(self._admin.commit(group, topic, queue_id, offset))

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Returns the offset that the queue's next message will get."""
        return self._run(self._admin.max_offset(topic, queue_id))

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Returns the first offset that the queue still keeps."""
        return self._run(self._admin.min_offset(topic, queue_id))

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Returns the first offset stored at or after `timestamp_ms` (log time)."""
        return self._run(self._admin.offset_at(topic, queue_id, timestamp_ms))

    def earliest_store_ms(self, topic: str, queue_id: int) -> int:
        """Returns the time when the first kept message was stored, in ms of log time; -1 for an empty queue."""
        return self._run(self._admin.earliest_store_ms(topic, queue_id))

    def create_user(self, name: str, secret: str, *, is_super: bool = False) -> None:
        """Creates a user. Only a user of type Super may make this call and the other calls about users."""
        self._run(self._admin.create_user(name, secret, is_super=is_super))

    def delete_user(self, name: str) -> None:
        """Deletes a user and its rules; the cluster ends the user's connections."""
        self._run(self._admin.delete_user(name))

    def set_rule(
        self, user: str, resource: str, actions: Sequence[str], *, allow: bool = True, sources: Sequence[str] = ()
    ) -> None:
        """Sets a rule of the user: allows or denies the actions ("Pub", "Sub") on a resource: "Topic:orders",
        "Topic:orders*", "Group:*" or "*"."""
        self._run(self._admin.set_rule(user, resource, actions, allow=allow, sources=sources))

    def delete_rule(self, user: str, resource: str) -> None:
        """Deletes the user's rule for that resource."""
        self._run(self._admin.delete_rule(user, resource))

    def set_auth_mode(self, mode: str) -> None:
        """Sets the cluster's `auth.mode` to off, observe or enforce."""
        self._run(self._admin.set_auth_mode(mode))

    def members(self, *, group: int = 1) -> dict[str, str]:
        """Returns the nodes of a group of brokers as broker id -> "host:port"; "0" is the leader."""
        return self._run(self._admin.members(group=group))

    def view_message(self, topic: str, position: int, *, group: int = 1) -> Message:
        """Returns the message whose first byte is at `position` in the log of a group of brokers."""
        return self._run(self._admin.view_message(topic, position, group=group))

    def query_messages(
        self,
        topic: str,
        key: str,
        *,
        unique: bool = False,
        begin_ms: int = 0,
        end_ms: int = (1 << 63) - 1,
        count_max: int = 32,
        as_stored: bool = False,
    ) -> FoundMessages:
        """Returns the newest messages that have `key` as their message id or as a word of their key, newest first; see
        AsyncAdmin.query_messages for `as_stored`. `more` of the list is True if there may be others."""
        work = self._admin.query_messages(
            topic, key, unique=unique, begin_ms=begin_ms, end_ms=end_ms, count_max=count_max, as_stored=as_stored
        )
        return self._run(work)
