"""The helper process of a scrub: reads a running node's log and its checkpoints, slowly, and prints what is wrong.

    python -m cluster.state.scrub_worker DATA BYTES_PER_SECOND

It ends when its stdin is closed, because the node holds the other end. It prints one JSON object per line: {"kind":
"log", base, offset, size, text} for a segment file, {"kind": "other", text} for other files of the log, {"kind":
"rows", checkpoint, text} for a checkpoint whose rows do not add up to the sums in it, {"kind": "done", log_bytes,
row_bytes} at the end. It changes nothing. A finding about bytes that the node writes at the same time may be wrong, so
the node checks each finding again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from cluster.runtime.host.helper_process import end_with_the_node
from cluster.state.checkpoints import Checkpoint, Checkpoints
from raftlog.storage.files.fs import FileSystem, OsFile, OsFileSystem
from raftlog.storage.verify.findings import Severity
from raftlog.storage.verify.verify_directory import group_of
from raftlog.storage.verify.verify_segments import check_log
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.rows import running_digest
from statemachine.rows.kv import KV, KVError

ScrubLine = dict[str, Any]


class SlowFile(OsFile):
    """A file that is read at a limited rate."""

    __slots__ = ("_spend",)

    def __init__(self, path: Path, fd: int, spend: Callable[[int], None]) -> None:
        super().__init__(path, fd)
        self._spend = spend

    def pread(self, size: int, offset: int) -> bytes:
        """Reads at the limited rate (`File.pread`)."""
        self._spend(size)
        return super().pread(size, offset)


class SlowFileSystem(OsFileSystem):
    """Opens files for reading only, and limits and counts the bytes read."""

    __slots__ = ("_at", "_rate", "bytes_read")

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._at = time.monotonic()
        self.bytes_read = 0

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        """Opens the file for reading at the limited rate (`FileSystem.open`)."""
        return SlowFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC), self._spend)

    def _spend(self, size: int) -> None:
        self.bytes_read += size
        now = time.monotonic()
        self._at = max(self._at, now - 0.1) + size / self._rate
        if self._at > now:
            time.sleep(self._at - now)


def scrub_log(fs: FileSystem, directory: Path) -> Iterator[ScrubLine]:
    """Yields the damage found in the log's files."""
    group = group_of(fs, directory)
    if group is None:
        yield {"kind": "other", "text": f"{directory}: the group of this log is unknown"}
        return
    for finding in check_log(fs, directory, group):
        name = finding.path.name
        if finding.severity is Severity.NOTE:
            continue
        if finding.path.suffix == ".seg" and finding.path.stem.isdigit():
            yield {
                "kind": "log",
                "base": int(finding.path.stem),
                "offset": finding.offset,
                "size": finding.size,
                "text": f"{name}: {finding.text}",
            }
        else:
            yield {"kind": "other", "text": f"{name}: {finding.text}"}


def scrub_rows(directory: Path, checkpoint: Checkpoint) -> ScrubLine | None:
    """Counts the rows of a checkpoint again; returns the difference found; None if there is none, or if the checkpoint
    was removed during the count."""
    name = checkpoint.path.name
    try:
        with CheckpointReader(checkpoint.path) as reader:
            rows = cast("KV", reader)  # only `get` and `scan` are called on it
            told, counted = running_digest.load(rows, reader.mark.index), running_digest.count(rows)
    except KVError as error:
        if not checkpoint.path.exists():  # a newer one took its place: directories are renamed before they are removed
            return None
        return {"kind": "rows", "checkpoint": name, "text": str(error)}
    wrong = [] if told is None else [family for family in counted if told.get(family, 0) != counted[family]]
    text = f"the rows of {', '.join(wrong)} in checkpoint {name} do not add up to what apply counted"
    return {"kind": "rows", "checkpoint": name, "text": text} if wrong else None


def main(arguments: list[str]) -> int:
    """Runs the scrub, prints each finding as a line of JSON, and returns 0. `arguments`: the data directory, and the
    bytes to read per second."""
    directory, rate = Path(arguments[0]), int(arguments[1])
    fs = SlowFileSystem(rate)
    for line in scrub_log(fs, directory):
        _print(line)
    row_bytes = 0
    group = group_of(fs, directory)
    if group is not None:
        for checkpoint in Checkpoints(fs, directory, group).all():
            row_bytes += sum(file.size for file in checkpoint.manifest.files)
            found = scrub_rows(directory, checkpoint)
            if found is not None:
                _print(found)
    _print({"kind": "done", "log_bytes": fs.bytes_read, "row_bytes": row_bytes})
    return 0


def _print(line: ScrubLine) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    end_with_the_node()
    sys.exit(main(sys.argv[1:]))
