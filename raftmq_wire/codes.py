"""Request and response codes of the remoting protocol that RaftMQ speaks (RocketMQ: RequestCode, ResponseCode)."""

from __future__ import annotations

from enum import IntEnum

from raftmq_wire.request_codes import RequestCode as RequestCode


class ResponseCode(IntEnum):
    """The response codes of answers. docs/guarantees.md says which of them mean ok, fail and unknown."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    FLOW_CONTROL = 215
    ILLEGAL_OPERATION = 604


REFUSED_NAMES: dict[int, str] = {
    18: "UPDATE_AND_CREATE_TOPIC_LIST", 21: "GET_ALL_TOPIC_CONFIG", 25: "UPDATE_BROKER_CONFIG",
    43: "GET_ALL_CONSUMER_OFFSET", 45: "GET_ALL_DELAY_OFFSET",
    50: "UPDATE_AND_CREATE_ACL_CONFIG", 51: "DELETE_ACL_CONFIG", 52: "GET_BROKER_CLUSTER_ACL_INFO",
    53: "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG", 60: "GET_TIMER_CHECK_POINT", 61: "GET_TIMER_METRICS",
    103: "REGISTER_BROKER", 104: "UNREGISTER_BROKER",
    205: "WIPE_WRITE_PERM_OF_BROKER", 217: "REGISTER_TOPIC_IN_NAMESRV",
    223: "INVOKE_BROKER_TO_GET_CONSUMER_STATUS",
    225: "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST",
    303: "QUERY_CONSUME_TIME_SPAN", 305: "GET_SYSTEM_TOPIC_LIST_FROM_BROKER", 306: "CLEAN_EXPIRED_CONSUMEQUEUE",
    308: "QUERY_CORRECTION_OFFSET",
    311: "GET_UNIT_TOPIC_LIST", 312: "GET_HAS_UNIT_SUB_TOPIC_LIST", 313: "GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST",
    316: "CLEAN_UNUSED_TOPIC",
    317: "GET_BROKER_CONSUME_STATS", 318: "UPDATE_NAMESRV_CONFIG", 319: "GET_NAMESRV_CONFIG",
    321: "QUERY_CONSUME_QUEUE", 322: "QUERY_DATA_VERSION", 323: "RESUME_CHECK_HALF_MESSAGE",
    327: "ADD_WRITE_PERM_OF_BROKER",
    328: "GET_ALL_PRODUCER_INFO", 329: "DELETE_EXPIRED_COMMITLOG", 343: "QUERY_TOPICS_BY_CONSUMER",
    345: "QUERY_SUBSCRIPTION_BY_CONSUMER", 352: "GET_SUBSCRIPTIONGROUP_CONFIG", 353: "UPDATE_AND_GET_GROUP_FORBIDDEN",
    354: "CHECK_ROCKSDB_CQ_WRITE_PROGRESS", 355: "EXPORT_ROCKSDB_CONFIG_TO_JSON",
    401: "SET_MESSAGE_REQUEST_MODE", 402: "GET_ALL_MESSAGE_REQUEST_MODE",
    513: "UPDATE_AND_CREATE_STATIC_TOPIC", 901: "GET_BROKER_MEMBER_GROUP", 902: "ADD_BROKER", 903: "REMOVE_BROKER",
    904: "BROKER_HEARTBEAT", 906: "EXCHANGE_BROKER_HA_INFO",
    907: "GET_BROKER_HA_STATUS", 908: "RESET_MASTER_FLUSH_OFFSET",
    1001: "CONTROLLER_ALTER_SYNC_STATE_SET", 1002: "CONTROLLER_ELECT_MASTER", 1003: "CONTROLLER_REGISTER_BROKER",
    1004: "CONTROLLER_GET_REPLICA_INFO", 1005: "CONTROLLER_GET_METADATA_INFO", 1006: "CONTROLLER_GET_SYNC_STATE_DATA",
    1007: "GET_BROKER_EPOCH_CACHE", 1009: "UPDATE_CONTROLLER_CONFIG", 1010: "GET_CONTROLLER_CONFIG",
    1011: "CLEAN_BROKER_DATA", 1012: "CONTROLLER_GET_NEXT_BROKER_ID", 1013: "CONTROLLER_APPLY_BROKER_ID",
    2001: "UPDATE_COLD_DATA_FLOW_CTR_CONFIG", 2002: "REMOVE_COLD_DATA_FLOW_CTR_CONFIG",
    2003: "GET_COLD_DATA_FLOW_CTR_INFO", 2004: "SET_COMMITLOG_READ_MODE", 5001: "SWITCH_TIMER_ENGINE",
    200050: "POP_MESSAGE", 200051: "ACK_MESSAGE", 200052: "PEEK_MESSAGE",
    200053: "CHANGE_MESSAGE_INVISIBLETIME", 200054: "NOTIFICATION", 200055: "POLLING_INFO", 200056: "POP_ROLLBACK",
    200070: "POP_LITE_MESSAGE", 200071: "LITE_SUBSCRIPTION_CTL", 200072: "ACK_LITE_MESSAGE",
    200074: "GET_BROKER_LITE_INFO", 200075: "GET_PARENT_TOPIC_INFO", 200076: "GET_LITE_TOPIC_INFO",
    200077: "GET_LITE_CLIENT_INFO", 200078: "GET_LITE_GROUP_INFO", 200079: "TRIGGER_LITE_DISPATCH",
    200151: "BATCH_ACK_MESSAGE",
}  # fmt: skip
"""RocketMQ's names (4.9.8, 5.5.0) of the request codes for which RaftMQ has no handler. Log, metrics and remarks use
them."""

_BY_RETENTION = "what is old goes by itself: `raftmq retention` shows what and when"
_CONFIGURATION = "26 shows the configuration, `raftmq config set KEY VALUE` changes it"
_PROGRESS = "208 tells how far a group is"
_REPLICAS = "`raftmq status` shows the leader, and how far each node is"
_NO_COLD_LIMIT = "no limit is for reads of old messages: `raftmq config explain` lists the limits"
_DELAYED = "the metrics raftmq_delayed_messages and raftmq_delayed_lag_seconds tell what waits"
_NO_LITE = "there are no lite topics: use topics (17)"
_NO_ROCKSDB = "the nodes' rows are not RocketMQ's: `raftmq fsck DIR` checks those of a stopped node"
_NO_UNITS = "there are no units: 206 lists all topics"
_PULLS_ALONE = "consumers pull (11); there is no POP"

INSTEAD: dict[int, str] = {
    18: "17 makes or changes one topic",
    21: "206 lists topics, 351 describes one",
    25: _CONFIGURATION,
    43: _PROGRESS,
    45: "each node has all offsets in its own rows",
    50: "3001 makes a user, 3006 a rule (mqadmin 5: createUser, createAcl)",
    51: "3003 deletes a user, 3008 a rule (mqadmin 5: deleteUser, deleteAcl)",
    52: "3005 lists users, 3010 rules (mqadmin 5: listUser, listAcl)",
    53: "a rule says for which addresses it counts (3006, mqadmin 5: createAcl)",
    60: _DELAYED,
    61: _DELAYED,
    205: "`raftmq node drain` sends producers elsewhere",
    217: "17 makes a topic, on all nodes",
    223: "307 asks one consumer (mqadmin consumerStatus)",
    225: "200 changes one group",
    303: _PROGRESS,
    305: "304 lists the system's topics",
    306: _BY_RETENTION,
    308: _PROGRESS,
    311: _NO_UNITS,
    312: _NO_UNITS,
    313: _NO_UNITS,
    316: "215 deletes one topic (mqadmin deleteTopic)",
    317: _PROGRESS,
    318: _CONFIGURATION,
    319: _CONFIGURATION,
    321: "30 and 31 tell where a queue begins and ends, 11 reads it (mqadmin printMsgByQueue)",
    322: _REPLICAS,
    323: "`raftmq transactions list` shows what is open and when its producer is asked again",
    327: "`raftmq node drain --undo` sends producers back",
    328: "204 shows the producers of one group (mqadmin producerConnection)",
    329: _BY_RETENTION,
    343: _PROGRESS,
    345: "203 shows the subscriptions of a group (mqadmin consumerConnection)",
    352: "201 lists all groups",
    353: "a rule that denies Sub keeps a user from a topic (3006, mqadmin 5: createAcl)",
    354: _NO_ROCKSDB,
    355: _NO_ROCKSDB,
    401: _PULLS_ALONE,
    402: _PULLS_ALONE,
    513: "17 makes a topic; its queues are on all nodes, and stay when the leader changes",
    901: "106 lists the nodes",
    902: "`raftmq node add` adds a node",
    903: "`raftmq node remove NODE` removes a node",
    907: _REPLICAS,
    908: _REPLICAS,
    1002: "`raftmq node transfer NODE` makes a node lead",
    1005: _REPLICAS,
    1006: _REPLICAS,
    1007: _REPLICAS,
    1009: _CONFIGURATION,
    1010: _CONFIGURATION,
    1011: "`raftmq node remove NODE` removes a node",
    2001: _NO_COLD_LIMIT,
    2002: _NO_COLD_LIMIT,
    2003: _NO_COLD_LIMIT,
    2004: "each node decides by itself how it reads its log",
    5001: "there is one timer, and nothing to switch",
    200056: _PULLS_ALONE,
    200074: _NO_LITE,
    200075: _NO_LITE,
    200076: _NO_LITE,
    200077: _NO_LITE,
    200078: _NO_LITE,
    200079: _NO_LITE,
}
"""Request code -> advice for a person what to use instead. It has the codes that tools send: all of REFUSED_NAMES
except REPEATED."""

REPEATED: frozenset[int] = frozenset(
    {103, 104, 904, 906, 1001, 1003, 1004, 1012, 1013, 200050, 200051, 200052, 200053, 200054, 200055, 200070, 200071,
     200072, 200151}
)  # fmt: skip
"""The codes of REFUSED_NAMES that programs send again and again: brokers that register, and POP consumers. Tools send
the other codes, once for each thing that they print."""

UNKNOWN_REMARK = "[UNKNOWN]"
"""The prefix of the remark of a SYSTEM_ERROR reply to a write that was proposed and whose outcome is unknown."""

NOT_HIDING_FIELD = "raftmqNotHiding"
"""The ext field of request 17 (create or change a topic). With it, the node refuses a lower number of read queues if
messages that are not consumed would be hidden."""
MORE_FIELD = "raftmqMore"
"""The ext field of an answer to request 12 (query messages) that may lack messages, because the answer is full or some
messages could not be read."""
STORED_QUEUES_FIELD = "raftmqStoredQueues"
"""The ext field of a reply to request 351 (configuration of a topic). It has the number of queues that the topic has or
had, and is present only if some of them are hidden."""

GROUPS_FIELD = "raftmqGroups"
"""The ext field of replies to requests 105 (route of a topic) and 106 (brokers of the cluster), in a cluster of several
groups of brokers. It has number, "/" and name of each group, separated by blanks."""
RETIRED_FIELD = "raftmqRetiredGroups"
"""The ext field, in replies to requests 105 and 106, with the numbers of the groups of brokers that have retired."""


_NAMES = REFUSED_NAMES | {each.value: each.name for each in RequestCode}


def name_of_request(code: int) -> str:
    """Returns the name of a request for people, with its code; the code alone if it is not known."""
    name = _NAMES.get(code)
    return f"{name} ({code})" if name else f"code {code}"


def is_unknown(code: int, remark: str | None) -> bool:
    """Returns True if a reply says that the write was proposed and its outcome is unknown: its code is SYSTEM_ERROR and
    its remark begins with UNKNOWN_REMARK."""
    return code == ResponseCode.SYSTEM_ERROR and (remark or "").startswith(UNKNOWN_REMARK)
