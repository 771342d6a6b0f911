"""`python -m bench.peers.page RESULT.json ...`: writes the measured figures into the pages.

The documents are those that `make bench-peers` writes with JSON=1, of one commit. What the pages show of them is kept
in measured.json; README.md and docs/performance.md have tables between two marks, and pictures, which are made from it.
Where several documents have a system, the first one counts.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers import plots

ROOT = Path(__file__).parents[2]
MEASURED = Path(__file__).parent / "measured.json"
BEGIN, END = "<!-- bench-peers: {} -->", "<!-- end -->"
README, CHINESE = "readme", "readme in Chinese"
RATES, CPU, TIMES = "messages per second", "CPU", "p50 and p99"
PAGES = {
    ROOT / "README.md": (README,),
    ROOT / "README.zh-CN.md": (CHINESE,),
    ROOT / "docs" / "performance.md": (RATES, CPU, TIMES),
}
"""Page -> names of its tables."""
IN_CHINESE = {
    "acknowledged when": "何时确认",
    "in flight": "条在途",
    "connections": "个连接",
    "a majority has synced it": "多数节点已落盘",
    "it is in the page cache of a majority": "已在多数节点的页缓存中",
    " as shipped": ", 默认设置",
    ", tuned": ", 调优",
}
"""Words of README's table -> those of the Chinese page's, which has the same rows."""
SHAPES = {(1, 1): "1 in flight", (1, 64): "64 in flight", (1, 512): "512 in flight", (1, 500): "500 connections"}
"""(batch, requests in flight) -> title of the column."""
BATCHES = {(100, 16): "batches of 100, 16 in flight"}
NAMES = {
    "raftmq": "RaftMQ",
    "raftmq-thrifty": "RaftMQ, `replication.thrifty`",
    "etcd": "etcd",
    "nats": "NATS JetStream R3, `sync_interval: always`",
    "nats-lazy": "NATS JetStream R3 as shipped",
    "dledger-tuned": "RocketMQ DLedger, tuned",
}
"""System -> its name on the pages, in their order. Others are not shown."""
PROMISES = {
    "majority fdatasync": "a majority has synced it",
    "disks of a majority": "a majority has synced it",
    "page cache of a majority": "it is in the page cache of a majority",
}
"""The first words of a system's `durability` -> what the pages say of them."""
SHORT = frozenset(NAMES) - {"raftmq-thrifty"}
"""The systems in README's table."""
PICTURES = ("rate-512", "cpu-512", "failover")
"""The pictures of `plots` that docs/img has, as peers-….svg."""

Row = Mapping[str, Any]


def kept(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what the pages show of the documents."""
    rows: dict[str, list[Row]] = {}
    versions: dict[str, str] = {}
    failover: list[Row] = []
    floor: Mapping[str, float] = {}
    for result in results:
        found: dict[str, list[Row]] = {}
        for row in result["rows"]:
            if "unavailable" not in row:
                found.setdefault(row["system"], []).append(row)
        for system in found:
            versions.setdefault(system, result["versions"][system])
        rows = found | rows
        failover = failover or result["failover"]
        floor = floor or result["floor"]
    return {
        "rows": [row for system in NAMES for row in rows.get(system, [])],
        "versions": {system: versions[system] for system in NAMES if system in versions},
        "failover": failover,
        "floor": floor,
    }


def table(name: str, measured: Mapping[str, Any]) -> str:
    """Returns a table in Markdown, with a line break at its end."""
    if name == CHINESE:
        text = table(README, measured)
        for english, chinese in IN_CHINESE.items():
            text = text.replace(english, chinese)
        return text
    shapes = {README: SHAPES}.get(name, SHAPES | BATCHES)
    figure = {README: _rate, RATES: _rate_and_range, CPU: _cpu, TIMES: _times}[name]
    lines = [("", "acknowledged when", *shapes.values())]
    for system, title in NAMES.items():
        rows = {(row["batch"], row["in_flight"]): row for row in measured["rows"] if row["system"] == system}
        if rows and (name != README or system in SHORT):
            version = measured["versions"][system].split()[-1]
            promise = PROMISES[next(iter(rows.values()))["durability"].partition(";")[0]]
            found = [figure(rows[shape]) if shape in rows else "-" for shape in shapes]
            lines.append((f"{title} ({version})", promise, *found))
    lines.insert(1, ("---",) * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def with_tables(page: str, names: Sequence[str], measured: Mapping[str, Any]) -> str:
    """Returns the text of a page with its tables as they are now. Raises ValueError if it lacks a mark."""
    for name in names:
        mark = BEGIN.format(name)
        before, begun, rest = page.partition(f"{mark}\n")
        _, ended, after = rest.partition(END)
        if not (begun and ended):
            raise ValueError(f"the page has no {mark}, or no {END} after it")
        page = f"{before}{begun}\n{table(name, measured)}\n{ended}{after}"
    return page


def _rate(row: Row) -> str:
    return f"{row['messages_per_second']['median']:,}"


def _rate_and_range(row: Row) -> str:
    rate = row["messages_per_second"]
    return f"{rate['median']:,} ({rate['low']:,} to {rate['high']:,})"


def _cpu(row: Row) -> str:
    cpu = row["cpu_us_per_message"]
    return f"{cpu:,.0f}" if cpu >= 100 else f"{cpu:.1f}"


def _times(row: Row) -> str:
    return f"{row['p50_ms']:.2f} / {row['p99_ms']:.1f}"


def main() -> None:
    """Writes measured.json and the tables of all pages."""
    if not sys.argv[1:]:
        raise SystemExit("usage: python -m bench.peers.page RESULT.json ...")
    measured = kept([json.loads(Path(each).read_text()) for each in sys.argv[1:]])
    MEASURED.write_text(json.dumps(measured, indent=1) + "\n")
    for page, names in PAGES.items():
        page.write_text(with_tables(page.read_text(), names, measured))
    with tempfile.TemporaryDirectory() as folder:
        for picture in plots.draw(measured, Path(folder)):
            if picture.stem in PICTURES:
                shutil.copy(picture, ROOT / "docs" / "img" / f"peers-{picture.name}")


if __name__ == "__main__":
    main()
