"""The record of several runs of the fuzzer that together send a number of shots, as a file of JSON."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from cluster.config.local_layout import replace_file
from jepsen_like.fuzz.shot import Port
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from jepsen_like.fuzz.campaign import FuzzResult


class FuzzRun(msgspec.Struct):
    """The results of one run."""

    seed: int
    seconds: float
    fired: dict[str, int]
    """Port -> the number of its shots."""
    ways: dict[str, int]
    counts: dict[str, int]
    """Handler -> the number of shots that reached it; 0 for those that were not reached."""
    found: list[str]
    memory_mib: int
    hostile_p99_ms: float
    harmless_p99_ms: float


class FuzzLedger:
    """The runs that a file records. Without a file it begins empty, and nothing is written."""

    def __init__(self, path: Path | None, runs: list[FuzzRun]) -> None:
        self._path = path
        self._runs = runs

    @classmethod
    def read(cls, path: Path | None) -> Self:
        """Reads the file; a missing file has no runs. Raises LocalError if it is no record of runs, or if this run
        could not be added to it."""
        if path is not None and not os.access(path.parent, os.W_OK):
            raise LocalError(
                f"{path} cannot be written",
                f"{path.parent} is no folder, or one that this user may not write to",
                "the same command with a file in another folder",
                ExitCode.USAGE,
            )
        if path is None or not path.exists():
            return cls(path, [])
        try:
            return cls(path, msgspec.json.decode(path.read_bytes(), type=list[FuzzRun]))
        except (OSError, ValueError) as error:
            raise LocalError(
                f"{path} cannot be continued",
                f"it is no record of runs that can be read: {error}",
                "the same command with a new file, or one that an earlier run with --resume wrote",
                ExitCode.USAGE,
            ) from None

    def left_of(self, wanted: Mapping[Port, int]) -> dict[Port, int]:
        """Returns port -> the number of wanted shots that the runs have not sent yet."""
        return {
            port: max(0, count - sum(run.fired.get(port.value, 0) for run in self._runs))
            for port, count in wanted.items()
        }

    def add(self, seed: int, result: FuzzResult) -> None:
        """Adds a run, and writes the file if there is one. Raises OSError if it cannot be written."""
        hostile, harmless = result.honest
        self._runs.append(
            FuzzRun(
                seed,
                round(result.seconds, 1),
                {port.value: count for port, count in result.fired_at.items()},
                dict(result.ways),
                dict(result.counts) | dict.fromkeys(result.missed, 0),
                [each.what for each in result.found],
                result.memory_mib,
                round(hostile.p99_ms, 2),
                round(harmless.p99_ms, 2),
            )
        )
        if self._path is not None:
            replace_file(self._path, msgspec.json.format(msgspec.json.encode(self._runs), indent=1) + b"\n")

    def _sums(self, part: str) -> Counter[str]:
        whole: Counter[str] = Counter()
        for run in self._runs:
            whole.update(getattr(run, part))
        return whole

    def exit_code(self, missed: int) -> int:
        """Returns 1 if a run found something, `missed` if no run reached some handler, else 0."""
        if any(run.found for run in self._runs):
            return 1
        return missed if 0 in self._sums("counts").values() else 0

    def told(self) -> str:
        """Returns the totals of all runs as text for people, in several lines."""
        fired = self._sums("fired")
        lines = [
            f"{len(self._runs)} runs, {sum(run.seconds for run in self._runs):.0f} s: "
            + ", ".join(f"{count:,} {port}" for port, count in sorted(fired.items())),
            *(f"  {count:>9,}  {way}" for way, count in sorted(self._sums("ways").items())),
            *(
                f"  - run {number}, seed {run.seed}: {what}"
                for number, run in enumerate(self._runs, 1)
                for what in run.found
            ),
            *(f"  {0:>9}  {name}    NOT REACHED" for name, count in sorted(self._sums("counts").items()) if not count),
            "memory grew by at most " + ", ".join(str(run.memory_mib) for run in self._runs) + " MiB",
            "p99 of honest sends beside hostile and harmless load, ms: "
            + ", ".join(f"{run.hostile_p99_ms:g} and {run.harmless_p99_ms:g}" for run in self._runs),
        ]
        return "\n".join(lines)
