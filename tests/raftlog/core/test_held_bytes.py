"""How many bytes of appends a thrifty leader holds back (`raftlog.core.held_appends`). Stories tell what else it does
with them: testdata/thrifty*.txt."""

from __future__ import annotations

import pytest

from raftlog.core.held_appends import BYTES_MAX, TRIAL
from raftlog.types import NodeId
from tests.support.raft_story import Story

PAYLOAD = "x" * 20_000


class Thrifty(Story):
    """A group whose first member leads, and knows which voters are quick."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.do_nodes(str(nodes))
        self.do_thrifty("1")
        self.do_campaign("1")
        self.do_run()
        for _ in range(TRIAL):
            self.add("w")

    def add(self, text: str) -> list[int]:
        """Appends an entry. Returns the number of entries that are held then, for each voter for which any are."""
        list(self.do_propose("1", text))
        self.do_run()
        held = self.group.appends[NodeId(1)].held
        return [sum(len(append.entries) for append in queued) for queued in held.values()]


@pytest.mark.parametrize(("nodes", "slow"), [(3, 1), (5, 2)])
def test_the_bytes_of_an_entry_count_once_however_many_voters_it_is_held_for(nodes: int, slow: int) -> None:
    group = Thrifty(nodes)
    for count in range(1, BYTES_MAX // len(PAYLOAD) + 1):
        assert group.add(PAYLOAD) == [count] * slow
    assert group.add(PAYLOAD) == []
