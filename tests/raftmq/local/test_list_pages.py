"""Lists that are longer than a page, in everything of ours that reads one: the whole is shown, or one page was asked
for by name."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
from click.testing import CliRunner

from cluster.admin.routes import ROUTES
from cluster.config.local_layout import NodeRecord
from jepsen_like.client_kit import node_http
from jepsen_like.live.probes import side_workload
from jepsen_like.live.probes.expected_metadata import ExpectedMetadata, TopicSpec
from jepsen_like.live.probes.tier_probe import TierProbe
from jepsen_like.live.subjects.owned_resources import owning
from jepsen_like.live.subjects.processes import Processes
from jepsen_like.live.subjects.raftmq_nodes import RaftMQNodes
from jepsen_like.testbed import Bed
from raftmq.cli import cli, run
from raftmq.client.discovery import split_address
from raftmq.commands.name_completion import complete_groups, complete_topics, near_name
from raftmq.local import status, support_bundle
from raftmq.local.http.admin_http import AdminApi, ApiRefusal
from raftmq.local.http.http_exchange import exchange
from raftmq.local.http.list_pages import UnfollowedPageError, pages, whole_list
from tests.support.answering_api import MakeApi, answering
from tests.support.dashboard import STATIC, run_dashboard
from tests.support.paging_api import ITEMS, LISTS, PAGE_ITEMS, PagingApi, name, page_of
from tests.support.rows import each_row
from tests.support.tools import needs


@pytest.fixture(scope="module")
def served() -> Iterator[PagingApi]:
    api = PagingApi()
    yield api
    api.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with owning(tmp_path, lambda line: None) as owned:
        yield Processes(owned)


@pytest.fixture
def subject(served: PagingApi, processes: Processes, tmp_path: Path) -> Any:
    """A cluster of the harness whose nodes are all this API."""
    return RaftMQNodes(tmp_path, processes, [node_at(served.address, node) for node in (1, 2)])


def node_at(address: str, node: int = 1) -> NodeRecord:
    return NodeRecord(node, None, 1, 2, 3, split_address(address)[1], "node.log")


def test_every_list_of_the_api_that_has_pages_is_tried_here() -> None:
    paged = {
        route.path
        for route in ROUTES
        if route.method == "GET" and isinstance(route.answer, type) and "next" in get_type_hints(route.answer)
    }
    assert {path.replace("{id}", "{name}") for path in paged} == LISTS.keys()


@each_row("path", LISTS)
def test_all_pages_are_followed_to_the_last(served: PagingApi, path: str) -> None:
    listed, ask = LISTS[path], AdminApi([served.address]).page
    sizes = [len(page[listed.field]) for page in pages(ask, path.format(name="n"), listed.cursor)]
    assert sizes == [PAGE_ITEMS, PAGE_ITEMS, ITEMS - 2 * PAGE_ITEMS]
    answer = whole_list(ask, f"{path.format(name='n')}?limit=70", listed.field, listed.cursor)
    assert answer == {**listed.around, listed.field: [listed.item(n) for n in range(ITEMS)], "next": None}


@each_row("path", LISTS)
def test_a_page_taken_for_the_whole_is_an_error(served: PagingApi, subject: Any, path: str) -> None:
    api, path = AdminApi([served.address]), path.format(name="n")
    for read in (api.get, api.local, lambda path: subject.request(1, "GET", path)):
        with pytest.raises(UnfollowedPageError, match=path):
            read(path)
    assert len(api.page(path)[LISTS[path if path in LISTS else f"{path[:-1]}{{name}}"].field]) == PAGE_ITEMS


SHOWN = [
    ("topic list", "topics", ITEMS),
    ("topic describe n", "queues", ITEMS),
    ("group list", "groups", ITEMS),
    ("group describe n", "offsets", ITEMS),
    ("user list", "users", ITEMS),
    ("quota list", "quotas", ITEMS),
    ("audit --limit 240", "changes", 240),
    ("config history --limit 90", "changes", 90),
    ("tier ls", "segments", ITEMS),
]


@pytest.mark.parametrize(("command", "field", "shown"), SHOWN)
def test_commands_show_every_page(
    served: PagingApi, capsys: pytest.CaptureFixture[str], command: str, field: str, shown: int
) -> None:
    words = [*command.split(), "--admin", served.address]
    assert run([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)[field]) == shown
    assert run(words) == 0
    assert len(capsys.readouterr().out.splitlines()) >= shown


def test_every_list_has_a_command_that_shows_it() -> None:
    """`topic describe n` shows the list of /v1/topics/{name}, and so on."""
    assert len(SHOWN) == len(LISTS)
    assert {field for _, field, _ in SHOWN} == {listed.field for listed in LISTS.values()}


# Readers: every call in our sources that fetches something over HTTP. There are two doors, both of which refuse a page
# that is not the last, and callers that want one page say so by name.

ROOT = Path(__file__).parents[3]
SOURCES = ("raftmq", "jepsen_like", "pyspark_raftmq", "bench", "examples")
SENDERS = ("exchanged", "connected", "connection_to", "HTTPConnection", "HTTPSConnection", "urlopen", "ClientSession")
"""Functions that send a request and return whatever comes."""
DOORS = {
    "raftmq/local/http/http_exchange.py exchange": "refuses a page",
    "raftmq/local/http/http_exchange.py connected": "connects",
    "raftmq/local/http/admin_http.py _call": "below `page`, for which get and local refuse a page",
    "raftmq/local/http/admin_http.py _exchange": "the same",
    "raftmq/local/http/credentials.py node_at": "asks /v1/session, which is no list",
    "raftmq/local/http/https.py connection_to": "connects",
    "bench/bench_soak.py sample": "asks /metrics",
    "bench/bench_wake.py appends": "asks /metrics",
    "bench/peers/etcd.py _status": "asks etcd",
    "examples/web_service.py main": "asks its own service",
    "jepsen_like/live/probes/lanes.py _connect": "is a client's",
}
ONE_PAGE = {
    "raftmq/local/http/admin_http.py whole": "follows the pages",
    "raftmq/local/http/admin_http.py pages": "follows the pages",
    "raftmq/local/http/admin_http.py local_pages": "follows the pages",
    "raftmq/local/http/admin_http.py local": "refuses a page",
    "raftmq/commands/data/tier.py list_segments": "follows the pages",
    "raftmq/commands/nodes/config_keys.py history": "the newest changes, as many as --limit says",
    "raftmq/commands/messages/topic.py _topic": "the settings of a topic, not its queues",
    "jepsen_like/live/subjects/raftmq_nodes.py _exchange": "below request, which refuses a page, and whole",
    "jepsen_like/live/probes/side_workload.py get_topic": "the settings of a topic, not its queues",
    "bench/bench_group_kills.py _has_topic": "whether a topic is there",
}
"""The callers that want one page, or follow pages themselves: file and function -> the reason."""


def readers(path: str, source: str) -> tuple[set[str], set[str]]:
    """The functions of a file that send requests beside the doors, and those that ask for one page."""
    sending, paging = set[str](), set[str]()

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in SENDERS:
                sending.add(f"{path} {function}")
            if any(keyword.arg == "is_page" for keyword in node.keywords):
                paging.add(f"{path} {function}")
        if isinstance(node, ast.Attribute) and node.attr == "page" and isinstance(node.ctx, ast.Load):
            paging.add(f"{path} {function}")
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(source), "")
    return sending, paging


def test_every_reader_goes_through_a_door_or_asks_for_one_page_by_name() -> None:
    sending, paging = set[str](), set[str]()
    for package in SOURCES:
        for file in (ROOT / package).rglob("*.py"):
            found = readers(file.relative_to(ROOT).as_posix(), file.read_text("utf-8"))
            sending |= found[0]
            paging |= found[1]
    assert sending == DOORS.keys()
    assert paging == ONE_PAGE.keys()


def test_a_planted_reader_is_found() -> None:
    planted = "def count(address):\n    return len(AdminApi([address]).page('/v1/topics')['topics'])\n"
    assert readers("raftmq/planted.py", planted) == (set(), {"raftmq/planted.py count"})
    planted = "def count(address):\n    return json.load(urlopen(f'http://{address}/v1/topics'))\n"
    assert readers("raftmq/planted.py", planted) == ({"raftmq/planted.py count"}, set())


@each_row("path", LISTS)
def test_the_door_below_commands_and_harness_refuses_a_page(served: PagingApi, path: str) -> None:
    path = path.format(name="n")
    with pytest.raises(UnfollowedPageError, match=path):
        exchange(served.address, "GET", path, timeout_s=5.0)
    assert exchange(served.address, "GET", path, timeout_s=5.0, is_page=True).status == 200
    assert exchange(served.address, "POST", path, b"{}", timeout_s=5.0).status == 404


def test_readers_below_the_door_show_the_error(served: PagingApi, make_api: MakeApi) -> None:
    """The status of nodes and the bundle for support ask for no list yet."""
    api = make_api({"GET /v1/status": {"term": 1, "next": "more"}})
    with pytest.raises(UnfollowedPageError):
        status.fetch_status(api.address)
    with pytest.raises(UnfollowedPageError):
        list(support_bundle.files_of_node(api.address))
    with pytest.raises(UnfollowedPageError):
        asyncio.run(node_http.ask_node(node_at(served.address), "GET", "/v1/topics"))


def test_the_register_of_the_harness_is_one_topic(served: PagingApi) -> None:
    assert side_workload.get_topic(served.address, "n") == {"value": 1}


GET_PAGE = re.compile(r"\bgetPage\b")


def test_pages_of_the_dashboard_that_show_one_page_have_a_button_for_the_next() -> None:
    """Beside api.js, which defines getPage, and the audit, which shows the newest entries."""
    shown = {file.name: file.read_text("utf-8") for file in STATIC.glob("page-*.js")}
    paging = {name for name, text in shown.items() if GET_PAGE.search(text)}
    assert paging == {"page-topics.js", "page-groups.js", "page-audit.js"}
    assert all("next" in shown[name] for name in paging - {"page-audit.js"})
    others = [file.name for file in STATIC.glob("*.js") if not file.name.endswith(".min.js")]
    asking = {name for name in others if "fetch(" in (STATIC / name).read_text("utf-8")}
    assert asking == {"api.js"}, "nobody else sends requests"


def test_a_topic_of_many_queues_is_deleted_and_altered_without_them(served: PagingApi) -> None:
    for words in (["topic", "delete", "n"], ["topic", "create", "n", "--update", "--dedup", "off"]):
        result = CliRunner().invoke(cli, [*words, "--admin", served.address], input="n\n")
        assert not isinstance(result.exception, UnfollowedPageError), words


def test_names_of_later_pages_are_completed_and_suggested(served: PagingApi) -> None:
    context: Any = SimpleNamespace(params={"admin": served.address})
    param: Any = None
    for complete in (complete_topics, complete_groups):
        assert complete(context, param, "n024") == [name(number) for number in range(240, 250)]
    for path in ("/v1/topics", "/v1/groups"):
        with pytest.raises(ApiRefusal) as raised, near_name(AdminApi([served.address]), path, f"{name(249)}x"):
            AdminApi([served.address]).delete(f"{path}/x")
        assert f"did you mean {name(249)}?" in raised.value.fix


def test_the_catalogue_of_many_topics_is_compared_with_all_of_them(subject: Any) -> None:
    catalogue = ExpectedMetadata("n")
    catalogue.topics = {name(number): TopicSpec(1, 6, {}) for number in range(ITEMS)}
    shown = subject.whole(1, "/v1/topics?consistency=linearizable", "topics")
    assert list(catalogue.topic_differences(shown, "node 1")) == []
    del catalogue.topics[name(ITEMS - 1)]
    (wrong,) = catalogue.topic_differences(shown, "node 1")
    assert f"topic {name(ITEMS - 1)} was deleted and is there" in wrong


def test_the_harness_reads_all_segments(subject: Any) -> None:
    assert len(TierProbe(subject).rows(1)) == ITEMS


def test_a_testbed_cleans_all_topics_and_groups(processes: Processes, tmp_path: Path) -> None:
    paths = [f"/v1/{kind}/{name(number)}" for kind in ("topics", "groups") for number in range(ITEMS)]
    leads = {"term": 1, "role": "leader", "writes_open": True, "leader": 1, "applied_index": 9, "commit_index": 9}
    answers: dict[str, Any] = {f"DELETE {path}": {} for path in paths} | {"GET /v1/status": leads}
    answers |= dict.fromkeys(("GET /v1/topics", "GET /v1/groups"), lambda asked: page_of(asked.target))
    with Bed(tmp_path / "bed", processes, 1) as bed:
        described: Any = bed.describe()["nodes"]
        port = split_address(described[0]["admin"].removeprefix("http://"))[1]
        with answering(answers, port) as api:
            bed.clean({})
    assert [asked.target for asked in api.asked if asked.method == "DELETE"] == paths


DASHBOARD = """
const api = await import(`${folder}/api.js`);
const taken = await api.get("v1/topics", signal).then(() => "taken for the whole", (error) => error.message);
const one = await (await page("topics")).load({ path: ["topics", "n"], signal });
const messages = await page("messages");
messages.enter({ path: ["messages"], query: new URLSearchParams() });
const group = await (await page("groups")).load({ path: ["groups", "n"], signal });
console.log(JSON.stringify({
  taken,
  queues: one.one.queues.length,
  listed: (await (await page("topics")).load({ path: ["topics"], signal })).list.topics.length,
  groups: (await (await page("groups")).load({ path: ["groups"], signal })).list.groups.length,
  readers: (await api.getAll("v1/groups", "groups", signal)).groups.length,
  topicReaders: one.readers.length,
  offsets: group.one.offsets.length,
  topics: (await messages.load({ signal })).topics.length,
}));
"""


@needs("node")
def test_the_dashboard_follows_pages_or_offers_the_next_one(served: PagingApi, tmp_path: Path) -> None:
    """Its pages of topics and of groups have a button for the next page; everything else shows the whole."""
    assert json.loads(run_dashboard(tmp_path, DASHBOARD, served.address)) == {
        "taken": "GET v1/topics answered one page of a longer list",
        "queues": ITEMS,
        "listed": PAGE_ITEMS,
        "groups": PAGE_ITEMS,
        "readers": ITEMS,
        "topicReaders": ITEMS,
        "offsets": ITEMS,
        "topics": ITEMS,
    }
