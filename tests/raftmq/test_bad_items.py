"""One bad item stops no reader: each brings the sound messages around it, says what it could not decode, and ends well.

The readers are a table here. Whatever reads messages in the code and is in no row fails the last test.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

import raftmq
from raftmq.arrow.log_copy import TIER, CopySource, cut
from raftmq.arrow.ranges import EARLIEST, LATEST, Bounds, plan_topic
from raftmq.arrow.undecodable import RAW, Undecodable
from raftmq.cli import cli
from raftmq.client.message import COMPRESSION_FLAGS
from raftmq.commands.messages import printing
from raftmq.commands.messages.start_positions import walk
from raftmq.copies.open_copy import opened
from raftmq.copies.part_rows import part_batches
from raftmq.local.process import free_base_port
from tests.cluster.tier.test_uploads_live import TieredNodes
from tests.support.bad_items import BAD, KEY, SOUND, UNDECODABLE, fill
from tests.support.dashboard import run_dashboard
from tests.support.tools import needs

ROOT = Path(__file__).parents[2]
live = pytest.mark.live
GROUP, TOPIC = "strangers", "filled-by-strangers"
DEAD = f"%DLQ%{GROUP}"
HALVES = {"first-half": slice(0, len(BAD) // 2), "second-half": slice(len(BAD) // 2, len(BAD))}
"""Topics with half of the items: an answer to a search by key has room for all of one."""


DASHBOARD = """
const messages = await page("messages");
const [topic, ...places] = words;
const own = { signal, draw() {} };
function text(node) {
  if (Array.isArray(node)) return node.map(text).join(" ");
  if (node === null || typeof node !== "object") return String(node);
  return [...Object.values(node.props).filter((value) => typeof value === "string"), text(node.children)].join(" ");
}
for (const place of places) {
  location.hash = `#/messages/${topic}?${place}`;
  messages.enter({ path: ["messages", topic], query: new URLSearchParams(place) });
  const list = await messages.load(own);
  console.log(text(messages.view(list, own)));
}
"""


class Place(NamedTuple):
    """Where the items are: in a topic, and as dead letters of a group."""

    live: Any
    mq: raftmq.Client
    folder: Path

    def run(self, *words: str, code: int = 0) -> Result:
        """Runs `raftmq` with these words, which must end with this code."""
        done = CliRunner().invoke(cli, [*words, "--servers", self.live.servers], standalone_mode=False)
        assert done.exception is None, (words, done.exception)
        assert (done.return_value or 0) == code, (words, done.stderr)
        return done

    def told(self, *words: str, **more: Any) -> bytes:
        """Returns the output of such a command, which says how many bodies it could not decode."""
        done = self.run(*words, **more)
        assert f"{len(UNDECODABLE)} messages could not be decoded" in done.stderr, (words, done.stderr)
        return done.stdout_bytes

    def copies(self, topic: str) -> Counter[tuple[bytes, int]]:
        """Returns the bodies of a topic as they are stored, each with how it is compressed."""
        queues = self.mq.admin.describe_topic(topic).queues
        pulled = [self.mq.pull(topic, queue.queue_id, 0, as_stored=True) for queue in queues]
        return Counter((one.body, one.compression) for each in pulled for one in each.messages)


@pytest.fixture(scope="module")
def place(live_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with raftmq.connect(live_cluster.servers) as mq:
        mq.admin.create_topic(TOPIC, queues=1)
        mq.admin.create_group(GROUP)
        mq.send(DEAD, b"makes the topic", queue_id=0)
        for topic in (TOPIC, DEAD):
            fill(mq, topic)
        for topic, part in HALVES.items():
            mq.admin.create_topic(topic, queues=1)
            fill(mq, topic, part)
        yield Place(live_cluster, mq, tmp_path_factory.mktemp("bad"))


SMALL = {
    "RAFTMQ_LOG__SEGMENT_SIZE_BYTES": str(2 << 20),
    "RAFTMQ_LIMITS__MESSAGE_BYTES_MAX": str(1 << 19),
    "RAFTMQ_LIMITS__BATCH_BYTES_MAX": str(1 << 19),
    "RAFTMQ_RETENTION__BYTES_MAX": str(4 << 20),
    "RAFTMQ_RETENTION__EVERY_MS": "100",
    "RAFTMQ_RETENTION__DELETE_WHEN": "",
    "RAFTMQ_TIER__EVICT": "true",
}


@pytest.fixture(scope="module")
def evicted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A node that has given the items to the tier."""
    folder = tmp_path_factory.mktemp("evicted")
    nodes = TieredNodes(folder / "c", folder / "store")
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in SMALL.items():
                patch.setenv(name, value)
            nodes.local.up(1, free_base_port(4), tier=str(nodes.store))
        with raftmq.connect(nodes.servers) as mq:
            for topic, part in {TOPIC: slice(None), **HALVES}.items():
                mq.admin.create_topic(topic, queues=1)
                fill(mq, topic, part)
            last = mq.pull([*HALVES][-1], 0, 0, as_stored=True).messages[-1].position
            for _ in range(40):
                mq.send("filled", b"x" * 220_000)
        nodes.wait_verified()
        nodes.local.down()  # writes a checkpoint, which an EVICT would otherwise wait for
        nodes.local.up()
        nodes.until(lambda: nodes.tier()["log_begins"] > last, "an EVICT")
        nodes.until(lambda: not nodes.ask(1, "/v1/retention")["sweeping"], "its end")
        with raftmq.connect(nodes.servers) as mq:
            yield Place(nodes, mq, folder)
    finally:
        nodes.local.down()


def by_consume(place: Place) -> bytes:
    return place.told("consume", TOPIC)


def by_consume_json(place: Place) -> bytes:
    out = place.told("consume", TOPIC, "--json")
    assert sum("undecoded" in json.loads(line) for line in out.splitlines()) == len(UNDECODABLE)
    return out


def by_consume_group(place: Place) -> bytes:
    return place.told("consume", TOPIC, "--group", "among-strangers")


def by_terminal(place: Place) -> bytes:
    lines = [printing.columns_of(one.decoded()) for one in walk(place.mq, TOPIC, "earliest")]
    assert sum(b"(as stored: the body " in line for line in lines) == len(UNDECODABLE)
    return b"\n".join(lines)


def by_browse(place: Place) -> bytes:
    return place.told("messages", "browse", TOPIC, "--max", "1000")


def by_browse_of_bodies(place: Place) -> bytes:
    return place.run("messages", "browse", TOPIC, "--max", "1000", "--body", "^sound").stdout_bytes


def by_message(place: Place) -> bytes:
    return place.told("messages", "find", "--topic", TOPIC, "--key", KEY, "--max", "64")


def by_message_json(place: Place) -> bytes:
    return place.told("messages", "find", "--topic", TOPIC, "--key", KEY, "--max", "64", "--json")


def by_republish(place: Place) -> bytes:
    target = f"{TOPIC}-copies"
    place.mq.admin.create_topic(target, queues=1)
    done = place.run("messages", "republish", TOPIC, "--to", target, "--json", code=1)
    return as_they_are(place, done, target)


def by_resend(place: Place) -> bytes:
    done = place.run("dlq", "resend", GROUP, "--all", "--json", code=1)
    return as_they_are(place, done, f"%RETRY%{GROUP}")


def as_they_are(place: Place, done: Result, target: str) -> bytes:
    """Checks that all went there as it was, but the one message that has no room for its origin, which is named."""
    assert json.loads(done.stdout)["left_out"] == 1
    assert "was not sent: " in done.stderr
    copies = place.copies(target)
    assert {(bad.body, bad.sys_flag & COMPRESSION_FLAGS) for bad in BAD.values()} <= set(copies)
    assert json.loads(done.stdout)["sent"] == copies.total()
    return b"".join(body for body, _ in copies)


def by_dlq_list(place: Place) -> bytes:
    done = place.run("dlq", "list", GROUP, "--max", "1000")
    assert f"{len(SOUND) + len(BAD) + 1} dead letters" in done.stdout
    return b"".join(SOUND)  # the table shows no bodies


def by_dlq_list_json(place: Place) -> bytes:
    out = place.run("dlq", "list", GROUP, "--max", "1000", "--json").stdout_bytes
    assert sum("undecoded" in each for each in json.loads(out)["letters"]) == len(UNDECODABLE)
    return out


def by_export(place: Place) -> bytes:
    file = place.folder / "all.parquet"
    assert json.loads(place.told("export", TOPIC, "--to", str(file), "--json"))["undecoded"] == len(UNDECODABLE)
    failed = CliRunner().invoke(
        cli, ["export", TOPIC, "--to", str(file), "--on-undecodable", "fail", "--servers", place.live.servers]
    )
    assert f"the body of {TOPIC} queue 0 offset 1 cannot be decoded" in failed.stderr
    bodies = pq.read_table(file)["body"].to_pylist()
    assert len(bodies) == len(SOUND) + len(BAD)
    return b"".join(bodies)


def by_table_run(place: Place) -> bytes:
    """With a table for each choice: what stops has committed nothing."""
    told = [TOPIC, "--once", "--json", "--to"]
    place.told("table", "run", *told, str(place.folder / "t"))
    words = ["table", "run", *told, str(place.folder / "u"), "--on-undecodable", "fail"]
    failed = CliRunner().invoke(cli, [*words, "--servers", place.live.servers])
    assert f"the body of {TOPIC} queue 0 offset 1 cannot be decoded" in failed.stderr
    assert DeltaTable(str(place.folder / "u")).version() == 0
    shown = place.run("table", "status", str(place.folder / "t"), "--json")
    assert json.loads(shown.stdout)["queues"][0]["behind"] == 0
    bodies = DeltaTable(str(place.folder / "t")).to_pyarrow_table()["body"].to_pylist()
    assert len(bodies) == len(SOUND) + len(BAD)
    return b"".join(bodies)


def by_read_arrow(place: Place) -> bytes:
    whole = raftmq.read_arrow(TOPIC, servers=place.live.servers)
    assert whole.num_rows == len(SOUND) + len(BAD)
    less = raftmq.read_arrow(TOPIC, servers=place.live.servers, on_undecodable="skip")
    assert less.num_rows == len(SOUND) + len(BAD) - len(UNDECODABLE)
    with pytest.raises(raftmq.Failed, match=f"{TOPIC} queue 0 offset 1 cannot be decoded"):
        raftmq.read_arrow(TOPIC, servers=place.live.servers, on_undecodable="fail")
    return b"".join(less["body"].to_pylist())


def by_read_pandas(place: Place) -> bytes:
    frame = raftmq.read_pandas(TOPIC, servers=place.live.servers)
    assert len(frame) == len(SOUND) + len(BAD)
    return b"".join(frame["body"])


def by_pull(place: Place) -> bytes:
    found = place.mq.pull(TOPIC, 0, 0).messages
    assert sum(bool(one.undecoded) for one in found) == len(UNDECODABLE)
    return b"".join(one.body for one in found)


def by_consumer(place: Place) -> bytes:
    with place.mq.consumer("other-strangers", TOPIC, follow=False) as consumer:
        found = b"".join(one.body for one in consumer)
        assert consumer.undecoded == len(UNDECODABLE)
        return found


def by_http_page(place: Place) -> bytes:
    found, at, node = b"", 0, place.live.leader()
    while True:
        page = place.live.ask(node, f"/v1/topics/{TOPIC}/queues/0/messages?offset={at}")
        assert page["unreadable"] == []
        found += json.dumps(page["messages"]).encode()
        if page["next_offset"] >= page["max_offset"]:
            return found
        at = page["next_offset"]


def by_http_dead_letters(place: Place) -> bytes:
    page = f"/v1/topics/{quote(DEAD)}/queues/0/messages?offset="
    node = place.live.leader()
    return b"".join(json.dumps(place.live.ask(node, f"{page}{at}")["messages"]).encode() for at in range(0, 60, 8))


def by_http_key(place: Place) -> bytes:
    """The newest 32 messages with a key; the bodies of all of a topic are in one answer."""
    node, found = place.live.leader(), b""
    for topic, part in HALVES.items():
        answer = place.live.ask(node, f"/v1/topics/{topic}/messages/{KEY}?body_bytes=64")
        assert not answer["more"]
        assert len(answer["messages"]) == 2 * (part.stop - part.start) + 1
        found += json.dumps(answer["messages"]).encode()
    return found


def by_http_position(place: Place) -> bytes:
    node = place.live.leader()
    queue = place.mq.pull(TOPIC, 0, 0, as_stored=True).messages
    shown = [place.live.ask(node, f"/v1/messages/{one.position}?body_bytes=64")["message"] for one in queue]
    assert len(shown) == len(SOUND) + len(BAD)
    return json.dumps(shown).encode()


def by_tier_copy(place: Place) -> bytes:
    """What the tier holds, read without the cluster."""
    undecodable = Undecodable(RAW)
    with opened(CopySource(TIER, (place.folder / "store").as_uri())) as copy:
        ranges = plan_topic(copy, TOPIC, Bounds(EARLIEST), Bounds(LATEST), words=("start", "end"))
        parts = cut(copy.segments(ranges), None, None)
        batches = [each for part in parts for each in part_batches(copy, part, ("body",), 8192, None, undecodable)]
    assert undecodable.count == len(UNDECODABLE)
    bodies = [body for batch in batches for body in batch.column("body").to_pylist()]
    read: dict[str, Any] = {"read_from": TIER, "path": (place.folder / "store").as_uri(), "columns": ["body"]}
    assert raftmq.read_arrow(TOPIC, **read)["body"].to_pylist() == bodies
    assert raftmq.read_arrow(TOPIC, **read, on_undecodable="skip").num_rows == len(bodies) - len(UNDECODABLE)
    return b"".join(bodies)


def by_dashboard(place: Place) -> bytes:
    """What the dashboard's page of messages shows, page by page, and then by key."""
    address = place.live.admin(place.live.leader()).removeprefix("http://")
    places = [f"by=offset&value={at}" for at in range(0, 2 * len(BAD), 8)] + [f"by=key&value={KEY}"]
    shown = run_dashboard(place.folder, DASHBOARD, address, TOPIC, *places)
    assert all(each in shown for each in ("UNIQ_KEY or message id", "not text", "KEYS"))
    return shown.encode()


READERS: dict[Callable[[Place], bytes], tuple[str, ...]] = {
    by_consume: ("raftmq/commands/messages/consume.py", "raftmq/commands/messages/start_positions.py"),
    by_consume_json: (),
    by_consume_group: (),
    by_terminal: (),
    by_browse: ("raftmq/commands/messages/messages.py",),
    by_browse_of_bodies: (),
    by_message: ("raftmq/commands/messages/message.py",),
    by_message_json: (),
    by_republish: ("raftmq/commands/messages/message_copies.py",),
    by_resend: (),
    by_dlq_list: ("raftmq/commands/messages/dlq.py",),
    by_dlq_list_json: (),
    by_export: ("raftmq/commands/data/export.py",),
    by_table_run: ("raftmq/tables/table_run.py", "raftmq/tables/table_status.py"),
    by_read_arrow: ("raftmq/arrow/tables.py", "raftmq/arrow/reading.py"),
    by_read_pandas: (),
    by_pull: ("raftmq/client/sync.py", "raftmq/client/consuming/pull.py"),
    by_consumer: (),
    by_http_page: (),
    by_http_dead_letters: (),
    by_http_key: (),
    by_http_position: (),
    by_dashboard: (),
}
"""A reader, which returns what it showed -> the modules that read messages for it."""
FROM_TIER = (by_consume, by_read_arrow, by_pull, by_http_page, by_http_key, by_http_position, by_tier_copy)
"""Readers that are tried once more where only the tier has the messages."""
ELSEWHERE = {
    "raftmq/arrow/frames.py": "the reference that it falls back to",
    "raftmq/client/message.py": "the parser itself",
    "raftmq/client/admin.py": "what `message` uses",
    "raftmq/client/sync_admin.py": "what `message` uses",
    "raftmq/client/producing/transaction_end.py": "only whether a message is there",
    "raftmq/client/producing/transaction_check.py": "one message of the producer's own",
    "raftmq/copies/copy_tables.py": "by_tier_copy, above",
    "raftmq/copies/part_rows.py": "tests/pyspark_raftmq/test_spark_bad_items.py",
    "pyspark_raftmq/read_task.py": "tests/pyspark_raftmq/test_spark_bad_items.py",
    "pyspark_raftmq/jobs/export.py": "tests/pyspark_raftmq/test_spark_bad_items.py",
    "pyspark_raftmq/jobs/table.py": "tests/pyspark_raftmq/test_spark_bad_items.py",
    "pyspark_raftmq/stream.py": "only the sizes of frames",
}
"""A module that reads messages -> where that is tested, or why it need not be."""
READS = {
    "pull",
    "pull_frames_soon",
    "decode_messages",
    "query_messages",
    "view_message",
    "walk",
    "dead_letters",
    "read_batches",
    "batches",
    "to_batches",
    "part_batches",
    "read_range",
    "read_part",
}
"""The functions that return messages of others, or rows of them."""


@live
@pytest.mark.parametrize(
    "reader",
    [pytest.param(each, marks=needs("node") if each is by_dashboard else (), id=each.__name__) for each in READERS],
)
def test_a_reader_brings_every_sound_message(place: Place, reader: Callable[[Place], bytes]) -> None:
    assert_all_sound(reader(place))


@live
@pytest.mark.parametrize("reader", FROM_TIER, ids=lambda reader: reader.__name__)
def test_a_reader_of_the_tier_brings_every_sound_message(evicted: Place, reader: Callable[[Place], bytes]) -> None:
    assert_all_sound(reader(evicted))


def assert_all_sound(shown: bytes) -> None:
    missing = [body for body in SOUND if body not in shown and body.hex().encode() not in shown]
    behind = [[*BAD][SOUND.index(body) - 1] for body in missing]
    assert not missing, f"{len(missing)} of {len(SOUND)} are missing, the first behind {behind[0]}"


def test_every_module_that_reads_messages_is_in_the_table() -> None:
    named = {module for modules in READERS.values() for module in modules} | ELSEWHERE.keys()
    assert {str(file.relative_to(ROOT)) for file in sources() if reads(ast.parse(file.read_text()))} == named


def sources() -> Iterator[Path]:
    for package in ("raftmq", "pyspark_raftmq"):
        yield from (ROOT / package).rglob("*.py")


def reads(tree: ast.AST) -> bool:
    """Returns True if a call in this module reads messages."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(getattr(each, "attr", getattr(each, "id", "")) in READS for each in calls)
