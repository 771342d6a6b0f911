"""What the page Quotas shows, run by node without a browser: tests/browser looks at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.dashboard import run_dashboard
from tests.support.tools import needs

pytestmark = needs("node")

SCRIPT = """
globalThis.matchMedia = () => ({ addEventListener() {} });
const { view } = await page("quotas");
const rows = {};

const text = (each) => (Array.isArray(each) ? each.map(text).join("") : each?.tag ? text(each.children) : each ?? "");
function look(one) {
  if (Array.isArray(one)) return one.forEach(look);
  if (!one || typeof one !== "object") return;
  if (one.props["data-row"] !== undefined) {
    rows[one.props["data-row"]] = one.children.flat().map((cell) => text(cell.children));
  }
  look(one.children);
}
const shown = view(JSON.parse(words[0]));
look(shown);
console.log(JSON.stringify({ rows, text: text(shown) }));
"""
OF_ONE = {
    "owner": "user=ann",
    "subject": "user=*",
    "limit": "send_messages",
    "value": 50,
    "refused": 7,
    "refused_ms_ago": 3,
    "asked_per_s": 62.5,
}
QUOTA = {
    "subject": "user=*",
    "limits": {"send_messages": 50, "new_topics": 2},
    "changed_ms": 1,
    "changed_by": "bob",
    "exists": True,
}
HEAD = {
    "digest": "ab" * 32,
    "mode": "on",
    "topics": 2,
    "made_ms": 1,
    "first_ms": 1,
    "last_ms": 2,
    "ends_ms": 3,
    "expired": False,
    "changed_ms": 4,
    "changed_by": "bob",
}
TOPIC = {
    "topic": "orders",
    "messages_per_s": 900.0,
    "limit_messages": 100,
    "limit_bytes": 0,
    "seen": 5000,
    "over": 4000,
    "cut": 3000,
    "demoted": True,
}


def shown(folder: Path, **given: Any) -> Any:
    quotas = {"quotas": [QUOTA], "node": 1, "applied_index": 7, "consistency": "linearizable"}
    use = {"waiting": 2, "owners": [OF_ONE], "busiest": [OF_ONE, {**OF_ONE, "owner": "user=bea", "refused": 0}]}
    learnt = {"in_force": HEAD, "seen": 5000, "over": 4000, "topics": [TOPIC]}
    return json.loads(
        run_dashboard(folder, SCRIPT, "", json.dumps({"list": quotas, "use": use, "learnt": learnt} | given))
    )


def test_who_sends_beside_his_limit_and_what_was_refused(tmp_path: Path) -> None:
    found = shown(tmp_path)
    assert found["rows"]["user=*"][:2] == ["user=*", "send_messages 50/s, new_topics 2 a minute"]
    ann, bea = (found["rows"][f"user=* user={name} send_messages"] for name in ("ann", "bea"))
    assert ann == ["user=ann", "user=*", "send_messages", "62.5/s", "50/s", "7"]
    assert bea[-1] == "0"
    assert found["rows"]["orders"] == ["orderscut first", "900/s", "100/s", "4,000", "3,000"]
    assert "2 sends wait for one" in found["text"]
    assert "on: who is over is cut first in an overload" in found["text"]
    assert "4,000 of 5,000 messages" in found["text"]


def test_nothing_of_it(tmp_path: Path) -> None:
    none = {"quotas": [], "node": 1, "applied_index": 7, "consistency": "linearizable"}
    found = shown(tmp_path, list=none, use=None, learnt={"in_force": None, "seen": 0, "over": 0, "topics": []})
    assert found["rows"] == {}
    assert "There is no quota." in found["text"]
    assert "raftmq quota import FILE" in found["text"]


def test_no_leader_says_anything_and_limits_that_have_expired(tmp_path: Path) -> None:
    assert shown(tmp_path, use=None, learnt=None)["text"].count("No leader says it now.") == 2
    gone = {"in_force": {**HEAD, "expired": True}, "seen": 0, "over": 0, "topics": []}
    assert "expired" in shown(tmp_path, learnt=gone)["text"]
