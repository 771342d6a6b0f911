"""Runs scrubs: a helper process reads all data on this node's disk again, at a low rate.

A digest proves that the replicas applied the same entries, but it cannot detect a block that rots afterwards and is not
read for weeks. A scrub detects it: it checks frames of the log against their CRCs, and rows of the newest checkpoints
(they share the state's files) against the sums that were kept on apply. Damaged frames are repaired from the other
nodes. A checkpoint whose rows do not add up is set aside, and the state from which it was made is no longer served
(`cluster.repair.consistency`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from cluster.config.storage_sections import ConsistencySection
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.host.helper_process import background
from cluster.runtime.service_lifecycle import Part
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE

logger = logging.getLogger(__name__)

FINDINGS_MAX = 100
FIRST_AFTER_MS = 60_000
"""Milliseconds from an unclean start to the first scrub."""
DAY_MS = 86_400_000


class ScrubView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/scrub`: the scrub in progress, or the last one."""

    node: int
    running: bool
    started_ms: int
    """Milliseconds since the Unix epoch; 0 if no scrub was started since the node's start."""
    finished_ms: int
    log_bytes: int
    row_bytes: int
    """Bytes of rows that the last complete scrub read."""
    findings: list[str]
    """Findings of the scrub, one sentence each. Damaged frames are repaired from the other nodes as they are found."""
    failure: str
    """The reason why the scrub did not finish, "" if it did."""


class Scrubber:
    """Starts scrubs, one at a time. Event loop only."""

    def __init__(
        self,
        node: int,
        data: Path,
        *,
        config: ConsistencySection,
        wall_ms: Callable[[], int],
        report: Callable[[int, int], None],
        on_bad_rows: Callable[[str, str], None],
        helper: tuple[str, ...] = background("cluster.state.scrub_worker"),
    ) -> None:
        """`report(position, size)` makes the log check these bytes again. `on_bad_rows(checkpoint's name, text)` is
        called for a checkpoint whose rows do not match its sums. `helper` is the command line of the helper process."""
        self.view = ScrubView(
            node=node, running=False, started_ms=0, finished_ms=0, log_bytes=0, row_bytes=0, findings=[], failure=""
        )
        self._command = (*helper, str(data), str(config.scrub_bytes_per_second))
        self._every_ms = config.scrub_every_hours * 3_600_000
        self._wall_ms = wall_ms
        self._report = report
        self._on_bad_rows = on_bad_rows
        self._metrics = ScrubMetrics()
        self._task: asyncio.Task[None] | None = None
        self._due_ms: int | None = None

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="scrubber", close=self.close, tick=self.tick, metrics=(self._metrics,))

    def plan(self, now_ms: int, *, clean: bool) -> None:
        """Schedules the first scrub, unless `consistency.scrub_every_hours` is 0. `clean`: True if the stop before was
        orderly; otherwise the first scrub begins after FIRST_AFTER_MS."""
        if self._every_ms:
            self._due_ms = now_ms + (self._every_ms if clean else FIRST_AFTER_MS)

    def tick(self, now_ms: int) -> None:
        """Starts a scrub when one is due. Called several times a second; cheap."""
        if self._due_ms is not None and now_ms >= self._due_ms:
            self._due_ms = now_ms + self._every_ms
            self.start()

    def start(self) -> bool:
        """Starts a scrub; returns False if one is in progress."""
        if self._task is not None and not self._task.done():
            return False
        self.view = msgspec.structs.replace(
            self.view, running=True, started_ms=self._wall_ms(), findings=[], failure=""
        )
        self._task = asyncio.get_running_loop().create_task(self._run(), name="scrub")
        return True

    async def close(self) -> None:
        """Stops the helper process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        began = asyncio.get_running_loop().time()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            logger.error("the scrub could not be started: %s", error)
            self._end(f"its process could not be started: {error}")
            return
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            errors = asyncio.ensure_future(process.stderr.read())
            async for line in process.stdout:
                self._take(json.loads(line))
            code = await process.wait()
            why = "" if code == 0 else (await errors).decode(errors="replace").strip().rpartition("\n")[2]
            if code:
                logger.error("the scrub ended with %d: %s", code, why)
            self._end(why or ("" if code == 0 else str(code)))
            seconds = asyncio.get_running_loop().time() - began
            self._metrics.scrubbed(
                len(self.view.findings), seconds, 100 * DAY_MS / self._every_ms if self._every_ms else 0
            )
            if not code:
                logger.info(
                    "scrub: %d bytes of log and %d of rows read in %.1f s, %d findings",
                    self.view.log_bytes,
                    self.view.row_bytes,
                    seconds,
                    len(self.view.findings),
                )
        except Exception as error:  # callers wait until the scrub has ended
            logger.exception("a defect ended the scrub")
            self._end(f"a defect ended it: {type(error).__name__}: {error}")
        finally:
            assert process.stdin is not None
            process.stdin.close()
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _end(self, failure: str) -> None:
        self.view = msgspec.structs.replace(self.view, running=False, finished_ms=self._wall_ms(), failure=failure)

    def _take(self, line: dict[str, Any]) -> None:
        if line["kind"] == "done":
            self.view = msgspec.structs.replace(self.view, log_bytes=line["log_bytes"], row_bytes=line["row_bytes"])
            return
        logger.error("scrub: %s", line["text"])
        if len(self.view.findings) < FINDINGS_MAX:
            self.view = msgspec.structs.replace(self.view, findings=[*self.view.findings, line["text"]])
        if line["kind"] == "log":
            self._report(line["base"] + max(0, line["offset"] - LOCAL_HEADER_SIZE), line["size"])
        elif line["kind"] == "rows":
            self._on_bad_rows(line["checkpoint"], line["text"])


class ScrubMetrics(ServiceMetrics):
    """Metrics of scrubs, set when one ends."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = self.gauge("raftmq_scrub_seconds", "Duration of the last scrub")
        self._findings = self.gauge("raftmq_scrub_findings", "Number of findings of the last scrub")
        self._share = self.gauge("raftmq_scrub_percent_per_day", "Share of this node's log that scrubs read per day")

    def scrubbed(self, findings: int, seconds: float, percent_per_day: float) -> None:
        """Shows a scrub that ended."""
        self._findings.set(findings)
        self._seconds.set(seconds)
        self._share.set(percent_per_day)
