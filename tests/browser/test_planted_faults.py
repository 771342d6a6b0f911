"""The dashboard's first page while a fault is planted: it shows what /v1/health of its node says, and ends with it.

The faults: tests/support/planted_faults.py; the table of all 16: docs/internals/planted-faults.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chromium import Page
from tests.support.faulty_cluster import CLEARED_S, FaultyCluster, calm, faulty_cluster, findings, wait_for
from tests.support.live_nodes import LiveCluster
from tests.support.pace import at_most
from tests.support.planted_faults import FAULTS, NAMED_S, Planted
from tests.support.small_disk_nodes import filling_disk, full_disk, small_disk_cluster
from tests.support.tools import needs

pytestmark = [pytest.mark.browser, pytest.mark.live, needs("chromium")]

SHOWN = "document.querySelector('#main .stamp[data-applied]') !== null"
LISTED = """[...document.querySelectorAll('#findings li')].map(
  (item) => [item.dataset.code ?? '', item.dataset.object, item.dataset.severity, item.textContent])"""
VOTERS = "document.querySelector('[data-tile=Voters]').textContent"
NOTHING = "document.querySelectorAll('#findings li:not([data-severity=info])').length === 0"
PAGE_S = at_most(30)
QUICK = ("cut_link", "damage", "tier_stuck", "killed_node", "differing_setting", "stuck_queue", "isolated_node")
MARKS = {"clock": [pytest.mark.slow, needs("gcc")], **dict.fromkeys(QUICK, ())}
CHOSEN = [pytest.param(name, marks=MARKS.get(name, pytest.mark.slow)) for name in FAULTS]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    """One for all faults."""
    with faulty_cluster(tmp_path_factory.mktemp("faults")) as made:
        yield made


async def listed(page: Page) -> dict[tuple[str, str], tuple[str, str]]:
    """Code and object -> severity and text of what the page calls wrong, at warning or above."""
    items = await page.run(LISTED)
    return {(code, about): (severity, text) for code, about, severity, text in items if severity != "info"}


async def agree(page: Page, cluster: LiveCluster, node: int) -> None:
    """Waits until the page lists what the node's health says: each with severity, text, command and cause."""
    deadline = time.monotonic() + PAGE_S
    while True:
        shown, said = await listed(page), findings(cluster, node)
        if {key: severity for key, (severity, _) in shown.items()} == {k: each["severity"] for k, each in said.items()}:
            break
        assert time.monotonic() < deadline, f"the page of node {node} shows {shown}, its health says {said}"
        await asyncio.sleep(0.5)
    quorum = cluster.ask(node, "/v1/status")["quorum"]
    here = len(quorum["voters"]) - len(quorum["away"])
    margin = {1: "survives 1 more failure", 0: "the next loss stops writes", -1: "no majority"}[quorum["survives"]]
    await page.until(f"{VOTERS} === 'Voters{here} of {len(quorum['voters'])}{margin}'")
    for key, (_, text) in shown.items():
        assert said[key]["do_now"] in text
        assert f"{key[0]}: what to do" in text
        cause = said[key]["because_of"]
        assert cause is None or f"because of {cause['code']} ({cause['object']})" in text


async def check(page: Page, cluster: LiveCluster, planted: Planted, *, may_end: bool = False) -> None:
    """The page of each node that answers."""
    deadline, wanted = time.monotonic() + NAMED_S, {*planted.causes, *planted.follows}
    nodes = [node.id for node in cluster.nodes if node.id != planted.away]
    for node in nodes:
        wait_for(cluster, node, lambda said: wanted <= set(said), deadline)
    for node in nodes:
        await page.open("about:blank")
        await page.open(f"{cluster.admin(node)}/")
        await page.until(SHOWN, PAGE_S)
        await agree(page, cluster, node)
        assert may_end or wanted <= set(await listed(page))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", CHOSEN)
async def test_the_first_page_shows_a_planted_fault(faulty: FaultyCluster, page: Page, name: str) -> None:
    calm(faulty)
    with FAULTS[name](faulty) as planted:
        await check(page, faulty, planted, may_end=name == "damage")  # the peers mend it meanwhile
    await page.until(NOTHING, CLEARED_S)


@needs("mount")
@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_the_first_page_shows_disks_that_fill_up(page: Page, tmp_path: Path) -> None:
    with small_disk_cluster(tmp_path) as cluster:
        for plant in (filling_disk, full_disk):
            calm(cluster)
            with plant(cluster) as planted:
                await check(page, cluster, planted)
            await page.until(NOTHING, CLEARED_S)
