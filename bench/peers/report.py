"""Makes one JSON document and tables of the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.peers.rounds import Field, Spread, spread
from bench.peers.system import Load


def row(field: Field, load: Load) -> dict[str, Any]:
    """Returns the row of one system under one load: medians of its rounds, and the range of its rates."""
    samples = field.samples[load]
    rate = spread([one.messages_per_second for one in samples])
    return {
        "system": field.name,
        "in_flight": load.in_flight,
        "connections": load.connections,
        "batch": load.batch,
        "size": load.size,
        "messages_per_second": {name: round(value) for name, value in rate._asdict().items()},
        "cpu_us_per_message": round(spread([one.cpu_us_per_message for one in samples]).median, 1),
        "p50_ms": round(spread([one.p50_ms for one in samples]).median, 3),
        "p99_ms": round(spread([one.p99_ms for one in samples]).median, 3),
        "refused": sum(one.errors for one in samples),
        "rounds": len(samples),
        "durability": field.system.traits.durability,
    }


def document(
    fields: Sequence[Field],
    missing: Mapping[str, str],
    failover: Sequence[Mapping[str, Any]],
    floor: Mapping[str, float],
    settings: Mapping[str, Any],
    arriving: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Returns the complete result. A system that could not be fetched, or that failed, has a row with the reason."""
    rows = [row(field, load) for field in fields for load in field.samples]
    rows.sort(key=lambda each: (each["batch"], each["connections"], each["in_flight"]))
    gone = dict(missing) | {field.name: field.failed for field in fields if field.failed}
    return {
        "rows": rows + [{"system": name, "unavailable": why} for name, why in gone.items()],
        "open_loop": list(arriving),
        "failover": [_with_spread(one) for one in failover],
        "floor": _floor(floor, rows),
        "memory_mib": {field.name: round(field.memory_bytes / 2**20) for field in fields},
        "leader_changes": {field.name: field.leader_changes for field in fields},
        "versions": {field.name: field.system.traits.version for field in fields},
        "settings": dict(settings),
    }


def _with_spread(one: Mapping[str, Any]) -> dict[str, Any]:
    if not one.get("seconds"):
        return dict(one)
    return {**one, **spread(one["seconds"])._asdict()}


def _floor(floor: Mapping[str, float], rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the disk's floor, with RaftMQ's p50 at one message in flight as a multiple of it."""
    ours = [each["p50_ms"] for each in rows if each["system"] == "raftmq" and each["in_flight"] == 1]
    return {**floor, "raftmq_ratio": round(ours[0] / floor["p50_ms"], 2)} if ours else dict(floor)


def show(result: Mapping[str, Any], console: Console) -> None:
    """Prints the tables."""
    measured = [each for each in result["rows"] if "unavailable" not in each]
    heads = (
        "messages/s (low to high)",
        "CPU µs/message",
        "p50 ms",
        "p99 ms",
        "refused",
        "durability",
    )
    table = Table("batch", "in flight", "connections", "system", *heads, title="medians of alternating rounds")
    for each in measured:
        rate = Spread(**each["messages_per_second"])
        figures = (
            f"{rate.median:,} ({rate.low:,} to {rate.high:,})",
            f"{each['cpu_us_per_message']:,}",
            f"{each['p50_ms']:.2f}",
            f"{each['p99_ms']:.2f}",
            f"{each['refused']:,}",
        )
        shape = (str(each[name]) for name in ("batch", "in_flight", "connections"))
        table.add_row(*shape, each["system"], *figures, each["durability"])
    console.print(table)
    floor = result["floor"]
    console.print(
        f"Disk floor (two syncs and a round trip): p50 {floor['p50_ms']} ms"
        + (f"; raftmq at 1 in flight takes {floor['raftmq_ratio']} times that" if "raftmq_ratio" in floor else "")
    )
    if result["open_loop"]:
        titles = ("p50 ms", "p99 ms", "p999 ms", "refused", "unknown", "sent late")
        arriving = Table("share", "system", "messages/s", *titles, title="open loop, at shares of each one's capacity")
        for each in result["open_loop"]:
            took = (f"{each[name]:.2f}" for name in ("p50_ms", "p99_ms", "p999_ms"))
            counts = (f"{each[name]:,}" for name in ("refused", "unknown"))
            late = f"{each['late_share']:.1%}"
            arriving.add_row(f"{each['share']:g}", each["system"], f"{each['rate']:,}", *took, *counts, late)
        console.print(arriving)
    if result["failover"]:
        failover = Table("system", "fault", "median s", "low to high", "failed", title="to the first acknowledged send")
        for each in result["failover"]:
            times = (f"{each['median']}", f"{each['low']} to {each['high']}") if "median" in each else ("", "")
            failover.add_row(each["system"], each["fault"], *times, each.get("error", ""))
        console.print(failover)
    for each in result["rows"]:
        if "unavailable" in each:
            console.print(f"{each['system']}: not measured to the end: {each['unavailable']}")
