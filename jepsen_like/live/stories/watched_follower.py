"""A slow follower as its leader sees it: lag, forecast and findings, for stories."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from jepsen_like.live.stories.open_load import PATIENCE_S
from jepsen_like.live.stories.story import Scene, StoryEnds
from raftmq.local.waiting import until

FOUND_S: Final = 15.0
"""Seconds within which a finding must report a slow follower. This is a promise, so it does not depend on the scale of
the run.
"""
CODES: Final = ("disk_slow", "follower_behind")
GONE_BYTES: Final = 1 << 18
"""Bytes of lag below which a follower counts as caught up, because some bytes are always in flight."""


class Found(NamedTuple):
    """A finding about a slow follower, as the leader reports it."""

    after_s: float
    code: str
    says: str


class WatchedFollower:
    """One follower as its leader sees it."""

    def __init__(
        self,
        scene: Scene,
        leader: int,
        node: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """`clock` returns the time in seconds. `sleep` waits that many seconds of this clock."""
        self.node = node
        self._clock = clock
        self._sleep = sleep
        self._scene = scene
        self._leader = leader

    def peer(self) -> dict[str, Any]:
        """Returns the follower's lag and forecast. Raises OSError."""
        peers: list[dict[str, Any]] = self._scene.subject.request(self._leader, "GET", "/v1/status")["peers"]
        return next(peer for peer in peers if peer["node"] == self.node)

    def finding(self, codes: tuple[str, ...] = CODES) -> tuple[str, str] | None:
        """Returns code and text of the first finding of these codes about the follower; None if there is none. Raises
        OSError."""
        findings = self._scene.subject.request(self._leader, "GET", "/v1/health")["findings"]
        known = {each["code"]: each["says"] for each in findings if each["object"] == f"node {self.node}"}
        return next(((code, known[code]) for code in codes if code in known), None)

    def wait_unfound(self) -> None:
        """Waits until there is no finding about the follower: a finding of an earlier round lasts for a minute. Raises
        StoryEnds."""

        def is_so() -> bool:
            with suppress(OSError):
                return self.finding() is None
            return False

        if not until(is_so, PATIENCE_S, 0.5, self._clock, self._sleep):
            raise StoryEnds(f"node {self.node} is still a finding {PATIENCE_S:.0f} s after it was well again")

    def found(self, since_s: float) -> Found | None:
        """Waits for a finding about the follower, for twice FOUND_S at most; returns None if none came. `since_s`: the
        time at which the fault began, by the clock.
        """
        while self._clock() - since_s < 2 * FOUND_S:
            with suppress(OSError):
                if (known := self.finding()) is not None:
                    return Found(self._clock() - since_s, *known)
            self._sleep(0.1)
        return None

    def lag_finding(self, timeout_s: float) -> str:
        """Waits for the finding about the follower's lag, and returns its text; "" if it does not come."""
        end_s = self._clock() + timeout_s
        while self._clock() < end_s:
            with suppress(OSError):
                if (known := self.finding(CODES[1:])) is not None:
                    return known[1]
            self._sleep(0.1)
        return ""

    def wait(self, what: str, holds: Callable[[dict[str, Any]], bool], timeout_s: float) -> dict[str, Any]:
        """Waits until `holds` returns True for the leader's view of the follower (`peer`), and returns that view.
        Raises StoryEnds, which names `what`, if it does not in time.
        """
        seen: dict[str, Any] = {}

        def is_so() -> bool:
            with suppress(OSError):
                seen.update(self.peer())
                return holds(seen)
            return False

        if not until(is_so, timeout_s, 0.1, self._clock, self._sleep):
            raise StoryEnds(f"node {self.node}: {what} did not come within {timeout_s:.0f} s: {seen}")
        return seen

    def wait_caught_up(self, timeout_s: float) -> float:
        """Waits until the follower's lag is below GONE_BYTES, and returns the seconds that this took. Raises StoryEnds
        if it takes too long.
        """
        begun_s = self._clock()
        self.wait("the end of its lag", lambda peer: peer["lag_bytes"] < GONE_BYTES, timeout_s)
        return self._clock() - begun_s
