"""The probe of bytes in flight: it reads what a node prints, and a figure that stays is reported."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.config.local_layout import NodeRecord
from jepsen_like.live.probes import bytes_in_flight
from jepsen_like.live.probes.bytes_in_flight import counted, wait_given_back

NODE = NodeRecord(1, None, 1, 2, 3, 4, "node.log")
PAGE = "# TYPE raftmq_inflight_bytes gauge\nraftmq_inflight_bytes {}\nraftmq_client_inflight_bytes {}\n"


def test_both_figures_are_read() -> None:
    assert counted(PAGE.format("300.0", "0.0")) == {"raftmq_inflight_bytes": 300, "raftmq_client_inflight_bytes": 0}
    with pytest.raises(ValueError, match="1 of the 2"):
        counted("raftmq_inflight_bytes 0.0\n")


@pytest.mark.parametrize(("pages", "left"), [(["5.0 0.0", "0.0 0.0"], 0), (["0.0 -7.0"], 1)])
def test_what_stays_is_reported(monkeypatch: pytest.MonkeyPatch, pages: list[str], left: int) -> None:
    texts = [PAGE.format(*page.split()).encode() for page in pages]

    async def ask(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(code=200, body=texts.pop(0) if len(texts) > 1 else texts[0])

    monkeypatch.setattr(bytes_in_flight, "ask_node", ask)
    assert len(asyncio.run(wait_given_back([NODE], 0.0 if left else 5.0))) == left
