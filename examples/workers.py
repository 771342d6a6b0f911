"""Four threads work on two topics and acknowledge each message; one that never works is a dead letter."""

from concurrent.futures import ThreadPoolExecutor

import raftmq


def work(message: raftmq.Message) -> str:
    if message.body == b"broken":
        raise ValueError("nobody can do this")
    return message.body.decode()


def handle(consumer: raftmq.Consumer, message: raftmq.Message) -> None:
    try:
        print(f"done: {work(message)}")
    except ValueError as error:
        print(f"given up: {error}")
        consumer.dead_letter(message)  # consumer.retry(message, after=60) has it delivered again
    else:
        consumer.ack(message)


with raftmq.connect() as mq:
    with mq.producer() as producer:
        for n in range(20):
            producer.send_soon(("jobs", "urgent-jobs")[n % 2], b"job %d" % n)
        producer.send_soon("jobs", b"broken")
        producer.flush().raise_for_errors()
    with (
        mq.consumer("workers", ["jobs", "urgent-jobs"], follow=False, manual_ack=True) as consumer,
        ThreadPoolExecutor(4) as pool,  # ends before the consumer, which then commits what was acknowledged
    ):
        for message in consumer:
            pool.submit(handle, consumer, message)
