"""A stage reads like a store to which it was written already, and leaves the same rows."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from statemachine.rows.kv import CQ, META, Batch
from statemachine.rows.write_batch import Stage

keys = st.binary(max_size=2)
steps = st.one_of(
    st.tuples(st.just("put"), keys, st.binary(max_size=2)),
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("delete_range"), keys, keys),
)


@given(before=st.dictionaries(keys, st.binary(max_size=2)), run=st.lists(steps, max_size=12), low=keys, high=keys)
def test_reads_and_rows_equal_direct_writes(
    before: dict[bytes, bytes], run: list[tuple[Any, ...]], low: bytes, high: bytes
) -> None:
    direct, below = MemoryKV(), MemoryKV()
    start = Batch()
    for key, value in before.items():
        start.put(CQ, key, value)
    direct.write(start)
    below.write(start)
    stage = Stage(below)
    for name, *arguments in run:
        batch = Batch()
        getattr(batch, name)(CQ, *arguments)
        direct.write(batch)
        getattr(stage, name)(CQ, *arguments)
    assert list(stage.scan(CQ, low, high)) == list(direct.scan(CQ, low, high))
    for key in (low, high, *before):
        assert stage.get(CQ, key) == direct.get(CQ, key)
        assert stage.get(META, key) is None
    below.write(stage.batch())
    assert list(below.scan(CQ, b"", b"\xff" * 9)) == list(direct.scan(CQ, b"", b"\xff" * 9))


def test_unput_leaves_out_what_was_never_written() -> None:
    stage = Stage(MemoryKV())
    stage.put(CQ, b"new", b"1")
    stage.unput(CQ, b"new")
    stage.unput(CQ, b"old")
    assert [(key, value) for _, key, value, _ in stage.batch().ops] == [(b"old", None)]
