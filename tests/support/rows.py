"""`each_row`: a table of rows is one test, and its failure names every faulty row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

Row = dict[str, Any]


class Faults:
    """Collects what went wrong with each row; one error at the end names all of them."""

    def __init__(self) -> None:
        self._found: list[tuple[str, Exception]] = []
        self._rows = 0

    @contextmanager
    def of(self, name: Callable[[], str]) -> Iterator[None]:
        """Keep what the block raises, so that the next row has its turn. A skip ends the whole test."""
        self._rows += 1
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever a test may raise is the fault of its row
            self._found.append((name(), error))
        except pytest.fail.Exception as error:
            if "from pytest-timeout" in str(error):  # the one timer of the test: no other row has a limit any more
                raise
            self._found.append((name(), AssertionError(str(error)).with_traceback(error.__traceback__)))

    def report(self) -> None:
        """Raise all errors as one, whose text lists the faulty rows."""
        if self._found:
            rows = "\n".join(row for row, _ in self._found)
            text = f"{len(self._found)} of {self._rows} rows are faulty:\n{rows}\n"
            raise ExceptionGroup(text, [error for _, error in self._found])


def each_row(
    names: str | tuple[str, ...], rows: Iterable[Any], ids: Iterable[str] | Callable[[Any], object] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test's body for each row: `pytest.mark.parametrize` with the same arguments, as one test.

    All rows run. They share the test's fixtures, but each has its own folder `tmp_path` and its own `monkeypatch`.
    Where a row changes another fixture, `parametrize` is right.
    """
    keys = (names,) if isinstance(names, str) else names
    table = [_row(keys, row) for row in rows]
    assert table, "no rows"
    labels = ids if callable(ids) else list(ids)
    assert callable(labels) or len(labels) in (0, len(table)), "an id for each row"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        assert len(others) == len(signature.parameters) - len(keys), f"{test} does not take each of {keys}"

        @wraps(test)
        def run(**fixtures: Any) -> None:
            faults = Faults()
            for number, row in enumerate(table):
                with faults.of(partial(_label, labels, number, row)), _fixtures_of(number, fixtures) as own:
                    test(**own, **row)
            faults.report()

        @wraps(test)
        async def run_async(**fixtures: Any) -> None:
            faults = Faults()
            for number, row in enumerate(table):
                with faults.of(partial(_label, labels, number, row)), _fixtures_of(number, fixtures) as own:
                    await test(**own, **row)
            faults.report()

        wrapper: Any = run_async if inspect.iscoroutinefunction(test) else run
        wrapper.__signature__ = signature.replace(parameters=others)
        return wrapper

    return decorate


def _row(keys: tuple[str, ...], row: Any) -> Row:
    assert not isinstance(row, type(pytest.param())), "marks and ids of single rows are parametrize's"
    values = row if len(keys) > 1 else (row,)
    return dict(zip(keys, values, strict=True))


def _label(ids: Sequence[str] | Callable[[Any], object], number: int, row: Row) -> str:
    """Return the row as `ids` shows it or its values; without `ids`, names and values, the first 200 characters."""
    if callable(ids):
        return ", ".join(str(ids(value)) for value in row.values())
    text = ids[number] if ids else ", ".join(f"{name}={value!r}" for name, value in row.items())
    return text if len(text) <= 200 else f"{text[:200]}..."


@contextmanager
def _fixtures_of(number: int, fixtures: Row) -> Iterator[Row]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        own = dict(fixtures)
        if "tmp_path" in own:
            folder: Path = own["tmp_path"] / f"row{number}"
            folder.mkdir()
            own["tmp_path"] = folder
        if "monkeypatch" in own:
            own["monkeypatch"] = monkeypatch
        yield own
