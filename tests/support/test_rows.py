"""A table as one test: all rows run, and the error names each faulty one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rows import Faults, each_row

SEEN: list[object] = []


def test_each_faulty_row_is_named_and_the_others_run() -> None:
    ran: list[int] = []

    @each_row(("number", "even"), [(1, False), (2, False), (3, True), (4, True)])
    def looked_at(number: int, even: bool) -> None:
        ran.append(number)
        assert (number % 2 == 0) is even

    with pytest.raises(ExceptionGroup) as failed:
        looked_at()
    assert failed.value.message == "2 of 4 rows are faulty:\nnumber=2, even=False\nnumber=3, even=True\n"
    assert [type(error) for error in failed.value.exceptions] == [AssertionError, AssertionError]
    assert ran == [1, 2, 3, 4]


async def test_rows_of_a_coroutine_and_two_tables() -> None:
    @each_row("left", [0, 1], ids=["none", "one"])
    @each_row("right", [1, 2])
    async def looked_at(left: int, right: int) -> None:
        assert left < right

    with pytest.raises(ExceptionGroup, match=r"1 of 2 rows are faulty:\none") as failed:
        await looked_at()
    (inner,) = failed.value.exceptions
    assert "1 of 2 rows are faulty:\nright=1" in str(inner)


def test_a_row_that_does_not_raise_is_faulty_but_the_end_of_time_ends_the_test() -> None:
    @each_row("number", [1, 2])
    def looked_at(number: int) -> None:
        if number == 1:
            with pytest.raises(ValueError, match="nothing raises it"):
                pass
        else:
            pytest.fail("Timeout (>120.0s) from pytest-timeout.")

    with pytest.raises(pytest.fail.Exception, match="pytest-timeout"):
        looked_at()


@each_row("number", [0, 1, 2])
def test_each_row_has_its_own_folder_and_its_own_patches(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (tmp_path.name, [*tmp_path.iterdir()], SEEN) == (f"row{number}", [], [])
    (tmp_path / "file").touch()
    monkeypatch.setattr(f"{__name__}.SEEN", [number])


def test_a_function_may_name_the_rows() -> None:
    @each_row("row", [{"name": "first"}], ids=lambda row: row["name"])
    def looked_at(row: dict[str, str]) -> None:
        assert not row

    with pytest.raises(ExceptionGroup, match="1 of 1 rows are faulty:\nfirst\n"):
        looked_at()


def test_rows_and_names_must_fit() -> None:
    with pytest.raises(AssertionError, match="no rows"):
        each_row("number", [])
    with pytest.raises(AssertionError, match="an id for each row"):
        each_row("number", [1, 2], ids=["one"])
    with pytest.raises(ValueError, match="zip"):
        each_row(("number", "even"), [(1,)])
    with pytest.raises(AssertionError, match="of single rows"):
        each_row("number", [pytest.param(1, id="one")])
    with pytest.raises(AssertionError, match="does not take"):
        each_row("other", [1])(test_rows_and_names_must_fit)


def test_no_fault_is_no_error() -> None:
    faults = Faults()
    with faults.of(lambda: "row"):
        pass
    faults.report()
