"""Sends messages while the leader is killed, and shows what a sender notices: a pause, and nothing lost.

It starts three nodes of its own in a folder that goes away, and needs `raftmq[server]`.
"""

import tempfile
import time
from pathlib import Path

import raftmq
from raftmq.testing.cluster import RaftMQCluster

COUNT, KILL_AT = 300, 100

with (
    tempfile.TemporaryDirectory() as folder,
    RaftMQCluster(Path(folder) / "nodes") as cluster,
    raftmq.connect(cluster.servers) as mq,
):
    cluster.create_topic("ticks", queues=1)
    began = last = time.monotonic()
    longest = 0.0
    print(f"node {cluster.leader()} leads")
    for n in range(COUNT):
        if n == KILL_AT:
            print(f"{time.monotonic() - began:.1f} s: kill -9 of node {cluster.kill_leader()}")
        mq.send("ticks", b"%d" % n)  # waits until a majority has it; repeats by itself what nobody answered
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    print(f"node {cluster.leader()} leads; the longest wait for one message was {longest * 1000:.0f} ms")
    stored = [int(message.body) for message in mq.consumer("watcher", "ticks", follow=False)]
    print(f"sent {COUNT}, stored {len(stored)}, in their order: {stored == sorted(stored)}")
