"""The probe of bytes in flight: it reads what a node prints, and a figure that stays is reported."""

from __future__ import annotations

import asyncio

import pytest

from cluster.config.local_layout import NodeRecord
from jepsen_like.live.probes.bytes_in_flight import counted, wait_given_back
from tests.support.answering_api import answering

PAGE = "# TYPE raftmq_inflight_bytes gauge\nraftmq_inflight_bytes {}\nraftmq_client_inflight_bytes {}\n"


def test_both_figures_are_read() -> None:
    assert counted(PAGE.format("300.0", "0.0")) == {"raftmq_inflight_bytes": 300, "raftmq_client_inflight_bytes": 0}
    with pytest.raises(ValueError, match="1 of the 2"):
        counted("raftmq_inflight_bytes 0.0\n")


@pytest.mark.parametrize(("pages", "left"), [(["5.0 0.0", "0.0 0.0"], 0), (["0.0 -7.0"], 1)])
def test_what_stays_is_reported(pages: list[str], left: int) -> None:
    texts = [PAGE.format(*page.split()).encode() for page in pages]
    with answering({"GET /metrics": lambda _: texts.pop(0) if len(texts) > 1 else texts[0]}) as api:
        node = NodeRecord(1, None, 1, 2, 3, api.port, "node.log")
        assert len(asyncio.run(wait_given_back([node], 0.0 if left else 5.0))) == left
