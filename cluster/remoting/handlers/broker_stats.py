"""Answers operators' tools about a broker: configuration (26), figures (28), offsets of a topic (202), producers (204),
messages of a topic in the last minute, hour and day (315).

Bodies are the JSON of RocketMQ's KVTable, TopicStatsTable (whose keys are objects), ProducerConnection and
BrokerStatsData. The rate of 202, topicPutTps, is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from cluster.broker.evicted.evicted_pulls import first_offset
from cluster.broker.groups.group_members import Members
from cluster.broker.name_rules import topic_named
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.broker.topic_counts import WINDOWS_MS, stored_lately
from cluster.config.cluster_keys import cluster_values
from cluster.config.config import Config
from cluster.remoting.answers import BodySteps, answer_in_steps, refusing, table_body
from cluster.remoting.handlers.group_stats import connection_row, in_order
from cluster.remoting.request import Handlers, Request, text
from cluster.runtime import metered_json
from cluster.runtime.host.versions import versions
from cluster.runtime.request_limits import ANSWER_QUEUES_MAX
from raftmq_wire.codec import VERSION_SENT
from raftmq_wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.broker.services import Services
    from cluster.runtime.clock import Clock
    from cluster.runtime.figures.counters import Rates


class NodeFigures:
    """Reads the figures of one node that RocketMQ's tools show. Event loop only."""

    def __init__(
        self, services: Services, clock: Clock, used_percent: Callable[[], float], rates: Rates, started_ms: int
    ) -> None:
        """`used_percent` returns the used share of the disk. `started_ms` is the node's start on the monotonic
        clock."""
        self._services = services
        self._clock = clock
        self._used_percent = used_percent
        self._rates = rates
        self._started_ms = started_ms

    def by_name(self) -> dict[str, str]:
        """Returns the figures that mqadmin's `clusterList` and `brokerStatus` show, by RocketMQ's names. "N" is, as in
        RocketMQ, the value of a figure that does not exist: here sends and pulls do not wait for threads, and nothing
        locks the page cache."""
        uptime_ms = self._services.monotonic_ms() - self._started_ms
        given = self._rates.given()
        rates = {
            "putTps": self._rates.taken(),
            "getTransferredTps": given,
            "getTransferedTps": given,
        }  # the last name is a misspelling of RocketMQ 4.9
        waits = [
            f"{pool}ThreadPoolQueue{what}" for pool in ("send", "pull", "ack") for what in ("Size", "HeadWaitTimeMills")
        ]
        return {
            "bootTimestamp": str(self._clock.wall_ms() - uptime_ms),
            "brokerActive": "true" if self._services.writes_open() else "false",
            "brokerVersion": str(VERSION_SENT),
            "brokerVersionDesc": f"RaftMQ {versions()['raftmq']}",
            "commitLogDiskRatio": f"{self._used_percent() / 100:.3f}",
            "pageCacheLockTimeMills": "N",
            "runtime": f"[ {uptime_ms // 1000} seconds ]",
            "timerCongestNum": str(self._services.state.timers.counts.pending),
            **{name: " ".join(f"{rate:.2f}" for rate in each) for name, each in rates.items()},
            **dict.fromkeys(waits, "N"),
        }


TOPIC_PUT_NUMS, QUEUE_PUT_NUMS = "TOPIC_PUT_NUMS", "QUEUE_PUT_NUMS"
"""RocketMQ's names of the counts that 315 can return here."""
QUEUE_DIGITS_MAX = 10
COUNT_FIELDS = ("statsMinute", "statsHour", "statsDay")
"""The fields of BrokerStatsData, for each of WINDOWS_MS."""

ReadFigures = Callable[[], Mapping[str, str]]
"""Returns the node's figures by RocketMQ's names."""

_encode = metered_json.encode


CONFIG_VERSION = '{"counter":1,"stateVersion":0,"timestamp":0}'
"""RocketMQ's DataVersion, which its tools require but do not evaluate."""


class BrokerFigures:
    """Handles the requests for configuration and figures (26, 28, 202, 204, 315)."""

    def __init__(self, services: Services, members: Members, figures: ReadFigures) -> None:
        self._services = services
        self._members = members
        self._figures = figures

    def codes(self) -> Handlers:
        """Returns request code -> its handler; 202 and 315 are answered by the leader only, the others by each node
        about itself."""
        return {
            RequestCode.GET_BROKER_CONFIG: self._config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime_info,
            RequestCode.GET_TOPIC_STATS_INFO: refusing(self._topic_stats),
            RequestCode.GET_PRODUCER_CONNECTION_LIST: refusing(self._producers),
            RequestCode.VIEW_BROKER_STATS_DATA: refusing(self._counts),
        }

    def _config(self, request: Request) -> None:
        request.reply(ResponseCode.SUCCESS, None, {"version": CONFIG_VERSION}, broker_settings(self._services.config))

    def _runtime_info(self, request: Request) -> None:
        request.reply(ResponseCode.SUCCESS, body=_encode({"table": dict(self._figures())}))

    def _topic_stats(self, request: Request) -> None:
        name = text(request, "topic")
        topic = topic_named(self._services.state, name)
        if topic.queues > ANSWER_QUEUES_MAX:
            raise Refused(Reason.ERROR, f"topic {name} has {topic.queues} queues, {ANSWER_QUEUES_MAX} fit one answer")
        queues, row = range(topic.queues), partial(self._row, name, topic.id)
        steps = table_body(b'{"offsetTable":{', queues, row, b'},"topicPutTps":0.0}')
        answer_in_steps(self._services, request, steps)

    def _row(self, topic: str, topic_id: int, queue_id: int) -> bytes:
        """Encodes one row of the table, `queue: offsets`."""
        state = self._services.state
        first, end = first_offset(state, topic_id, queue_id), state.max_offset(topic_id, queue_id)
        last = state.fetch(topic_id, queue_id, end - 1, 1) if first < end else []
        queue = {"brokerName": self._services.routes.group_of(topic).name, "queueId": queue_id, "topic": topic}
        offsets = {
            "lastUpdateTimestamp": last[0].store_time_ms if last else 0,
            "maxOffset": end,
            "minOffset": first,
        }
        return _encode(queue) + b":" + _encode(offsets)

    def _producers(self, request: Request) -> None:
        """Answers with the producers that send heartbeats to this node. A producer sends heartbeats to the brokers in
        its routes. Raises Refused if no producer of the group is connected."""
        group = text(request, "producerGroup")
        members = self._members.producers.get(group)
        if members is None:  # the same remark and code as RocketMQ's
            raise Refused(Reason.ERROR, f"the producer group[{group[:120]}] not exist")
        steps = table_body(b'{"connectionSet":[', in_order(members), connection_row, b"]}")
        answer_in_steps(self._services, request, steps)

    def _counts(self, request: Request) -> None:
        """Answers 315. Neither consumption by groups nor bytes are counted: raises Refused for them, which tools treat
        as 0."""
        name, key = text(request, "statsName"), text(request, "statsKey")
        topic, _, queue = key.partition("@")
        config = self._services.state.topics.get(topic)
        if config is None or name not in (TOPIC_PUT_NUMS, QUEUE_PUT_NUMS):
            raise _no_counts(name, key)
        queues = range(self._services.state.stored_queues(config))
        if name == QUEUE_PUT_NUMS:
            if len(queue) > QUEUE_DIGITS_MAX or not queue.isdecimal() or int(queue) not in queues:
                raise _no_counts(name, key)
            queues = range(int(queue), int(queue) + 1)
        elif queue:
            raise _no_counts(name, key)
        if len(queues) > ANSWER_QUEUES_MAX:
            raise Refused(Reason.ERROR, f"topic {topic} has {len(queues)} queues, {ANSWER_QUEUES_MAX} are counted")
        answer_in_steps(self._services, request, self._counted(config.id, queues))

    def _counted(self, topic_id: int, queues: range) -> BodySteps:
        """Makes the body of the answer: RocketMQ's BrokerStatsData with the messages of the topic, or of these
        queues."""
        until_ms = self._services.log_time_ms()
        counts = yield from stored_lately(self._services.state, topic_id, queues, until_ms)
        return _encode(
            {
                field: {"avgpt": 0.0, "sum": count, "tps": count * 1000 / window_ms}
                for field, count, window_ms in zip(COUNT_FIELDS, counts, WINDOWS_MS, strict=True)
            }
        )


def _no_counts(name: str, key: str) -> Refused:
    """Returns the refusal for a count that does not exist, with RocketMQ's code and remark."""
    return Refused(Reason.ERROR, f"The stats <{name[:120]}> <{key[:120]}> not exist")


# A broker's configuration as mqadmin shows it (26, getBrokerConfig and exportConfigs): lines `name=value`.
#
# It lists RocketMQ's names for settings that mean the same here, then every key of the cluster under its own name.
# Settings of one host (directories, the store's URL, addresses of peers) are not shown to clients. `raftmq config`
# changes the configuration; 25 is refused.

_Value = bool | int | str

ROCKETMQ_NAMES: Final[dict[str, Callable[[Config], _Value]]] = {
    "brokerClusterName": lambda config: config.cluster.name,
    "brokerName": lambda config: config.cluster.broker_name,
    "brokerRole": lambda config: config.modes.broker_role,
    "flushDiskType": lambda config: config.modes.flush_disk_type,
    "transientStorePoolEnable": lambda config: config.modes.transient_store_pool_enable,
    "slaveReadEnable": lambda config: config.modes.slave_read_enable,
    "accessMessageInMemoryMaxRatio": lambda config: config.modes.access_message_in_memory_max_ratio,
    "fileReservedTime": lambda config: config.retention.hours,
    "deleteWhen": lambda config: config.retention.delete_when,
    "diskMaxUsedSpaceRatio": lambda config: config.retention.disk_max_used_percent,
    "diskSpaceWarningLevelRatio": lambda config: config.retention.disk_refuse_writes_percent,
    "diskSpaceCleanForciblyRatio": lambda config: config.retention.disk_force_clean_percent,
    "maxTopicLength": lambda config: config.limits.topic_length_max,
    "messageIndexEnable": lambda config: config.index.enabled,
    "transactionTimeOut": lambda config: config.transaction.timeout_ms,
    "transactionCheckInterval": lambda config: config.transaction.check_interval_ms,
    "mappedFileSizeCommitLog": lambda config: config.log.segment_size_bytes,
    "autoCreateTopicEnable": lambda config: config.topics.auto_create,
    "maxMessageSize": lambda config: config.limits.message_bytes_max,
    "messageDelayLevel": lambda config: config.timer.delay_levels,
    # As in RocketMQ, this is how the broker itself connects to others: over TLS if tls.server.mode is enforcing.
    "useTLS": lambda config: {config.tls_mode(each.tls) for each in config.listeners} == {"enforcing"},
    # These settings cannot be changed. They are listed because exportConfigs of RocketMQ 4.9.8 fails if one of them is
    # missing.
    "autoCreateSubscriptionGroup": lambda config: True,
    "brokerId": lambda config: 0,
    "filterServerNums": lambda config: 0,
    "msgTraceTopicName": lambda config: "RMQ_SYS_TRACE_TOPIC",
    "traceOn": lambda config: True,
    "traceTopicEnable": lambda config: False,
}


def broker_settings(config: Config) -> bytes:
    """Returns the body of the answer to 26: the configuration as lines `name=value`."""
    told: dict[str, _Value] = {name: value(config) for name, value in ROCKETMQ_NAMES.items()}
    told |= cluster_values(config)
    return "".join(f"{name}={_text(value)}\n" for name, value in told.items()).encode()


def _text(value: _Value) -> str:
    """Formats a value as Java's Properties reads it: one line, a backslash doubled."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
