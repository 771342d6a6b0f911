"""Request and response codes of the remoting protocol that RaftMQ speaks (RocketMQ: RequestCode, ResponseCode)."""

from __future__ import annotations

from enum import IntEnum

from raftmq_wire.request_codes import RequestCode as RequestCode


class ResponseCode(IntEnum):
    """The codes of answers; docs/guarantees.md says which of them mean ok, fail and unknown."""

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
    401: "SET_MESSAGE_REQUEST_MODE", 402: "GET_ALL_MESSAGE_REQUEST_MODE",
    513: "UPDATE_AND_CREATE_STATIC_TOPIC", 901: "GET_BROKER_MEMBER_GROUP", 904: "BROKER_HEARTBEAT",
    907: "GET_BROKER_HA_STATUS", 908: "RESET_MASTER_FLUSH_OFFSET", 1005: "CONTROLLER_GET_SYNC_STATE_DATA",
    1007: "GET_BROKER_EPOCH_CACHE", 2001: "UPDATE_COLD_DATA_FLOW_CTR_CONFIG",
    2002: "REMOVE_COLD_DATA_FLOW_CTR_CONFIG", 2003: "GET_COLD_DATA_FLOW_CTR_INFO", 2004: "SET_COMMITLOG_READ_MODE",
    200050: "POP_MESSAGE", 200051: "ACK_MESSAGE", 200052: "PEEK_MESSAGE",
    200053: "CHANGE_MESSAGE_INVISIBLETIME", 200054: "NOTIFICATION", 200055: "POLLING_INFO", 200056: "POP_ROLLBACK",
    200151: "BATCH_ACK_MESSAGE",
}  # fmt: skip
"""RocketMQ's names of codes that RaftMQ has no handler for, used in log, metrics and remarks."""

INSTEAD: dict[int, str] = {
    18: "206 lists topics, 351 describes one",
    21: "206 lists topics, 351 describes one",
    25: "26 shows the configuration, `raftmq config set KEY VALUE` changes it",
    43: "208 tells how far a group is",
    205: "`raftmq node drain` sends producers elsewhere",
    223: "307 asks one consumer (mqadmin consumerStatus)",
    225: "200 changes one group",
    317: "208 tells how far a group is",
    327: "`raftmq node drain --undo` sends producers back",
    352: "201 lists all groups",
}
"""Advice for some codes of REFUSED_NAMES: what a client should use instead, in words."""

REPEATED: frozenset[int] = frozenset(
    {103, 104, 904, 200050, 200051, 200052, 200053, 200054, 200055, 200151}
)  # fmt: skip
"""The codes of REFUSED_NAMES that programs ask for again and again: brokers that register, and POP consumers. The
others are those of tools, which ask once for each thing that they print."""

UNKNOWN_REMARK = "[UNKNOWN]"
"""The prefix of the remark of a SYSTEM_ERROR reply whose write was proposed, with an outcome that is not known."""

NOT_HIDING_FIELD = "raftmqNotHiding"
"""The ext field of request 17 that asks to refuse fewer read queues if they hide messages that are not consumed."""
MORE_FIELD = "raftmqMore"
"""The ext field of an answer to 12 that may lack messages: it is full, or some could not be read."""
STORED_QUEUES_FIELD = "raftmqStoredQueues"
"""The ext field of the reply to 351 with the number of queues that the topic has or had, if some of them are hidden."""


_NAMES = REFUSED_NAMES | {each.value: each.name for each in RequestCode}


def name_of_request(code: int) -> str:
    """Returns the name of a request for people, with its code; the code alone if it is not known."""
    name = _NAMES.get(code)
    return f"{name} ({code})" if name else f"code {code}"
