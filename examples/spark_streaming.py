"""A stream with Spark: counts messages by tag as they come in, and writes the counts to another topic exactly once.

Run it again and it goes on where it was: the checkpoint knows. Needs `pip install 'raftmq[spark]'`.
"""

import os

import raftmq
from pyspark_raftmq import session

servers = os.environ.get("RAFTMQ_SERVERS", "127.0.0.1:9876")
spark = session()

with raftmq.connect(servers) as mq:
    for topic in ("clicks", "clicks-by-tag"):
        mq.admin.create_topic(topic, queues=2)
    for n in range(20):
        mq.send("clicks", b"%d" % n, tag=("home", "cart")[n % 2])

clicks = spark.readStream.format("raftmq").options(servers=servers, topic="clicks", startingOffsets="earliest").load()
counted = clicks.selectExpr("concat(tag, ' ', cast(body AS string)) AS body", "tag")
query = (
    counted.writeStream.format("raftmq")
    .options(servers=servers, topic="clicks-by-tag", checkpointLocation="checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

with raftmq.connect(servers) as mq:
    seen = [message.body.decode() for message in mq.consumer("reports", "clicks-by-tag", max_wait_s=10)]
    print(len(seen), "clicks copied;", sum(each.startswith("cart") for each in seen), "in the cart")
