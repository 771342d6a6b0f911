"""Measures reading a topic as a table, compared with reading it as Python objects and with Parquet files of its rows.

    python bench/bench_spark.py [--messages 200000] [--bytes 100] [--rounds 3] [--spark] [--json]

Three local nodes, one client, two queues. The cases take turns, round by round, and the median of each is printed.
Other work on the machine disturbs all cases alike, so compare the ratios. CPU is that of the reading process with its
children, and separately that of the leader. `--spark` adds Spark's source, a source of plain Python rows and
`spark.read.parquet` of the same rows, and prints the ratios of interest at the end: of rates, and of CPU time, which a
busy machine disturbs less. Copies of the log are read, too: a backup ("files") and the tier, which is a directory here.
The last lines show how the rate grows with the number of tasks that Spark runs in parallel; it cannot grow beyond the
number of cores.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import raftmq
from raftmq.arrow.columns import DEFAULT_COLUMNS
from raftmq.arrow.log_copy import FILES, TIER, CopySource, cut
from raftmq.arrow.ranges import EARLIEST, LATEST, Bounds, plan_topic
from raftmq.arrow.tables import read_batches, select
from raftmq.cli import run
from raftmq.copies.open_copy import opened
from raftmq.copies.part_rows import part_batches
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi, admin_addresses
from raftmq.local.process import free_base_port

TOPIC = "rows"
QUEUES = 2
IDLE_S = 5
TASKS = (1, 2, 4, 8)
RARE = "rare"
TABLE_TIER = "read_arrow, tier"
Case = Callable[[], int]
"""A function that reads the whole topic and returns the number of rows."""


def fill(mq: raftmq.Client, count: int, size: int) -> None:
    """Creates the topic and sends it `count` messages of `size` random bytes with a key and a tag: every hundredth
    has the tag `RARE`. The bytes are random because Parquet stores equal bodies only once."""
    mq.admin.create_topic(TOPIC, QUEUES)
    bodies = random.Random(1)
    with mq.producer() as producer:
        sent = [
            producer.send_soon(
                TOPIC,
                bodies.randbytes(size),
                key=f"k{n}",
                tag=RARE if n // QUEUES % 100 == 0 else "new",
                queue_id=n % QUEUES,
            )
            for n in range(count)
        ]
    for each in sent:
        each.result()


def as_objects(mq: raftmq.Client) -> int:
    """Reads one Python object per message, as a consumer gets it."""
    rows = 0
    for queue in mq.admin.describe_topic(TOPIC).queues:
        offset = queue.min_offset
        while offset < queue.max_offset:
            pulled = mq.pull(TOPIC, queue.queue_id, offset)
            rows, offset = rows + len(pulled.messages), pulled.next_offset
    return rows


def as_frames(mq: raftmq.Client) -> int:
    """Pulls messages without decoding them: shows what would remain if decoding cost nothing. Returns the number of
    rows."""
    rows = 0
    for queue in mq.admin.describe_topic(TOPIC).queues:
        offset = queue.min_offset
        while offset < queue.max_offset:
            after = mq.pull_frames_soon(TOPIC, queue.queue_id, offset).result().next_offset
            rows, offset = rows + after - offset, after
    return rows


def as_arrow(mq: raftmq.Client, read_from: str, columns: tuple[str, ...]) -> int:
    """Reads Arrow batches of these columns, from the copy `read_from` if it is given; returns the number of rows."""
    return sum(batch.num_rows for batch in read_batches(mq, select(mq, TOPIC, columns=columns, read_from=read_from)))


def copies_of(folder: Path) -> dict[str, CopySource]:
    """Makes a backup of the cluster in `folder`/data, and waits until its tier contains all messages stored now;
    returns both copies."""
    api = AdminApi(admin_addresses(None, str(folder / "data")))
    sealed = api.post("/v1/tier/seal", {})["position"]
    while api.local("/v1/tier")["verified_to"] < sealed:
        time.sleep(0.1)
    to = folder / "backups"
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(["backup", "create", "--to", str(to), "--data", str(folder / "data")]) == 0
    (backup,) = to.iterdir()
    return {"files": CopySource(FILES, str(backup)), "tier": CopySource(TIER, (folder / "tier").as_uri())}


def as_parts(source: CopySource, columns: tuple[str, ...]) -> int:
    """Reads Arrow batches from a copy, one part after the other."""
    with opened(source) as copy:
        ranges = plan_topic(copy, TOPIC, Bounds(EARLIEST), Bounds(LATEST), words=("start", "end"))
        parts = cut(copy.segments(ranges), None, None)
        return sum(batch.num_rows for part in parts for batch in part_batches(copy, part, columns, 8192))


def as_table(**where: Any) -> int:
    """Reads the topic with the public `read_arrow`, which reads some queues at once; returns the number of rows."""
    return int(raftmq.read_arrow(TOPIC, **where).num_rows)


def as_parquet(folder: Path) -> int:
    """Reads Parquet files of the same rows into one table with pyarrow, which decodes columns in several threads."""
    return int(pq.read_table(folder).num_rows)


def write_parquet(mq: raftmq.Client, folder: Path) -> Path:
    """Writes a Parquet file of each queue, with the default columns and pyarrow's default settings. Returns their
    folder."""
    (to := folder / "pyarrow").mkdir()
    for planned in select(mq, TOPIC).ranges:
        one = select(mq, TOPIC)._replace(ranges=(planned,))
        pq.write_table(pa.Table.from_batches(read_batches(mq, one)), to / f"{planned.queue_id}.parquet")
    return to


def spark_cases(servers: str, folder: Path, copies: dict[str, CopySource]) -> dict[str, Case]:
    """Returns the cases of Spark: its source, and Parquet files of the same rows; both give every column to Spark."""
    from pyspark_raftmq.spark_session import session

    spark = session()

    files = str(folder / "parquet")

    def source(read_from: str, **more: str) -> Any:
        return spark.read.format("raftmq").options(servers=servers, topic=TOPIC, readFrom=read_from, **more).load()

    def of_copy(copy: CopySource, tasks: int, **more: str) -> Any:
        """Reads the copy in exactly `tasks` tasks: if it is divided into more partitions, each task reads several, one
        after the other."""
        options = {"readFrom": copy.kind, "topic": TOPIC, "minPartitions": max(TASKS), **more}
        reader = spark.read.format("raftmq").options(**options)
        return reader.load(copy.path).coalesce(tasks)

    def plain_rows() -> Any:
        return spark.read.format("plain_rows").options(servers=servers, topic=TOPIC).load()

    spark.dataSource.register(plain_rows_source())
    source("follower").write.parquet(files)
    rows = source("follower").count()
    late = rows // QUEUES * 9 // 10

    def drained(frame: Any) -> int:
        frame.write.format("noop").mode("overwrite").save()
        return int(rows)

    return {
        "spark, follower": lambda: drained(source("follower")),
        "spark, leader": lambda: drained(source("leader")),
        "spark, plain rows": lambda: drained(plain_rows()),
        **{files_case(tasks): lambda tasks=tasks: drained(of_copy(copies["files"], tasks)) for tasks in TASKS},
        "spark, tier, 2 tasks": lambda: drained(of_copy(copies["tier"], 2)),
        "spark, parquet": lambda: drained(spark.read.parquet(files)),
        "spark, follower, body": lambda: drained(source("follower", columns="body")),
        "spark, tier, 2 tasks, body": lambda: drained(of_copy(copies["tier"], 2, columns="body")),
        "spark, parquet, body": lambda: drained(spark.read.parquet(files).select("body")),
        "spark, follower, rare tag": lambda: drained(source("follower").where(f"tag = '{RARE}'")),
        "spark, parquet, rare tag": lambda: drained(spark.read.parquet(files).where(f"tag = '{RARE}'")),
        "spark, follower, end": lambda: drained(source("follower").where(f"queue_offset >= {late}")),
        "spark, parquet, end": lambda: drained(spark.read.parquet(files).where(f"queue_offset >= {late}")),
    }


def files_case(tasks: int) -> str:
    """Returns the name of the case that reads files with this number of tasks."""
    return f"spark, files, {tasks} task{'' if tasks == 1 else 's'}"


def plain_rows_source() -> Any:
    """Returns a Spark data source that does not use Arrow: a tuple per message, one task per queue."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):  # type: ignore[misc]
        def __init__(self, options: dict[str, str]) -> None:
            self.options = options

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(queue) for queue in range(QUEUES)]

        def read(self, partition: InputPartition) -> Any:
            with raftmq.connect(self.options["servers"]) as mq:
                topic = self.options["topic"]
                queue = mq.admin.describe_topic(topic).queues[partition.value]
                offset = queue.min_offset
                while offset < queue.max_offset:
                    pulled = mq.pull(topic, queue.queue_id, offset)
                    for m in pulled.messages:
                        at = (m.topic, m.queue_id, m.queue_offset, m.body, m.tag, m.key, m.message_id)
                        yield (*at, m.born_ms, m.store_ms, m.position, m.properties)
                    offset = pulled.next_offset

    class Source(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "plain_rows"

        def schema(self) -> str:
            from pyspark_raftmq.source import ddl

            return ddl([name for name in DEFAULT_COLUMNS if name != "store_time"])

        def reader(self, schema: Any) -> Reader:
            return Reader(dict(self.options))

    return Source


def cpu_s(process: psutil.Process) -> float:
    """Returns the user and system time, in seconds, of a process and of its descendants, also of those that have
    ended."""
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # a process that has ended: its parent's times include its own
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def ratios(found: dict[str, dict[str, float]], idle: float) -> list[tuple[str, float, float]]:
    """Returns rows of (names of two cases, time of the second divided by time of the first, the same ratio of CPU
    times). `idle`: the share of a core that the leader uses without readers."""

    def beside(what: str, case: str, of: str) -> tuple[str, float, float]:
        mine, others = found[case], found[of]
        return what, others["us"] / mine["us"], others["cpu_us"] / mine["cpu_us"]

    parquet, follower = "spark, parquet", "spark, follower"
    leader = found[follower]["leader_cpu_us"] / found[follower]["us"] - idle
    return [
        *(
            beside(f"{case} / parquet, pyarrow", case, "parquet, pyarrow")
            for case in ("read_arrow, follower", TABLE_TIER)
        ),
        beside("spark, follower / parquet", follower, parquet),
        *(
            beside(f"{case} / parquet", case, f"{parquet}, body" if case.endswith("body") else parquet)
            for case in found
            if case.startswith(("spark, files", "spark, tier"))
        ),
        beside("spark, follower, body / parquet, body", f"{follower}, body", f"{parquet}, body"),
        *(
            beside(f"{of} / {of}, {what}", f"{of}, {what}", of)
            for what in ("rare tag", "end")
            for of in (follower, parquet)
        ),
        beside("spark, follower / frames, leader", follower, "frames, leader"),
        beside("spark, follower / spark, plain rows", follower, "spark, plain rows"),
        ("leader above idle during spark, follower, % of a core", 100 * leader, 100 * leader),
    ]


def growth(found: dict[str, dict[str, float]]) -> list[tuple[int, float, float]]:
    """Returns, for each number of tasks, (tasks, rows per second, ratio to the rate of one task)."""
    times = [(tasks, found[files_case(tasks)]["us"]) for tasks in TASKS]
    return [(tasks, 1e6 / us, times[0][1] / us) for tasks, us in times]


def idle_share(process: psutil.Process, seconds: float) -> float:
    """Returns the share of one core that the process uses while nobody sends it requests."""
    before, begun = cpu_s(process), time.perf_counter()
    time.sleep(seconds)
    return (cpu_s(process) - before) / (time.perf_counter() - begun)


def measure(case: Case, leader: psutil.Process, count: int) -> dict[str, float]:
    """Measures one turn of a case. Raises AssertionError unless every row was read."""
    here = psutil.Process()
    begun, mine, others = time.perf_counter(), cpu_s(here), cpu_s(leader)
    rows = case()
    seconds, mine, others = time.perf_counter() - begun, cpu_s(here) - mine, cpu_s(leader) - others
    assert rows == count, f"{rows} rows of {count}"
    return {"us": seconds / count * 1e6, "cpu_us": mine / count * 1e6, "leader_cpu_us": others / count * 1e6}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        live = LocalCluster(Path(folder) / "data")
        live.up(3, free_base_port(12), tier=(Path(folder) / "tier").as_uri())
        try:
            with raftmq.connect(live.servers) as mq:
                fill(mq, given.messages, given.bytes)
                idle = idle_share(leader_of(live), IDLE_S)
                found = compare(live, mq, given, Path(folder))
        finally:
            live.down()
    if given.json:
        print(json.dumps({"messages": given.messages, "bytes": given.bytes, "idle": idle, "cases": found}))
        return 0
    print_table(given, found)
    if given.spark:
        print(f"\n{'ratio':<54} {'time':>8} {'CPU':>8}")
        for what, by_time, by_cpu in ratios(found, idle):
            print(f"{what:<54} {by_time:>8.2f} {by_cpu:>8.2f}")
        print(f"\n{'files, tasks':<54} {'rows/s':>8} {'growth':>8}")
        for tasks, rate, times in growth(found):
            print(f"{tasks:<54} {rate:>8.0f} {times:>8.2f}")
    return 0


def print_table(given: argparse.Namespace, found: dict[str, dict[str, float]]) -> None:
    """Prints two lines of headings, then one line per case."""
    base = found["objects, leader"]["cpu_us"]
    print(f"{given.messages} messages of {given.bytes} bytes, µs per message, median of {given.rounds} rounds")
    print(f"{'case':<22} {'time':>8} {'CPU':>8} {'leader':>8} {'CPU of objects / CPU':>21}")
    for name, each in found.items():
        print(
            f"{name:<22} {each['us']:>8.2f} {each['cpu_us']:>8.2f} {each['leader_cpu_us']:>8.2f} "
            f"{base / each['cpu_us']:>21.2f}"
        )


def leader_of(live: LocalCluster) -> psutil.Process:
    """Returns the leader's process."""
    leader = live.wait_leader()
    return psutil.Process(next(node.pid for node in live.nodes if node.id == leader))


def compare(live: LocalCluster, mq: raftmq.Client, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measures all cases in turns; returns the median of each."""
    copies = copies_of(folder)
    parquet = write_parquet(mq, folder)
    everything, narrow = DEFAULT_COLUMNS, ("queue_id", "queue_offset", "store_ms")
    cases: dict[str, Case] = {
        "objects, leader": lambda: as_objects(mq),
        "frames, leader": lambda: as_frames(mq),
        "arrow, leader": lambda: as_arrow(mq, "leader", everything),
        "arrow, follower": lambda: as_arrow(mq, "follower", everything),
        "arrow, 3 columns": lambda: as_arrow(mq, "follower", narrow),
        "arrow, files": lambda: as_parts(copies["files"], everything),
        "arrow, tier": lambda: as_parts(copies["tier"], everything),
        "read_arrow, leader": lambda: as_table(servers=live.servers, read_from="leader"),
        "read_arrow, follower": lambda: as_table(servers=live.servers),
        TABLE_TIER: lambda: as_table(read_from=TIER, path=copies["tier"].path),
        "parquet, pyarrow": lambda: as_parquet(parquet),
    }
    if given.spark:
        cases |= spark_cases(live.servers, folder, copies)
    leader = leader_of(live)
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for number in range(given.rounds + 1):
        for name, case in cases.items():
            turn = measure(case, leader, given.messages)
            if number:  # the first round only warms up
                turns[name].append(turn)
    return {
        name: {key: round(statistics.median(turn[key] for turn in each), 2) for key in each[0]}
        for name, each in turns.items()
    }


if __name__ == "__main__":
    sys.exit(main())
