"""Handles the requests of a name server: for routes of topics, and for lists of topics (codes 105, 106, 101, 206, 216,
219, 224, 304, 351).

Every node answers from its own applied state. Before it answers that a topic is unknown, it confirms with the leader
(ReadIndex) that its state is current. So a topic is visible on every node as soon as the request that created it was
answered. `cluster.placement.route_map` has the names and addresses of brokers; which client may see the aliases is
decided here (docs/adr/0010-broker-names.md). JSON is compact and in key order, because the Go client splits it as text.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from cluster.broker.groups.route_refresh import V4_0_0, EarlyRoutes
from cluster.broker.name_rules import (
    AUTO_CREATE_NAMES,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_TOPICS,
    no_topic,
)
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.broker.topics import place_of, placed_queues
from cluster.remoting.answers import NAMES_PER_STEP, BodySteps, answer_in_steps, names_body, refuse, refusing
from cluster.remoting.request import Connection, Handlers, Request, text
from cluster.runtime import metered_json
from raftlog.work import charge
from raftmq_wire.codes import GROUPS_FIELD, RETIRED_FIELD, STORED_QUEUES_FIELD, RequestCode, ResponseCode
from statemachine.cluster_wide.broker_groups import active_groups, is_inactive

if TYPE_CHECKING:
    from cluster.placement.route_map import BrokerData, BrokerGroup
    from statemachine.topics.topics import TopicConfig

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""RocketMQ's namespace of the key-value table for `orderTopicConf`."""
CLUSTERS_FIELD = "raftmqClusters"
"""Name of an ext field of the reply to 106, which RocketMQ's clients ignore."""
CPP = "CPP"
JAVA = "JAVA"
HOLD_MS = 50
"""Milliseconds by which the first route on a connection of a C++ client is delayed. 10 ms after its start the client's
heartbeat connects to every node that it knows by then, under a lock; a send that finds the lock taken fails at once,
and so do its retries."""

_encode = metered_json.encode
_name = attrgetter("name")


class Routes:
    """Answers route requests. `cluster.placement.route_map` says which brokers there are."""

    def __init__(self, services: Services, early: EarlyRoutes) -> None:
        self._services = services
        self._map = services.routes
        self._early = early
        self._held: set[Connection] = set()
        """Open connections of C++ clients whose first route was delayed."""
        self._tools: set[Connection] = set()
        """Open connections of Java tools: they have asked for the brokers or the topics of the cluster (106, 206)."""
        self._informed: set[Connection] = set()
        """Open connections that have asked for the brokers of the cluster (106)."""
        self._shown: set[Connection] = set()
        """Open connections of Java clients that were shown aliases in a route."""

    def codes(self) -> Handlers:
        """Returns request code -> its handler; none of these is forwarded."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: refusing(self._route),
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topic_list,
            RequestCode.GET_TOPICS_BY_CLUSTER: refusing(self._topics_by_cluster),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_KV_CONFIG: refusing(self._kv_config),
            RequestCode.GET_KVLIST_BY_NAMESPACE: refusing(self._kv_list),
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._succeed,
            RequestCode.GET_TOPIC_CONFIG: refusing(self._topic_config),
        }

    def _aliases(self, group: BrokerGroup, request: Request) -> list[BrokerData]:
        """Returns the group's aliases; [] for a client that must not see them (`_repeats_safely`)."""
        return group.aliases(request.connection.listener) if _repeats_safely(request) else []

    def _route(self, request: Request) -> None:
        topic = text(request, "topic")

        def answer() -> None:
            self._answer_about(
                request, topic, lambda: self._route_body(topic, request), lambda: self._numbers() or None
            )

        if request.language == CPP and self._map.group_of(topic).has_aliases and _note(request.connection, self._held):
            self._services.call_later(HOLD_MS, answer)
        else:
            answer()

    def _numbers(self) -> dict[str, str]:
        """Returns the ext field with the groups' numbers, for example "1/raftmq 2/raftmq-g02" (absent if there is one
        group), and the one with the numbers of the retired groups."""
        numbers, rows = self._map.numbers(), self._services.state.broker_groups.by_number
        told = {GROUPS_FIELD: " ".join(f"{number}/{name}" for name, number in numbers.items())} if numbers else {}
        if retired := [str(number) for number, row in rows.items() if row.is_retired]:
            told[RETIRED_FIELD] = " ".join(retired)
        return told

    def _topic_config(self, request: Request) -> None:
        topic = text(request, "topic")
        self._answer_about(request, topic, lambda: self._topic_config_body(topic), lambda: self._about(topic))

    def _about(self, topic: str) -> dict[str, str]:
        """Returns ext fields with what RocketMQ's TopicConfig has no field for: the topic's identity, and, if some
        queues are hidden, their total number."""
        state, identity = self._services.state, self._services.topic_identity(topic)
        config = state.topics.get(topic)
        stored = 0 if config is None else state.stored_queues(config)
        if config is None or stored <= config.queues:
            return identity
        return {**identity, STORED_QUEUES_FIELD: str(stored)}

    def _answer_about(
        self,
        request: Request,
        topic: str,
        body_of: Callable[[], bytes | None],
        ext_of: Callable[[], dict[str, str] | None] = lambda: None,
    ) -> None:
        """Answers with the body that `body_of` makes for the topic. If there is none, confirms with the leader that
        this node's state is current before it answers that the topic is unknown."""

        def is_answered() -> bool:
            try:
                body = body_of()
            except Refused as refused:
                refuse(request, refused)
                return True
            if body is not None:
                request.reply(ResponseCode.SUCCESS, ext=ext_of(), body=body)
            return body is not None

        if is_answered():
            return

        def confirmed(ok: bool) -> None:
            if is_answered():
                return
            if ok:
                request.reply(ResponseCode.TOPIC_NOT_EXIST, no_topic(topic).remark)
            else:  # code 17 would make a producer create a topic that may exist
                remark = f"no leader can confirm now whether topic {topic} exists; try again"
                request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark)

        self._services.read_index(confirmed)

    def _route_body(self, topic: str, request: Request) -> bytes | None:
        held = self._queue_data(topic)
        if not held:
            return None
        aliases: list[BrokerData] = []
        readers: list[BrokerData] = []
        rows: list[dict[str, Any]] = []
        order: list[str] = []
        for group, queues in held:
            # A tool asks each broker name of a route for its figures and adds them up, so it must not see aliases.
            is_written = queues["perm"] & PERM_WRITE and request.connection not in self._tools
            further = self._aliases(group, request) if is_written else []
            names = [alias.name for alias in further]
            aliases += further
            readers.append(group.readers(request.connection.listener))
            rows += _split_by_name(topic, queues, names)
            order += _ordered(names or [group.name], queues["writeQueueNums"])
        if aliases and request.language == JAVA:
            _note(request.connection, self._shown)
        config = self._services.state.topics.get(topic)
        withheld = config is not None and self._is_withheld(request, config)
        # Aliases come first: `mqadmin updateTopicPerm -b ADDRESS` compares with the permission of the first name that
        # has this address, and the group's own name has no write permission. A client that has asked for the table of
        # brokers gets the groups' names first, because it looks them up in the table.
        brokers = [*readers, *aliases] if request.connection in self._informed else [*aliases, *readers]
        shown = [] if withheld else [_broker_fields(data) for data in brokers]
        body: dict[str, Any] = {"brokerDatas": shown, "filterServerTable": {}}
        if config is not None and config.order:
            body["orderTopicConf"] = ";".join(order)
        body["queueDatas"] = rows
        return _encode(body)

    def _is_withheld(self, request: Request, config: TopicConfig) -> bool:
        group = config.name.removeprefix(RETRY_PREFIX)
        listener = request.connection.listener
        if group == config.name or not self._map.group_of(config.name).has_choice(listener):
            return False
        return self._early.withholds(request.connection, group, config)

    def _topic_config_body(self, topic: str) -> bytes | None:
        config = self._services.state.topics.get(topic)
        return None if config is None else encode_topic_config(config)

    def _queue_data(self, topic: str) -> list[tuple[BrokerGroup, dict[str, Any]]]:
        """Returns the groups of a topic with its queues there; none if there is no such topic. Raises Refused if this
        node does not know the addresses of one of them: with a route of fewer queues, keys would move to other
        queues."""
        group, topics = self._map.group_of(topic), self._services.config.topics
        # Applies even if a topic of this name exists: in an earlier release an operator could create one.
        if topic in AUTO_CREATE_NAMES and topics.auto_create:
            perm = PERM_READ | PERM_WRITE | PERM_INHERIT
            group = self._group_of_new()
            return [(group, _queue_data(group.name, perm, topics.default_queues, topics.default_queues, 0))]
        config = self._services.state.topics.get(topic)
        if config is not None:
            placed = placed_queues(self._services, config)
            return [
                (
                    each,
                    _queue_data(each.name, config.perm & (-1 if write else ~PERM_WRITE), read, write, config.sys_flag),
                )
                for each, (read, write) in placed
            ]
        # Replies are pushed and not stored, so this topic has no queues.
        if topic == self._services.config.cluster.name + REPLY_SUFFIX:
            return [(group, _queue_data(group.name, PERM_READ | PERM_WRITE, 1, 1, 0))]
        return []

    def _group_of_new(self) -> BrokerGroup:
        """Returns the group in which a first send makes its topic. It is this node's group. If this group drains or has
        retired, it is the active group with the lowest number whose addresses this node knows, or else this node's."""
        groups, own = self._services.state.broker_groups, self._map.own
        if not is_inactive(groups.by_number, groups.own):
            return own
        placed = (self._map.placed({number: (1, 1)}) for number in sorted(active_groups(groups.by_number)))
        return next((group for found in placed if found for group, _ in found), own)

    def _cluster_info(self, request: Request) -> None:
        """Answers 106. Java's tools look up the broker names of a route in this table, so it contains the aliases if a
        route has shown them; tools that print the table do not ask for a route before. The cluster lists one broker for
        each group, so tools that add up brokers count the group once."""
        cluster, connection = self._services.config.cluster, request.connection
        _note(connection, self._informed)
        self._note_tool(request)
        own, *others = known = self._map.groups()
        named = [group.brokers(connection.listener) for group in others]
        # Another group may have no listener with that name, so it has no address for this client.
        groups = [own.brokers(connection.listener), *(group for group in named if group.addresses)]
        groups.sort(key=_name)
        brokers = [*groups]
        if connection in self._shown:
            brokers += [alias for group in known for alias in self._aliases(group, request)]
        body = {
            "brokerAddrTable": {broker.name: _broker_fields(broker) for broker in sorted(brokers, key=_name)},
            "clusterAddrTable": {cluster.name: [group.name for group in groups]},
        }
        ext = {CLUSTERS_FIELD: " ".join(self._services.cluster_uuids()), **self._numbers()}
        request.reply(ResponseCode.SUCCESS, ext=ext, body=_encode(body))

    def _topic_list(self, request: Request) -> None:
        self._note_tool(request)
        self._all_topics(request)

    def _note_tool(self, request: Request) -> None:
        if request.language == JAVA:
            _note(request.connection, self._tools)

    def _all_topics(self, request: Request) -> None:
        answer_in_steps(self._services, request, names_body(b"topicList", self._services.state.topics))

    def _topics_by_cluster(self, request: Request) -> None:
        if text(request, "cluster") == self._services.config.cluster.name:
            self._all_topics(request)
        else:
            _reply_topics(request, [])

    def _system_topics(self, request: Request) -> None:
        """Answers 304 with the system topics, the name of the cluster and the names of the brokers, because RocketMQ
        has a topic of each of these names."""
        cluster, listener = self._services.config.cluster, request.connection.listener
        brokers = [name for group in self._map.groups() for name in group.names(listener)]
        _reply_topics(request, [*{*SYSTEM_TOPICS, cluster.name, *brokers}])

    def _kv_config(self, request: Request) -> None:
        """Answers 101. The only rows of the key-value table are order configurations, which are derived from the
        topics."""
        namespace, key = text(request, "namespace"), text(request, "key")
        config = self._services.state.topics.get(key) if namespace == ORDER_TOPIC_CONFIG else None
        if config is None or not config.order:
            request.reply(ResponseCode.QUERY_NOT_FOUND, "the name server's key-value table has no such row")
        else:
            value = self._order_conf(config, self._alias_names(request))
            request.reply(ResponseCode.SUCCESS, None, {"value": value})

    def _kv_list(self, request: Request) -> None:
        if text(request, "namespace") != ORDER_TOPIC_CONFIG:
            raise _no_namespace()
        answer_in_steps(self._services, request, self._order_confs(self._alias_names(request)))

    def _order_confs(self, names: dict[str, list[str]]) -> BodySteps:
        """Makes the table of topic -> its `orderTopicConf`, for the topics that have one. Raises Refused if none has
        one."""
        table: dict[str, str] = {}
        for at, (name, config) in enumerate(self._services.state.topics.items()):
            if at % NAMES_PER_STEP == 0:
                yield
                charge(NAMES_PER_STEP)
            if config.order:
                table[name] = self._order_conf(config, names)
        if not table:
            raise _no_namespace()
        return _encode({"table": table})

    def _alias_names(self, request: Request) -> dict[str, list[str]]:
        """Returns broker name of each group -> its aliases."""
        return {group.name: [each.name for each in self._aliases(group, request)] for group in self._map.groups()}

    def _order_conf(self, config: TopicConfig, names: dict[str, list[str]]) -> str:
        placed = self._map.placed(place_of(self._services, config)) or []
        parts = [
            _ordered((names[group.name] if config.perm & PERM_WRITE else []) or [group.name], queues[1])
            for group, queues in placed
        ]
        return ";".join(part for each in parts for part in each)

    def _succeed(self, request: Request) -> None:
        """Answers 216 with success. A topic's route is deleted with the topic (215), so there is nothing to do."""
        request.reply(ResponseCode.SUCCESS)


def _note(connection: Connection, noted: set[Connection]) -> bool:
    """Adds a connection to `noted` until it closes; returns True if it was not there yet."""
    if connection in noted:
        return False
    noted.add(connection)
    connection.on_close.append(lambda: noted.discard(connection))
    return True


def encode_topic_config(config: TopicConfig) -> bytes:
    """Encodes a topic as the TopicConfig JSON of RocketMQ."""
    return _encode(topic_config_fields(config))


def topic_config_fields(config: TopicConfig) -> dict[str, Any]:
    """Returns the fields of TopicConfig JSON, in key order."""
    return {
        "attributes": dict(sorted(config.attributes.items())),
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": config.name,
        "topicSysFlag": config.sys_flag,
        "writeQueueNums": config.write_queues,
    }


def _broker_fields(data: BrokerData) -> dict[str, Any]:
    """Returns the fields of BrokerData JSON, in key order."""
    return {
        "brokerAddrs": data.addresses,
        "brokerName": data.name,
        "cluster": data.cluster,
        "enableActingMaster": False,
    }


def _queue_data(name: str, perm: int, read_queues: int, write_queues: int, sys_flag: int) -> dict[str, Any]:
    return {
        "brokerName": name,
        "perm": perm,
        "readQueueNums": read_queues,
        "topicSysFlag": sys_flag,
        "writeQueueNums": write_queues,
    }


def _repeats_safely(request: Request) -> bool:
    """Returns False for clients that must not see several broker names (docs/adr/0010-broker-names.md).

    Node.js (ali-ons), which calls itself a Java client of version 121, compresses a message again for each repetition
    and marks it as compressed once, so that it cannot be read. C++ reports a still older version, and repeats sends
    correctly.
    """
    return request.language == CPP or request.version >= V4_0_0


def _split_by_name(topic: str, queues: dict[str, Any], aliases: list[str]) -> list[dict[str, Any]]:
    """Returns the group's queues for readers, then the same ones for writers under each alias; unchanged without
    aliases.

    An alias has no queue to read; its permission is the topic's, for tools that compare with it. It has all write
    queues: a client's selector takes `hash % (aliases * queues)`, which is queue `hash % queues` under each of them, so
    a key keeps its queue when the leader or the number of nodes changes.
    """
    if not aliases:
        return [queues]
    perm = queues["perm"]
    # Clients take the queue count of a topic yet to be made from the read queues of this one.
    made_from = topic in AUTO_CREATE_NAMES
    alias = {**queues, **({"perm": perm & ~PERM_READ} if made_from else {"readQueueNums": 0})}
    return [{**queues, "perm": perm & ~PERM_WRITE}, *({**alias, "brokerName": name} for name in aliases)]


def _ordered(names: list[str], queues: int) -> list[str]:
    """Returns the parts `name:queues` of an `orderTopicConf`: the queues that producers of an ordered topic use, in
    their order, for all brokers, reachable or not. They are the same as in the route, so that a key keeps its queue
    when `order` is set."""
    return [f"{name}:{queues}" for name in names] if queues else []


def _no_namespace() -> Refused:
    return Refused(Reason.NOT_FOUND, "the name server's key-value table has no such namespace")


def _reply_topics(request: Request, topics: list[str]) -> None:
    request.reply(ResponseCode.SUCCESS, body=_encode({"topicList": sorted(topics)}))
