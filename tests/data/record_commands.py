"""Records how a release answers commands that a later one would not propose: `python record_commands.py FILE`.

Ranges hold where a request is decoded. What is in a log means what it meant: every release must answer it
as the first one did (tests/statemachine/test_recorded_commands.py). Run with the release that had no ranges (0563a66).
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.frame import make_entry, tail_after
from raftlog.types import EMPTY_TAIL, EntryType
from statemachine.broker_state import BrokerState
from statemachine.commands import pack
from statemachine.rows.digest import digest

BEYOND: list[list[Any]] = [
    ["create_topic", {"name": "t" * 256, "read_queues": 65_535, "write_queues": 1, "perm": 15}, False],
    ["create_topic", {"name": "T", "attributes": {f"a{at}": "x" * 5000 for at in range(70)}}, True],
    ["create_topic", {"name": "T", "read_queues": 65_536}, False],
    ["create_topic", {"name": "T", "sys_flag": 2**32}, False],
    ["delete_topic", "x" * 5000],
    ["put_group", {"name": "g", "retry_max_times": 2**31 - 1, "group_retry_policy": "p" * 20_000}, False],
    ["put_group", {"name": "g", "retry_max_times": 2**63}, False],
    ["put_group", {"name": "g", "retry_max_times": True}, False],
    ["put_group", {"name": "h" * 121}, False],
    ["put_group", {"name": "h\0"}, False],
    ["subscribe", "g", [["t" * 300, "SQL92" * 20, "s" * 100_000, 2**63 - 1], ["u", "TAG", "*", -(2**63)]]],
    ["subscribe", "g", [["u", "TAG", "*", 2**64 - 1]]],
    ["commit_offsets", [["g", 1, 65_535, 2**63 - 1], ["g", 2, 7, 5]]],
    ["commit_offsets", [["g", 2, 7, 2**64 - 1]]],
    ["commit_offsets", [["g", 2**33, 7, 1]]],
    ["delete_group", "g" * 5000, True],
]


def answers(payloads: list[bytes]) -> tuple[list[str], dict[str, int]]:
    """Returns apply's answer to each payload, and the sums of the rows afterwards."""
    kv = MemoryKV()
    state, tail = BrokerState(kv), EMPTY_TAIL
    results = []
    for payload in payloads:
        entry = make_entry(
            tail,
            term=1,
            entry_type=EntryType.COMMAND,
            payload=payload,
            timestamp_ms=1_700_000_000_000,
            group_id=1,
            segment_size=1 << 30,
        )
        tail = tail_after(tail, entry)
        answer = state.apply([entry]).results[0][0]
        results.append(f"{answer.ok} {answer.code} {answer.value}"[:300])
    return results, digest(kv)


if __name__ == "__main__":
    recorded = [pack([command]) for command in BEYOND]
    told, sums = answers(recorded)
    made = {"payloads": [zlib.compress(payload).hex() for payload in recorded], "results": told, "sums": sums}
    Path(sys.argv[1]).write_text(json.dumps(made, indent=1) + "\n")
