"""Directories that earlier releases wrote open for ever: nothing is lost, and the rows are theirs (tests/data/)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.members import members_at_opening
from raftlog.storage.node_dir import open_node_dir
from statemachine.broker_state import BrokerState
from statemachine.rows.digest import digest
from statemachine.rows.rocksdb_store import RocksKV


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_format_10_opens(name: str, tmp_path: Path, unpack: Callable[[Path], dict[str, Any]]) -> None:
    told = unpack(tmp_path)[name]
    opened = open_node_dir(OsFileSystem(), tmp_path / name)
    kv = RocksKV(str(tmp_path / name / "state"))
    state, log = BrokerState(kv), opened.log
    assert opened.log.report.clean is (name == "clean")
    assert (log.tail.index, log.tail.term, log.tail.header_crc, log.tail.end_position) == (
        told["last_index"],
        told["last_term"],
        told["last_header_crc"],
        told["end_position"],
    )
    assert str(opened.identity.cluster_uuid) == told["cluster_uuid"]
    members = members_at_opening(tmp_path, opened.identity, log.genesis, log, state.membership, state.applied.index)[-1]
    assert [int(voter) for voter in members.voter_ids] == [1]

    state.apply(log.read_entries(state.applied.index + 1, log.tail.index + 1, 1 << 30))
    sums = digest(kv)
    assert {family: sums[family] for family in told["digest"]} == told["digest"]
    assert sorted(state.topics) == told["topics"]
    assert {group: [list(row) for row in state.offsets_of_group(group)] for group in state.groups} == told["groups"]
    for place, bodies in told["bodies"].items():
        topic, _, queue = place.partition("/")
        config = state.topics[topic]
        items = state.fetch(config.id, int(queue), 0, len(bodies) + 9)
        assert len(items) == len(bodies)
        for item, body in zip(items, bodies, strict=True):
            assert body.encode() in log.read_at(item.position, item.size)
    kv.close()
    opened.close(clean=True)
