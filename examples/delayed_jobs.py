"""Sends reminders with delayed delivery, and recalls one of them."""

import raftmq

with raftmq.connect() as mq:
    mq.send("reminders", b"now")
    mq.send("reminders", b"in two seconds", delay=2)
    cancelled = mq.send("reminders", b"never", delay=3)
    mq.recall("reminders", cancelled.recall_handle)
    for message in mq.consumer("clock", "reminders", max_wait_s=6):
        print(message.body.decode())
