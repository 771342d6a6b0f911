"""Defines the verbs that consumers use (offsets, heartbeats, queue locks), and those by which tools inspect and direct
consumers."""

from __future__ import annotations

from cluster.broker.rights import READ, UPDATE
from cluster.requests import answer_sizes
from cluster.requests.named_rights import (
    GET,
    ROUTE,
    WRITE,
    named,
    nothing,
    of_assignment,
    of_clone,
    of_heartbeat,
    of_locks,
    of_unregistering,
)
from cluster.requests.verb import Cost, Repeats, Serves, Stated, Verb

CONSUMING = (
    Verb(
        14,
        "QUERY_CONSUMER_OFFSET",
        named(topics="topic", groups="consumerGroup", on=READ),
        page="{fields} → `offset` and `raftmqTopicId`, or 22",
        fields="consumerGroup! topic! queueId! setZeroIfNotFound",
        serves=Serves.CONFIRMED,
        settles="consumerGroup",
        in_line=True,
        is_silent=True,
    ),
    Verb(
        15,
        "UPDATE_CONSUMER_OFFSET",
        named(topics="topic", groups="consumerGroup", on=WRITE),
        page=(
            "{fields} `raftmqPid raftmqSeq raftmqLow raftmqTopicId` → 0; 26 no group, 17 no topic. A node that "
            "forwards it adds `raftmqClients`, a JSON list of the group's consumers on that connection, in place of "
            "what the client wrote there; over a connection without heartbeats, a client may name itself"
        ),
        fields="consumerGroup! topic! queueId! commitOffset!",
        serves=Serves.LEADER,
        stated=Stated.CLIENTS,
        in_line=True,
        repeats=Repeats.ONE_TRY,
    ),
    Verb(
        29,
        "SEARCH_OFFSET_BY_TIMESTAMP",
        named(topics="topic", on=ROUTE),
        page="{fields} → `offset`; `raftmqTopicId`",
        fields="topic! queueId! timestamp! boundaryType",
        serves=Serves.CONFIRMED,
    ),
    Verb(
        30,
        "GET_MAX_OFFSET",
        named(topics="topic", on=ROUTE),
        page="{fields} → `offset`, the next to be written; `raftmqTopicId`, see below",
        fields="topic! queueId!",
        serves=Serves.CONFIRMED,
    ),
    Verb(
        31,
        "GET_MIN_OFFSET",
        named(topics="topic", on=ROUTE),
        page="{fields} → `offset`; `raftmqTopicId`",
        fields="topic! queueId!",
        serves=Serves.CONFIRMED,
    ),
    Verb(
        32,
        "GET_EARLIEST_MSG_STORETIME",
        named(topics="topic", on=ROUTE),
        page="{fields} → `timestamp`, -1 for an empty queue; `raftmqTopicId`",
        fields="topic! queueId!",
        serves=Serves.CONFIRMED,
    ),
    Verb(
        34,
        "HEART_BEAT",
        of_heartbeat,
        page='see "Membership"',
    ),
    Verb(
        35,
        "UNREGISTER_CLIENT",
        of_unregistering,
        page=(
            "{fields} → 0; on the leader it also ends the client's queue locks of the consumer group. Only the same "
            "user's client leaves"
        ),
        fields="clientID! producerGroup consumerGroup",
    ),
    Verb(
        38,
        "GET_CONSUMER_LIST_BY_GROUP",
        named(groups="consumerGroup", on=READ),
        page=(
            '{fields} → `{"consumerIdList":[...]}` sorted, and what each wants if the group is [divided by '
            "topic](#members-that-want-different-topics); 1 if no consumer is connected"
        ),
        fields="consumerGroup!",
        serves=Serves.CONFIRMED,
        answer_bytes=answer_sizes.CONSUMERS,
    ),
    Verb(
        41,
        "LOCK_BATCH_MQ",
        of_locks,
        page=(
            'body `{consumerGroup, clientId, mqSet: [{topic, brokerName, queueId}]}` → `{"lockOKMQSet": [...]}`, '
            "the queues that the client holds now, named as it named them; a lock lasts 60 s of log time. Only for a "
            "client that heartbeats over the same connection named for the group; in a connection's first 35 s it "
            "may renew without one what the client holds, by 35 s in all. From level 13 on a lock is of the client "
            "and its user. A node that forwards the request adds `raftmqStanding`: `member`, `new` or `stranger`"
        ),
        serves=Serves.LEADER,
        stated=Stated.STANDING,
    ),
    Verb(
        42,
        "UNLOCK_BATCH_MQ",
        of_locks,
        page="the same body → 0; other clients' locks stay, and those of a client that is connected elsewhere",
        serves=Serves.LEADER,
        stated=Stated.STANDING,
    ),
    Verb(
        46,
        "CHECK_CLIENT_CONFIG",
        nothing,
        page=(
            "body with `subscriptionData` → 0; 23 for an SQL92 expression that does not parse, with the position and "
            "the reason, or that may cost more than `limits.filter_units_max`; 1 for a type that is neither TAG nor "
            "SQL92"
        ),
    ),
    Verb(
        222,
        "INVOKE_BROKER_TO_RESET_OFFSET",
        named(topics="topic", groups="group", on=UPDATE),
        page='{fields} → `{"offsetTable":{queue: offset}}` with objects as keys; see "Consumer offsets"',
        fields="group! topic! timestamp! isForce queueId offset",
        is_administrative=True,
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
        cost=Cost.WRITES_MUCH,
    ),
    Verb(
        307,
        "GET_CONSUMER_RUNNING_INFO",
        named(groups="consumerGroup", on=GET),
        page="{fields} → the client's own answer; 1 if it is not connected to any node, or silent for 10 s",
        fields="consumerGroup! clientId! jstackEnable",
        asks_client=True,
    ),
    Verb(
        309,
        "CONSUME_MESSAGE_DIRECTLY",
        named(groups="consumerGroup", on=UPDATE),
        page="{fields} → the client's own answer; the message goes along as the body",
        fields="consumerGroup! clientId! msgId!",
        stored="Sub or Get on the topic of the message's row; Sub on it for the user of the client that gets it",
        is_administrative=True,
        asks_client=True,
    ),
    Verb(
        314,
        "CLONE_GROUP_OFFSET",
        of_clone,
        page="{fields} → 0; without `topic` all offsets of the group",
        fields="srcGroup! destGroup! topic",
        stored="without a topic: Update on each topic of which the group has offsets",
        is_administrative=True,
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
        cost=Cost.WRITES_MUCH,
    ),
    Verb(
        400,
        "QUERY_ASSIGNMENT",
        of_assignment,
        page=(
            "body `topic! consumerGroup! clientId strategyName messageModel` → the client's queues, each with mode "
            'PULL; see "Membership"'
        ),
        serves=Serves.CONFIRMED,
    ),
)
