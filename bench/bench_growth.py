"""What a message costs, in CPU time, against what exists beside it: queues, topics, groups, sessions; and what each of
those takes in memory while nobody uses it.

python bench/bench_growth.py [cluster] [state] [trim] [memory]      all of them, if none is named

cluster: three nodes, 512 requests in flight, CPU of all nodes; state: the state machine on RocksDB, without log and
network; trim: the longest entry of a TRIM; memory: bytes per idle thing, after a restart and after it was used. Cases
take turns, ROUNDS times, and the median counts, so that a busy machine does all of them the same wrong. With JSON=1
only {"rows": [...]} is printed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).parent))

from load import Load
from rich.table import Table
from tables import console

from raftlog.frame import make_entry, tail_after
from raftlog.types import EMPTY_TAIL, Entry, EntryType
from raftmq.commands.bench_load import request_frame
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from statemachine import commands, payload, trim
from statemachine.broker_state import BrokerState
from statemachine.rocks import RocksKV

ROUNDS = int(os.environ.get("ROUNDS", "3"))
SECONDS = float(os.environ.get("SECONDS_PER_ROUND", "2"))
QUEUES, QUEUES_PER_TOPIC = 10_000, 1_000
IN_FLIGHT, BODY_BYTES = 512, 1024
MESSAGES, PER_ENTRY = 60_000, 128
"""Of a round of the state machine; 512 in flight make entries of about that size."""
IDLE = 50_000
"""Things whose memory is taken."""

Row = dict[str, Any]


# --- three nodes -----------------------------------------------------------------------------------------------------


class Turns(Sequence[bytes]):
    """The frames of each place in the window, in turn: the next request of a place goes to another queue."""

    def __init__(self, queues: Sequence[tuple[str, int]]) -> None:
        body, rounds = bytes(BODY_BYTES), range(-(-len(queues) // IN_FLIGHT))
        self._next = [
            cycle(
                [
                    request_frame(*_named(queues[(turn * IN_FLIGHT + place) % len(queues)], place), 1, body)
                    for turn in rounds
                ]
            )
            for place in range(IN_FLIGHT)
        ]

    def __len__(self) -> int:
        return len(self._next)

    def __getitem__(self, place: Any) -> Any:
        return next(self._next[place])


def _named(queue: tuple[str, int], place: int) -> tuple[str, int, int]:
    return queue[0], place, queue[1]


class Cluster:
    """Three nodes with a topic of 10 queues and, if there are to be more, others of 1,000 each."""

    def __init__(self, folder: Path, queues: int) -> None:
        self._cluster = LocalCluster(folder)
        self._cluster.up(3, base_port=free_base_port(12))
        leader = self._cluster.view().leader
        self._port = next(node.broker_port for node in self._cluster.nodes if node.id == leader)
        self._pids = [node.pid for node in self._cluster.nodes]
        many = queues // QUEUES_PER_TOPIC
        self.few = self._topic("few", 10)
        self.all = [queue for n in range(many) for queue in self._topic(f"many{n}", QUEUES_PER_TOPIC)] or self.few
        self.send(self.all)  # every queue has messages, and every path is warm
        self.send(self.few)

    def _topic(self, name: str, queues: int) -> list[tuple[str, int]]:
        tool = [str(Path(sys.executable).with_name("raftmq")), "topic", "create", name, "--queues", str(queues)]
        subprocess.run([*tool, "--admin", self._cluster.admin_url], check=True, capture_output=True)
        return [(name, queue) for queue in range(queues)]

    def send(self, queues: Sequence[tuple[str, int]]) -> float:
        """CPU time per message in microseconds, all nodes."""
        before = self._cpu()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            acked = runner.run(self._run(queues))
        return (self._cpu() - before) * 1e6 / acked

    async def _run(self, queues: Sequence[tuple[str, int]]) -> int:
        loop, turns = asyncio.get_running_loop(), Turns(queues)

        def make() -> Load:
            load = Load("", BODY_BYTES, 1, IN_FLIGHT, SECONDS)
            load._frames = turns  # type: ignore[assignment]
            return load

        _, load = await loop.create_connection(make, "127.0.0.1", self._port)
        await asyncio.wait_for(load.done, SECONDS + 60)
        if load.errors:
            raise SystemExit(f"{load.errors} sends were refused: nothing was measured")
        return load.acked

    def _cpu(self) -> float:
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self._pids)

    def down(self) -> None:
        """Ends the nodes."""
        self._cluster.down()


def cluster_rows() -> Iterator[Row]:
    """CPU per message of 10 queues, of 10 among 10,000, and of all 10,000."""
    clusters: list[Cluster] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            clusters += [Cluster(Path(folder, str(queues)), queues) for queues in (10, QUEUES)]
            small, large = clusters
            yield from taking_turns(
                "cluster, CPU us per message",
                {
                    "10 queues": lambda: small.send(small.few),
                    f"10 active of {QUEUES:,} queues": lambda: large.send(large.few),
                    f"{QUEUES:,} active queues": lambda: large.send(large.all),
                },
            )
        finally:
            for one in clusters:
                one.down()


# --- the state machine on RocksDB ------------------------------------------------------------------------------------


class Store:
    """A state on RocksDB, and a log for it. Topics 1 to `topics` have the same number of queues."""

    def __init__(self, folder: Path, topics: int = 1, queues: int = 10, groups: int = 1, sessions: int = 1) -> None:
        folder.mkdir(exist_ok=True)
        self.path = str(folder / "db")
        self.state = BrokerState(self._open())
        self.queues = [(topic + 1, queue) for topic in range(topics) for queue in range(queues)]
        self.groups, self.sessions = groups, sessions
        self.tail, self.count = EMPTY_TAIL, 0
        self.ends = dict.fromkeys(self.queues, 0)
        made = [["create_topic", {"name": f"t{n}", "read_queues": queues}, True] for n in range(topics)]
        self.command(*made)
        self.send(self.queues, len(self.queues))
        for group in range(groups):
            rows = [[f"g{group}", *queue, 1] for queue in self.queues[: max(1, IDLE // groups)]]
            self.command(["put_group", {"name": f"g{group}"}, True], ["commit_offsets", rows])

    def _open(self) -> RocksKV:
        self.kv = RocksKV(self.path)
        return self.kv

    def add(self, kind: EntryType, data: bytes) -> Entry:
        """Applies an entry."""
        entry = make_entry(
            self.tail, term=1, entry_type=kind, payload=data, timestamp_ms=self.count, group_id=1, segment_size=1 << 22
        )
        self.tail = tail_after(self.tail, entry)
        self.state.apply([entry])
        return entry

    def command(self, *run: commands.Command) -> None:
        """Applies a COMMAND."""
        self.add(EntryType.COMMAND, commands.pack(list(run)))

    def send(self, queues: Sequence[tuple[int, int]], count: int, commits: int = 0, group: int = 0) -> float:
        """`count` messages over the queues in turn, PER_ENTRY to an entry, with as many committed offsets. CPU time per
        message in microseconds, of apply only."""
        spent = 0.0
        for _ in range(max(1, count // PER_ENTRY)):
            body = self._entry(queues, commits, group)
            entry_at = process_time()
            self.add(EntryType.MESSAGES, body)
            spent += process_time() - entry_at
        return spent * 1e6 / max(count, PER_ENTRY)

    def _entry(self, queues: Sequence[tuple[int, int]], commits: int, group: int) -> bytes:
        items: dict[tuple[int, int], list[bytes]] = {}
        at = self.tail.end_position
        for n in range(self.count, self.count + PER_ENTRY):
            items.setdefault(queues[n % len(queues)], []).append(payload.ITEM.pack(at + n % PER_ENTRY, 1, 7, 0, n))
        runs = []
        for queue, packed in items.items():
            runs.append(payload.Run(*queue, self.ends[queue], len(packed), 0, b"".join(packed)))
            self.ends[queue] += len(packed)
        rows = [[f"g{group}", *queues[(self.count + n) % len(queues)], self.count] for n in range(commits)]
        effects = commands.pack([["commit_offsets", rows]]) if rows else b""
        producer = (self.count // PER_ENTRY % self.sessions).to_bytes(16)
        sequences = range(self.count, self.count + PER_ENTRY)
        session = payload.SessionRows(
            producer, self.count, sequences[-1], b"".join(payload.SESSION_ROW.pack(n, 1, 0, n, n) for n in sequences)
        )
        self.count += PER_ENTRY
        return payload.encode([bytes(PER_ENTRY)], PER_ENTRY, runs, [session], (), effects)


def state_rows() -> Iterator[Row]:
    """CPU per message of apply."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as open_stores:
        folder = Path(name)

        def store(what: str, **sizes: int) -> Store:
            made = Store(folder / what, **sizes)
            open_stores.callback(lambda: made.kv.close())
            return made

        few, many = store("few"), store("many", queues=QUEUES)
        topics, grouped = store("topics", topics=QUEUES, queues=1), store("groups", queues=1_000, groups=50)
        wide, sessions = store("wide", queues=QUEUES, groups=1), store("sessions", sessions=QUEUES)
        ten = slice(10)
        yield from taking_turns(
            "apply, CPU us per message",
            {
                "10 queues": lambda: few.send(few.queues, MESSAGES),
                f"10 active of {QUEUES:,} queues": lambda: many.send(many.queues[ten], MESSAGES),
                f"{QUEUES:,} active queues": lambda: many.send(many.queues, MESSAGES),
                f"10 active of {QUEUES:,} topics": lambda: topics.send(topics.queues[ten], MESSAGES),
                f"{QUEUES:,} active topics": lambda: topics.send(topics.queues, MESSAGES),
                "10 queues, 1 commit per entry": lambda: few.send(few.queues, MESSAGES, commits=1),
                "10 of 1,000 queues, 1 commit per entry, 50 groups": lambda: grouped.send(
                    grouped.queues[ten], MESSAGES, commits=1
                ),
                f"10 of {QUEUES:,} queues, 1 commit per entry by a group of all": lambda: wide.send(
                    wide.queues[ten], MESSAGES, commits=1
                ),
                f"10 queues, {QUEUES:,} producers in turn": lambda: sessions.send(sessions.queues, MESSAGES),
            },
        )


def trim_rows() -> Iterator[Row]:
    """The longest entry of a TRIM that takes all but the last 10,000 messages of 10,000 queues: CPU in milliseconds."""
    for what, rows in (("one entry", 0), ("slices of 512 rows", 512)):
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder), queues=QUEUES)
            store.send(store.queues, 20 * QUEUES)
            position = store.tail.end_position
            store.send(store.queues, QUEUES)
            spent = []
            said: trim.Trim | trim.Slice = trim.Trim(position, 1, "age", sliced=bool(rows))
            while said:
                entry_at = process_time()
                entry = store.add(EntryType.TRIM, trim.encode(said))
                spent.append((process_time() - entry_at) * 1e3)
                sweep = store.state.sweep
                if sweep is None:
                    break
                said = trim.Slice(sweep.index, rows)
            del entry
            store.kv.close()
        yield {"of": "TRIM, CPU ms", "case": f"{what}: the longest", "value": round(max(spent), 1)}
        yield {"of": "TRIM, CPU ms", "case": f"{what}: all {len(spent)}", "value": round(sum(spent), 1)}


def memory_rows() -> Iterator[Row]:
    """Bytes that Python holds for each thing that nobody uses (tracemalloc): RocksDB's memory is bounded apart."""

    def asked(store: Store) -> None:
        for queue in store.queues:
            store.state.min_offset(*queue), store.state.max_offset(*queue)

    def nothing(_: Store) -> None:
        pass

    def produced(store: Store) -> None:
        store.sessions = IDLE
        row = payload.SESSION_ROW.pack(1, 1, 0, 1, 1)
        sessions = [payload.SessionRows(n.to_bytes(16), 1, 1, row) for n in range(IDLE)]
        store.add(EntryType.MESSAGES, payload.encode([], 0, [], sessions))

    cases: dict[str, tuple[dict[str, int], Callable[[Store], None], Callable[[Store], None]]] = {
        "queue, after a restart": ({"queues": IDLE}, nothing, nothing),
        "queue, after its ends were asked for": ({"queues": IDLE}, nothing, asked),
        "queue, after it grew": ({"queues": IDLE}, nothing, lambda store: void(store.send(store.queues, IDLE))),
        "committed offset": ({"queues": IDLE, "groups": 1}, nothing, nothing),
        "producer session": ({}, produced, nothing),
    }
    for what, (sizes, before, use) in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder), **({"groups": 0} | sizes))
            before(store)
            store.kv.close()
            del store.state
            gc.collect()
            tracemalloc.start()
            store.state = BrokerState(store._open())
            use(store)
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            store.kv.close()
        yield {"of": "memory, bytes", "case": what, "value": round(held / IDLE, 1)}


def void(_: object) -> None:
    """Drops a result."""


# --- all -------------------------------------------------------------------------------------------------------------


def taking_turns(of: str, cases: dict[str, Callable[[], float]]) -> Iterator[Row]:
    """The median of each case, and what it is of the first one's."""
    found: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for case, measure in cases.items():
            found[case].append(measure())
    first = median(next(iter(found.values())))
    for case, values in found.items():
        value = median(values)
        yield {"of": of, "case": case, "value": round(value, 2), "times": round(value / first, 2)}


SECTIONS = {"cluster": cluster_rows, "state": state_rows, "trim": trim_rows, "memory": memory_rows}


def main() -> None:
    """Measures what is named and prints it."""
    named = sys.argv[1:] or list(SECTIONS)
    rows = [row for name in named for row in SECTIONS[name]()]
    if os.environ.get("JSON"):
        print(json.dumps({"rows": rows}))
        return
    table = Table("of", "case", "value", "times the first")
    for row in rows:
        table.add_row(row["of"], row["case"], f"{row['value']:,}", str(row.get("times", "")))
    console().print(table)


if __name__ == "__main__":
    main()
