"""The story `slow-follower` on pretended answers: each of its demands can fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jepsen_like.live.stories.story import StoryEnds
from jepsen_like.live.stories.story_slow_follower import demand_found, judge
from jepsen_like.live.stories.watched_follower import FOUND_S, Found, WatchedFollower

RUN = {
    "stored_per_second": 299.0,
    "rate": 300,
    "p50_ms": 4.0,
    "p99_ms": 9.0,
    "busy": 0.4,
    "unknown": 0,
    "refused": {},
    "stored": 9_000,
}


class Pretended:
    """A scene whose leader is node 1, with a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.findings: list[dict[str, str]] = []
        self.found_at_s = float("inf")
        self.leads = 1
        self.broken: list[str] = []
        self.subject = SimpleNamespace(request=self._request)
        self.stage = SimpleNamespace(leader=lambda: self.leads)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def _request(self, node: int, method: str, path: str) -> Any:
        assert (node, method) == (1, "GET")
        if path == "/v1/status":
            return {"peers": [{"node": 2, "lag_bytes": 0}, {"node": 3, "lag_bytes": 70}]}
        assert path == "/v1/health"
        return {"findings": self.findings if self.now_s >= self.found_at_s else []}

    def demand(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken.append(what)

    def watched(self) -> WatchedFollower:
        scene: Any = self
        return WatchedFollower(scene, 1, 3, lambda: self.now_s, self._sleep)


@pytest.fixture
def pretended() -> Pretended:
    return Pretended()


def finding(code: str, about: str) -> dict[str, str]:
    return {"code": code, "object": about, "says": f"{code} of {about}"}


def test_only_a_finding_about_that_node_and_its_disk_counts(pretended: Pretended) -> None:
    pretended.found_at_s = 0.0
    pretended.findings = [finding("disk_slow", "node 2"), finding("node_silent", "node 3")]
    assert pretended.watched().finding() is None
    pretended.findings += [finding("follower_behind", "node 3")]
    assert pretended.watched().finding() == ("follower_behind", "follower_behind of node 3")
    assert pretended.watched().peer()["lag_bytes"] == 70


def test_the_finding_about_the_lag_is_waited_for(pretended: Pretended) -> None:
    pretended.findings = [finding("disk_slow", "node 3"), finding("follower_behind", "node 3")]
    pretended.found_at_s = 109.0
    assert pretended.watched().lag_finding(8.0) == ""
    assert pretended.watched().lag_finding(8.0) == "follower_behind of node 3"


@pytest.mark.parametrize(("after_s", "broken"), [(FOUND_S - 1.0, 0), (FOUND_S + 1.0, 1), (float("inf"), 1)])
def test_a_finding_comes_in_time(pretended: Pretended, after_s: float, broken: int) -> None:
    pretended.findings = [finding("disk_slow", "node 3")]
    pretended.found_at_s = 100.0 + after_s
    scene: Any = pretended
    told: list[str] = []
    took_s = demand_found(scene, pretended.watched(), 100.0, told)
    assert len(pretended.broken) == broken
    assert (took_s is None) == (after_s == float("inf"))
    assert len(told) == (took_s is not None)


def test_what_was_found_has_its_time(pretended: Pretended) -> None:
    pretended.findings = [finding("disk_slow", "node 3")]
    pretended.found_at_s = 103.0
    found = pretended.watched().found(100.0)
    assert found is not None
    assert found._replace(after_s=3.0) == Found(3.0, "disk_slow", "disk_slow of node 3")
    assert found.after_s == pytest.approx(3.0, abs=0.11)


@pytest.mark.parametrize(
    ("changes", "leads", "proof"),
    [
        ({}, 1, ""),
        ({"unknown": 2}, 1, "2 sends"),
        ({"refused": {"overload": 1}}, 1, "were refused"),
        ({}, 2, "node 1 no longer leads"),
        ({"stored_per_second": 250.0}, 1, "250 of 300"),
    ],
)
def test_nobody_else_may_notice(pretended: Pretended, changes: dict[str, Any], leads: int, proof: str) -> None:
    pretended.leads = leads
    scene: Any = pretended
    judge(scene, RUN, RUN | changes, 1, 3)
    assert len(pretended.broken) == bool(proof)
    assert all(proof in each for each in pretended.broken)


def test_what_does_not_come_ends_the_story(pretended: Pretended) -> None:
    assert pretended.watched().wait("a lag", lambda peer: peer["lag_bytes"] == 70, 1.0)["node"] == 3
    with pytest.raises(StoryEnds, match="a lag did not come"):
        pretended.watched().wait("a lag", lambda peer: peer["lag_bytes"] > 70, 1.0)
    pretended.watched().wait_unfound()
    pretended.found_at_s, pretended.findings = 0.0, [finding("disk_slow", "node 3")]
    with pytest.raises(StoryEnds, match="still a finding"):
        pretended.watched().wait_unfound()
