"""What messages that wait for their time cost: the state with millions of them, and sends beside plain sends.

    python bench/bench_timers.py [--pending 10000000] [--rounds 5] [--seconds 4] [--dir DIR] [--json]

The state is filled through apply, one row for each message, which is the worst case. Each stage is a process of its
own, so that memory is that of an open state and nothing else. Then nine in ten are delivered, in the order of their due
times, and the state is opened again: what was removed must not be passed by reads. Sends are measured in rounds that
alternate between plain and delayed on one cluster; the ratio of their CPU times says more than that of their rates.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from load import run

from raftlog.frame import make_entry, tail_after
from raftlog.types import EMPTY_TAIL, Entry, EntryType, LogTail
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from statemachine import commands, payload
from statemachine.broker_state import BrokerState
from statemachine.digest import digest
from statemachine.rocks import RocksKV
from statemachine.timers import TimerName

MESSAGE_BYTES = 300
PER_ENTRY = 256
HORIZON_MS = 259_200_000
"""Due times are spread over three days."""
IN_FLIGHT = 512


class Log:
    """Makes entries that follow each other."""

    def __init__(self, tail: LogTail) -> None:
        self.tail = tail

    def add(self, kind: int, body: bytes) -> Entry:
        """The next entry."""
        entry = make_entry(
            self.tail, term=1, entry_type=kind, payload=body, timestamp_ms=1, group_id=1, segment_size=2**40
        )
        self.tail = tail_after(self.tail, entry)
        return entry

    def scheduled(self, due_times: list[int]) -> Entry:
        """Messages with these due times, each in a row of its own."""
        first = self.tail.end_position
        runs = [
            payload.Run(
                1, 0, due, 1, payload.RowKind.SCHEDULED, payload.ITEM.pack(first + at * MESSAGE_BYTES, 300, 7, 0, 1)
            )
            for at, due in enumerate(due_times)
        ]
        return self.add(EntryType.MESSAGES, payload.encode([_MESSAGES], PER_ENTRY, runs, []))


_MESSAGES = bytes(MESSAGE_BYTES * PER_ENTRY)


def log_of(state: BrokerState) -> Log:
    """Goes on where the state stands."""
    mark = state.applied_mark
    return Log(EMPTY_TAIL._replace(term=mark.term, index=mark.index, end_position=mark.end_position, timestamp_ms=1))


def rss_mib() -> float:
    """Memory of this process."""
    used: int = psutil.Process().memory_info().rss
    return used / 2**20


def timed(what: Callable[[], object]) -> float:
    """Milliseconds that a call takes."""
    begin = perf_counter()
    what()
    return (perf_counter() - begin) * 1000


class Opened:
    """An open state, and what opening it cost."""

    def __init__(self, path: Path) -> None:
        self.before_mib = rss_mib()
        begin = perf_counter()
        self.kv = RocksKV(str(path))
        self.database_ms = (perf_counter() - begin) * 1000
        self.state_ms = timed(self._open)

    def _open(self) -> None:
        self.state = BrokerState(self.kv)

    def report(self) -> dict[str, Any]:
        """What it is like to have it open."""
        state = self.state
        end = state.applied_mark.end_position
        return {
            "pending": state.timers.counts.pending,
            "memory_mib": rss_mib() - self.before_mib,
            "open_database_ms": self.database_ms,
            "open_state_ms": self.state_ms,
            "first_due_ms": timed(lambda: next(state.timers.due(HORIZON_MS))),
            "idle_look_us": timed(lambda: [state.timers.earliest > 0 for _ in range(1000)]),
            "lowest_position_first_ms": timed(lambda: state.timers.lowest_position(0, end)),
            "lowest_position_again_ms": timed(lambda: state.timers.lowest_position(0, end)),
        }


# --- stages, each a process ------------------------------------------------------------------------------------------


def fill(path: Path, pending: int) -> dict[str, Any]:
    """Writes so many rows."""
    opened, rng = Opened(path), Random(1)
    state, log = opened.state, log_of(opened.state)
    log.tail = EMPTY_TAIL
    state.apply([log.add(EntryType.COMMAND, commands.pack([["create_topic", {"name": "t"}, True]]))])
    cpu = process_time()
    for _ in range(0, pending, PER_ENTRY):
        state.apply([log.scheduled([rng.randrange(1, HORIZON_MS) for _ in range(PER_ENTRY)])])
    cpu = process_time() - cpu
    report = {"apply_us_per_message": cpu / pending * 1e6, "memory_after_filling_mib": rss_mib() - opened.before_mib}
    opened.kv.flush_wal()
    opened.kv.close()
    return report


def look(path: Path, _: int) -> dict[str, Any]:
    """Opens it as a start does."""
    opened = Opened(path)
    report = opened.report()
    opened.kv.close()
    return report


def deliver(path: Path, pending: int) -> dict[str, Any]:
    """Removes nine in ten of the rows, as deliveries do."""
    opened = Opened(path)
    state, log = opened.state, log_of(opened.state)
    looks, applies, cpu = [], [], process_time()
    after: TimerName | None = None
    removed = 0
    while removed < pending * 9 // 10:
        begin = perf_counter()
        names = [row.name for row, _ in zip(state.timers.due(HORIZON_MS, after), range(PER_ENTRY), strict=False)]
        looks.append((perf_counter() - begin) * 1000)
        body = commands.pack([["deliver_timers", [list(name) for name in names]]])
        entry = log.add(EntryType.COMMAND, body)
        applies.append(timed(lambda: state.apply([entry])))  # noqa: B023 - called at once
        after, removed = names[-1], removed + len(names)
    cpu = process_time() - cpu
    report = {
        "cpu_us_per_delivery": cpu / removed * 1e6,
        "look_p50_ms": statistics.median(looks),
        "look_max_ms": max(looks),
        "apply_p50_ms": statistics.median(applies),
        "apply_max_ms": max(applies),
        "memory_after_delivering_mib": rss_mib() - opened.before_mib,
    }
    opened.kv.flush_wal()
    opened.kv.close()
    return report


def copy(path: Path, _: int) -> dict[str, Any]:
    """A checkpoint, which snapshots and backups are made from."""
    opened = Opened(path)
    flush_ms = timed(opened.kv.flush_tables)
    checkpoint_ms = timed(lambda: opened.kv.checkpoint(str(path.with_name("checkpoint"))))
    size = sum(file.stat().st_size for file in path.with_name("checkpoint").iterdir())
    opened.kv.close()
    return {"flush_ms": flush_ms, "checkpoint_ms": checkpoint_ms, "checkpoint_mib": size / 2**20}


def count(path: Path, _: int) -> dict[str, Any]:
    """The digest by a scan of all rows, which a node needs only for a state without running sums."""
    opened = Opened(path)
    cpu = process_time()
    digest(opened.kv)
    cpu = process_time() - cpu
    pending = opened.state.timers.counts.pending
    opened.kv.close()
    return {"pending": pending, "cpu_us_per_pending": cpu / pending * 1e6}


STAGES: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "fill": fill,
    "look": look,
    "copy": copy,
    "deliver": deliver,
    "count": count,
}


def stages(directory: Path, pending: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The state's reports, by what was done."""
    for title, name in [
        ("filled", "fill"),
        ("opened", "look"),
        ("copied", "copy"),
        ("nine in ten delivered", "deliver"),
        ("opened again", "look"),
        ("counted", "count"),
    ]:
        arguments = [sys.executable, __file__, "--stage", name, "--dir", str(directory), "--pending", str(pending)]
        done = subprocess.run(arguments, stdout=subprocess.PIPE, check=True, text=True)
        yield title, json.loads(done.stdout)


# --- sends -----------------------------------------------------------------------------------------------------------


def sends(directory: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Plain and delayed sends in turns: medians, and the delayed ones' share of the plain ones' rate."""
    kinds = {"plain": "", "delayed": f"TIMER_DELAY_MS\\u0001{HORIZON_MS}\\u0002"}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    cpus: dict[str, list[float]] = {kind: [] for kind in kinds}
    cluster = LocalCluster(directory / "data")
    cluster.up(3, base_port=free_base_port(12))
    try:
        leader = cluster.view().leader
        port = next(node.broker_port for node in cluster.nodes if node.id == leader)
        pids = [node.pid for node in cluster.nodes if node.pid is not None]
        for number in range(rounds + 1):
            for kind, properties in kinds.items():
                before = cpu_seconds(pids)
                result = run(
                    "127.0.0.1",
                    port,
                    topic="bench",
                    size=1024,
                    batch=1,
                    in_flight=IN_FLIGHT,
                    seconds=seconds if number else 1,
                    properties=properties,
                )
                if result.errors:
                    raise SystemExit(f"{result.errors} sends were refused: nothing was measured")
                if number:  # the first round warms up
                    rates[kind].append(result.messages / result.seconds)
                    cpus[kind].append((cpu_seconds(pids) - before) / result.messages * 1e6)
    finally:
        cluster.down()
    report: dict[str, Any] = {}
    for kind in kinds:
        report[f"{kind}_messages_per_second"] = statistics.median(rates[kind])
        report[f"{kind}_cpu_us_per_message"] = statistics.median(cpus[kind])
    pairs = zip(rates["delayed"], rates["plain"], strict=True)
    report["rate_share"] = statistics.median([delayed / plain for delayed, plain in pairs])
    pairs = zip(cpus["plain"], cpus["delayed"], strict=True)
    report["cpu_share"] = statistics.median([plain / delayed for plain, delayed in pairs])
    return report


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of the processes so far."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def main() -> None:
    """Prints the tables, or with --json one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", type=int, default=10_000_000, help="messages that wait; 0 leaves this part out")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of sends; 0 leaves this part out")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load of a round")
    parser.add_argument("--dir", type=Path, help="a folder on the disk to be measured")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        sys.stdout.write(json.dumps(STAGES[options.stage](options.dir / "db", options.pending)))
        return
    reports: dict[str, dict[str, Any]] = {}

    def told(title: str, report: dict[str, Any]) -> None:
        reports[title] = report
        if not options.json:
            lines = [f"  {name:<32}{value:>16,.2f}\n" for name, value in report.items()]
            sys.stdout.write("".join([f"{title}\n", *lines]))
            sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="raftmq-bench-", dir=options.dir) as place:
        if options.pending:
            for title, report in stages(Path(place), options.pending):
                told(title, report)
        if options.rounds:
            told("sends", sends(Path(place), options.rounds, options.seconds))
    if options.json:
        sys.stdout.write(json.dumps({"load": os.getloadavg(), **reports}) + "\n")


if __name__ == "__main__":
    main()
