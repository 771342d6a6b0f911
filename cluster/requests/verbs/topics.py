"""Defines the verbs about topics, groups and the cluster: routes, settings, lists and figures."""

from __future__ import annotations

from cluster.broker.rights import UPDATE
from cluster.requests import answer_sizes
from cluster.requests.named_rights import (
    DELETE,
    GET,
    LIST,
    PUT,
    ROUTE,
    named,
    nothing,
    of_counts,
    of_new_group,
    of_route,
    on_cluster,
)
from cluster.requests.verb import Cost, Repeats, Serves, Verb
from cluster.runtime.request_limits import GROUP_BODY_BYTES_MAX

TOPICS = (
    Verb(
        17,
        "UPDATE_AND_CREATE_TOPIC",
        named(topics="topic", on=PUT),
        page=(
            "{fields} `raftmqNotHiding` → 0; with `raftmqNotHiding=true` 604 if fewer read queues hide messages that "
            "are not consumed; see below"
        ),
        fields="topic! readQueueNums! writeQueueNums! perm! topicSysFlag order attributes",
        is_administrative=True,
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
    ),
    Verb(
        100,
        "PUT_KV_CONFIG",
        named(topics="key", on=UPDATE),
        page=(
            "{fields} → 0: the topic `key` has `order` from then on; 17 no topic. 29 for a namespace other than "
            "ORDER_TOPIC_CONFIG, for a broker that is not in the cluster, and for a number of queues other than the "
            "topic's"
        ),
        fields="namespace! key! value!",
        is_administrative=True,
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
    ),
    Verb(
        101,
        "GET_KV_CONFIG",
        named(topics="key", on=ROUTE),
        page=(
            "{fields} → `value`; only ORDER_TOPIC_CONFIG has rows: a topic with `order` and its `orderTopicConf`; "
            "else 22"
        ),
        fields="namespace! key!",
    ),
    Verb(
        102,
        "DELETE_KV_CONFIG",
        named(topics="key", on=UPDATE),
        page="{fields} → 0: the topic has no `order` from then on",
        fields="namespace! key!",
        is_administrative=True,
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
    ),
    Verb(
        105,
        "GET_ROUTEINFO_BY_TOPIC",
        of_route,
        page='{fields} → see "Routes"',
        fields="topic!",
        serves=Serves.IF_KNOWN,
        answer_bytes=answer_sizes.ROUTE,
    ),
    Verb(
        106,
        "GET_BROKER_CLUSTER_INFO",
        nothing,
        page='→ `{"brokerAddrTable":{...},"clusterAddrTable":{...}}`',
        answer_bytes=answer_sizes.ROUTE,
    ),
    Verb(
        200,
        "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP",
        of_new_group,
        page='body SubscriptionGroupConfig → 0; see "Settings of groups"',
        is_administrative=True,
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
        body_bytes_max=GROUP_BODY_BYTES_MAX,
    ),
    Verb(
        201,
        "GET_ALL_SUBSCRIPTIONGROUP_CONFIG",
        on_cluster(LIST),
        page="→ ext `totalGroupNum`, body with `subscriptionGroupTable`",
        serves=Serves.CONFIRMED,
        cost=Cost.READS_MUCH,
        answer_bytes=answer_sizes.group_settings,
    ),
    Verb(
        202,
        "GET_TOPIC_STATS_INFO",
        named(topics="topic", on=GET),
        page="{fields} → TopicStatsTable, at most 10,000 queues; `topicPutTps` is 0; 17 no topic",
        fields="topic!",
        serves=Serves.CONFIRMED,
        cost=Cost.READS_MUCH,
        answer_bytes=answer_sizes.queue_figures,
    ),
    Verb(
        203,
        "GET_CONSUMER_CONNECTION_LIST",
        named(groups="consumerGroup", on=GET),
        page="{fields} → ConsumerConnection; 206 if no consumer is connected",
        fields="consumerGroup!",
        cost=Cost.READS_MUCH,
        answer_bytes=answer_sizes.CONSUMERS,
    ),
    Verb(
        204,
        "GET_PRODUCER_CONNECTION_LIST",
        named(groups="producerGroup", on=GET),
        page="{fields} → ProducerConnection of the producers whose heartbeats come to this node; 1 if there is none",
        fields="producerGroup!",
        cost=Cost.READS_MUCH,
        answer_bytes=answer_sizes.CONSUMERS,
    ),
    Verb(
        206,
        "GET_ALL_TOPIC_LIST_FROM_NAMESERVER",
        on_cluster(LIST),
        page='→ `{"topicList":[...]}` sorted',
        cost=Cost.READS_MUCH,
        answer_bytes=answer_sizes.topic_names,
    ),
    Verb(
        207,
        "DELETE_SUBSCRIPTIONGROUP",
        named(groups="groupName", on=DELETE),
        page="{fields} → 0, even if the group does not exist",
        fields="groupName! cleanOffset",
        is_administrative=True,
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
    ),
    Verb(
        208,
        "GET_CONSUME_STATS",
        named(groups="consumerGroup", on=GET),
        page=(
            "{fields} → ConsumeStats of the topics for which the group has offsets or subscriptions, at most 10,000 "
            "queues; `consumeTps` is 0; 26 no group"
        ),
        fields="consumerGroup! topic",
        serves=Serves.CONFIRMED,
        settles="consumerGroup",
        cost=Cost.READS_MUCH,
        answer_bytes=answer_sizes.queue_figures,
    ),
    Verb(
        215,
        "DELETE_TOPIC_IN_BROKER",
        named(topics="topic", on=DELETE),
        page="{fields} → 0, even if the topic does not exist",
        fields="topic!",
        is_administrative=True,
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
    ),
    Verb(
        216,
        "DELETE_TOPIC_IN_NAMESRV",
        named(topics="topic", on=DELETE),
        page="→ 0: a topic's route is removed with the topic",
        fields="topic",
        is_administrative=True,
    ),
    Verb(
        219,
        "GET_KVLIST_BY_NAMESPACE",
        on_cluster(GET),
        page=(
            '{fields} → `{"table":{topic: orderTopicConf}}` of ORDER_TOPIC_CONFIG, 22 if no topic has `order`, or of '
            "another namespace"
        ),
        fields="namespace!",
        cost=Cost.READS_MUCH,
        answer_bytes=answer_sizes.topic_names,
    ),
    Verb(
        224,
        "GET_TOPICS_BY_CLUSTER",
        on_cluster(LIST),
        page="{fields} → topic list, empty for another cluster",
        fields="cluster!",
        cost=Cost.READS_MUCH,
        answer_bytes=answer_sizes.topic_names,
    ),
    Verb(
        26,
        "GET_BROKER_CONFIG",
        on_cluster(GET),
        page=(
            "→ `version`, and lines `name=value`: RocketMQ's names for what means the same here, then every key of "
            "the cluster ([configuration]) as it is in force on the node that is asked"
        ),
    ),
    Verb(
        28,
        "GET_BROKER_RUNTIME_INFO",
        on_cluster(GET),
        page=(
            '→ `{"table":{...}}` about the node that is asked: `putTps` and `getTransferredTps` (10 s, 1 min, 10 '
            "min; also spelt `getTransferedTps`, as 4.9 does), `brokerActive` (it leads and takes writes), "
            "`commitLogDiskRatio`, `timerCongestNum` (delayed messages that wait), `brokerVersionDesc`, "
            '`bootTimestamp`; "N" for queues of threads'
        ),
    ),
    Verb(
        300,
        "QUERY_TOPIC_CONSUME_BY_WHO",
        named(topics="topic", on=GET),
        page='{fields} → `{"groupList":[...]}` sorted; 17 no topic',
        fields="topic!",
        serves=Serves.CONFIRMED,
        cost=Cost.READS_MUCH,
        answer_bytes=answer_sizes.group_names,
    ),
    Verb(
        304,
        "GET_SYSTEM_TOPIC_LIST_FROM_NS",
        on_cluster(LIST),
        page="→ names that tools hide from their lists: RocketMQ's own, the cluster's name, every broker name",
    ),
    Verb(
        315,
        "VIEW_BROKER_STATS_DATA",
        of_counts,
        page=(
            "{fields} → BrokerStatsData, for `statsName` TOPIC_PUT_NUMS (the key is a topic) and QUEUE_PUT_NUMS "
            "(topic@queue): the messages that the queues got in the last minute, hour and day of log time, and have on "
            "this node's disk; `avgpt` is 0. 1 for other names and for what does not exist"
        ),
        fields="statsName! statsKey!",
        serves=Serves.LEADER,
        cost=Cost.READS_MUCH,
        answer_bytes=answer_sizes.COUNTS,
    ),
    Verb(
        351,
        "GET_TOPIC_CONFIG",
        named(topics="topic", on=GET),
        page="{fields} → TopicConfig, or 17; `raftmqTopicId`; `raftmqStoredQueues`, see below",
        fields="topic!",
        serves=Serves.IF_KNOWN,
        answer_bytes=answer_sizes.ROUTE,
    ),
)
