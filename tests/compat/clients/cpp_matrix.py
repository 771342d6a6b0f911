"""The C++ client's side of the matrix, through its Python binding `rocketmq` 0.4.4. Runs in an environment of its own.

Arguments and lines are those that tests/compat/matrix/programs.py describes.
"""

import ctypes
import json
import os
import sys
import threading
import time

from rocketmq.client import Message, Producer, PushConsumer, RecvMessage
from rocketmq.ffi import MessageModel, _CConsumeStatus, dll

_output = threading.Lock()


def say(event, **fields):
    """One line; callbacks of the consumers come from several threads."""
    with _output:
        sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
        sys.stdout.flush()


def sign(client, prefix, feature, role):
    """Gives a producer or consumer its user, if there are users."""
    if secret := os.environ.get("RAFTMQ_MATRIX_SECRET"):
        client.set_session_credentials(f"{prefix}-{feature}-{role}", secret, "")


def failures(key):
    """Returns the number of attempts that fail at a message, told by its number."""
    return {0: 99, 1: 1, 2: 2}.get(int(key.rpartition("-")[2]) % 20, 0)


def build(topic, feature, number):
    """A message as `programs.py` wants it."""
    message = Message(topic)
    message.set_keys(f"{feature}-{number}")
    message.set_tags("abc"[number % 3])
    message.set_body(f"{feature}-{number}")
    if feature == "delay":
        message.set_delay_time_level(1 + number % 4)
    elif feature == "timer":
        message.set_property("TIMER_DELAY_MS", str(500 + number % 7 * 700))
    return message


def send(producer, topic, feature, number):
    """One synchronous send and the line that tells how it ended."""
    started = time.time()
    end = {}
    try:
        message = build(topic, feature, number)
        if feature == "orderly":
            producer.send_orderly(message, number)
        else:
            producer.send_sync(message)
    except Exception as error:  # noqa: BLE001 - whatever the client raises is the finding
        end = {"error": f"{type(error).__name__}: {error}"}
    say("send", cell=feature, key=f"{feature}-{number}", started=started, ended=time.time(), **end)


def send_all(producer, topic, feature, rate, stopped):
    """`rate` messages a second until `stopped`."""
    begun = time.monotonic()
    number = 0
    while not stopped.is_set():
        send(producer, topic, feature, number)
        number += 1
        stopped.wait(max(0.0, begun + number / rate - time.monotonic()))


def start_reader(servers, prefix, feature, reader):
    """A push consumer that tells of each message."""

    def on_raw(_consumer, raw):
        """The binding's own wrapper cannot answer RECONSUME_LATER: it raises again what it caught."""
        message = RecvMessage(raw)
        key = message.keys.decode()
        say(
            "message",
            cell=feature,
            reader=reader,
            key=key,
            at=time.time(),
            tried=message.reconsume_times,
            queue=message.queue_id,
            offset=message.queue_offset,
        )
        again = feature == "retry" and message.reconsume_times < failures(key)
        return (_CConsumeStatus.RECONSUME_LATER if again else _CConsumeStatus.CONSUME_SUCCESS).value

    model = MessageModel.BROADCASTING if feature == "broadcast" else MessageModel.CLUSTERING
    consumer = PushConsumer(f"{prefix}-{feature}-readers", orderly=feature == "orderly", message_model=model)
    consumer.set_namesrv_addr(servers)
    sign(consumer, prefix, feature, "reader")
    consumer.set_instance_name(f"reader-{feature}-{reader}")
    consumer.set_thread_count(4)
    dll.Subscribe(consumer._handle, f"{prefix}-{feature}".encode(), b"a || c" if feature == "tag" else b"*")
    consumer._register_callback(on_raw)
    consumer.start()
    return consumer


def main():
    """Senders and readers of the features in the arguments."""
    _, _, servers, prefix, rate, *features = sys.argv
    consumers = [
        start_reader(servers, prefix, feature, reader)
        for feature in features
        for reader in ("ab" if feature in ("orderly", "broadcast") else "a")
    ]
    stopped = threading.Event()
    senders = []
    for feature in features:
        producer = Producer(f"{prefix}-{feature}-senders")
        producer.set_namesrv_addr(servers)
        sign(producer, prefix, feature, "sender")
        dll.SetProducerInstanceName(producer._handle, ctypes.c_char_p(f"sender-{feature}".encode()))
        producer.start()
        arguments = (producer, f"{prefix}-{feature}", feature, float(rate), stopped)
        senders.append(threading.Thread(target=send_all, args=arguments))
    say("ready")
    for line in sys.stdin:
        if line == "go\n":
            for sender in senders:
                sender.start()
        else:
            stopped.set()
            for sender in senders:
                sender.join()
            say("stopped")
    for consumer in consumers:
        consumer.shutdown()
    say("done")


main()
