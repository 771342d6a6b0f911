"""AsyncAdmin: manages topics, groups, offsets and users, and lists members, over the protocol that the client uses for
messages."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

import msgspec

from raftmq.client.cluster_view import AUTO_CREATE_TOPIC, ROUTE_LIFE_S, ClusterView
from raftmq.client.connection import Reply
from raftmq.client.consuming.offsets import Offsets, identity_in
from raftmq.client.errors import Failed, NotFound, RaftMQError, Refused, Unknown, Unreachable, error_of
from raftmq.client.message import FoundMessages, Message, decode_messages
from raftmq_wire.codes import (
    GROUPS_FIELD,
    MORE_FIELD,
    NOT_HIDING_FIELD,
    RETIRED_FIELD,
    STORED_QUEUES_FIELD,
    RequestCode,
    ResponseCode,
)
from raftmq_wire.queue_numbers import FIRST_GROUP, number_of, queue_in_group
from raftmq_wire.topic_identity import TopicIdentity

_T = TypeVar("_T")
_PERM_READ_WRITE = 6
_NODE_TIMEOUT_S = 2.0
_TIME_MAX = (1 << 63) - 1
_AGAIN = "Run it again: what is done stays as it is."
_HIDES = "Let the groups consume them first, or hide them with now=True. As many queues as before bring them back."


class _TopicList(msgspec.Struct):
    topicList: list[str] = []  # field names of the protocol, here and below


class _GroupTable(msgspec.Struct):
    subscriptionGroupTable: dict[str, msgspec.Raw] = {}


class _TopicConfig(msgspec.Struct):
    topicName: str
    readQueueNums: int
    writeQueueNums: int
    perm: int
    attributes: dict[str, str] = {}


class QueueInfo(NamedTuple):
    """The range of offsets that a queue keeps: its messages are at min_offset up to, not including, max_offset."""

    queue_id: int
    min_offset: int
    max_offset: int
    counted_in: TopicIdentity | None = None
    """The identity of the topic in which the offsets count. Each group of brokers has its own identity of a topic. None
    for a queue of the first group, where `TopicInfo.identity` holds."""


class TopicInfo(NamedTuple):
    """A topic, its configuration and the ranges of its queues. `perm` is a sum of 4 (readable) and 2 (writable)."""

    name: str
    queues: list[QueueInfo]
    write_queues: int
    perm: int
    attributes: dict[str, str]
    identity: TopicIdentity | None = None
    """The identity of the topic in which the offsets of its queues count. A program that stores an offset should store
    the identity with it. None if the node runs an old release that does not report identities."""
    hidden: Sequence[QueueInfo] = ()
    """The queues with messages that consumers do not read, because the number of the topic's read queues was reduced.
    Consumers read them again once the topic has as many read queues as before."""

    @property
    def messages(self) -> int:
        """The number of messages that the topic keeps, those in hidden queues included."""
        return sum(q.max_offset - q.min_offset for q in {*self.queues, *self.hidden})


class GroupOffset(NamedTuple):
    """The position of a consumer group in one queue. `committed` is the group's committed offset, None before its first
    commit."""

    queue_id: int
    committed: int | None
    min_offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        """The number of kept messages that the group has not committed. Before the group's first commit, all kept
        messages count; 0 if `committed` lies beyond the end of the queue."""
        return max(0, self.max_offset - max(self.min_offset, self.committed or 0))

    @property
    def beyond_end(self) -> int:
        """The number of offsets by which `committed` lies beyond the end of the queue; 0 if it does not. A consumer
        raises Failed for such an offset, because it would skip that many future messages."""
        return max(0, (self.committed or 0) - self.max_offset)


class AsyncAdmin(Offsets):
    """Administrative calls to the cluster. Each call is repeated until a server answers or the time is over. This is
    safe, because carrying a call out twice has the same effect as once.

    If every server refuses connections, a call fails after 3 s, earlier than if servers accept connections but do not
    answer.
    """

    def __init__(self, view: ClusterView, timeout_s: float = 10.0, refused_s: float = 3.0) -> None:
        super().__init__(view, timeout_s, refused_s)
        self._route = functools.partial(view.route, timeout_s=timeout_s, refused_s=refused_s, fresh=True)
        self._members = functools.partial(view.members, timeout_s, refused_s)

    async def create_topic(
        self,
        name: str,
        queues: int = 8,
        attributes: Mapping[str, str] | None = None,
        *,
        perm: int = _PERM_READ_WRITE,
        now: bool = False,
        groups: Iterable[int] | None = None,
    ) -> None:
        """Creates the topic, or changes it to these values, with `queues` queues in each group of brokers. A new topic
        gets queues in all groups; an existing one keeps its groups, because with another group, keys would go to other
        queues. `groups`: the numbers of the groups in which queues are added or changed. Raises Refused for a name or
        number that is not allowed. Without `now`, also raises Refused if fewer queues would hide messages that are not
        consumed. Raises Unknown if the change was made in some groups and not in another; the error names the
        groups."""
        ext = {
            "topic": name,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": ",".join(f"+{k}={v}" for k, v in (attributes or {}).items()),
        }
        if not now:
            ext[NOT_HIDING_FIELD] = "true"
        done: list[int] = []
        try:
            wanted = await self._groups_for(name) if groups is None else await self._existing(groups)
            for group in wanted:
                view = self._view.groups.of(group)
                await self._write(RequestCode.UPDATE_AND_CREATE_TOPIC, ext, f"create topic {name}", view=view)
                done.append(group)
        except RaftMQError as error:
            hides = isinstance(error, Refused) and error.code == ResponseCode.ILLEGAL_OPERATION
            hint = _HIDES if hides else error.hint
            if done:
                where = f"group{'' if len(done) == 1 else 's'} {', '.join(map(str, done))}"
                raise Unknown(f"{error}; it is done in {where}", code=error.code, hint=hint or _AGAIN) from None
            if hides:
                raise Refused(str(error), code=error.code, hint=hint) from None
            raise
        self._view.forget_route(name)

    async def _groups_for(self, topic: str) -> list[int]:
        """Returns the numbers of the groups of brokers that have the topic. If the topic does not exist, returns all
        groups, also those that joined since this client last asked."""
        known = await self.broker_groups()
        try:
            return await self._groups_of(topic)
        except NotFound:
            return known

    async def _existing(self, groups: Iterable[int]) -> list[int]:
        wanted, known = sorted({*groups}), await self.broker_groups()
        if unknown := [group for group in wanted if group not in known]:
            have = ", ".join(map(str, known))
            raise Refused(f"the cluster has no group {unknown[0]}", hint=f"It has {have}.")
        return wanted

    async def delete_topic(self, name: str) -> None:
        """Deletes the topic with its queues. Raises NotFound if there is no such topic."""
        await self._route(name)
        await self._write(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}, f"delete topic {name}")
        self._view.forget_route(name)

    async def topics(self) -> list[str]:
        """Returns the names of all topics, sorted, including the topics that the cluster creates for itself."""
        return sorted(await self._topic_list(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "list topics"))

    async def system_topics(self) -> list[str]:
        """Returns the names of the topics that the cluster creates for itself."""
        return sorted(await self._topic_list(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, "list system topics"))

    async def _topic_list(self, code: int, what: str) -> list[str]:
        return _decode(await self._read(code, {}, what), _TopicList, what).topicList

    async def describe_topic(self, name: str) -> TopicInfo:
        """Returns the topic's configuration and the range of each of its queues. Raises NotFound if there is no such
        topic, and Failed if it was deleted and created again meanwhile."""
        parts = [await self._part(name, group) for group in await self._groups_of(name)]
        return parts[0]._replace(
            queues=[queue for part in parts for queue in part.queues],
            write_queues=sum(part.write_queues for part in parts),
            hidden=[queue for part in parts for queue in part.hidden],
        )

    async def _groups_of(self, topic: str) -> list[int]:
        """Returns the numbers of the groups of brokers with queues of the topic, ascending. In a cluster of one group,
        returns that group whether the topic exists or not. Otherwise raises NotFound if there is no such topic."""
        if (only := await self._known_groups()) == [FIRST_GROUP]:
            return only
        return sorted(each.group for each in (await self._route(topic)).groups)

    async def _part(self, name: str, group: int) -> TopicInfo:
        """Returns the topic's configuration and queue ranges in one group of brokers."""
        what = f"describe topic {name}"
        config, stored = await self._config(name, what, group)
        found = [await self._queue(name, number_of(group, q)) for q in range(stored)]
        counted = {each for _, told in found for each in told} - {None}
        if len(counted) > 1:
            raise Failed(f"{what}: it was deleted and created again meanwhile", hint="run it again")
        identity = counted.pop() if counted else None
        elsewhere = None if group == FIRST_GROUP else identity
        queues = [queue._replace(counted_in=elsewhere) for queue, _ in found]
        return TopicInfo(
            config.topicName,
            queues[: max(config.readQueueNums, config.writeQueueNums)],
            config.writeQueueNums,
            config.perm,
            config.attributes,
            identity,
            [each for each in queues[config.readQueueNums :] if each.min_offset < each.max_offset],
        )

    async def _config(self, name: str, what: str, group: int) -> tuple[_TopicConfig, int]:
        """Returns the topic's configuration in a group of brokers, and the largest number of queues that it has or once
        had there. Raises NotFound."""
        reply = await self._call_in(group, RequestCode.GET_TOPIC_CONFIG, {"topic": name}, what=what)
        config = _decode(reply, _TopicConfig, what)
        stored = reply.ext.get(STORED_QUEUES_FIELD, "0")
        return config, max(config.readQueueNums, config.writeQueueNums, int(stored) if stored.isdecimal() else 0)

    async def identity(
        self, topic: str, node: str | None = None, *, queue_id: int | None = None
    ) -> TopicIdentity | None:
        """Returns the identity of the topic in which offsets count. With `queue_id`, it is the identity in the queue's
        group of brokers, else in the first group that has the topic. Returns None if the node that answers runs an old
        release that does not report identities. With `node` ("host:port") that node is asked; it may lag behind the
        leader. Raises NotFound."""
        what = f"identity of {topic}"
        if node is None:
            at = number_of((await self._groups_of(topic))[0], 0) if queue_id is None else queue_id
            return (await self.counted(RequestCode.GET_MAX_OFFSET, topic, at))[1]
        try:
            link = await self._view.links.get(node)
            reply = await link.call(RequestCode.GET_TOPIC_CONFIG, {"topic": topic}, timeout_s=_NODE_TIMEOUT_S)
        except OSError as error:
            raise Unreachable(f"{what} from {node}: {str(error) or 'no answer'}", retryable=True) from error
        if reply.code != ResponseCode.SUCCESS:
            raise error_of(reply.code, reply.remark, what)
        return identity_in(reply, what)

    async def _queue(self, topic: str, queue_id: int) -> tuple[QueueInfo, tuple[TopicIdentity | None, ...]]:
        """Returns the range of a queue, and the identities of the topic that came with its first offset and with its
        end."""
        first, of_first = await self.counted(RequestCode.GET_MIN_OFFSET, topic, queue_id)
        end, of_end = await self.counted(RequestCode.GET_MAX_OFFSET, topic, queue_id)
        return QueueInfo(queue_id, first, end), (of_first, of_end)

    async def groups(self) -> list[str]:
        """Returns the names of all consumer groups, sorted."""
        what = "list groups"
        reply = await self._read(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, what)
        return sorted(_decode(reply, _GroupTable, what).subscriptionGroupTable)

    async def group_members(self, group: str) -> list[str]:
        """Returns the client ids of the group's connected members, sorted; an empty list if there are none."""
        what = f"members of group {group}"
        ext = {"consumerGroup": group}
        found: set[str] = set()
        for number in await self._known_groups():
            code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
            reply = await self._call_in(number, code, ext, what=what, accept=(0, 1))
            found.update(_decode(reply, _Members, what).consumerIdList if reply.code == 0 else ())
        return sorted(found)

    async def broker_groups(self, topic: str | None = None) -> list[int]:
        """Returns the numbers of the cluster's groups of brokers, ascending; a group may join at any time, so this asks
        a server. With `topic`, returns only the groups with queues of that topic. Raises NotFound if there is no such
        topic; a cluster of one group returns that group instead."""
        if topic is not None:
            return await self._groups_of(topic)
        accept = (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION)  # a refusal also carries the list of groups
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        reply = await self._call(code, {}, what="cluster info", accept=accept, any_group=True)
        self._view.groups.take(reply.ext.get(GROUPS_FIELD, ""), reply.ext.get(RETIRED_FIELD, ""))
        return self._view.groups.numbers()

    async def _known_groups(self) -> list[int]:
        """Returns what `broker_groups()` returns, but from an answer that may be some seconds old."""
        known = self._view.groups
        return known.numbers() if known.heard_within(ROUTE_LIFE_S) else await self.broker_groups()

    async def create_group(self, group: str) -> None:
        """Creates the consumer group with RocketMQ's defaults. A consumer that joins a group creates it too."""
        body = msgspec.json.encode(
            {
                "groupName": group,
                "consumeEnable": True,
                "consumeFromMinEnable": True,
                "consumeBroadcastEnable": True,
                "retryQueueNums": 1,
                "retryMaxTimes": 16,
                "brokerId": 0,
                "whichBrokerWhenConsumeSlowly": 1,
                "notifyConsumerIdsChangedEnable": True,
            }
        )
        await self._write(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, f"create group {group}", body)

    async def delete_group(self, group: str, *, clean_offsets: bool = True) -> None:
        """Deletes the group, and its committed offsets unless `clean_offsets` is False. Raises NotFound if there is no
        such group."""
        if group not in await self.groups():
            raise NotFound(f"delete group {group}: there is no such group")
        ext = {"groupName": group, "cleanOffset": "true" if clean_offsets else "false"}
        await self._write(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext, f"delete group {group}")

    async def offsets(self, group: str, topic: str) -> list[GroupOffset]:
        """Returns the group's committed offset in each queue of the topic, and in hidden ones that keep messages.
        Raises NotFound if there is no such topic."""
        found: list[GroupOffset] = []
        for number in await self._groups_of(topic):
            found += await self._offsets_in(number, group, topic)
        return found

    async def _offsets_in(self, number: int, group: str, topic: str) -> list[GroupOffset]:
        """Returns what `offsets` returns, for the queues in one group of brokers (`number`)."""
        try:
            config, stored = await self._config(topic, f"offsets of {group} in {topic}", number)
            readable = config.readQueueNums
        except Refused:  # a user who may only read the topic cannot ask for hidden queues
            parts = (await self._route(topic)).groups
            readable = stored = next((part.read for part in parts if part.group == number), 0)
        found = []
        for queue_id in range(number_of(number, 0), number_of(number, stored)):
            committed = await self.committed(group, topic, queue_id)  # read before max_offset, so never above it
            queue, _ = await self._queue(topic, queue_id)
            if queue_in_group(queue_id) < readable or queue.min_offset < queue.max_offset:
                found.append(GroupOffset(queue_id, committed, queue.min_offset, queue.max_offset))
        return found

    async def create_user(self, name: str, secret: str, *, is_super: bool = False) -> None:
        """Creates a user. Only a user of type Super may make this call and the other calls about users; for any other
        user they raise Denied."""
        body = {"username": name, "password": secret, "userType": "Super" if is_super else "Normal"}
        await self._write(
            RequestCode.AUTH_CREATE_USER, {"username": name}, f"create user {name}", msgspec.json.encode(body)
        )

    async def delete_user(self, name: str) -> None:
        """Deletes a user and its rules; the cluster ends the user's connections."""
        await self._write(RequestCode.AUTH_DELETE_USER, {"username": name}, f"delete user {name}")

    async def set_rule(
        self, user: str, resource: str, actions: Sequence[str], *, allow: bool = True, sources: Sequence[str] = ()
    ) -> None:
        """Sets a rule of the user: allows or denies the actions ("Pub", "Sub") on a resource: "Topic:orders",
        "Topic:orders*", "Group:*" or "*". Replaces the user's earlier rule for that resource."""
        entry = {"resource": resource, "actions": list(actions), "sourceIps": list(sources)}
        entry["decision"] = "Allow" if allow else "Deny"
        body = {"subject": f"User:{user}", "policies": [{"policyType": "Custom", "entries": [entry]}]}
        ext = {"subject": f"User:{user}"}
        await self._write(RequestCode.AUTH_CREATE_ACL, ext, f"set a rule of {user}", msgspec.json.encode(body))

    async def delete_rule(self, user: str, resource: str) -> None:
        """Deletes the user's rule for that resource."""
        ext = {"subject": f"User:{user}", "policyType": "Custom", "resource": resource}
        await self._write(RequestCode.AUTH_DELETE_ACL, ext, f"delete a rule of {user}")

    async def set_auth_mode(self, mode: str) -> None:
        """Sets the cluster's `auth.mode` to off, observe or enforce."""
        await self._write(RequestCode.SET_AUTH_MODE, {"mode": mode}, f"set auth.mode to {mode}")

    async def members(self, *, group: int = FIRST_GROUP) -> dict[str, str]:
        """Returns the nodes of a group of brokers as broker id -> "host:port"; "0" is the leader."""
        if group == FIRST_GROUP:
            return await self._members()
        return await (await self._view.groups.when_heard(group)).members(**self._limits)

    async def view_message(self, topic: str, position: int, *, group: int = FIRST_GROUP) -> Message:
        """Returns the message whose first byte is at `position` in the log of a group of brokers. If its body cannot be
        decompressed, `body` is as stored and `Message.undecoded` has the reason. Raises NotFound if no message of the
        topic is there."""
        what = f"message at position {position}"
        ext = {"topic": topic, "offset": str(position)}
        reply = await self._call_in(group, RequestCode.VIEW_MESSAGE_BY_ID, ext, what=what, accept=(0, 1))
        found = decode_messages(reply.body, first_queue=number_of(group, 0)) if reply.code == 0 else []
        if not found:
            raise NotFound(f"{what}: {reply.remark or 'there is none'}", code=reply.code)
        return found[0]

    async def query_messages(
        self,
        topic: str,
        key: str,
        *,
        unique: bool = False,
        begin_ms: int = 0,
        end_ms: int = _TIME_MAX,
        count_max: int = 32,
        as_stored: bool = False,
    ) -> FoundMessages:
        """Returns the newest messages that have `key` as their message id or as a word of their key, newest first; an
        empty list if there are none. `more` of the result is True if there may be other matches, because the answer
        reached `count_max` messages or some 8 MiB, or because a node could not read a message. A further query with an
        earlier `end_ms` finds older messages.

        With `unique`, `key` is compared with message ids only. `begin_ms` and `end_ms` (inclusive) bound the time of
        storing in log time. The server returns at most 64 messages. With `as_stored` no body is decompressed, and
        `Message.decoded` decompresses one. Raises NotFound if there is no such topic.
        """
        what = f"messages of {topic} with key {key}"
        ext = {
            "topic": topic,
            "key": key,
            "maxNum": str(count_max),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
        }
        if unique:
            ext["_UNIQUE_KEY_QUERY"] = "true"
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        found = FoundMessages()
        groups = await self._groups_of(topic)
        for group in groups:
            reply = await self._call_in(group, RequestCode.QUERY_MESSAGE, ext, what=what, accept=accept)
            if reply.code == ResponseCode.SUCCESS:
                found += decode_messages(reply.body, as_stored=as_stored, first_queue=number_of(group, 0))
                found.more = found.more or reply.ext.get(MORE_FIELD) == "true"
        if len(groups) > 1:
            found.sort(key=attrgetter("store_ms"), reverse=True)
            found.more = found.more or len(found) > count_max
            del found[count_max:]
        return found

    async def _call_in(
        self, group: int, code: int, ext: dict[str, str], *, what: str, accept: tuple[int, ...] = (0,)
    ) -> Reply:
        """Sends a request to the leader of a group of brokers."""
        view = await self._view.groups.when_heard(group)
        return await view.call(code, ext, what=what, accept=accept, **self._limits)

    async def _read(self, code: int, ext: dict[str, str], what: str) -> Reply:
        """Sends a request whose answer is the same in all groups of brokers; any group's leader may answer."""
        return await self._call(code, ext, what=what, any_group=True)

    async def _write(
        self, code: int, ext: dict[str, str], what: str, body: bytes = b"", *, view: ClusterView | None = None
    ) -> None:
        await (view or self._view).call(code, ext, body, what=what, writes=True, **self._limits)


class _Members(msgspec.Struct):
    consumerIdList: list[str] = []


def _decode(reply: Reply, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except msgspec.DecodeError as error:
        raise Failed(f"{what}: the answer is not understood: {error}") from error
