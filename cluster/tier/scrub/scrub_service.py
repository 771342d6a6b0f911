"""Runs scrubs of the tier on the leader, one at a time, on request and on a schedule, and keeps the report of the last
one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from cluster.runtime.findings import Code
from cluster.runtime.service_lifecycle import Part
from cluster.tier.scrub.scrubber import LeaderChangedError, ScrubOptions, ScrubReport, TierScrubber
from cluster.tier.store.errors import StoreError
from raftlog.errors import RaftLogError

logger = logging.getLogger(__name__)

HOUR_MS = 3_600_000
DAMAGED = Code("tier_damaged", "warning", "raftmq tier repair")
BY_ITSELF = ScrubOptions(reads=True, repairs=True, sweeps=True)
"""The options of a scheduled scrub."""
AFTER_MS = 60_000
"""Milliseconds for which the node must have led before its first scrub after an unclean start."""
AFTER_UNCLEAN = BY_ITSELF._replace(newest=16)
"""The options of the first scrub after an unclean start. It reads only the newest segments, because a crash leaves
damage and leftovers at the end of the tier. A node that crashes again and again must not read the whole tier each
time."""


class TierScrubView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/tier/scrub`: the scrub in progress on this node, or its last one."""

    node: int
    running: bool
    number: int
    """The number of this scrub, counted since the node started; 0 if there was none."""
    started_ms: int
    """Milliseconds since the Unix epoch at which the scrub started; 0 if there was none."""
    finished_ms: int
    failure: str
    """The reason for which the scrub did not finish; "" if it did."""
    segments: int
    """VERIFIED segments that were looked at."""
    objects: int
    read_bytes: int
    bad: int
    """Objects that were missing, cut or damaged."""
    repaired: int
    orphans: int
    """Objects that no segment names, and none will ever name."""
    unsettled: int
    """Objects that no segment names yet."""
    swept: int
    """Objects and temporary files that were removed."""
    strange: int
    """Objects that do not belong to RaftMQ; they are never removed."""
    findings: list[str]


_NOTHING = ScrubReport(0, 0, 0, 0, 0, 0, 0, 0, 0, [])


class TierScrubs:
    """Runs the scrubs of one node, on request and by a schedule, and keeps the report of the last one. Event loop
    only."""

    def __init__(
        self,
        node: int,
        scrubber: TierScrubber,
        *,
        every_hours: int,
        wall_ms: Callable[[], int],
        leads: Callable[[], bool],
        alarm: Callable[[Code, str], None],
        clear: Callable[[str], None],
        repaired: Callable[[], None] = lambda: None,
    ) -> None:
        """`alarm` (key, text) and `clear` (key) are the node's. `repaired` is called when objects were written
        again."""
        self._repaired = repaired
        self._scrubber = scrubber
        self.reload(every_hours)
        self._wall_ms = wall_ms
        self._leads = leads
        self._alarm = alarm
        self._clear = clear
        self._task: asyncio.Task[None] | None = None
        self._due_ms: int | None = None
        self._after_unclean = False
        self.view = _view(node, 0, _NOTHING)

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="tier scrubs",
            close=self.close,
            tick=self.tick,
            reload=lambda config: self.reload(config.tier.scrub_every_hours),
        )

    def reload(self, every_hours: int) -> None:
        """Changes the hours between two scrubs, counted from the next one; 0: no scrub is scheduled."""
        self._every_ms = every_hours * HOUR_MS

    def plan(self, *, clean: bool) -> None:
        """Plans the first scrub. If the node's last stop was not `clean`, it comes soon."""
        self._after_unclean = not clean

    def tick(self, now_ms: int) -> None:
        """Starts the scheduled scrub when it is due. The time until then is counted anew whenever this node becomes the
        leader. Called several times a second; cheap."""
        if not self._every_ms or not self._leads():
            self._due_ms = None
        elif self._due_ms is None:
            self._due_ms = now_ms + (AFTER_MS if self._after_unclean else self._every_ms)
        elif now_ms >= self._due_ms:
            self._due_ms = now_ms + self._every_ms
            wishes, self._after_unclean = AFTER_UNCLEAN if self._after_unclean else BY_ITSELF, False
            self.begin(wishes)

    def begin(self, wishes: ScrubOptions) -> bool:
        """Begins a scrub; returns False if one is in progress."""
        if self._task is not None and not self._task.done():
            return False
        number = self.view.number + 1
        self.view = msgspec.structs.replace(
            _view(self.view.node, number, _NOTHING), running=True, started_ms=self._wall_ms()
        )
        self._task = asyncio.get_running_loop().create_task(self._run(wishes), name="tier scrub")
        return True

    async def close(self) -> None:
        """Cancels the scrub in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, wishes: ScrubOptions) -> None:
        failure, report = "", _NOTHING
        try:
            report = await self._scrubber.scrub(wishes)
            self._tell(report)
        except (StoreError, RaftLogError, OSError) as error:
            failure = f"{type(error).__name__}: {error}"
            logger.warning("tier: the scrub ended early: %s", failure)
        except LeaderChangedError:
            failure = "another node leads now: start it there"
        except Exception as error:  # callers wait until the scrub has ended
            failure = f"a defect ended it: {type(error).__name__}: {error}"
            logger.exception("tier: a defect ended the scrub")
        begun = self.view
        self.view = msgspec.structs.replace(
            _view(begun.node, begun.number, report),
            started_ms=begun.started_ms,
            finished_ms=self._wall_ms(),
            failure=failure,
        )

    def _tell(self, report: ScrubReport) -> None:
        for finding in report.findings:
            logger.warning("tier: %s", finding)
        logger.info("tier: %d objects were scrubbed, %d of them bad", report.objects, report.bad)
        if report.repaired:
            self._repaired()
        if report.unrepaired:
            self._alarm(
                DAMAGED,
                f"{report.unrepaired} of {report.objects} objects of the tier are missing or damaged; messages in them "
                f"cannot be read once they have left the nodes. raftmq tier verify shows them, raftmq tier repair "
                f"writes those again that a node still has",
            )
        elif report.objects:
            self._clear(DAMAGED)


def _view(node: int, number: int, report: ScrubReport) -> TierScrubView:
    return TierScrubView(
        node=node, running=False, number=number, started_ms=0, finished_ms=0, failure="", **report._asdict()
    )
