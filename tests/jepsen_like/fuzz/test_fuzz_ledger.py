"""The record of several runs: what is left to send, what they found together, and files that are no record."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from jepsen_like.fuzz.campaign import Defect, FuzzResult
from jepsen_like.fuzz.honest import SendFigures
from jepsen_like.fuzz.ledger import FuzzLedger
from jepsen_like.fuzz.shot import Port
from raftmq_wire.errors import ExitCode, LocalError

MISSED = 3


def result(remoting: int, *, missed: tuple[str, ...] = (), found: tuple[str, ...] = ()) -> FuzzResult:
    """Returns the result of a run that reached the handler "pull", and sent so many shots to the clients' ports."""
    return FuzzResult(
        fired=remoting,
        seconds=2.0,
        counts=Counter(pull=remoting),
        missed=list(missed),
        found=[Defect(what, []) for what in found],
        memory_mib=9,
        fired_at=Counter({Port.REMOTING: remoting}),
        ways=Counter({"remoting, TLS, after authentication": remoting}),
        honest=(SendFigures(10, 2.5, 0), SendFigures(10, 2.0, 0)),
    )


def test_runs_add_up_through_the_file(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    wanted = {Port.REMOTING: 100, Port.TLS: 10}
    for sent, left in ((60, 40), (30, 10), (30, 0)):
        ledger = FuzzLedger.read(file)
        ledger.add(7, result(sent))
        assert FuzzLedger.read(file).left_of(wanted) == {Port.REMOTING: left, Port.TLS: 10}
    assert [path.name for path in tmp_path.iterdir()] == ["runs.json"]
    told = FuzzLedger.read(file).told()
    assert told.startswith("3 runs, 6 s: 120 remoting\n")
    assert "120  remoting, TLS, after authentication" in told


def test_all_runs_count_for_the_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    FuzzLedger.read(file).add(1, result(5, missed=("send",)))
    assert FuzzLedger.read(file).exit_code(MISSED) == MISSED
    assert "send    NOT REACHED" in FuzzLedger.read(file).told()
    reached = FuzzLedger.read(file)
    reached.add(2, result(5)._replace(counts=Counter(pull=1, send=1)))
    assert FuzzLedger.read(file).exit_code(MISSED) == 0
    FuzzLedger.read(file).add(3, result(5, found=("a node died",)))
    assert FuzzLedger.read(file).exit_code(MISSED) == 1
    assert "run 3, seed 3: a node died" in FuzzLedger.read(file).told()


def test_without_a_file_only_this_run_counts() -> None:
    ledger = FuzzLedger.read(None)
    ledger.add(1, result(5))
    assert (ledger.exit_code(MISSED), ledger.left_of({Port.REMOTING: 7})) == (0, {Port.REMOTING: 2})


@pytest.mark.parametrize("content", [b'{"a":1}', b"\xff\x00", b"", b'[{"seed": "x"}]'])
def test_a_file_that_is_no_record_is_refused_in_words(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    file.write_bytes(content)
    with pytest.raises(LocalError, match=r"cannot be continued\nit is no record of runs") as refused:
        FuzzLedger.read(file)
    assert refused.value.exit_code is ExitCode.USAGE
    assert file.read_bytes() == content


def test_a_folder_that_is_missing_is_named_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"runs.json cannot be written\n.* is no folder"):
        FuzzLedger.read(tmp_path / "none" / "runs.json")
