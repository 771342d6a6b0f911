"""Claims of initial voters: each is given to one machine, once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster.members.voter_claims import CLAIMS, claim, is_proven, open_claims, proof_of, unclaimed
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.rows import each_row

MINE, ANOTHER = "a" * 32, "b" * 32


def test_a_claim_is_for_ever_and_may_be_repeated(tmp_path: Path) -> None:
    open_claims(tmp_path, [2, 3])
    for _ in range(3):
        claim(tmp_path, 2, MINE)
    assert unclaimed(tmp_path) == [3]
    with pytest.raises(LocalError) as refused:
        claim(tmp_path, 2, ANOTHER)
    assert refused.value.exit_code is ExitCode.REFUSED
    assert refused.value.fix.startswith("raftmq node replace 2 ")
    claim(tmp_path, 2, MINE)


def test_a_node_that_was_made_otherwise_is_given_to_nobody(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="node 2 of this cluster has been made before"):
        claim(tmp_path, 2, MINE)
    open_claims(tmp_path, [2])
    for node in (1, 4, 0):
        with pytest.raises(LocalError):
            claim(tmp_path, node, MINE)


def test_of_many_claims_at_once_one_is_granted(tmp_path: Path) -> None:
    open_claims(tmp_path, [2])
    granted = []

    def try_it(number: int) -> None:
        try:
            claim(tmp_path, 2, f"{number:032x}")
        except LocalError:
            return
        granted.append(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(try_it, range(24)))
    assert len(granted) == 1
    assert json.loads((tmp_path / CLAIMS).read_text())["claims"] == {"2": f"{granted[0]:032x}"}


@each_row(
    "text",
    ["", "{", "[]", '{"format": 11, "claims": {}}', '{"format": 10}', '{"format": 10, "claims": 3}'],
)
def test_a_file_that_cannot_be_read_gives_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / CLAIMS).write_text(text)
    with pytest.raises(ValueError, match=r"."):
        claim(tmp_path, 2, MINE)
    assert (tmp_path / CLAIMS).read_text() == text


def test_the_proof_is_of_this_secret_this_node_and_this_token() -> None:
    proof = proof_of(b"k" * 32, 2, MINE)
    assert is_proven([b"other" * 8, b"k" * 32], 2, MINE, proof)
    assert not is_proven([b"k" * 32], 3, MINE, proof)
    assert not is_proven([b"k" * 32], 2, ANOTHER, proof)
    assert not is_proven([b"x" * 32], 2, MINE, proof)
    assert not is_proven([], 2, MINE, proof)
