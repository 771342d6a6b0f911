"""Sends three messages and reads them."""

import raftmq

with raftmq.connect() as mq:
    for word in ("one", "two", "three"):
        result = mq.send("hello", word.encode(), key=word)
        print(f"stored in queue {result.queue_id} at offset {result.queue_offset}")
    for message in mq.consumer("hello-sync", "hello", follow=False):
        print(message.key, message.body.decode())
