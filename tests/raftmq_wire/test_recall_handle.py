"""The handle of a message that waits for its time."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq_wire.message_format import RecallHandle, decode_recall_handle
from tests.support.rows import each_row

words = st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]))
numbers = st.integers(0, (1 << 63) - 1)


@given(st.builds(RecallHandle, words, words, numbers, st.text(st.characters(exclude_categories=["Cs"])), numbers))
def test_what_is_encoded_is_decoded(handle: RecallHandle) -> None:
    assert decode_recall_handle(handle.encode()) == handle


def test_the_first_five_fields_are_those_of_rocketmq() -> None:
    text = base64.urlsafe_b64decode(RecallHandle("T", "raftmq", 17, "K", 9).encode()).decode()
    assert text.split(" ")[:5] == ["v1", "T", "raftmq", "17", "K"]


@each_row(
    "text", ["", "v1", "v1 T b 17 K", "v2 T b 17 K 9", "v1 T b x K 9", "v1 T b 17 K -1", f"v1 T b 17 K {1 << 63}"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid"):
        decode_recall_handle(base64.urlsafe_b64encode(text.encode()).decode())


@each_row("text", ["é", "====", "dje", "*", "_w=="])
def test_what_is_no_base64_of_a_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid"):
        decode_recall_handle(text)
