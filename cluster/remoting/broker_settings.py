"""A broker's configuration as mqadmin shows it (26, getBrokerConfig and exportConfigs): lines `name=value`.

First RocketMQ's names for what means the same here, then every key of the cluster under its own name. What belongs to
one host (directories, the store's URL, addresses of peers) is not told to clients. `raftmq config` changes it; 25 is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cluster.config.cluster_keys import cluster_values
from cluster.config.config import Config

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
    # Nobody can change these here. exportConfigs of 4.9.8 fails where one of them is missing.
    "autoCreateSubscriptionGroup": lambda config: True,
    "brokerId": lambda config: 0,
    "filterServerNums": lambda config: 0,
    "msgTraceTopicName": lambda config: "RMQ_SYS_TRACE_TOPIC",
    "traceOn": lambda config: True,
    "traceTopicEnable": lambda config: False,
    "useTLS": lambda config: False,
}


def broker_settings(config: Config) -> bytes:
    """The body of the answer."""
    told: dict[str, _Value] = {name: value(config) for name, value in ROCKETMQ_NAMES.items()}
    told |= cluster_values(config)
    return "".join(f"{name}={_text(value)}\n" for name, value in told.items()).encode()


def _text(value: _Value) -> str:
    """As Java's Properties reads it: one line, a backslash doubled."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
