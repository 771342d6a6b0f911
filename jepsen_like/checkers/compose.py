"""Combines the checkers of a workload into one verdict."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from jepsen_like.checkers import availability, log, offsets, polls, registers, replica_digests
from jepsen_like.checkers.availability import Attempts
from jepsen_like.checkers.history_steps import NOT_CLIENTS, VOCABULARY, MalformedStep, Operations
from jepsen_like.checkers.messages import Messages
from jepsen_like.checkers.verdict import CheckerResult, Verdict
from jepsen_like.checkers.workload import Workload, workload_named
from jepsen_like.history import HistoryError, HistoryFile, Op, Operation, Pairing, StepsOnDisk


class Evidence:
    """The evidence that all checkers judge, gathered from a history some steps at a time: sends and final reads
    separately from the other operations.

    Sends and final reads are most of a history. They are put into columns while their steps are still in the
    processor's cache, and then forgotten: judging a million messages takes a fraction of the memory and time.
    """

    def __init__(self) -> None:
        self.operations = Operations()
        """All operations except sends and final reads."""
        self.messages = Messages()
        self.attempts = Attempts()

    @classmethod
    def of(cls, batches: Iterable[list[Op]], error: Callable[[Op, str], Exception]) -> Evidence:
        """Gathers the evidence from all steps. Raises the exception that `error` returns for an impossible step, and
        MalformedStep for a send or read whose value has the wrong shape, or an id that was sent twice.
        """
        self, pairing = cls(), Pairing(error)
        for batch in batches:
            completed = pairing.feed(batch)
            self._add(completed)
            self.attempts.add([operation for operation in completed if operation[0].f not in NOT_CLIENTS])
        still_open = pairing.still_open()
        self._add(still_open)
        self.attempts.close([operation for operation in still_open if operation[0].f not in NOT_CLIENTS])
        self.operations.close()
        self.messages.close()
        return self

    def _add(self, operations: list[Operation]) -> None:
        sends = [operation for operation in operations if operation[0].f == "send"]
        self.messages.add_sends(sends)
        if len(sends) < len(operations):
            self.messages.add_reads([operation for operation in operations if operation[0].f == "read"])
            repeats = [operation for operation in operations if operation[0].f == "repeat"]
            self.messages.add_repeats([one for one in repeats if one[1] is not None and one[1].type == "ok"])
            self.operations.add(operation for operation in operations if operation[0].f not in ("send", "read"))


_BATCH = 2048
"""The number of steps that are processed together."""


def check(history: Iterable[Op], workload: Workload | str) -> Verdict:
    """Checks a history. The verdict on a history that cannot be understood is `unknown`, with the line of its file.

    Raises ValueError if there is no workload of that name.
    """
    if isinstance(workload, str):
        workload = workload_named(workload)
    steps = iter(history)
    batches = iter(lambda: list(islice(steps, _BATCH)), [])
    with _no_collections():
        try:
            return _judge(Evidence.of(batches, lambda op, why: MalformedStep(op.index, why)), workload)
        except MalformedStep as error:
            return Verdict(workload.name, (), (str(error),))


def check_file(path: Path, workload: Workload | str | None = None) -> tuple[Verdict, Sequence[Op]]:
    """Checks a history file by `workload`; if that is None, by the workload that the file names. Returns the verdict
    and the steps. The verdict on a foreign, truncated or edited file is `unknown`, with the line.

    The returned steps are read from the file again when they are accessed. Raises OSError if the file cannot be read.
    """
    name = workload if isinstance(workload, str) else workload.name if workload else "?"
    file = HistoryFile(path)
    with _no_collections():
        try:
            evidence = Evidence.of(file.batches(), file.error_at)
        except HistoryError as error:
            return Verdict(name, (), (f"line {error.line}: {error.why}",)), []
        except MalformedStep as error:
            return Verdict(name, (), (str(error),)), StepsOnDisk(path)
        if workload is None:
            workload = str(file.meta.get("workload", "log"))
        try:
            known = workload_named(workload) if isinstance(workload, str) else workload
        except ValueError as error:
            return Verdict(str(workload), (), (f"line 1: {error}",)), StepsOnDisk(path)
        return _judge(evidence, known), StepsOnDisk(path)


def _judge(evidence: Evidence, workload: Workload) -> Verdict:
    try:
        return Verdict(workload.name, _results(evidence, workload), tuple(_doubts(evidence, workload)))
    except MalformedStep as error:
        return Verdict(workload.name, (), (str(error),))


def _results(evidence: Evidence, workload: Workload) -> tuple[CheckerResult, ...]:
    operations, messages, attempts = evidence.operations, evidence.messages, evidence.attempts
    run = {
        log.NAME: lambda: log.check(operations, messages, workload),
        polls.NAME: lambda: polls.check(operations, messages, workload),
        offsets.NAME: lambda: offsets.check(operations, workload),
        registers.NAME: lambda: registers.check(operations, workload),
        availability.NAME: lambda: availability.check(operations, attempts, workload),
        replica_digests.NAME: lambda: replica_digests.check(operations, workload),
    }
    return tuple(run[name]() for name in workload.checkers)


def _doubts(evidence: Evidence, workload: Workload) -> Iterator[str]:
    operations = evidence.operations
    for f in sorted(operations.kinds - VOCABULARY):
        yield f"line {operations.of(f)[0].invoked.index + 2}: no checker judges {f!r}"
    acked = evidence.messages.acknowledged
    acked += sum(len(operations.answered(f)) for f in (operations.kinds & VOCABULARY) - NOT_CLIENTS)
    if acked < workload.min_acked:
        yield f"only {acked} operations were acknowledged, {workload.min_acked} are needed to prove anything"


@contextmanager
def _no_collections() -> Iterator[None]:
    """Turns the cyclic garbage collector off: there are millions of live tuples and no cycles, so full collections
    would take most of the time and free nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
