"""The dashboard's first page while a fault is planted: it shows what /v1/health of its node says, and ends with it.

The faults: tests/support/planted_faults.py; the table of all 16: docs/internals/planted-faults.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.support.chromium import Page
from tests.support.faulty_cluster import CLEARED_S, FaultyCluster, calm, faulty_cluster, findings, wait_for
from tests.support.planted_faults import FAULTS, NAMED_S

pytestmark = [pytest.mark.browser, pytest.mark.live]

SHOWN = "document.querySelector('#main .stamp[data-applied]') !== null"
LISTED = """[...document.querySelectorAll('#findings li')].map(
  (item) => [item.dataset.code ?? '', item.dataset.object, item.dataset.severity, item.textContent])"""
PAGE_S = 30.0
CHOSEN = ("cut_link", "damage", "tier_stuck", "killed_node", "differing_setting", "stuck_queue")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    """One for all faults."""
    with faulty_cluster(tmp_path_factory.mktemp("faults")) as made:
        yield made


async def listed(page: Page) -> dict[tuple[str, str], tuple[str, str]]:
    """Code and object -> severity and text of what the page calls wrong, at warning or above."""
    items = await page.run(LISTED)
    return {(code, about): (severity, text) for code, about, severity, text in items if severity != "info"}


async def agree(page: Page, cluster: FaultyCluster, node: int) -> None:
    """Waits until the page lists what the node's health says: each with severity, text, command and cause."""
    deadline = time.monotonic() + PAGE_S
    while True:
        shown, said = await listed(page), findings(cluster, node)
        if {key: severity for key, (severity, _) in shown.items()} == {k: each["severity"] for k, each in said.items()}:
            break
        assert time.monotonic() < deadline, f"the page of node {node} shows {shown}, its health says {said}"
        await asyncio.sleep(0.5)
    for key, (_, text) in shown.items():
        assert said[key]["do_now"] in text
        assert said[key]["runbook"] in text
        cause = said[key]["because_of"]
        assert cause is None or f"because of {cause['code']} ({cause['object']})" in text


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", CHOSEN)
async def test_the_first_page_shows_a_planted_fault(faulty: FaultyCluster, page: Page, name: str) -> None:
    calm(faulty)
    with FAULTS[name](faulty) as planted:
        deadline, wanted = time.monotonic() + NAMED_S, set(planted.causes)
        nodes = [node.id for node in faulty.nodes if node.id != planted.away]
        for node in nodes:
            wait_for(faulty, node, lambda said: wanted <= set(said), deadline)
        for node in nodes:
            await page.open("about:blank")
            await page.open(f"{faulty.admin(node)}/")
            await page.until(SHOWN, PAGE_S)
            await agree(page, faulty, node)
            if name != "damage":  # the peers may have mended it meanwhile
                assert wanted <= set(await listed(page))
    await page.until("document.querySelectorAll('#findings li:not([data-severity=info])').length === 0", CLEARED_S)
