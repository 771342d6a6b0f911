"""What the page Overview says of the leader's load, run by node without a browser: tests/browser looks at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.dashboard import run_dashboard
from tests.support.tools import needs

pytestmark = needs("node")

SCRIPT = """
globalThis.matchMedia = () => ({ addEventListener() {} });
const { view } = await page("overview");
const given = JSON.parse(words[0]);
const load = { connections: 1, long_polls: 0 };
const status = { node: 1, applied_index: 7, load, versions: {}, links: [], uptime_ms: 1 };
const series = new Map(Object.entries(given).map(([name, value]) => [name, [value, value]]));
const history = { times_ms: [1000, 6000], series, interval_ms: 5000 };
const own = { state: { status, health: { findings: [], reasons: [], nodes: [] } }, refresh() {}, draw() {} };
const told = { plots: {} };
function look(one) {
  if (Array.isArray(one)) return one.forEach(look);
  if (!one || typeof one !== "object") return;
  const text = (each) => (Array.isArray(each) ? each.map(text).join("") : each?.tag ? text(each.children) : each ?? "");
  if (one.props["data-tile"] === "Writes") {
    told.writes = [one.children[1].props.class.replace("figure ", ""), text(one.children[2])];
  }
  if (one.props["data-overloaded"]) told.overloaded = [one.props["data-overloaded"], text(one)];
  if (one.props["aria-label"]?.includes(", last: ")) {
    const [name, lines] = one.props["aria-label"].split(", last: ");
    told.plots[name] = lines.split(", ");
  }
  look(one.children);
}
look(view({ members: { members: [], leader: 1, term: 2 }, node: 1, history, registry: { processes: [] } }, own));
console.log(JSON.stringify(told));
"""
DASH = "\u2013"
CALM = {
    "leads": 1,
    "overloaded": 0,
    "messages_in_per_s": 40,
    "bytes_in_per_s": 4096,
    "demand_bytes_per_s": 4096,
    "inflight_bytes": 2048,
    "refused_overload_per_s": 0,
    "refused_busy_per_s": 0,
    "refused_other_per_s": 0,
}


def shown(folder: Path, **series: float) -> Any:
    return json.loads(run_dashboard(folder, SCRIPT, "", json.dumps(CALM | series)))


def test_a_leader_that_takes_all_is_not_overloaded(tmp_path: Path) -> None:
    """It has not learnt its limit, and says so."""
    told = shown(tmp_path)
    assert told["overloaded"] == ["no", "not overloaded"]
    assert told["writes"] == ["", "4 KiB/s"]
    assert told["plots"]["Demand"] == ["arrives 4 KiB/s", "acknowledged 4 KiB/s", f"the log takes {DASH}"]
    assert told["plots"]["House"] == ["undecided 2 KiB", f"limit {DASH}"]
    assert told["plots"]["Refused"] == ["overload 0/s", "bytes in flight 0/s", "other 0/s"]


def test_an_overload_is_said_in_the_tile_the_head_and_the_plots(tmp_path: Path) -> None:
    told = shown(
        tmp_path,
        overloaded=1,
        demand_bytes_per_s=9 << 20,
        decided_bytes_per_s=7 << 20,
        admission_limit_bytes=512 << 10,
        refused_overload_per_s=1500,
        refused_busy_per_s=2,
    )
    assert told["overloaded"] == ["yes", "overloaded"]
    assert told["writes"] == ["bad", "4 KiB/s, overloaded, 1.50 k/s refused"]
    assert told["plots"]["Demand"] == ["arrives 9 MiB/s", "acknowledged 4 KiB/s", "the log takes 7 MiB/s"]
    assert told["plots"]["House"] == ["undecided 2 KiB", "limit 512 KiB"]
    assert told["plots"]["Refused"] == ["overload 1.50 k/s", "bytes in flight 2/s", "other 0/s"]


@pytest.mark.parametrize("reason", ["overload", "busy", "other"])
def test_refusals_without_an_overload_are_a_warning(tmp_path: Path, reason: str) -> None:
    assert shown(tmp_path, **{f"refused_{reason}_per_s": 3})["writes"] == ["warn", "4 KiB/s, 3/s refused"]


def test_a_follower_says_nothing_of_an_overload(tmp_path: Path) -> None:
    told = shown(tmp_path, leads=0)
    assert "overloaded" not in told
    assert len(told["plots"]) == 9
