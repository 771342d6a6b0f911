"""One verdict from all checkers of a workload."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jepsen_like.checkers import availability, digests, log, offsets, polls, registers
from jepsen_like.checkers.messages import Messages
from jepsen_like.checkers.steps import NOTES, VOCABULARY, MalformedStep, Operations
from jepsen_like.checkers.verdict import Result, Verdict
from jepsen_like.checkers.workload import Workload, workload_named
from jepsen_like.history import HistoryError, Op, Operation, pair_up, read_operations

_NOT_CLIENTS = NOTES | {"read", "digest"}


def check(history: Iterable[Op], workload: Workload | str) -> Verdict:
    """Judges a history. A history that cannot be understood is `unknown`, with the line of its file.

    Raises ValueError if there is no workload of that name.
    """
    if isinstance(workload, str):
        workload = workload_named(workload)
    with _no_collections():
        try:
            return _judge(pair_up(history, lambda op, why: MalformedStep(op.index, why)), workload)
        except MalformedStep as error:
            return Verdict(workload.name, (), (str(error),))


def check_file(path: Path, workload: Workload | str | None = None) -> tuple[Verdict, list[Op]]:
    """Judges a file by the workload it names, or by another. Foreign, cut or edited: unknown, with the line.

    Raises OSError if the file cannot be read.
    """
    with _no_collections():
        try:
            history, operations = read_operations(path)
        except HistoryError as error:
            name = workload if isinstance(workload, str) else workload.name if workload else "?"
            return Verdict(name, (), (f"line {error.line}: {error.why}",)), []
        if workload is None:
            workload = str(history.meta.get("workload", "log"))
        try:
            known = workload_named(workload) if isinstance(workload, str) else workload
        except ValueError as error:
            return Verdict(str(workload), (), (f"line 1: {error}",)), history.ops
        return _judge(operations, known), history.ops


def _judge(paired: list[Operation], workload: Workload) -> Verdict:
    operations = Operations(paired)
    try:
        return Verdict(workload.name, _results(operations, workload), tuple(_doubts(operations, workload)))
    except MalformedStep as error:
        return Verdict(workload.name, (), (str(error),))


def _results(operations: Operations, workload: Workload) -> tuple[Result, ...]:
    messages = Messages.of(operations)
    run = {
        log.NAME: lambda: log.check(operations, messages, workload),
        polls.NAME: lambda: polls.check(operations, messages, workload),
        offsets.NAME: lambda: offsets.check(operations, workload),
        registers.NAME: lambda: registers.check(operations, workload),
        availability.NAME: lambda: availability.check(operations, workload),
        digests.NAME: lambda: digests.check(operations, workload),
    }
    return tuple(run[name]() for name in workload.checkers)


def _doubts(operations: Operations, workload: Workload) -> Iterator[str]:
    for f in sorted(operations.kinds - VOCABULARY):
        yield f"line {operations.of(f)[0].invoked.index + 2}: no checker judges {f!r}"
    acked = sum(len(operations.answered(f)) for f in (operations.kinds & VOCABULARY) - _NOT_CLIENTS)
    if acked < workload.min_acked:
        yield f"only {acked} operations were acknowledged, {workload.min_acked} are needed to prove anything"


@contextmanager
def _no_collections() -> Iterator[None]:
    """Millions of live tuples and no cycles: full collections would take most of the time and free nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
