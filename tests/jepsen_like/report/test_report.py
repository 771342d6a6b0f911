"""The report stands alone, says the verdict first, shows the proofs, and survives hostile and broken histories."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from jepsen_like.checkers import check
from jepsen_like.checkers.history_builder import Script
from jepsen_like.checkers.history_steps import Operations
from jepsen_like.history import Op, pair_up
from jepsen_like.report import RunInfo, machine_facts, write_report
from jepsen_like.report.svg import decades, linear, logarithmic, ticks
from jepsen_like.report.timeline import Timeline, series_of
from tests.support.rows import each_row

RUN = RunInfo("chaos part-kill, seed 7", "raftmq chaos run --seed 7 'a b'", "today", {"nodes": 3}, machine_facts())


class Page(HTMLParser):
    """Tags that are opened and closed, and everything that would fetch something."""

    OPTIONAL = frozenset({"tr", "td", "th", "p", "meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href") and value and value[0] != "#"]
        if tag not in self.OPTIONAL:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.OPTIONAL:
            assert self.open.pop() == tag


def a_run() -> Script:
    script = Script().did("phase", name="quiet").did("leader", node=1, term=1)
    for i in range(50):
        script.send(f"m{i}", i, producer="p").wait(0.02)
    script.did("phase", name="faults")
    fault = script.invoke("fault", kind="kill", nodes=[1])
    waiting = script.invoke("send", topic="t", id="w")
    script.wait(1.2).did("leader", node=2, term=2).end(waiting, "info").end(fault, detail="kill -9 <1>")
    for i in range(50, 60):
        script.send(f"m{i}", i, producer="p").wait(0.02)
    return script


def written(tmp_path: Path, ops: list[Op], run: RunInfo = RUN) -> str:
    path = tmp_path / "report.html"
    write_report(path, run, ops, check(ops, "log"))
    return path.read_text()


def test_a_valid_run(tmp_path: Path) -> None:
    ids = [f"m{i}" for i in range(60)]
    text = written(tmp_path, a_run().read(1, *ids).read(2, *ids).ops)
    page = Page(text)
    assert page.open == []
    assert page.fetched == []
    assert "script" not in page.tags
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"] * text.count("<svg")
    order = [text.index(part) for part in (">valid<", "What happened", "Checkers", "Do it again", "The machine")]
    assert order == sorted(order)
    assert "What was broken" not in text
    assert "raftmq chaos run --seed 7 &#x27;a b&#x27;" in text
    for part in ("kill", "leads in term 2", "1,200 ms", "nothing succeeded for 1.20 s", "processors"):
        assert part in text


def test_every_drawing_is_well_formed(tmp_path: Path) -> None:
    text = written(tmp_path, a_run().read(1).ops)
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 1 + 3  # the timeline, and three of the sixty lost messages
    for drawing in drawings:
        tree = ElementTree.fromstring(drawing)
        assert "nan" not in drawing
        for rect in tree.iter("{http://www.w3.org/2000/svg}rect"):
            assert float(rect.attrib["width"]) > 0
            assert 0 <= float(rect.attrib["x"]) <= 1120


def test_the_proof_of_a_lost_message_shows_the_log_around_it(tmp_path: Path) -> None:
    ids = [f"m{i}" for i in range(60)]
    text = written(tmp_path, a_run().read(1, *ids).read(2, *ids[:-1]).ops)
    assert ">invalid<" in text
    assert '<h3 id="lost-on-node">' in text
    assert "acknowledged at t/0@59 and is not on node 2" in text
    assert "The log around t/0@59:" in text
    row = re.search(r"<tr class=here>.*?(?=<tr|</table>)", text)
    assert row is not None
    assert re.sub("<[^>]+>", "|", row[0]).split("|")[2:] == ["59", "m59", "m59", "missing"]


def test_what_the_history_says_is_never_markup(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>"
    script = Script().send(evil, 0).did("fault", kind=evil, nodes=[1]).did("phase", name=evil).send("b", 1)
    script.did("leader", node=1, term=1, group=evil).read(1, "b").did("put", key=evil, value=evil)
    text = written(tmp_path, script.ops, RUN._replace(title=evil, explanation=evil, facts={evil: evil}))
    assert "<script" not in text
    assert Page(text).open == []


@each_row(
    "ops",
    [
        [],
        [Op(0, 1, "ok", "send", {}, 1)],
        Script().did("send", topic="t").ops,
        Script().did("fault", kind="kill").sent("a").ops,
        Script().did("leader").sent("a").ops,
        Script().did("dance", anything=[1]).ops,
    ],
    ids=["empty", "unpaired", "malformed send", "malformed fault", "malformed note", "unknown step"],
)
def test_a_history_that_cannot_be_judged_still_gets_a_page(tmp_path: Path, ops: list[Op]) -> None:
    text = written(tmp_path, ops)
    assert ">unknown<" in text
    assert "Do it again" in text
    assert Page(text).open == []


def test_series_count_every_completed_operation_once() -> None:
    operations = pair_up(a_run().ops)
    sends = Operations(operations).of("send")
    start, end = sends[0].invoked.time_ns, max(o.completed.time_ns for o in sends if o.completed is not None)
    series = series_of(sends, start, end)
    assert (sum(series.ok), sum(series.info), sum(series.fail)) == (60, 1, 0)
    assert [value for value in series.p50_ms if value is not None] == pytest.approx([0.001] * 60)
    assert series.start_ns + series.bin_ns * len(series.ok) > end


def test_the_timeline_notes_each_leader_once() -> None:
    script = Script().sent("a")
    for node, term in ((1, 1), (1, 1), (2, 2), (2, 2), (1, 3)):
        script.did("leader", node=node, term=term)
    timeline = Timeline.of(Operations(pair_up(script.ops)))
    assert timeline is not None
    assert [(term.node, term.term) for term in timeline.terms] == [(1, 1), (2, 2), (1, 3)]


def test_axes() -> None:
    assert ticks(480, 4) == [0, 200, 400]
    assert ticks(0, 4) == [0]
    assert ticks(1, 4) == pytest.approx([0, 0.5, 1])
    assert decades(0.7, 130) == ([0.1, 1, 10, 100, 1000], 0.1, 1000)
    assert decades(10, 10)[1:] == (10, 100)
    assert linear(0, 10, 100, 0)(2.5) == 75
    assert linear(3, 3, 0, 1)(3) == 0
    scale = logarithmic(1, 100, 0, 10)
    assert [scale(value) for value in (0.001, 1, 10, 100)] == pytest.approx([0, 0, 5, 10])


def test_the_verdict_of_the_run_stands_above_that_of_its_checkers(tmp_path: Path) -> None:
    """Two leaders in one term, a fault nobody felt, a broken demand of a scenario: the checkers know none of these."""
    script = Script().sent("a").read(1, "a")
    path = tmp_path / "page.html"
    write_report(path, RUN, script.ops, check(script.ops, "log"))
    assert '<header class="valid"><div class="badge">valid' in path.read_text()
    run = RUN._replace(verdict="invalid", reasons=["node 1 and node 2 both led term 5 <"])
    write_report(path, run, script.ops, check(script.ops, "log"))
    text = path.read_text()
    assert '<header class="invalid"><div class="badge">invalid' in text
    assert '<p class="doubt">node 1 and node 2 both led term 5 &lt;</p>' in text
