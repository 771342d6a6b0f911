"""The price of each mode on this machine's disk: `raftmq bench modes` with the loads of docs/performance.md.

python bench/bench_modes.py [--dir DIR]     prints the table of that page, as Markdown
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from raftmq.commands.bench_modes import Report, measure

SIZES, WINDOWS, SECONDS = (1024, 65536), (1, 64), 4.0


def markdown(report: Report) -> str:
    """The table, and what must be known to believe it."""
    load = report.load_before
    lines = [
        f"Disk alone: a write of 4 KiB and its fdatasync take {report.disk.sync_p50_ms} ms (p50), "
        f"{report.disk.sync_p99_ms} ms (p99). Load of the machine before: {load[0]:.1f}, {load[1]:.1f}, {load[2]:.1f}.",
        "",
        "| bytes | in flight | level | flush | messages/s | p50 ms | p99 ms | CPU µs per message |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.size_bytes:,} | {row.in_flight} | `{row.level}` | {row.flush} | {row.messages_per_second:,} | "
        f"{row.p50_ms} | {row.p99_ms} | {row.cpu_us_per_message:,.0f} |"
        for row in report.rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="a folder on the disk to be measured")
    directory = parser.parse_args().dir
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-", dir=directory) as place:
        report = measure(Path(place), SIZES, WINDOWS, SECONDS, lambda stage: print(stage, file=sys.stderr))
    print(markdown(report))


if __name__ == "__main__":
    main()
