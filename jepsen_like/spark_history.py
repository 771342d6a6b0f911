"""Judges histories that are too large for one process, with Spark: joins by message, windows by queue, a search by key.

    raftmq chaos check-history history.jsonl [--master local[2]]

The kinds of anomalies are those of `jepsen_like.checkers`, which judges histories that fit into memory and says more
about each anomaly. The work grows with the number of steps, times its logarithm for sorting. Registers are searched key
by key with the same code as in that package.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jepsen_like.checkers import registers
from jepsen_like.checkers.anomaly_kinds import gravity
from jepsen_like.checkers.history_steps import Operations
from jepsen_like.checkers.workload import Workload, workload_named
from jepsen_like.history import NODES_PER_GROUP, HistoryFile, Op, Operation
from raftmq_wire.queue_numbers import QUEUES_PER_GROUP

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

EXAMPLES = 20
"""The most examples of each kind that are reported; all anomalies are counted."""
_STEP = "index BIGINT, process BIGINT, type STRING, f STRING, value STRING"
_VALUE = (
    "topic STRING, id STRING, producer STRING, queue_id INT, queue_offset BIGINT, node INT, offset BIGINT, "
    "messages ARRAY<ARRAY<STRING>>, end BOOLEAN"
)
_PARTITION_BYTES = 64 << 20
"""Bytes of the history for each partition of a join or window."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_JUDGED_NAMES = ("kind", "subject", "step")
_JUDGED = "kind STRING, subject STRING, step BIGINT"
_DOUBT, _COUNT = "doubt", "count"
"""Kinds of rows about registers that are no anomalies: `doubt` is about something that could not be judged, `count`
says in `step` how many registers a task judged."""
_REGISTERS = ("group", "key", "topic", "queue_id")
"""Fields of a value that together name a register."""


class Example(NamedTuple):
    """An anomaly of a history. `step`: the index of the last step that shows it; `node` is -1 if it is not about one
    replica."""

    kind: str
    subject: str
    topic: str
    queue_id: int
    offset: int
    node: int
    step: int


class BigVerdict(NamedTuple):
    """The verdict. `counts`: kind of anomaly -> number, the gravest kinds first; `doubts`: what could not be judged."""

    operations: int
    keys: int
    counts: dict[str, int]
    examples: list[Example]
    doubts: list[str]

    @property
    def exit_code(self) -> int:
        """The exit code: 0 valid, 1 invalid, 3 unknown, as in `raftmq chaos check`."""
        return 1 if self.counts else 3 if self.doubts else 0


def check_history(spark: SparkSession, path: Path, *, max_steps: int = 200_000) -> BigVerdict:
    """Judges sends against the final reads of the replicas, their order, and every register, by the workload that the
    file names.

    The file is read once here for its chained checksums, then by the tasks; both must see the path. `max_steps` bounds
    the search for one key. Raises HistoryError if the file is no complete history.
    """
    from pyspark.sql import functions as f

    file = HistoryFile(path)
    for _ in file.batches():
        pass
    workload = workload_named(file.meta.get("workload", "log"))._replace(max_steps=max_steps)
    with ExitStack() as kept, _shuffled_in(spark, path.stat().st_size // _PARTITION_BYTES):
        operations = _kept(kept, _operations(spark, path))
        sends, rows = _kept(kept, _sends(operations)), _kept(kept, _rows(operations))
        ends = _kept(kept, _ends(operations))
        found = _losses(sends, rows, ends)
        found = found.unionByName(_origins(sends, rows)).unionByName(_places(rows)).unionByName(_order(sends, workload))
        keys, wrong, doubts = _registers(operations, workload)
        doubts += _unread(sends, ends)
        counts, examples = _told(found.where(~f.col("kind").isin(*workload.allowed)) if workload.allowed else found)
        counts |= {"nonlinearizable": len(wrong)} if wrong else {}
        return BigVerdict(
            operations.count(),
            keys,
            {kind: counts[kind] for kind in sorted(counts, key=gravity)},
            [*wrong[:EXAMPLES], *examples],
            doubts,
        )


def _kept(until: ExitStack, frame: DataFrame) -> DataFrame:
    """Computes the frame once. Rows that do not fit into memory go to Spark's disk, until the verdict is reached."""
    until.callback(frame.unpersist)
    return frame.cache()


@contextmanager
def _shuffled_in(spark: SparkSession, partitions: int) -> Iterator[None]:
    """Sets the number of shuffle partitions from the file's size. Spark's default of 200 costs more than a small
    history needs, and is too low for a very large one."""
    before = spark.conf.get(_PARTITIONS)
    spark.conf.set(_PARTITIONS, max(partitions, spark.sparkContext.defaultParallelism))
    try:
        yield
    finally:
        spark.conf.set(_PARTITIONS, before)


def _operations(spark: SparkSession, path: Path) -> DataFrame:
    """Returns one row per operation: its invocation, and its completion beside it. A process has one operation at a
    time."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    steps = spark.read.text(str(path)).select(f.from_json("value", _STEP).alias("step")).select("step.*")
    of_process = Window.partitionBy("process").orderBy("index")
    following = {name: f.lead(name).over(of_process) for name in ("index", "type", "value")}
    return (
        steps.where("index IS NOT NULL")
        .withColumns({f"next_{name}": column for name, column in following.items()})
        .where("type = 'invoke'")
        .select(
            "f",
            "process",
            f.col("index").alias("invoked"),
            f.when(f.col("next_type") != "invoke", f.col("next_index")).alias("completed"),
            f.when(f.col("next_type") != "invoke", f.col("next_type")).otherwise("info").alias("outcome"),
            f.col("value").alias("asked"),
            f.when(f.col("next_type") != "invoke", f.col("next_value")).alias("answer"),
        )
    )


def _sends(operations: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    told = operations.where("f = 'send'").withColumns(
        {"asked": f.from_json("asked", _VALUE), "answer": f.from_json("answer", _VALUE)}
    )
    is_ok = f.col("outcome") == "ok"
    return told.select(
        f.col("asked.id").alias("id"),
        f.col("asked.topic").alias("topic"),
        f.col("asked.producer").alias("producer"),
        "outcome",
        "invoked",
        "completed",
        f.when(is_ok, f.col("answer.queue_id")).alias("queue_id"),
        f.when(is_ok, f.col("answer.queue_offset")).alias("offset"),
    )


def _reads(operations: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    told = operations.where("f = 'read' AND outcome = 'ok'").withColumns(
        {"asked": f.from_json("asked", _VALUE), "answer": f.from_json("answer", _VALUE)}
    )
    return told.select(
        f.col("asked.node").alias("node"),
        f.col("asked.topic").alias("topic"),
        f.col("asked.queue_id").alias("queue_id"),
        f.col("completed").alias("step"),
        f.col("answer.end").alias("end"),
        f.col("answer.messages").alias("messages"),
    )


def _group_of_node() -> Column:
    """Returns the group of brokers of the column `node` (`jepsen_like.history.group_of_node`)."""
    from pyspark.sql import functions as f

    return f.greatest(f.floor(f.col("node") / NODES_PER_GROUP), f.lit(1))


def _group_of_queue() -> Column:
    """Returns the group of brokers of the column `queue_id` (`raftmq_wire.queue_numbers.group_of`)."""
    from pyspark.sql import functions as f

    return f.floor(f.col("queue_id") / QUEUES_PER_GROUP) + 1


def _ends(operations: DataFrame) -> DataFrame:
    """Returns one row per queue of a replica that was read, which says if it was read to its end."""
    from pyspark.sql import functions as f

    return _reads(operations).groupBy("node", "topic", "queue_id").agg(f.max("end").alias("end"))


def _rows(operations: DataFrame) -> DataFrame:
    """Returns one row per message in a place on a replica, however often it was answered."""
    from pyspark.sql import functions as f

    each = _reads(operations).select("node", "topic", "queue_id", "step", f.explode("messages").alias("message"))
    return (
        each.select(
            "node",
            "topic",
            "queue_id",
            f.col("message")[0].cast("bigint").alias("offset"),
            f.col("message")[1].alias("id"),
            "step",
        )
        .groupBy("node", "topic", "queue_id", "offset", "id")
        .agg(f.min("step").alias("step"))
    )


def _losses(sends: DataFrame, rows: DataFrame, ends: DataFrame) -> DataFrame:
    """Returns the messages that were acknowledged, or seen on a replica, and are missing on replicas whose queue was
    read to the end or beyond the message's place."""
    from pyspark.sql import functions as f

    queue = ["topic", "queue_id"]
    highest = rows.groupBy("node", *queue).agg(f.max("offset").alias("highest"))
    reached = ends.join(highest, ["node", *queue], "left")
    acked = sends.where("outcome = 'ok'").select("id", *queue, "offset", f.col("completed").alias("step"))
    unsure = f.broadcast(sends.where("outcome = 'info'").select("id", f.coalesce("completed", "invoked").alias("told")))
    first = f.min(f.struct("step", *queue, "offset")).alias("first")
    seen = rows.join(unsure, "id").groupBy("id", "told").agg(first)
    seen = seen.select("id", *(f"first.{name}" for name in (*queue, "offset")), f.col("told").alias("step"))
    due = acked.unionByName(seen).join(f.broadcast(reached), queue).where("end OR highest >= offset")
    nodes = ends.select("node").distinct().groupBy(_group_of_node().alias("group")).agg(f.count("*").alias("all"))
    missing = due.join(rows.select("node", "id"), ["node", "id"], "left_anti")
    by_send = missing.groupBy("id", *queue, "offset", "step").agg(f.collect_set("node").alias("nodes"))
    by_send = by_send.withColumn("group", _group_of_queue()).join(f.broadcast(nodes), "group")
    nowhere = by_send.where(f.size("nodes") == f.col("all"))
    somewhere = by_send.where(f.size("nodes") < f.col("all")).withColumn("node", f.explode("nodes"))
    return _anomalies(nowhere.withColumn("node", f.lit(-1)), "lost-write", "step").unionByName(
        _anomalies(somewhere, "lost-on-node", "step")
    )


def _unread(sends: DataFrame, ends: DataFrame) -> list[str]:
    """Returns the queues in which missing messages cannot be found, because a replica was not read to its end."""
    queue = ["topic", "queue_id"]
    acked = sends.where("outcome = 'ok'").select(*queue).distinct()
    if ends.isEmpty():
        return [] if acked.isEmpty() else ["messages were acknowledged, but none was read back"]
    due = acked.crossJoin(ends.select("node").distinct()).where(_group_of_node() == _group_of_queue())
    left = due.join(ends.where("end").select("node", *queue), ["node", *queue], "left_anti")
    return sorted(f"{row.topic}/{row.queue_id} was not read to its end on node {row.node}" for row in left.collect())


def _origins(sends: DataFrame, rows: DataFrame) -> DataFrame:
    """Returns the messages that are visible and should not be, or are elsewhere than their acknowledgement said. One
    finding for each message and node, and for each place."""
    from pyspark.sql import functions as f

    sent = sends.select(
        "id",
        "outcome",
        "invoked",
        f.col("topic").alias("sent_topic"),
        f.col("queue_id").alias("sent_queue"),
        f.col("offset").alias("sent_offset"),
    )
    found = rows.join(sent, "id", "left")
    kind = (
        f.when(f.col("outcome").isNull(), "phantom")
        .when(f.col("outcome") == "fail", "aborted-read")
        .when(f.col("step") < f.col("invoked"), "future-read")
        .when(f.col("topic") != f.col("sent_topic"), "misplaced")
    )
    wrong = found.withColumn("kind", kind).where("kind IS NOT NULL").dropDuplicates(["kind", "id", "node"])
    elsewhere = found.where("outcome = 'ok' AND (topic, queue_id, offset) != (sent_topic, sent_queue, sent_offset)")
    return _anomalies(wrong, None, "step").unionByName(_anomalies(elsewhere, "offset-mismatch", "step"))


def _places(rows: DataFrame) -> DataFrame:
    """Finds a message in several places of a replica, and several messages in one place over all replicas."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_message = Window.partitionBy("node", "id").orderBy("step", "topic", "queue_id", "offset")
    again = rows.withColumn("copy", f.row_number().over(of_message)).where("copy > 1")
    of_place = Window.partitionBy("topic", "queue_id", "offset").orderBy("node", "step")
    other = rows.withColumn("first", f.first("id").over(of_place)).where("id != first")
    return _anomalies(again, "duplicate", "step").unionByName(_anomalies(other, "inconsistent-offset", "step"))


def _order(sends: DataFrame, workload: Workload) -> DataFrame:
    """Checks that a message which was sent after another was acknowledged stands behind it, and that sends of a
    producer are in their order."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    acked = sends.where("outcome = 'ok'").withColumn("node", f.lit(-1))
    above = Window.partitionBy("topic", "queue_id").orderBy(f.desc("offset")).rowsBetween(Window.unboundedPreceding, -1)
    overtaken = acked.withColumn("first", f.min("completed").over(above)).where("first < invoked")
    before = (
        Window.partitionBy("topic", "queue_id", "producer")
        .orderBy("invoked")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    shuffled = acked.where("producer IS NOT NULL").withColumn("top", f.max("offset").over(before)).where("top > offset")
    found = _anomalies(overtaken, "realtime-order", "invoked")
    return found.unionByName(_anomalies(shuffled, "producer-order", "invoked")) if workload.ordered else found


def _anomalies(found: DataFrame, kind: str | None, step: str) -> DataFrame:
    from pyspark.sql import functions as f

    named = found if kind is None else found.withColumn("kind", f.lit(kind))
    return named.select(
        "kind", f.col("id").alias("subject"), "topic", "queue_id", "offset", "node", f.col(step).alias("step")
    )


def _told(found: DataFrame) -> tuple[dict[str, int], list[Example]]:
    """Returns (kind -> count, some examples of each kind)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    found = found.cache()
    try:
        counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        ranked = Window.partitionBy("kind").orderBy("step", "subject", "node")
        some = found.withColumn("rank", f.row_number().over(ranked)).where(f.col("rank") <= EXAMPLES).drop("rank")
        return counts, sorted(
            (Example(*row) for row in some.collect()), key=lambda each: (gravity(each.kind), each.step)
        )
    finally:
        found.unpersist()


def _registers(operations: DataFrame, workload: Workload) -> tuple[int, list[Example], list[str]]:
    """Returns (number of registers, anomalies of those that no order explains, searches that were given up). Each
    register is searched by itself."""
    from pyspark.sql import functions as f

    about = operations.where(f.col("f").isin(*registers.OPERATIONS))
    name = f.to_json(f.struct(*(f.get_json_object("asked", f"$.{field}").alias(field) for field in _REGISTERS)))
    calls = about.select(name.alias("register"), "f", "process", "invoked", "completed", "outcome", "asked", "answer")
    sorted_calls = calls.repartition("register").sortWithinPartitions("register", "invoked")
    judged = sorted_calls.mapInArrow(partial(_judge_batches, workload), _JUDGED).collect()
    wrong = [
        Example(row.kind, row.subject, "", -1, -1, -1, row.step) for row in judged if row.kind not in (_DOUBT, _COUNT)
    ]
    doubts = [row.subject for row in judged if row.kind == _DOUBT]
    count = sum(row.step for row in judged if row.kind == _COUNT)
    return count, sorted(wrong, key=lambda each: each.step), sorted(doubts)


def _judge_batches(workload: Workload, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Judges the registers of one task; yields one row for each finding and each doubt, and at the end the number of
    registers. The calls of a register are adjacent, so the task holds only the calls of one."""
    import pyarrow as pa

    rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    count = 0
    for register, calls in itertools.groupby(rows, key=itemgetter(0)):
        count += 1
        found = list(_judge(register, [call[1:] for call in calls], workload))
        if found:
            yield pa.RecordBatch.from_pylist([dict(zip(_JUDGED_NAMES, each, strict=True)) for each in found])
    counted = {"kind": pa.array([_COUNT]), "subject": pa.array([""]), "step": pa.array([count], pa.int64())}
    yield pa.RecordBatch.from_pydict(counted)


def _judge(register: str, calls: Iterable[tuple[Any, ...]], workload: Workload) -> Iterator[tuple[str, str, int]]:
    """Yields (kind, subject, step) of each finding and doubt, from the checker that judges whole histories."""
    result = registers.check(Operations(list(_as_operations(calls))), workload)
    for each in result.anomalies:
        yield each.kind, each.subject or register, max(each.ops, default=-1)
    for doubt in result.unknowns:
        yield _DOUBT, doubt, -1


def _as_operations(calls: Iterable[tuple[Any, ...]]) -> Iterator[Operation]:
    for what, process, invoked, completed, outcome, asked, answer in calls:
        begun = Op(invoked, process, "invoke", what, msgspec.json.decode(asked), 0)
        ended = None
        if completed is not None:
            ended = Op(completed, process, outcome, what, msgspec.json.decode(answer), 0)
        yield Operation(begun, ended)
