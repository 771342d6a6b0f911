"""The systems by name. Each function makes a system, given the places of its nodes (`bench.peers.system.HERE` if all
are on loopback)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench.peers import fetch
from bench.peers.etcd import Etcd
from bench.peers.nats import Nats
from bench.peers.pysyncobj import PySyncObj
from bench.peers.raftmq import THRIFTY, RaftMQ
from bench.peers.rocketmq import TUNED, DLedger
from bench.peers.system import Places, System

CUTTABLE: dict[str, Callable[[Places], System]] = {
    "raftmq": partial(RaftMQ, "raftmq", ""),
    "raftmq-thrifty": partial(RaftMQ, "raftmq-thrifty", THRIFTY),
    "dledger": partial(DLedger, "dledger", {}),
    "dledger-tuned": partial(DLedger, "dledger-tuned", TUNED),
    "dledger-5.5": partial(DLedger, "dledger-5.5", TUNED, release=fetch.ROCKETMQ_5),
    "etcd": partial(Etcd, "etcd", fetch.ETCD),
    "etcd-3.4": partial(Etcd, "etcd-3.4", fetch.ETCD_3_4),
}
"""The systems whose nodes can run in networks of their own."""
LOCAL: dict[str, Callable[[], System]] = {
    "nats": partial(Nats, "nats", fetch.NATS, syncs=True),
    "nats-lazy": partial(Nats, "nats-lazy", fetch.NATS),
    "pysyncobj": PySyncObj,
    "nats-2.9": partial(Nats, "nats-2.9", fetch.NATS_2_9),
}
DEFAULT = ("raftmq", "dledger", "dledger-tuned", "dledger-5.5", "etcd", "nats", "nats-lazy", "pysyncobj")
ALL = (*DEFAULT, "raftmq-thrifty", "etcd-3.4", "nats-2.9")
"""The names of all systems. Those that are not in DEFAULT are measured only when they are named: RaftMQ with
`replication.thrifty`, and releases of years ago."""
FAILOVER = ("raftmq", "etcd", "dledger")
"""The systems whose failovers are measured."""
