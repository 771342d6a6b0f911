"""Since when each condition holds: turns conditions into findings, and tells of beginnings and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from cluster.admin.findings.catalogue import CODES, Code, command_of, runbook_of
from cluster.admin.findings.finding import Condition, Finding
from cluster.runtime.events import rfc3339

Tell = Callable[[Finding, bool], object]
"""Called with a finding and whether it begins (True) or ends."""
_UNKNOWN = Code("warning", "raftmq status")


class _Seen(NamedTuple):
    since_ms: int
    """Wall clock: since when it holds, as first seen or as the condition said earliest."""
    monotonic_ms: int
    finding: Finding | None
    """None until it has held long enough."""


class Memory:
    """The conditions of one node. Event loop only."""

    def __init__(self, node: int, tell: Tell = lambda finding, begins: None, *, local: bool = True) -> None:
        """`local`: `raftmq up` made the cluster."""
        self._node = node
        self._local = local
        self._tell = tell
        self._seen: dict[tuple[str, str], _Seen] = {}

    def note(self, conditions: Iterable[Condition], wall_ms: int, monotonic_ms: int) -> list[Finding]:
        """All that hold now and have held long enough, as findings. One that is not among them has ended."""
        now = {(each.code, each.object): each for each in conditions}
        for key in [key for key in self._seen if key not in now]:
            ended = self._seen.pop(key).finding
            if ended is not None:
                self._tell(ended, False)
        for key, condition in now.items():
            seen = self._seen.get(key) or _Seen(wall_ms, monotonic_ms, None)
            if condition.since_ms is not None and condition.since_ms < seen.since_ms:
                seen = seen._replace(since_ms=condition.since_ms)
            if seen.finding is not None or monotonic_ms - seen.monotonic_ms >= condition.hold_ms:
                is_new = seen.finding is None
                seen = seen._replace(finding=self._finding(condition, seen.since_ms))
                if is_new and seen.finding is not None:
                    self._tell(seen.finding, True)
            self._seen[key] = seen
        return [seen.finding for seen in self._seen.values() if seen.finding is not None]

    def _finding(self, condition: Condition, since_ms: int) -> Finding:
        code = CODES.get(condition.code, _UNKNOWN)
        _, _, number = condition.object.rpartition(" ")
        about = number if condition.object.startswith("node ") else str(self._node)
        return Finding(
            code=condition.code,
            severity=condition.severity or code.severity,
            since=rfc3339(since_ms),
            object=condition.object,
            says=condition.says,
            do_now=condition.do_now or command_of(code, about, local=self._local),
            runbook=runbook_of(condition.code),
            seen_by=[self._node],
        )
