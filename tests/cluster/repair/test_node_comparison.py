"""The comparison of nodes: the first difference, to the byte; what cannot be told is said."""

from __future__ import annotations

from dataclasses import dataclass, field

import google_crc32c

from cluster.repair.consistency_views import ConsistencyView, EntryView, LogView
from cluster.repair.node_comparison import STEPS, Difference, Inspection
from tests.support.rows import each_row

ENTRY = 5000
COUNT = 900
"""4.5 MB: more than one of the coarsest chunks."""


def content(node: int = 0) -> bytearray:
    return bytearray(b"".join(bytes([index % 251]) * ENTRY for index in range(COUNT)))


@dataclass
class Fake:
    """One node's log of equal entries, and its sums."""

    number: int
    data: bytearray = field(default_factory=content)
    commit_index: int = COUNT - 1
    first_index: int = 0
    sums: dict[str, str] = field(default_factory=lambda: {"cq": "01", "topics": "02"})
    diverges_at: int = COUNT
    unreadable: range = range(0)
    asked: int = 0
    rotten: set[int] = field(default_factory=set)

    def view(self, index: int | None = None) -> ConsistencyView:
        log = LogView(
            first_index=self.first_index,
            first_position=self.first_index * ENTRY,
            last_index=COUNT - 1,
            end_position=COUNT * ENTRY,
            commit_index=self.commit_index,
            damage=[],
        )
        return ConsistencyView(
            node=self.number, applied_index=1, fenced=False, log=log, index=index or -1, sums=self.sums
        )

    def entry(self, index: int) -> EntryView:
        history = self.number if index >= self.diverges_at else 0
        crc = "" if index in self.rotten else f"{history}{index:07x}"
        return EntryView(
            node=self.number,
            index=index,
            term=1,
            position=index * ENTRY,
            end_position=(index + 1) * ENTRY,
            header_crc=crc,
        )

    def chunks(self, position: int, end_position: int, chunk_bytes: int) -> list[str | None]:
        self.asked += 1
        return [
            None
            if max(at, self.unreadable.start) < min(at + chunk_bytes, end_position, self.unreadable.stop)
            else f"{google_crc32c.value(bytes(self.data[at : min(at + chunk_bytes, end_position)])):08x}"
            for at in range(position, end_position, chunk_bytes)
        ]


def three() -> dict[int, Fake]:
    return {number: Fake(number) for number in (1, 2, 3)}


def test_equal_nodes_have_no_findings() -> None:
    nodes = three()
    nodes[2].commit_index = 500
    report = Inspection(nodes).run(700)
    assert (report.findings, report.unknown) == ([], [])
    assert (report.nodes, report.index, report.marker) == ([1, 2, 3], 500, 700)
    assert report.bytes_compared == report.position == 501 * ENTRY, "up to what all know to be committed"


@each_row("position", [0, 63, 64, 4095, 4096, (1 << 20) - 1, 1 << 20, 3_333_333, COUNT * ENTRY - 1])
def test_a_byte_that_differs_is_found(position: int) -> None:
    nodes = three()
    nodes[2].data[position] ^= 1
    nodes[2].rotten = {position // ENTRY}
    (finding,) = Inspection(nodes).run(5).findings
    assert (finding.what, finding.position, finding.index) == ("log bytes", position, position // ENTRY)
    assert finding.nodes[1] == finding.nodes[3] != finding.nodes[2]
    assert finding.damaged == [2]
    assert nodes[1].asked <= len(STEPS) + 6


def test_bytes_that_cannot_be_read_are_a_difference() -> None:
    nodes = three()
    nodes[3].unreadable = range(123_456, 123_500)
    (finding,) = Inspection(nodes).run(5).findings
    assert (finding.what, finding.position, finding.nodes[3]) == ("unreadable", 123_456, "")


@each_row("index", [0, 1, 449, 450, COUNT - 1])
def test_logs_that_part_are_found_at_the_entry(index: int) -> None:
    nodes = three()
    nodes[1].diverges_at = index
    (finding,) = Inspection(nodes).run(5).findings
    assert (finding.what, finding.index, finding.position) == ("header chain", index, index * ENTRY)


def test_trimmed_logs_are_compared_where_both_have_them() -> None:
    nodes = three()
    nodes[1].first_index = 100
    nodes[2].data[50 * ENTRY] ^= 1
    report = Inspection(nodes).run(5)
    assert report.findings == []
    assert report.bytes_compared == (COUNT - 100) * ENTRY


def test_what_a_node_trims_meanwhile_is_no_difference() -> None:
    nodes = three()

    class Trims(Fake):
        def chunks(self, position: int, end_position: int, chunk_bytes: int) -> list[str | None]:
            self.first_index, self.unreadable = 100, range(100 * ENTRY)
            return super().chunks(position, end_position, chunk_bytes)

    nodes[2] = Trims(2)
    report = Inspection(nodes).run(5)
    assert (report.findings, report.unknown) == ([], [])
    nodes[2] = Trims(2)
    nodes[2].data[200 * ENTRY] ^= 1
    (finding,) = Inspection(nodes).run(5).findings
    assert (finding.what, finding.index) == ("log bytes", 200)


def test_sums_that_differ_name_the_family() -> None:
    nodes = three()
    nodes[2].sums = {"cq": "01", "topics": "03", "tier": "04"}
    report = Inspection(nodes).run(5)
    assert report.findings == [
        Difference(what="tier", index=5, position=None, nodes={1: "", 2: "04", 3: ""}),
        Difference(what="topics", index=5, position=None, nodes={1: "02", 2: "03", 3: "02"}),
    ]


def test_what_is_not_known_is_said() -> None:
    nodes = three()
    nodes[2].sums = {}
    (unknown,) = Inspection(nodes).run(5).unknown
    assert unknown == "rows of nodes [2] are not known as of entry 5: they have not applied it"
    report = Inspection(three()).run(None)
    assert report.marker == -1
    assert "no leader could mark" in report.unknown[0]
    assert "it takes two nodes" in Inspection({1: Fake(1)}).run(5).unknown[0]


def test_a_difference_that_is_gone_is_no_finding() -> None:
    nodes = three()
    nodes[2].data[9] ^= 1
    chunks = nodes[2].chunks

    def repaired(position: int, end_position: int, chunk_bytes: int) -> list[str | None]:
        found = chunks(position, end_position, chunk_bytes)
        nodes[2].data[9] = content()[9]
        return found

    nodes[2].chunks = repaired  # type: ignore[method-assign]
    report = Inspection(nodes).run(5)
    assert report.findings == []
    assert "differed, and then did not" in report.unknown[0]
