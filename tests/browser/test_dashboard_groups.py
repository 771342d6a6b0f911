"""The dashboard of clusters of two and of four groups of brokers: all groups on the first page, the nodes of the group
that is chosen, and sums that count each group once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import address_of
from raftmq.local.process import free_base_port
from raftmq.local.registry_processes import PORTS
from raftmq_wire.queue_numbers import number_of
from tests.support.chromium import Page
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.tools import needs
from tests.support.wait_until import wait

pytestmark = [pytest.mark.browser, pytest.mark.live, needs("chromium")]

BOTH, OTHER, READERS = "orders", "payments", "billing"
QUEUES = [0, 1, number_of(2, 0), number_of(2, 1)]
CELL = "document.querySelector('{row} [data-field={field}]')?.textContent"
ROWS = """Object.fromEntries([...document.querySelectorAll('#main table tbody tr')].map((row) =>
  [row.dataset.row, Object.fromEntries([...row.children].map((cell) => [cell.dataset.field, cell.textContent]))]))"""


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A topic with two queues in each group, whose reader is behind in both; and one of the second group alone."""
    made = LocalCluster(tmp_path_factory.mktemp("groups") / "data")
    with small_segments():
        made.up(1, free_base_port(8 + PORTS), groups=2, registry=True)
    try:
        api = AdminApi([address_of(made.nodes[0])])
        wait(lambda: len(api.local("/v1/broker-groups")["groups"]) == 2, "the second group is added")
        wait(lambda: group_of(api, 2)["writes_open"], "the second group has a leader")
        api.post("/v1/topics", {"name": BOTH, "queues": 2, "groups": [1, 2]})
        api.post("/v1/topics", {"name": OTHER, "queues": 3, "groups": [2]})
        with connect(";".join(f"127.0.0.1:{node.namesrv_port}" for node in made.nodes)) as mq:
            for number, queue in enumerate(QUEUES * 5):
                mq.send(BOTH, b"order %d" % number, queue_id=queue, key=f"k{number}")
            mq.send(OTHER, b"only here", queue_id=number_of(2, 2))
            with mq.consumer(READERS, BOTH) as consumer:
                next(consumer)
        yield made
    finally:
        made.down()


def group_of(api: AdminApi, group: int) -> dict[str, Any]:
    """What the group says of itself; it is not open before it answers."""
    try:
        return dict(api.local(f"/v1/broker-groups?broker_group={group}"))
    except Exception:  # noqa: BLE001 - it has no leader yet
        return {"writes_open": False}


async def opened(page: Page, groups: LocalCluster, place: str, node: int = 0) -> None:
    await page.size(1200)
    await page.open("about:blank")
    await page.open(f"http://127.0.0.1:{groups.nodes[node].admin_port}/{place}")
    await page.until("document.querySelector('#main .stamp[data-applied]') !== null")


def row(group: int, field: str) -> str:
    return CELL.format(row=f'#broker-groups tr[data-row="{group}"]', field=field)


async def test_the_first_page_has_all_groups(groups: LocalCluster, page: Page) -> None:
    for node, own in ((0, 1), (1, 2)):
        await opened(page, groups, "#/", node)
        for group, leader in ((1, "node 1"), (2, "node 2/1")):
            await page.until(f"{row(group, 'writes')} === 'open'")
            assert await page.run(row(group, "leader")) == leader
            assert await page.run(row(group, "members")) == "1 of 1"
            assert await page.run(row(group, "dashboard")) == f"127.0.0.1:{groups.nodes[group - 1].admin_port}"
        await page.until(f"{row(2, 'truth')} === 'up to date'")
        assert "(shown)" in await page.run(row(own, "group"))
        told = await page.run("[...document.querySelectorAll('#findings li')].map((each) => each.textContent)")
        assert [each for each in told if "node 2/1 is the only voter" in each]
        assert [each for each in told if each.startswith("infogroups 1, 2: cluster")], told
        assert (
            await page.run("document.querySelector('#who [data-field=node]').textContent")
            == ("node 1", "node 2/1")[node]
        )
    assert page.errors == []


async def test_the_first_page_has_the_registry(groups: LocalCluster, page: Page) -> None:
    def cell(number: int, field: str) -> str:
        return CELL.format(row=f'#registry tr[data-row="{number}"]', field=field)

    async def all_are(state: str) -> None:
        for number in (1, 2, 3):
            await page.until(f"{cell(number, 'state')} === '{state}'")

    for node in (0, 1):
        await opened(page, groups, "#/", node)
        await all_are("ready")
        assert await page.run(cell(2, "id")) == "registry/2"
        assert await page.run(cell(2, "address")) == f"127.0.0.1:{groups.registry[1].peer_port}"
        assert await page.run(cell(2, "living")) == "2"
        leads = [await page.run(cell(number, "leader")) for number in (1, 2, 3)]
        assert sorted(leads) == ["", "", "leader"]
    groups.kill("registry/2")
    await page.until(f"{cell(2, 'state')} === 'not reached'")
    assert not (await page.run(cell(2, "living"))).isdecimal()
    groups.restart("registry/2")
    await all_are("ready")
    assert page.errors == []


async def test_a_follower_does_not_show_its_group_as_closed(
    page: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A node that does not lead takes no writes; its group does."""
    made = LocalCluster(tmp_path_factory.mktemp("three") / "data")
    made.up(3, free_base_port(24), groups=2, timeout_s=at_most(60))
    try:
        leader = AdminApi([address_of(made.nodes[0])]).local("/v1/status")["leader"]
        await opened(page, made, "#/", 0 if leader != 1 else 1)
        for group in (1, 2):
            await page.until(f"({row(group, 'writes')} || '…') !== '…'")
            await page.until(f"{row(group, 'writes')} === 'open'")
    finally:
        made.down()


async def test_four_groups_are_shown_chosen_and_summed_up(page: Page, tmp_path_factory: pytest.TempPathFactory) -> None:
    made = LocalCluster(tmp_path_factory.mktemp("four") / "data")
    with small_segments():
        made.up(1, free_base_port(16), groups=4, timeout_s=at_most(60))
    try:
        with connect(";".join(f"127.0.0.1:{node.namesrv_port}" for node in made.nodes)) as mq:
            await asyncio.to_thread(mq.admin.create_topic, BOTH, 1)
            for group in (1, 2, 3, 4):
                for _ in range(group):
                    await asyncio.to_thread(mq.send, BOTH, b"order", queue_id=number_of(group, 0))
        for node, place in ((0, "#/"), (3, "#/")):
            await opened(page, made, place, node)
            for group in (1, 2, 3, 4):
                await page.until(f"{row(group, 'writes')} === 'open'")
            assert await page.run("document.querySelectorAll('#broker-groups tr[data-row]').length") == 4
            assert "(shown)" in await page.run(row(node + 1, "group"))
        assert await page.run("document.querySelectorAll('.chooser option').length") == 4
        await opened(page, made, "#/topics")
        await page.until(f"({ROWS})['{BOTH}']?.groups === '1, 2, 3, 4'")
        assert [(await page.run(ROWS))[BOTH][field] for field in ("messages", "read_queues")] == ["10", "4"]
        await opened(page, made, f"#/topics/{BOTH}")
        await page.until(f"'4 0' in ({ROWS})")
        told = {key: each["messages"] for key, each in (await page.run(ROWS)).items()}
        assert told == {f"{group} 0": str(group) for group in (1, 2, 3, 4)}
        assert page.errors == []
    finally:
        made.down()


async def test_a_group_is_chosen_and_stays_chosen(groups: LocalCluster, page: Page) -> None:
    await opened(page, groups, "#/members")
    assert list(await page.run(ROWS)) == ["1"]
    chooser = "const at = document.querySelector('.chooser select'); at.value = '2'"
    await page.until("document.querySelectorAll('.chooser option').length === 2")
    await page.run(f"(() => {{ {chooser}; at.dispatchEvent(new Event('change')); }})()")
    await page.until("location.search === '?broker_group=2' && location.hash === '#/members'")
    for name in ("members", "events", "clients", "recovery", "consistency", "tier", ""):
        await page.run(f"location.hash = '#/{name}'")
        title = f"document.querySelector('nav a[aria-current]')?.getAttribute('href') === '#/{name}'"
        stamp = "document.querySelector('#main .stamp[data-applied]')?.textContent"
        await page.until(f"{title} && ({stamp} || '').includes('node 2/1,')")
        assert await page.run("document.querySelector('#who [data-field=node]').textContent") == "node 2/1"
        shown = await page.run("document.querySelector('#main').innerText")
        apart = shown[: shown.index("What is wrong")] if name == "" else shown
        assert "node 1" not in apart.lower(), (name, shown)
    assert page.errors == []


async def test_sums_count_each_group_once(groups: LocalCluster, page: Page) -> None:
    await opened(page, groups, "#/topics")
    await page.until(f"({ROWS})['{BOTH}']?.groups === '1, 2'")
    rows = await page.run(ROWS)
    assert [rows[BOTH][field] for field in ("messages", "read_queues", "write_queues")] == ["20", "4", "4"]
    assert [rows[OTHER][field] for field in ("messages", "read_queues", "groups")] == ["1", "3", "2"]
    await opened(page, groups, f"#/topics/{BOTH}")
    await page.until(f"'2 1' in ({ROWS})")
    rows = await page.run(ROWS)
    assert {key: each["messages"] for key, each in rows.items()} == dict.fromkeys(("1 0", "1 1", "2 0", "2 1"), "5")
    api = AdminApi([address_of(groups.nodes[0])])
    lags = [await asyncio.to_thread(api.local, f"/v1/groups/{READERS}?broker_group={group}") for group in (1, 2)]
    lag = sum(each["lag"] for each in lags)
    assert 18 <= lag <= 20
    assert min(each["lag"] for each in lags) > 0
    await opened(page, groups, "#/groups")
    await page.until(f"({ROWS})['{READERS}']?.lag === '{lag}'")
    await opened(page, groups, f"#/groups/{READERS}", 1)
    await page.until(f"document.querySelector('[data-field=lag]')?.dataset.value === '{lag}'")
    rows = await page.run(ROWS.replace("#main table", "#main section:nth-of-type(2) table"))
    assert {f"{group} {BOTH} {queue}" for group in (1, 2) for queue in (0, 1)} <= set(rows)
    assert page.errors == []


async def test_messages_are_of_the_group_that_has_the_queue(groups: LocalCluster, page: Page) -> None:
    async def bodies(question: str) -> list[str]:
        await opened(page, groups, f"#/messages/{question}")
        await page.until("document.querySelector('.message, #main .empty, #main .problem')")
        return list(
            await page.run("[...document.querySelectorAll('.message .preview')].map((each) => each.textContent)")
        )

    assert await bodies(f"{OTHER}?queue=2&by=newest") == ["only here"], "the first group has no queue of it"
    ours, theirs = [await bodies(f"{BOTH}?group={group}&queue=1&by=newest") for group in (1, 2)]
    assert (len(ours), len(theirs)) == (5, 5)
    assert not set(ours) & set(theirs)
    for number in (0, 2):
        assert await bodies(f"{BOTH}?by=key&value=k{number}") == [f"order {number}"], "whichever group has it"
    assert page.errors == []


async def test_offsets_are_moved_in_all_groups_that_have_the_topic(groups: LocalCluster, page: Page) -> None:
    await opened(page, groups, f"#/groups/{READERS}")
    await page.until("document.querySelector('form[aria-label=\"Move offsets\"]') !== null")
    await page.run("document.querySelector('form[aria-label=\"Move offsets\"] button[type=submit]').click()")
    await page.until("document.getElementById('dialog').open")
    asked = await page.run("document.getElementById('dialog').innerText")
    assert "groups of brokers" in asked
    await page.run("document.querySelector('#dialog button[type=submit]').click()")
    await page.until("!document.getElementById('dialog').open")
    await page.until("document.querySelector('[data-field=lag]')?.dataset.value === '0'")
    assert page.errors == []


async def test_a_group_that_does_not_answer_is_critical_on_every_page(groups: LocalCluster, page: Page) -> None:
    await asyncio.to_thread(groups.kill, "2/1")
    try:
        await opened(page, groups, "#/topics")
        await page.until("document.querySelector('#who').innerText.includes('critical')")
        await page.until("document.querySelector('#main').innerText.includes('without group 2 of brokers')")
        assert (await page.run(ROWS))[BOTH]["messages"] == "10", "what is left"
        await page.run("location.hash = '#/'")
        await page.until(f"{row(2, 'writes')} === 'no answer'")
        told = json.dumps(await page.run("document.querySelector('#findings li').innerText"))
        assert "group 2 of brokers does not answer" in told
        await page.open("about:blank")
        await page.open(f"http://127.0.0.1:{groups.nodes[0].admin_port}/?broker_group=2#/members")
        await page.until("document.querySelector('#main').innerText.includes('Group 2 of brokers does not answer')")
        assert await page.run("document.querySelector('.chooser select').value") == "2", "the way back"
    finally:
        await asyncio.to_thread(groups.restart, "2/1")
