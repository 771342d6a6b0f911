"""One language for schedules of the core, stories of the core and schedules of full nodes."""

from __future__ import annotations

import re

import pytest

from jepsen_like.core_sim import scripted as core
from jepsen_like.script import VOCABULARY, Interpreter, ScriptError, ScriptLine, lines_of, link_of
from jepsen_like.sim import scripted as full
from tests.support.raft_story import Story
from tests.support.rows import each_row

INTERPRETERS: dict[str, type[Interpreter]] = {
    "core schedules": core.CoreStage,
    "stories": Story,
    "full nodes": full.ScriptedWorld,
}


def first_words(text: str) -> set[str]:
    return {line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")}


@pytest.mark.parametrize("name", VOCABULARY)
def test_the_vocabulary_names_what_is_carried_out(name: str) -> None:
    commands = {one.removeprefix("do_").replace("_", "-") for one in dir(INTERPRETERS[name]) if one.startswith("do_")}
    text = VOCABULARY[name]
    assert first_words(text) <= commands | {"nodes"}  # of full nodes, their first line makes the world
    known = {word for line in text.splitlines() if not line.startswith(" ") for word in re.findall(r"[a-z-]+", line)}
    assert commands <= known


def test_lines_are_words_without_comments() -> None:
    assert list(lines_of("nodes 3 # three\n\n  # nothing\n cut 1->2\n")) == [
        ScriptLine(1, ("nodes", "3")),
        ScriptLine(4, ("cut", "1->2")),
    ]
    assert link_of("1->2") == (1, 2)


class Sample(Interpreter):
    """Two commands."""

    flags = frozenset(("later",))

    def do_half_open(self, node: str, *, left: str = "", later: str = "") -> tuple[str, str, str]:
        return node, left, later

    def do_bad(self) -> None:
        raise KeyError("nobody")


@each_row(
    ("text", "outcome"),
    [
        ("half-open 1", ("1", "", "")),
        ("half-open later 1 left=a=b", ("1", "a=b", "yes")),
        ("fly 1", "line 1: no command 'fly'"),
        ("half-open", "line 1: half-open: missing a required argument: 'node'"),
        ("half-open 1 right=2", "line 1: half-open 1 right=2: got an unexpected keyword argument 'right'"),
        ("bad", "line 1: bad: KeyError('nobody')"),
    ],
)
def test_a_line_is_carried_out_or_named(text: str, outcome: object) -> None:
    (line,) = lines_of(text)
    if isinstance(outcome, tuple):
        assert Sample().perform(line) == outcome
        return
    with pytest.raises(ScriptError) as caught:
        Sample().perform(line)
    assert str(caught.value) == outcome
