"""Removes the files that the log no longer uses, one after the other, so that the disk is not busy with them alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.retention.retention_worker import RemovedLogFiles, RemoveLogFiles
from cluster.runtime.awaited import Question, Steps, answer_to, carry_out
from cluster.runtime.findings import Code

if TYPE_CHECKING:
    from cluster.config.storage_sections import RetentionSection
    from cluster.retention.metrics import RetentionMetrics
    from cluster.runtime.context import NodeContext

AGAIN_MS = 120_000
"""Milliseconds after which a file that could not be removed is tried again (RocketMQ:
destroyMapedFileIntervalForcibly)."""
FILES = Code("trimmed_files_left", "warning", "raftmq retention")


class FileRemoval:
    """Has retention's lane remove files, one every `delete_gap_ms`. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        job: Callable[[RemoveLogFiles], Question[RemovedLogFiles]],
        metrics: RetentionMetrics,
        changed: Callable[[], object],
        rules: RetentionSection,
    ) -> None:
        """`job` gives the lane a file to remove. `changed` is called after each attempt to remove a file."""
        self._clock, self._alarms = context.clock, context.alarms
        self._job, self._metrics, self._changed = job, metrics, changed
        self._gap_ms = rules.delete_gap_ms
        self._files: deque[Path] = deque()
        self._failed: set[Path] = set()
        """Files that could not be removed. They are skipped until all other files are gone, and tried again AGAIN_MS
        after that."""
        self._due_ms = 0
        self._removing = False

    @property
    def count(self) -> int:
        """The number of files that are still to be removed."""
        return len(self._files)

    def reload(self, rules: RetentionSection) -> None:
        """Applies new rules."""
        self._gap_ms = rules.delete_gap_ms

    def add(self, files: Iterable[Path]) -> None:
        """Adds files that the log no longer uses."""
        self._files.extend(path for path in files if path not in self._files)

    def tick(self, now_ms: int) -> None:
        """Begins to remove the next file when it is due."""
        if self._files and not self._removing and now_ms >= self._due_ms:
            carry_out(self._remove(next(path for path in self._files if path not in self._failed)))

    def _remove(self, path: Path) -> Steps[None]:
        self._removing = True
        removed = yield from answer_to(self._job(RemoveLogFiles((path,))))
        self._removing = False
        if removed.error:
            self._failed.add(path)
            self._alarms.raise_alarm(
                FILES,
                f"{path.name} of the trimmed log cannot be removed; the node retries every "
                f"{AGAIN_MS // 1000} s: {removed.error}",
            )
        else:
            self._files.remove(path)
            self._metrics.removed.inc()
            if not self._files:
                self._alarms.clear(FILES)
        waits = bool(self._failed) and len(self._failed) == len(self._files)
        if waits:
            self._failed.clear()
        self._due_ms = self._clock.monotonic_ms() + (AGAIN_MS if waits else self._gap_ms)
        self._changed()
