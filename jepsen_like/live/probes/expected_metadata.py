"""The expected topics, groups and offsets after all acknowledged changes, and their differences from the cluster's
answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from jepsen_like.checkers.history_steps import GroupQueue
from raftmq.client import AsyncClient
from raftmq.client.admin import AsyncAdmin
from raftmq_wire.codes import RequestCode

AT_ONCE = 16
"""The number of changes in flight at one time."""


class TopicSpec(NamedTuple):
    """The requested configuration of a topic."""

    queues: int
    perm: int
    attributes: dict[str, str]


class GroupSpec(NamedTuple):
    """The requested configuration of a consumer group: fields of SubscriptionGroupConfig."""

    retry_max_times: int
    consume_enable: bool
    consume_message_orderly: bool
    consume_broadcast_enable: bool


class MetadataAdmin(AsyncAdmin):
    """An AsyncAdmin that also sets fields of groups and reads all configurations at once."""

    async def put_group(self, name: str, spec: GroupSpec) -> None:
        """Creates or changes the group."""
        body = msgspec.json.encode(
            {
                "groupName": name,
                "consumeEnable": spec.consume_enable,
                "retryMaxTimes": spec.retry_max_times,
                "consumeMessageOrderly": spec.consume_message_orderly,
                "consumeBroadcastEnable": spec.consume_broadcast_enable,
            }
        )
        await self._write(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, f"put group {name}", body)

    async def drop_group(self, name: str) -> None:
        """Deletes the group and its offsets."""
        ext = {"groupName": name, "cleanOffset": "true"}
        await self._write(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext, f"delete group {name}")

    async def group_specs(self) -> dict[str, GroupSpec]:
        """Returns every group; the read is linearizable."""
        reply = await self._read(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, "list groups")
        table: dict[str, dict[str, Any]] = msgspec.json.decode(reply.body)["subscriptionGroupTable"]
        return {
            name: GroupSpec(
                group["retryMaxTimes"],
                group["consumeEnable"],
                group["consumeMessageOrderly"],
                group["consumeBroadcastEnable"],
            )
            for name, group in table.items()
        }


class ExpectedMetadata:
    """The state that results from the acknowledged changes. Only names that begin with `prefix` are compared."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.topics: dict[str, TopicSpec] = {}
        self.groups: dict[str, GroupSpec] = {}
        self.offsets: dict[GroupQueue, int] = {}

    async def put(
        self,
        client: AsyncClient,
        topics: dict[str, TopicSpec],
        groups: dict[str, GroupSpec],
        offsets: dict[GroupQueue, int],
    ) -> None:
        """Creates or changes these topics, groups and offsets; topics and groups before offsets. Raises RaftMQError."""
        admin = MetadataAdmin(client.view)
        topics = {name: self.merged(name, spec) for name, spec in topics.items()}
        await _all(
            admin.create_topic(name, spec.queues, spec.attributes, perm=spec.perm) for name, spec in topics.items()
        )
        await _all(admin.put_group(name, spec) for name, spec in groups.items())
        await _all(admin.commit(group, topic, queue, at) for (group, topic, queue), at in offsets.items())
        self.topics |= topics
        self.groups |= groups
        self.offsets |= offsets

    def merged(self, name: str, spec: TopicSpec) -> TopicSpec:
        """Returns the topic as it must be after `put` with `spec`. Attributes in `spec`, written "+name=value", are
        added to those that the topic has; the others stay.
        """
        old = self.topics.get(name)
        return spec if old is None else spec._replace(attributes=old.attributes | spec.attributes)

    async def drop(self, client: AsyncClient, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Deletes these topics and groups, with their offsets. Raises RaftMQError."""
        gone_topics, gone_groups = set(topics), set(groups)
        admin = MetadataAdmin(client.view)
        await _all(admin.delete_topic(name) for name in sorted(gone_topics))
        await _all(admin.drop_group(name) for name in sorted(gone_groups))
        self.forget(gone_topics, gone_groups)

    def forget(self, topics: set[str], groups: set[str]) -> None:
        """Forgets these topics and groups, with their offsets."""
        self.topics = {name: spec for name, spec in self.topics.items() if name not in topics}
        self.groups = {name: spec for name, spec in self.groups.items() if name not in groups}
        self.offsets = {
            place: at for place, at in self.offsets.items() if place[0] not in groups and place[1] not in topics
        }

    def topic_differences(self, shown: dict[str, Any], where: str) -> Iterator[str]:
        """Yields a line for each difference between the expected topics and `shown`, the answer to `GET /v1/topics`.
        `where` names the answering node in the lines.
        """
        found = {
            topic["name"]: TopicSpec(topic["write_queues"], topic["perm"], topic["attributes"])
            for topic in shown["topics"]
        }
        yield from self._differ("topic", self.topics, found, where)

    async def differences(self, client: AsyncClient) -> list[str]:
        """Returns the differences in groups and offsets from the leader's linearizable answers. Raises RaftMQError."""
        admin = MetadataAdmin(client.view)
        told = list(self._differ("group", self.groups, await admin.group_specs(), "the leader"))
        places = list(self.offsets)
        answers = await _all(admin.committed(*place) for place in places)
        told += [
            f"the offset of {group} in {topic}/{queue} is {answer} at the leader, {self.offsets[group, topic, queue]} "
            f"was acknowledged"
            for (group, topic, queue), answer in zip(places, answers, strict=True)
            if answer != self.offsets[group, topic, queue]
        ]
        return told

    def _differ(self, kind: str, wanted: dict[str, Any], found: dict[str, Any], where: str) -> Iterator[str]:
        for name in sorted(wanted.keys() | {name for name in found if name.startswith(self.prefix)}):
            if name not in found:
                yield f"{kind} {name} was acknowledged and is not there: {where}"
            elif name not in wanted:
                yield f"{kind} {name} was deleted and is there: {where}"
            elif wanted[name] != found[name]:
                yield f"{kind} {name} is {found[name]} and not {wanted[name]}: {where}"


async def _all(work: Iterable[Awaitable[Any]]) -> list[Any]:
    """Runs the coroutines, at most AT_ONCE at a time, and returns their results. If any failed, raises the first
    failure when all have ended.
    """
    room = asyncio.Semaphore(AT_ONCE)

    async def one(each: Awaitable[Any]) -> Any:
        async with room:
            return await each

    done = await asyncio.gather(*map(one, work), return_exceptions=True)
    for outcome in done:
        if isinstance(outcome, BaseException):
            raise outcome
    return done
