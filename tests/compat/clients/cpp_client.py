"""The C++ client of RocketMQ, through its Python binding `rocketmq` 0.4.4: one process, one JSON object per line out.

Runs in an environment of its own and imports nothing of ours. Both clients of this folder take the same arguments::

    produce SERVERS TOPIC --group G --count N [--same] [--pace-ms N] [--prefix P] [--threads N --rate N]
    consume SERVERS TOPIC --group G [--fail N] [--orderly]

`--threads N`: so many messages are in flight at most, `--rate N`: N are sent a second, and none waits once it is late.

`--fail N`: a message that was tried fewer than N times before is to come again (RECONSUME_LATER).

Both end when their standard input does, `produce` also after `count` messages if that is not 0. A failed send is one
line with `error`, and that message is not sent again: what the client itself does about failures is what is looked at.
"""

import argparse
import base64
import json
import os
import select
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from rocketmq.client import Message, Producer, PushConsumer, RecvMessage
from rocketmq.ffi import _CConsumeStatus, dll

_output = threading.Lock()


def say(**fields):
    """One line; callbacks of the consumer come from several threads."""
    with _output:
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def build(topic, number, prefix):
    """Body with every byte value, a tag, a key and a property of the user's, all told by `number`."""
    message = Message(topic)
    message.set_keys(f"{prefix}-{number}")
    message.set_tags("even" if number % 2 == 0 else "odd")
    message.set_property("shade", f"blue {number}")
    # The binding passes a C string: no zero bytes inside.
    message.set_body(f"{prefix}-{number} ".encode() + bytes(range(1, 256)))
    return message


def send(producer, message, key):
    """One synchronous send and the line that tells how it ended."""
    started = time.time()
    try:
        result = producer.send_sync(message)
        end = {"msg_id": result.msg_id, "queue_offset": result.offset, "status": int(result.status)}
    except Exception as error:  # noqa: BLE001 - whatever the client raises is the finding
        end = {"error": f"{type(error).__name__}: {error}"}
    say(event="send", key=key, started=started, ended=time.time(), **end)


def input_ended():
    """True once the process that started us closed our input."""
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable) and sys.stdin.read(1) == ""


def produce(args):
    """Sends `count` messages one after the other, or one Message object `count` times."""
    producer = Producer(args.group)
    producer.set_namesrv_addr(args.servers)
    if args.access_key:
        producer.set_session_credentials(args.access_key, args.secret_key, "")
    producer.start()
    say(event="ready")
    if args.threads > 1:
        send_in_threads(producer, args)
        producer.shutdown()
        say(event="done")
        return
    same = build(args.topic, 0, args.prefix) if args.same else None
    number = 0
    while number < args.count if args.count else not input_ended():
        send(producer, same or build(args.topic, number, args.prefix), f"{args.prefix}-{0 if same else number}")
        number += 1
        time.sleep(args.pace_ms / 1000)
    producer.shutdown()
    say(event="done")


def send_in_threads(producer, args):
    """Sends `count` messages, `rate` a second, each in the thread that is free."""
    began = time.monotonic()

    def one(number):
        time.sleep(max(0.0, began + number / args.rate - time.monotonic()))
        send(producer, build(args.topic, number, args.prefix), f"{args.prefix}-{number}")

    with ThreadPoolExecutor(args.threads) as threads:
        list(threads.map(one, range(args.count)))


def text(value):
    """The binding hands out bytes or None."""
    return None if value is None else value.decode()


def consume(args):
    """Push consumption until the standard input ends."""

    def on_message(message):
        say(
            event="message",
            at=time.time(),
            key=text(message.keys),
            tag=text(message.tags),
            shade=text(message.get_property("shade")),
            body=base64.b64encode(message.body).decode(),
            msg_id=message.id,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            tried=message.reconsume_times,
        )

    def on_raw(_consumer, raw):
        """The binding's own wrapper cannot answer RECONSUME_LATER: it raises again what it caught."""
        message = RecvMessage(raw)
        on_message(message)
        again = message.reconsume_times < args.fail
        return (_CConsumeStatus.RECONSUME_LATER if again else _CConsumeStatus.CONSUME_SUCCESS).value

    consumer = PushConsumer(args.group, orderly=args.orderly)
    consumer.set_namesrv_addr(args.servers)
    if args.access_key:
        consumer.set_session_credentials(args.access_key, args.secret_key, "")
    consumer.set_instance_name(f"consumer-{os.getpid()}")
    dll.Subscribe(consumer._handle, args.topic.encode(), b"*")
    consumer._register_callback(on_raw)
    consumer.start()
    say(event="ready")
    sys.stdin.read()
    consumer.shutdown()
    say(event="done")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["produce", "consume"])
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("--group", required=True)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--same", action="store_true")
    parser.add_argument("--pace-ms", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--prefix", default="cpp")
    parser.add_argument("--fail", type=int, default=0)
    parser.add_argument("--orderly", action="store_true")
    parser.add_argument("--access-key", default="")
    parser.add_argument("--secret-key", default="")
    args = parser.parse_args()
    (produce if args.what == "produce" else consume)(args)


main()
