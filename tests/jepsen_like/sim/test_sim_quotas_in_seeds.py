"""Quotas that come and go in the simulator: clients are held, refused and passed on, and everything else holds."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.replication.learnt_use import LearntUse, TopicUse
from cluster.replication.paced_sends import PacedSends
from cluster.replication.send_flow import SendFlow
from jepsen_like.sim.options import QUOTAS_FROM, draw
from jepsen_like.sim.scripted import play

LEADERS = "".join(f"lead {node}\nwait 0.7\n" for node in (2, 3, 1) * 4)
SCRIPT = f"nodes 3 quotas=1\nlead 1\nquotas 15\n{LEADERS}kill 1\nwait 2\nstart 1\nwait 2\nsettle\n"


def test_a_quarter_of_the_seeds_have_quotas() -> None:
    assert not any(draw(seed).quotas for seed in range(QUOTAS_FROM - 40, QUOTAS_FROM))
    assert 10 < sum(draw(seed).quotas for seed in range(QUOTAS_FROM, QUOTAS_FROM + 100)) < 40


def test_clients_are_held_refused_and_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = dict.fromkeys(("held", "went on", "refused", "passed on"), 0)
    wait, go_on, refuse, take_all = PacedSends._wait, SendFlow._go_on, SendFlow._refuse_paced, PacedSends.take_all

    def waited(self: Any, *arguments: Any) -> None:
        seen["held"] += 1
        wait(self, *arguments)

    def went_on(self: Any, sends: Any, now_ms: int) -> None:
        seen["went on"] += len(sends)
        go_on(self, sends, now_ms)

    def refused(self: Any, *arguments: Any) -> None:
        seen["refused"] += 1
        refuse(self, *arguments)

    def passed_on(self: Any) -> Any:
        sends = take_all(self)
        seen["passed on"] += len(sends)
        return sends

    monkeypatch.setattr(PacedSends, "_wait", waited)
    monkeypatch.setattr(SendFlow, "_go_on", went_on)
    monkeypatch.setattr(SendFlow, "_refuse_paced", refused)
    monkeypatch.setattr(PacedSends, "take_all", passed_on)
    assert not play(SCRIPT).violations
    assert all(seen.values()), seen


def test_learnt_limits_come_into_force_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = dict.fromkeys(("in force", "none", "counted", "over"), 0)
    look, came = LearntUse.look, TopicUse.came

    def looked(self: Any, *arguments: Any, **named: Any) -> None:
        look(self, *arguments, **named)
        seen["none" if self.limits is None else "in force"] += 1

    def counted(self: Any, *arguments: Any) -> None:
        before = self.over
        came(self, *arguments)
        seen["counted"] += 1
        seen["over"] += self.over - before

    monkeypatch.setattr(LearntUse, "look", looked)
    monkeypatch.setattr(TopicUse, "came", counted)
    assert not play(SCRIPT.replace("quotas 7", "quotas 12")).violations
    assert all(seen.values()), seen
