"""The choice of the next leader: one table for an orderly stop, a drain, a lagging disk and a damaged log."""

from __future__ import annotations

import pytest

from raftlog.core.status import PeerStatus
from raftlog.core.successor import successor
from raftlog.types import NOBODY, NodeId

VOTERS = (NodeId(1), NodeId(2), NodeId(3), NodeId(4))


def peer(node: int, match: int, *, active: bool = True, fit: bool = True) -> PeerStatus:
    return PeerStatus(NodeId(node), match, match + 1, "REPLICATE", active, 9 - match, 0, 0, fit, True)


@pytest.mark.parametrize(
    ("peers", "barred", "chosen"),
    [
        pytest.param([peer(2, 5), peer(3, 9)], (), 3, id="the longest log"),
        pytest.param([peer(3, 9), peer(2, 9)], (), 2, id="of equals the lowest id"),
        pytest.param([peer(2, 5), peer(3, 9, active=False)], (), 2, id="heard lately first"),
        pytest.param([peer(2, 5, active=False), peer(3, 9, active=False)], (), 3, id="if any was heard"),
        pytest.param([peer(2, 5), peer(3, 9, fit=False)], (), 2, id="fit"),
        pytest.param([peer(2, 5), peer(3, 9)], (3,), 2, id="not barred by the caller"),
        pytest.param([peer(5, 9), peer(2, 1)], (), 2, id="no learner"),
        pytest.param([peer(2, 5, fit=False), peer(3, 9)], (3,), NOBODY, id="nobody is left"),
        pytest.param([], (), NOBODY, id="nobody is there"),
    ],
)
def test_who_needs_least_to_lead_is_chosen(peers: list[PeerStatus], barred: tuple[int, ...], chosen: int) -> None:
    assert successor(peers, VOTERS, lambda peer: peer.node_id not in barred) == chosen
