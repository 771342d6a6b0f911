"""The stages of a long command, where its output is no terminal."""

from __future__ import annotations

from raftmq.commands.stages import AGAIN_S, Lines


def test_each_stage_is_a_line_and_its_figures_are_repeated_seldom() -> None:
    now_s, shown = [0.0], list[str]()
    tell = Lines(shown.append, lambda: now_s[0])
    tell("starting node 5")
    tell("starting node 5")
    tell("node 5 is catching up: 1,200 entries behind")
    tell("node 5 is catching up: 900 entries behind")
    assert shown == ["starting node 5", "node 5 is catching up: 1,200 entries behind"]
    now_s[0] += AGAIN_S
    tell("node 5 is catching up: 30 entries behind")
    tell("node 5 is catching up: 30 entries behind")
    tell("removing node 1")
    tell("removing node 2")
    assert shown[2:] == ["node 5 is catching up: 30 entries behind", "removing node 1", "removing node 2"]
