"""Maps options and columns of Spark's Kafka source and sink to ours.

An option that has the same name here has the same meaning, and is not in the tables. docs/concepts-kafka.md shows them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pyspark_raftmq.errors import write


class Instead(NamedTuple):
    """The advice for an option of Kafka's. `option`: our option to use instead; "" if there is none."""

    advice: str
    option: str = ""


_TLS = Instead(
    f"{write('tlsCa', '/etc/raftmq/ca.pem')}, a file in PEM form on the driver and each executor; nothing without TLS",
    "tlsCa",
)
_OWN_CERTIFICATE = Instead("write tlsCert and tlsKey, files in PEM form on the driver and each executor", "tlsCert")
_USER = Instead("write accessKey and secretKey, or userFile, a file with both", "userFile")
_SERVERS = Instead(write("servers", "127.0.0.1:9876;127.0.0.1:9877"), "servers")
_GROUP = Instead(f"{write('group', 'lake')}: the whole name of a group that shows the lag of a stream", "group")
_START = Instead(f"{write('startingOffsets', 'earliest')}, or latest", "startingOffsets")
_PROPERTIES = Instead("leave it out: the column properties is always there")
_RETRIES = Instead("leave it out: a task asks again for 30 s, and then goes on at the leader, or fails")
_DURABLE = Instead("leave it out: a write is on a majority of disks, once")
_WAIT = Instead(write("timeoutSeconds", "120"), "timeoutSeconds")
OPTIONS: dict[str, Instead] = {
    "kafka.bootstrap.servers": _SERVERS,
    "bootstrap.servers": _SERVERS,
    "kafka.group.id": _GROUP,
    "groupIdPrefix": _GROUP,
    "kafka.auto.offset.reset": _START,
    "kafka.enable.auto.commit": Instead("leave it out: the checkpoint of the query says where it is"),
    "startingOffsetsByTimestampStrategy": Instead("leave it out: a time after the last message is the queue's end"),
    "maxTriggerDelay": Instead("leave it out, and minOffsetsPerTrigger too if a batch must not wait long"),
    "includeHeaders": _PROPERTIES,
    "kafkaConsumer.pollTimeoutMs": _RETRIES,
    "fetchOffset.numRetries": _RETRIES,
    "fetchOffset.retryIntervalMs": _RETRIES,
    "kafka.isolation.level": Instead("leave it out: messages that are not committed are in no queue"),
    "kafka.max.poll.records": Instead(write("batchRows", "8192"), "batchRows"),
    "kafka.client.rack": Instead(f"leave it out: {write('readFrom', 'follower')} is the default"),
    "kafka.security.protocol": _TLS,
    "kafka.ssl.truststore.location": _TLS,
    "kafka.ssl.truststore.password": _TLS,
    "kafka.ssl.truststore.certificates": _TLS,
    "kafka.ssl.truststore.type": _TLS,
    "kafka.ssl.keystore.location": _OWN_CERTIFICATE,
    "kafka.ssl.keystore.password": _OWN_CERTIFICATE,
    "kafka.ssl.keystore.key": _OWN_CERTIFICATE,
    "kafka.ssl.keystore.certificate.chain": _OWN_CERTIFICATE,
    "kafka.ssl.keystore.type": _OWN_CERTIFICATE,
    "kafka.ssl.key.password": _OWN_CERTIFICATE,
    "kafka.sasl.mechanism": _USER,
    "kafka.sasl.jaas.config": _USER,
    "kafka.sasl.kerberos.service.name": _USER,
    "kafka.sasl.client.callback.handler.class": _USER,
    "kafka.sasl.login.callback.handler.class": _USER,
    "kafka.acks": _DURABLE,
    "kafka.retries": _DURABLE,
    "kafka.enable.idempotence": _DURABLE,
    "kafka.transactional.id": Instead(f"{write('writeId', 'orders-2026-11-22')} in a batch write", "writeId"),
    "kafka.delivery.timeout.ms": _WAIT,
    "kafka.request.timeout.ms": _WAIT,
    "kafka.batch.size": Instead(write("sliceRows", "1000"), "sliceRows"),
}
"""Options of Kafka's source and sink, as Spark's guide and Kafka's clients write them."""
_ANY = Instead('leave it out: it is a setting of Kafka\'s client; see the page "For users of Kafka" of the docs')
COLUMNS: dict[str, str] = {
    "key": "keys",
    "value": "body",
    "headers": "properties",
    "partition": "queue_id",
    "offset": "queue_offset",
    "timestamp": "store_time",
    "timestampType": "store_time",
}
"""Columns of Kafka's source and sink -> the column here."""
_BY_LOWER = {name.lower(): instead for name, instead in OPTIONS.items()}
_COLUMNS_BY_LOWER = {name.lower(): column for name, column in COLUMNS.items()}


def option_advice(name: str, known: Collection[str]) -> str:
    """Returns the advice on what to write instead of an option of Kafka's; "" if `name` is no such option. `known`: the
    options of this read or write."""
    lower = name.lower()
    instead = _BY_LOWER.get(lower, _ANY if lower.startswith("kafka.") else None)
    if instead is None:
        return ""
    return instead.advice if not instead.option or instead.option in known else "leave it out: it has no meaning here"


def column_advice(name: str, known: Collection[str]) -> str:
    """Returns the advice on what to write instead of a column of Kafka's; "" if `name` is no such column. `known`: the
    columns of this read or write."""
    column = _COLUMNS_BY_LOWER.get(name.lower(), "")
    if not column:
        return ""
    return f"write {column}, which is Kafka's {name}" if column in known else "leave it out: the cluster fills it"
