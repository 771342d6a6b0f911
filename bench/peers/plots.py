"""Draws the result as pictures: rates and CPU for each load, latencies at one message in flight, failovers; one SVG
each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Bar(NamedTuple):
    """A bar with the range of its rounds; `low` and `high` equal the value if no range is known."""

    label: str
    value: float
    low: float
    high: float


class Picture(NamedTuple):
    """One picture file: bars from top to bottom; the title says whether a longer bar is better or worse."""

    name: str
    title: str
    unit: str
    bars: list[Bar]


def pictures(result: Mapping[str, Any]) -> list[Picture]:
    """Returns the pictures for the document of `bench.peers.report`."""
    measured = [row for row in result["rows"] if "unavailable" not in row]
    loads = dict.fromkeys((row["batch"], row["in_flight"], row["connections"]) for row in measured)
    found = []
    for batch, in_flight, connections in loads:
        shape = (batch, in_flight, connections)
        rows = [row for row in measured if (row["batch"], row["in_flight"], row["connections"]) == shape]
        what = f"{in_flight} in flight" + (f", batches of {batch}" if batch > 1 else "")
        what += f", {connections} connections" if connections > 1 else ""
        name = f"{in_flight}" + (f"x{batch}" if batch > 1 else "") + ("-each" if connections > 1 else "")
        rates = [Bar(row["system"], *_range(row["messages_per_second"])) for row in rows]
        found.append(Picture(f"rate-{name}", f"Messages per second, {what}: more is better", "messages/s", rates))
        cpu = [_exact(row, "cpu_us_per_message") for row in rows]
        found.append(Picture(f"cpu-{name}", f"CPU of all nodes, {what}: less is better", "µs per message", cpu))
        if batch == in_flight == 1:
            p50 = [_exact(row, "p50_ms") for row in rows]
            if floor := result["floor"].get("p50_ms"):
                p50.append(Bar("disk floor", floor, floor, floor))
            found.append(Picture("latency-1", "Median latency, 1 in flight: less is better", "ms", p50))
    arriving = result.get("open_loop", ())
    for share in dict.fromkeys(row["share"] for row in arriving):
        bars = [_exact(row, "p99_ms") for row in arriving if row["share"] == share]
        title = f"p99 from the scheduled moment, at {share:g} of each one's capacity: less is better"
        found.append(Picture(f"open-{share:g}", title, "ms", bars))
    faults = [each for each in result["failover"] if "median" in each]
    if faults:
        waits = [Bar(f"{each['system']}, {each['fault']}", *_range(each)) for each in faults]
        found.append(Picture("failover", "To the first acknowledged send: less is better", "s", waits))
    return found


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes all pictures into the folder; returns the files. The same result gives the same bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    files = []
    with mpl.rc_context({"svg.hashsalt": "raftmq", "svg.fonttype": "none"}):
        for picture in pictures(result):
            figure = Figure(figsize=(8, 1.2 + 0.4 * len(picture.bars)), layout="constrained")
            axes = figure.subplots()
            places = range(len(picture.bars))
            values = [bar.value for bar in picture.bars]
            colours = ["#c0392b" if bar.label.startswith("raftmq") else "#7f8c8d" for bar in picture.bars]
            axes.barh(places, values, xerr=_errors(picture.bars), color=colours, capsize=3)
            axes.set_yticks(places, [bar.label for bar in picture.bars])
            axes.invert_yaxis()
            axes.set_xlabel(picture.unit)
            axes.set_title(picture.title)
            files.append(folder / f"{picture.name}.svg")
            figure.savefig(files[-1], metadata={"Date": None})
    return files


def _range(each: Mapping[str, float]) -> tuple[float, float, float]:
    return each["median"], each["low"], each["high"]


def _exact(row: Mapping[str, Any], figure: str) -> Bar:
    value = row[figure]
    return Bar(row["system"], value, value, value)


def _errors(bars: Sequence[Bar]) -> tuple[list[float], list[float]]:
    """Returns the distances from each bar's value down to `low` and up to `high`."""
    return [bar.value - bar.low for bar in bars], [bar.high - bar.value for bar in bars]
