"""Every page of the dashboard in Chromium: what it shows is what the API says, at every width, by keyboard alone."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, NamedTuple

import pytest

from cluster.admin.handlers.dashboard import runbooks
from raftmq_wire.learnt_file import LearntFile, LearntOrigin, TopicLimits
from statemachine.levels import QUOTAS_LEVEL
from tests.browser.conftest import GROUP, HOSTILE, HOSTS, LONG_GROUP, LONG_TOPIC, ORDERS, Load
from tests.support.chromium import Page
from tests.support.live_nodes import LiveCluster
from tests.support.tools import needs

pytestmark = [pytest.mark.browser, pytest.mark.live, needs("chromium")]

PAGES = {
    "overview": "",
    "events": "events",
    "topics": "topics",
    "topic": f"topics/{ORDERS}",
    "groups": "groups",
    "group": f"groups/{GROUP}",
    "long topic": f"topics/{LONG_TOPIC}",
    "long group": f"groups/{LONG_GROUP}",
    "long message": f"messages/{LONG_TOPIC}?queue=0&by=offset&value=0",
    "clients": "clients",
    "quotas": "quotas",
    "messages": f"messages/{HOSTS}?queue=0&by=newest",
    "members": "members",
    "recovery": "recovery",
    "consistency": "consistency",
    "tier": "tier",
    "faults": "faults",
}
WIDTHS = (390, 800, 801, 1023, 1024, 1400, 1920)
"""Of a telephone, on both sides of where the layout changes, of windows."""
SHOWN = "document.querySelector('#main .stamp[data-applied]') !== null"
TABS_MAX = 250

DASH = "\u2013"
"""The text in place of a number that is not known."""
TABLE = """[...document.querySelector('#main table').querySelectorAll('tbody tr')].map((row) => ({
  key: row.dataset.row,
  cells: Object.fromEntries([...row.children].map(
    (cell) => [cell.dataset.field, [cell.dataset.value ?? null, cell.textContent]])),
}))"""
SNAPSHOT = f"""(() => {{
  const stamp = document.querySelector('#main .stamp[data-applied]').dataset;
  return {{applied: Number(stamp.applied), node: Number(stamp.node), rows: {TABLE}}};
}})()"""
TOO_WIDE = """[...document.querySelectorAll('body *')]
  .filter((each) => each.checkVisibility() && each.getBoundingClientRect().right
    > Math.min(innerWidth, each.closest('.panel')?.getBoundingClientRect().right ?? innerWidth) + 1)
  .filter((each) => !each.closest('.visually-hidden, .skip, .uplot'))
  .map((each) => `${each.tagName}.${each.className} ${each.textContent.slice(0, 40)}`)"""
BROKEN = r"""(() => {
  const found = [], range = new Range();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const at = text.parentElement;
    if (!at.checkVisibility() || at.closest('.visually-hidden, .skip, .uplot, script, style')) continue;
    for (const token of text.data.matchAll(/\S+/g)) {
      if (token[0].length > 24) continue;
      for (const word of token[0].matchAll(/[\p{L}\p{N}]+/gu)) {
        const start = token.index + word.index;
        range.setStart(text, start);
        range.setEnd(text, start + word[0].length);
        const tops = [...range.getClientRects()].filter((each) => each.width).map((each) => each.top);
        if (Math.max(...tops) - Math.min(...tops) > 6) found.push(`${word[0]} in ${text.data.slice(0, 60)}`);
      }
    }
  }
  return found;
})()"""
"""Words that stand on two lines. Only what no line of a telephone can hold may be broken inside a word."""
CONTROLS = """[...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')]
  .filter((each) => !each.disabled && each.checkVisibility())"""
NEXT = f"""(() => {{
  const at = document.activeElement;
  at.reached = true;
  if (at !== document.body && (getComputedStyle(at).outlineStyle === 'none' || !at.getClientRects().length)) {{
    return `no outline: ${{at.outerHTML.slice(0, 200)}}`;
  }}
  return {CONTROLS}.filter((each) => each.wanted && !each.reached).length;
}})()"""


class Numbers(NamedTuple):
    """A page whose table shows what one address answers."""

    page: str
    address: str
    """The end of it, without the query."""
    rows: str
    key: str
    fields: tuple[str, ...]


NUMBERS = (
    Numbers("topics", "/v1/topics", "topics", "name", ("messages", "read_queues", "write_queues")),
    Numbers("topic", f"/v1/topics/{ORDERS}", "queues", "queue_id", ("min_offset", "max_offset")),
    Numbers("groups", "/v1/groups", "groups", "name", ("lag",)),
    Numbers("members", "/v1/members", "members", "id", ("lag_entries", "match_index")),
)


async def opened(page: Page, cluster: LiveCluster, name: str, node: int = 1, **size: Any) -> None:
    await page.size(**({"width": 1024} | size))
    await page.open(f"{cluster.admin(node)}/#/{PAGES[name]}")
    await page.until(SHOWN)


def of_rows(numbers: Numbers, answer: Any) -> dict[str, dict[str, str | None]]:
    """Returns the texts that the table has to show of an answer, as the page keeps them: text, None for null."""
    return {
        str(row[numbers.key]): {name: None if row[name] is None else str(row[name]) for name in numbers.fields}
        for row in answer[numbers.rows]
    }


def of_page(numbers: Numbers, rows: list[Any], among: set[str]) -> dict[str, dict[str, str | None]]:
    """The same as the page shows it; each number is written with commas, or as a dash."""
    found = {}
    for row in rows:
        if row["key"] in among:
            cells = {name: row["cells"][name] for name in numbers.fields}
            for value, text in cells.values():
                assert text == (f"{int(value):,}" if value not in (None, "null") else DASH), row
            found[row["key"]] = {name: value for name, (value, _) in cells.items()}
    return found


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", NUMBERS, ids=lambda numbers: numbers.page)
async def test_numbers_under_load_are_those_of_the_answer_that_the_page_names(
    cluster: LiveCluster, page: Page, load: Load, numbers: Numbers
) -> None:
    await opened(page, cluster, numbers.page)
    compared = set()
    for _ in range(3):
        shown = await page.run(SNAPSHOT)
        answers = [
            await page.body_of(request)
            for address, request in page.answers[-40:]
            if re.sub(r"\?.*", "", address).endswith(numbers.address)
        ]
        fitting = [each for each in answers if each.get("applied_index") == shown["applied"]]
        assert fitting, f"the page names applied index {shown['applied']}, and no answer does"
        wanted = [of_rows(numbers, each) for each in fitting]
        found = of_page(numbers, shown["rows"], set(wanted[0]))
        assert found
        assert any(found.items() <= each.items() for each in wanted)
        compared.add(shown["applied"])
        await page.until(f"Number({SNAPSHOT}.applied) !== {shown['applied']}")
    assert len(compared) == 3
    assert page.errors == []


@pytest.mark.parametrize("numbers", NUMBERS[:3], ids=lambda numbers: numbers.page)
async def test_at_rest_every_node_shows_what_the_api_says(cluster: LiveCluster, page: Page, numbers: Numbers) -> None:
    cluster.wait_equal()
    for node in (1, 2, 3):
        answer = await asyncio.to_thread(cluster.ask, node, numbers.address)
        await opened(page, cluster, numbers.page, node)
        await page.until(f"{SNAPSHOT}.applied >= {answer['applied_index']}")
        shown = await page.run(SNAPSHOT)
        wanted = of_rows(numbers, answer)
        found = of_page(numbers, shown["rows"], set(wanted))
        assert found
        assert found.items() <= wanted.items()


async def test_sums_of_all_nodes_stand_side_by_side(cluster: LiveCluster, page: Page) -> None:
    cluster.wait_equal()
    marked = (await asyncio.to_thread(cluster.ask, 1, "/v1/consistency", "POST"))["index"]
    await opened(page, cluster, "consistency")
    marker = "Number(document.querySelector('[data-marker]')?.dataset.marker)"
    index = await page.until(f"{marker} >= {marked} && {marker}")
    rows = {row["key"]: row["cells"] for row in await page.run(TABLE)}
    for node in (1, 2, 3):
        sums = (await asyncio.to_thread(cluster.ask, node, f"/v1/consistency/{index}"))["sums"]
        assert {family: rows[family][f"node{node}"][1] for family in sums} == sums
        assert {rows[family]["verdict"][1] for family in sums} == {"equal"}


async def test_plots_are_of_the_history_of_the_leader(cluster: LiveCluster, page: Page, load: Load) -> None:
    await opened(page, cluster, "overview")
    await page.until("document.querySelectorAll('#main canvas').length === 9", 30)
    leader = cluster.leader()
    await page.until("Number.parseFloat(document.querySelector('[data-tile=Writes] .figure').textContent) > 0", 30)
    assert any(address.startswith(f"{cluster.admin(1)}/v1/members/{leader}/history") for address in page.addresses)
    drawn = await page.run(
        "document.querySelector('[data-plot=Messages] canvas').getContext('2d')"
        ".getImageData(0, 0, 400, 150).data.some((each) => each > 0)"
    )
    assert drawn
    assert page.errors == []


OVERLOAD = {
    "leads": 1,
    "overloaded": 1,
    "demand_bytes_per_s": 123_456_789,
    "decided_bytes_per_s": 104_857_600,
    "admission_limit_bytes": 7_340_032,
    "inflight_bytes": 7_654_321,
    "refused_overload_per_s": 12_345.6,
    "refused_busy_per_s": 987.6,
    "refused_other_per_s": 0.2,
}
CHANGED = """(() => {{ const ask = window.fetch, values = {values}; window.fetch = async (what, ...more) => {{
  const answer = await ask(what, ...more);
  if (!String(what).includes('/history')) return answer;
  const found = await answer.json();
  for (const each of found.series) {{
    if (each.name in values) each.values = each.values.map(() => values[each.name]);
  }}
  return Response.json(found);
}}; }})()"""


@pytest.mark.parametrize(
    ("values", "badge", "writes"),
    [
        (OVERLOAD, "overloaded", "overloaded, 13.3 k/s refused"),
        (OVERLOAD | {"overloaded": 0, "refused_overload_per_s": 0}, "not overloaded", "988/s refused"),
        ({"leads": 1} | {name: None for name in OVERLOAD if name.endswith("_bytes_per_s")}, "not overloaded", ""),
    ],
    ids=["overloaded", "refused", "not known"],
)
async def test_an_overload_is_seen_in_every_part(
    cluster: LiveCluster, page: Page, values: dict[str, float | None], badge: str, writes: str
) -> None:
    """The cluster has none, so the values are put in place of the node's."""
    for width in (390, 400, 1024, 1400):
        await page.open("about:blank")
        await opened(page, cluster, "topics", width=width)
        await page.run(CHANGED.format(values=json.dumps(values)))
        await page.run("location.hash = '#/'")
        await page.until("document.querySelectorAll('#main canvas').length === 9", 30)
        shown = "document.querySelector('[data-overloaded]').textContent"
        assert await page.run(shown) == badge
        note = await page.run("document.querySelector('[data-tile=Writes] .note').textContent")
        assert note.endswith(writes)
        assert ("refused" in note) == bool(writes)
        told = await page.run(
            "Object.fromEntries([...document.querySelectorAll('[data-line]')]"
            ".map((each) => [each.dataset.line, each.textContent]))"
        )
        assert told["arrives"] == ("118 MiB/s" if values.get("demand_bytes_per_s") else DASH)
        if "admission_limit_bytes" in values:
            assert (told["limit"], told["undecided"]) == ("7 MiB", "7.30 MiB")
            assert told["bytes in flight"] == "988/s"
        assert await page.run(TOO_WIDE) == [], width
        assert await page.run(BROKEN) == [], width
        assert await page.run("document.documentElement.scrollWidth") <= width
    assert page.errors == []


# --- what a page looks like, and how it is used -----------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
async def test_no_page_is_wider_than_the_view_breaks_a_word_or_asks_anyone_else(
    cluster: LiveCluster, page: Page, load: Load, name: str
) -> None:
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            await opened(page, cluster, name, width=width, scheme=scheme)
            await page.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            assert await page.run("document.documentElement.scrollWidth") <= width, (width, await page.run(TOO_WIDE))
            assert await page.run(TOO_WIDE) == [], width
            assert await page.run(BROKEN) == [], width
    assert [each for each in page.addresses if not each.startswith((cluster.admin(1), "about:"))] == []
    assert page.errors == []


@pytest.mark.parametrize("name", PAGES)
async def test_every_control_is_reached_by_tab_and_shows_it(cluster: LiveCluster, page: Page, name: str) -> None:
    """The page refreshes itself and must not lose the place of a user of the keyboard."""
    await opened(page, cluster, name, width=400)
    await page.run(f"{CONTROLS}.forEach((each) => {{ each.wanted = true; }})")
    todo = await page.run(f"{CONTROLS}.length")
    assert 10 < todo < TABS_MAX
    for _ in range(TABS_MAX):
        await page.tab()
        left = await page.run(NEXT)
        assert isinstance(left, int), left
        if left == 0:
            break
    unseen = await page.run(
        f"{CONTROLS}.filter((each) => each.wanted && !each.reached).map((each) => each.outerHTML.slice(0, 120))"
    )
    assert unseen == []


async def test_both_colour_schemes_are_there(cluster: LiveCluster, page: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    await opened(page, cluster, "topics", scheme="light")
    light = await page.run(ground)
    await opened(page, cluster, "topics", scheme="dark")
    assert await page.run(ground) != light


async def test_a_choice_among_many_fits_a_telephone(cluster: LiveCluster, page: Page) -> None:
    """The kinds of events, of a cluster to which much has happened."""
    await opened(page, cluster, "events", width=390)
    await page.run(
        "(() => { const group = document.querySelector('#main .group');"
        " while (group.children.length < 14) group.append(group.lastElementChild.cloneNode(true)); })()"
    )
    assert await page.run(TOO_WIDE) == []
    assert await page.run("document.documentElement.scrollWidth") <= 390


async def test_what_a_cell_has_stays_together_on_a_telephone(cluster: LiveCluster, page: Page) -> None:
    await opened(page, cluster, "groups", width=390)
    await page.until("document.querySelector('#main td[data-field=topics]') !== null")
    children = "[...document.querySelectorAll('#main tbody td')].map((each) => each.childNodes.length)"
    assert max(await page.run(children)) == 1


@pytest.mark.parametrize(
    ("leader", "shown", "says"), [(1, "2 h 5 min", "the oldest message"), (2, DASH, "node 2, the leader")]
)
async def test_the_loss_window_of_the_tier_is_the_leaders(
    cluster: LiveCluster, page: Page, leader: int, shown: str, says: str
) -> None:
    """The cluster has no tier, so the answer is put in place of the node's."""
    answer = cluster.ask(1, "/v1/tier") | {"url": "s3://log", "leader": leader, "node": 1, "window_ms": 7_500_000}
    tile = "'[data-tile=\"Loss window\"]'"
    for width in WIDTHS:
        await opened(page, cluster, "topics", width=width)
        await page.run(
            "(() => { const ask = window.fetch; window.fetch = (what, ...more) => String(what).includes('v1/tier')"
            f" ? Promise.resolve(Response.json({json.dumps(answer)})) : ask(what, ...more);"
            " location.hash = '#/tier'; })()"
        )
        await page.until(f"document.querySelector({tile}) !== null")
        text = await page.run(f"document.querySelector({tile}).textContent")
        assert shown in text
        assert says in text
        assert await page.run(TOO_WIDE) == [], width
        assert await page.run("document.documentElement.scrollWidth") <= width


async def test_a_runbook_is_shown_and_all_are_listed(cluster: LiveCluster, page: Page) -> None:
    await page.size(width=390)
    await page.open(f"{cluster.admin(1)}/#/runbook/no_quorum")
    await page.until("document.querySelector('[data-runbook=no_quorum] code') !== null")
    told = await page.run("document.querySelector('[data-runbook]').textContent")
    assert 'the page "Back up and restore" of the docs about' in told
    await page.run("document.querySelector('#main .head a').click()")
    await page.until("document.querySelector('#main ul li a') !== null")
    links = "[...document.querySelectorAll('#main li a')].map((each) => each.getAttribute('href'))"
    assert await page.run(links) == [f"#/runbook/{code}" for code in runbooks()]
    assert await page.run("document.documentElement.scrollWidth") <= 390
    assert page.errors == []


async def test_a_hostile_message_is_shown_as_it_is(cluster: LiveCluster, page: Page) -> None:
    await opened(page, cluster, "messages")
    await page.until("document.querySelectorAll('details.message').length === 2")
    await page.run("document.querySelectorAll('details.message').forEach((each) => { each.open = true; })")
    bodies = "[...document.querySelectorAll('[data-field=body]')].map((each) => each.textContent)"
    binary, text = await page.run(bodies)
    assert text == HOSTILE
    assert "00000" in binary
    assert "0a 0b 0c 0d 0e 0f" in binary
    assert await page.run("document.querySelectorAll('main img, main svg, main script, main i, main b b').length") == 0
    assert await page.run("window.pwned") is None
    await page.run("document.querySelector('[aria-label=\"Show bodies as\"] button:last-child').click()")
    hexed = (await page.run(bodies))[1]
    assert bytes.fromhex("".join(line[8:55] for line in hexed.splitlines())) == HOSTILE.encode()
    assert page.errors == []


async def test_messages_are_found_by_key_offset_and_position(cluster: LiveCluster, page: Page) -> None:
    async def offsets(question: str) -> list[int]:
        await page.open("about:blank")
        await page.open(f"{cluster.admin(2)}/#/messages/{question}")
        await page.until("document.querySelector('.message, #main .empty, #main .problem')")
        return list(
            await page.run("[...document.querySelectorAll('.message')].map((each) => Number(each.dataset.offset))")
        )

    assert await offsets(f"{ORDERS}?queue=1&by=offset&value=3") == list(range(3, 35))[: await count(cluster, 1) - 3]
    assert await offsets(f"{HOSTS}?by=key&value=%3Cb%3Ekey%3C/b%3E") == [0]
    (message,) = (await asyncio.to_thread(cluster.ask, 1, f"/v1/topics/{HOSTS}/queues/0/messages?offset=0&count=1"))[
        "messages"
    ]
    assert await offsets(f"{HOSTS}?by=key&value={message['id']}") == [0]
    assert await offsets(f"{HOSTS}?by=position&value={message['position']}") == [0]
    assert await offsets(f"{HOSTS}?queue=0&by=time&value={message['store_ms']}") == [0, 1]


async def count(cluster: LiveCluster, queue: int) -> int:
    page = await asyncio.to_thread(cluster.ask, 2, f"/v1/topics/{ORDERS}/queues/{queue}/messages?count=0")
    return int(page["max_offset"])


# --- what a page changes, and what it says when something is wrong --------------------------------------------------


async def test_a_drain_asks_first_and_can_be_undone(cluster: LiveCluster, page: Page) -> None:
    leader = cluster.leader()
    node = next(each.id for each in cluster.nodes if each.id != leader)
    await opened(page, cluster, "members", leader)
    dialog = "document.querySelector('dialog[open]')"

    async def press(label: str) -> None:
        await page.until(f"document.querySelector('[aria-label=\"{label} node {node}\"]') !== null")
        await page.run(f"document.querySelector('[aria-label=\"{label} node {node}\"]').focus()")
        await page.enter()
        await page.until(f"{dialog} !== null")

    await press("Drain")
    assert "It may be stopped then" in await page.run(f"{dialog}.textContent")
    await page.press("Escape", 27)
    await page.until(f"{dialog} === null")
    assert (await asyncio.to_thread(cluster.ask, node, "/v1/status"))["drained"] is False
    assert await page.run("document.activeElement.textContent") == "Drain"
    await press("Drain")
    await page.run(f"{dialog}.querySelector('[type=submit]').focus()")
    await page.enter()
    await page.until(f"{dialog} === null")
    assert (await asyncio.to_thread(cluster.ask, node, "/v1/status"))["drained"] is True
    await press("Undrain")
    await page.run(f"{dialog}.querySelector('[type=submit]').focus()")
    await page.enter()
    await page.until(f"{dialog} === null")
    assert (await asyncio.to_thread(cluster.ask, node, "/v1/status"))["drained"] is False
    assert page.errors == []


async def test_offsets_are_moved_after_what_changes_was_counted(cluster: LiveCluster, page: Page) -> None:
    before = await asyncio.to_thread(cluster.ask, 1, f"/v1/groups/{GROUP}")
    assert before["lag"] > 0
    await opened(page, cluster, "group")
    dialog = "document.querySelector('dialog[open]')"
    await page.run("document.querySelector('form[aria-label=\"Move offsets\"] [type=submit]').focus()")
    await page.enter()
    await page.until(f"{dialog} !== null")
    assert f"messages skipped{before['lag']:,}" in await page.run(f"{dialog}.textContent")
    assert (await asyncio.to_thread(cluster.ask, 1, f"/v1/groups/{GROUP}"))["lag"] == before["lag"]
    await page.run(f"{dialog}.querySelector('[type=submit]').focus()")
    await page.enter()
    await page.until(f"{dialog} === null")
    await page.until("document.querySelector('dd [data-field=lag]').dataset.value === '0'")
    assert page.errors == []


TILES = "[...document.querySelectorAll('#main .tile')].map((tile) => Math.round(tile.getBoundingClientRect().top))"


async def test_no_tile_is_left_alone_in_a_row(cluster: LiveCluster, page: Page) -> None:
    for width in (1400, 1920, 1024, 400):
        await page.size(width)
        await page.open(f"http://127.0.0.1:{cluster.nodes[0].admin_port}/#/")
        await page.until(f"{SHOWN} && {TILES}.length > 6")
        tops = await page.run(TILES)
        rows = [tops.count(top) for top in sorted(set(tops))]
        assert len(tops) == 8
        assert min(rows) == max(rows), (width, rows)


async def test_the_newest_message_is_on_top(cluster: LiveCluster, page: Page) -> None:
    await page.open(f"http://127.0.0.1:{cluster.nodes[0].admin_port}/#/messages/{ORDERS}?queue=0&by=newest")
    offsets = "[...document.querySelectorAll('.message')].map((each) => Number(each.dataset.offset))"
    await page.until(f"{offsets}.length > 2")
    shown = await page.run(offsets)
    assert shown == sorted(shown, reverse=True)


async def test_a_dialog_ends_with_its_page(cluster: LiveCluster, page: Page) -> None:
    is_open = "document.getElementById('dialog').open"
    await page.open(f"http://127.0.0.1:{cluster.nodes[0].admin_port}/#/members")
    drain = "[...document.querySelectorAll('button')].find((each) => each.textContent === 'Drain')"
    await page.until(drain + " !== undefined")
    await page.run(drain + ".click()")
    await page.until(is_open)
    await page.run("location.hash = '#/topics'")
    await page.until(f"!{is_open} && document.querySelector('h1').textContent === 'Topics'")


async def test_what_is_wrong_is_what_health_says_and_a_dead_node_is_announced(cluster: LiveCluster, page: Page) -> None:
    """The last one: it kills nodes, and the browser logs each request that fails."""
    leader = cluster.leader()
    down, own = (each.id for each in cluster.nodes if each.id != leader)
    await opened(page, cluster, "overview", own)
    cluster.kill(down)
    codes = "[...document.querySelectorAll('#findings li')].map((each) => [each.dataset.code, each.dataset.object])"
    await page.until(f"{codes}.some(([code, object]) => code === 'node_down' && object === 'node {down}')", 60)
    for _ in range(100):
        health = await asyncio.to_thread(cluster.ask, own, "/v1/health")
        if {(each["code"], each["object"]) for each in health["findings"]} == set(map(tuple, await page.run(codes))):
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("the page and /v1/health do not agree")
    assert await page.run("document.getElementById('banner').hidden")
    cluster.restart(down)
    await page.until(f"!{codes}.some(([code]) => code === 'node_down')", 60)
    cluster.kill(own)
    await page.until("!document.getElementById('banner').hidden", 60)
    assert "does not answer since" in await page.run("document.getElementById('banner').textContent")
    assert await page.run("document.querySelectorAll('[data-tile]').length") > 4, "what was known stays"
    cluster.restart(own)
    await page.until("document.getElementById('banner').hidden", 60)


async def test_what_is_hot_stands_below_the_topics(cluster: LiveCluster, page: Page, load: Load) -> None:
    await opened(page, cluster, "topics")
    hot = (
        "[...document.querySelectorAll('section')].find((each) => each.textContent.startsWith('Most of the messages'))"
    )
    await page.until(f"{hot} !== undefined")
    rows = await page.run(f"[...{hot}.querySelectorAll('tbody tr')].map((row) => row.innerText)")
    assert any(row.startswith(ORDERS) and "%" in row for row in rows), rows
    assert page.errors == []


async def test_who_is_limited_and_what_is_learnt(cluster: LiveCluster, page: Page, load: Load) -> None:
    """As on every other page, at every width."""
    leader = cluster.leader()
    if cluster.ask(leader, "/v1/upgrade")["level"] < QUOTAS_LEVEL:
        cluster.ask(leader, "/v1/upgrade/finalize", "POST", {})
    limits = [{"subject": f"topic={ORDERS}", "limits": {"send_messages": 500, "send_bytes": 1_000_000}}]
    limits += [{"subject": f"user={'u' * 60},topic={LONG_TOPIC}", "limits": {"send_messages": 1}}]
    cluster.ask(leader, "/v1/quotas", "PUT", {"quotas": limits})
    origin = LearntOrigin(
        cluster=cluster.ask(leader, "/v1/status")["cluster_id"], made_ms=1, first_ms=1, last_ms=1, expires_ms=1 << 50
    )
    file = LearntFile(origin, {topic: TopicLimits([1] * 24, [0] * 24) for topic in (ORDERS, LONG_TOPIC)})
    rows = [{"topic": topic, "messages": each[0], "bytes": each[1]} for topic, each in file.topics.items()]
    cluster.ask(leader, f"/v1/quotas/learnt/{file.digest}", "PUT", {"topics": rows})
    told = {name: getattr(origin, name) for name in origin.__struct_fields__}
    cluster.ask(leader, "/v1/quotas/learnt", "PUT", {"digest": file.digest, "origin": told, "count": 2, "mode": "on"})
    try:
        for width in WIDTHS:
            await opened(page, cluster, "quotas", leader, width=width)
            await page.until(f"document.querySelector('[data-row=\"{ORDERS}\"]') !== null")
            assert await page.run("document.documentElement.scrollWidth") <= width, (width, await page.run(TOO_WIDE))
            assert await page.run(TOO_WIDE) == [], width
            assert await page.run(BROKEN) == [], width
        rows_of = "[...document.querySelectorAll('#main tbody tr')].map((row) => row.innerText)"
        await page.until(f"{rows_of}.some((row) => row.startsWith('topic={ORDERS}') && row.includes('500/s'))")
        text = await page.run("document.getElementById('main').innerText")
        assert "on: who is over is cut first in an overload" in text
        assert page.errors == []
    finally:
        cluster.ask(leader, "/v1/quotas/learnt", "DELETE")
        cluster.ask(leader, "/v1/quotas", "PUT", {"quotas": [{**each, "limits": None} for each in limits]})
