"""Lives of a log in which one file-system call fails, or the power goes in it: one life for each call."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Protocol, TypeVar

from jepsen_like.fakes.memory_fs import MemoryFileSystem, PowerCut
from raftlog.errors import StorageError

DATA = Path("/data")
KINDS = ("cut", "EIO then kill", "EIO then power cut", "ENOSPC then kill")
"""The failure of the call, and the end of the process after it."""


class Life(Protocol):
    """The life of a log on one disk."""

    def run(self) -> None: ...


LifeT = TypeVar("LifeT", bound=Life)


def seeds_of(kind: str) -> int:
    """Returns the number of tries of each call: what a power cut leaves is drawn."""
    return 4 if "power" in kind or kind == "cut" else 1


def failed_lives(
    kind: str, make: Callable[[MemoryFileSystem], LifeT], *, first: int, calls_min: int, step: int = 1, seeds: int = 1
) -> Iterator[tuple[LifeT, int, str]]:
    """(life, seed, what happened) for every `step`-th call from `first` on; its disk is as the next start finds it."""
    fs = _disk()
    make(fs).run()
    total, failed = fs.calls, 0
    assert total > calls_min
    numbers = range(first, total + 1, step)
    for number, turn in product(numbers, range(seeds)):
        seed = number * seeds + turn  # what is left differs from call to call, even if each is tried once
        fs = _disk()
        life = make(fs)
        if kind == "cut":
            fs.cut_power_at(number)
        else:
            fs.fail_call(number, errno.ENOSPC if "ENOSPC" in kind else errno.EIO)
        try:
            life.run()
        except (StorageError, PowerCut):
            failed += 1
        context = f"{kind}: call {number} of {total}, seed {seed}, last calls {fs.trace[-4:]}"
        if "kill" in kind:
            fs.restart()
        else:
            fs.crash(seed)
        yield life, seed, context
    assert failed > len(numbers) * seeds // 2


def _disk() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.mkdir(DATA)
    return fs
