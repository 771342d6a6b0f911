"""Every place that keeps a position outside the log: in a topic that was created again it is refused by name.

The new topic has more messages than the old one had, so the offset is there again. The places are a table here; those
of Spark, which want Java, are tried in tests/pyspark_raftmq.
"""

from __future__ import annotations

import inspect
import itertools
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import raftmq
from raftmq.arrow.log_copy import FILES, CopySource
from raftmq.arrow.ranges import LATEST, Bounds, plan_topic
from raftmq.cli import cli
from raftmq.commands.messages.message_copies import copied_before, origin_of
from raftmq.commands.messages.start_positions import walk
from raftmq.copies.open_copy import opened
from raftmq.local.http.admin_http import AdminApi
from raftmq_wire.errors import LocalError

OLD = [b"old %d" % number for number in range(5)]
NEW = [b"new %d" % number for number in range(9)]
KEPT = 3
GONE = "which is gone; the one with id "
names = itertools.count()


class Place(NamedTuple):
    """A topic with one queue, and a group that has consumed a part of it."""

    live: Any
    mq: raftmq.Client
    folder: Path
    topic: str
    group: str

    def run(self, *words: str) -> Any:
        return CliRunner().invoke(cli, [*words, "--data", str(self.live.data)])

    def make_again(self) -> None:
        self.mq.admin.delete_topic(self.topic)
        self.mq.admin.create_topic(self.topic, queues=1)
        self.mq.send_batch(self.topic, NEW, queue_id=0)


Use = Callable[[Place], str]
"""Uses what was kept, after the topic was created again; returns the refusal, or what else was said of it."""


def refusal(use: Callable[[], object], error: type[Exception]) -> str:
    with pytest.raises(error) as refused:
        use()
    return str(refused.value)


def by_bookmark(place: Place) -> Use:
    with place.mq.consumer(place.group, place.topic) as consumer:
        next(consumer)
        kept = pickle.loads(pickle.dumps(consumer.bookmarks()))[0]

    def use(place: Place) -> str:
        with place.mq.consumer(f"{place.group}-2", place.topic) as consumer:
            next(consumer)
            return refusal(lambda: consumer.seek(kept, queue_id=0), ValueError)

    return use


def by_message(place: Place) -> Use:
    (kept,) = place.mq.pull(place.topic, 0, KEPT, 1).messages

    def use(place: Place) -> str:
        with place.mq.consumer(f"{place.group}-2", place.topic) as consumer:
            next(consumer)
            said = refusal(lambda: consumer.seek(kept), ValueError)
            assert said == f"message {kept.message_id} is not in {place.topic} queue 0 any more"
        return GONE  # it names the message, and no topic

    return use


def position(place: Place) -> raftmq.Position:
    return raftmq.Position(KEPT, place.mq.admin.identity(place.topic))


def by_pull(place: Place) -> Use:
    kept = position(place)
    assert place.mq.pull(place.topic, 0, kept).messages[0].body == OLD[KEPT]
    return lambda place: refusal(lambda: place.mq.pull(place.topic, 0, kept), raftmq.NotFound)


def by_commit(place: Place) -> Use:
    kept = position(place)
    place.mq.admin.create_group(place.group)
    place.mq.admin.commit(place.group, place.topic, 0, kept)

    def use(place: Place) -> str:
        said = refusal(lambda: place.mq.admin.commit(place.group, place.topic, 0, kept), raftmq.NotFound)
        assert place.mq.admin.committed(place.group, place.topic, 0) is None
        return said

    return use


def by_read_arrow(place: Place) -> Use:
    kept, servers = position(place), place.live.servers
    assert raftmq.read_arrow(place.topic, kept, servers=servers)["body"].to_pylist() == OLD[KEPT:]
    return lambda place: refusal(lambda: raftmq.read_arrow(place.topic, kept, servers=servers), raftmq.Failed)


def by_metadata(place: Place) -> Use:
    place.mq.admin.create_group(place.group)
    place.mq.admin.commit(place.group, place.topic, 0, KEPT)
    file = place.folder / "metadata.json"
    assert place.run("metadata", "export", "--to", str(file)).exit_code == 0

    def use(place: Place) -> str:
        place.mq.admin.create_group(place.group)
        done = place.run("metadata", "import", str(file), "--yes")
        assert place.mq.admin.committed(place.group, place.topic, 0) is None
        return str(done.stdout)

    return use


def by_http_page(place: Place) -> Use:
    path = f"/v1/topics/{place.topic}/queues/0/messages?count=2"
    page = place.live.ask(place.live.leader(), f"{path}&offset=1")
    assert page["next_offset"] == KEPT
    following = f"{path}&offset={KEPT}&counted_in={page['counted_in']}"
    api = AdminApi([place.live.admin(place.live.leader()).removeprefix("http://")])
    assert [one["queue_offset"] for one in api.local(following)["messages"]] == [KEPT, KEPT + 1]
    return lambda place: refusal(lambda: api.local(following), LocalError)


def by_backup(place: Place) -> Use:
    """A position of the cluster counts in a backup of it, and one in a backup in the cluster."""
    kept = position(place)

    def use(place: Place) -> str:
        place.live.wait_equal()  # a backup has what its node has applied
        assert place.run("backup", "create", "--to", str(place.folder / "backups"), "--node", "1").exit_code == 0
        (backup,) = (place.folder / "backups").iterdir()
        with opened(CopySource(FILES, str(backup))) as copy:
            now = position(place)
            (planned,) = plan_topic(copy, place.topic, Bounds(now), Bounds(LATEST), words=("start", "end"))
            assert (planned.start, planned.end, planned.counted_in) == (KEPT, len(NEW), now.counted_in)
            plan = lambda: plan_topic(copy, place.topic, Bounds(kept), Bounds(LATEST), words=("start", "end"))  # noqa: E731
            return refusal(plan, raftmq.Failed)

    return use


def by_walk(place: Place) -> Use:
    """`browse`, `republish` and, if it follows, `consume` of a topic that is created again while they walk through
    it."""
    place.mq.send_batch(place.topic, [b"more"] * 64, queue_id=0)  # a second pull is needed
    walked, following = walk(place.mq, place.topic, "earliest"), walk(place.mq, place.topic, "earliest", follow=True)
    next(walked)
    for _ in range(len(OLD) + 64):
        next(following)

    def use(place: Place) -> str:
        place.mq.send_batch(place.topic, [b"more"] * 64, queue_id=0)
        assert [next(following).body for _ in NEW] == NEW
        return refusal(lambda: list(walked), raftmq.NotFound)

    return use


def by_origin(place: Place) -> Use:
    """A copy of a message of the old topic is none of the message with its offset in the new one."""
    to = f"{place.topic}-copies"
    place.mq.admin.create_topic(to, queues=1)
    assert place.run("messages", "republish", place.topic, "--to", to).exit_code == 0

    def use(place: Place) -> str:
        originals = place.mq.pull(place.topic, 0, 0).messages
        known = copied_before(place.mq, to, originals)
        assert len(known) == len(OLD)
        assert not known & {origin_of(one) for one in originals}
        done = json.loads(place.run("messages", "republish", place.topic, "--to", to, "--json").stdout)
        assert done["sent"] == len(NEW)
        return GONE  # it is not refused: it counts positions in the log, which never come again

    return use


PLACES: tuple[Callable[[Place], Use], ...] = (
    by_bookmark,
    by_message,
    by_pull,
    by_commit,
    by_read_arrow,
    by_metadata,
    by_http_page,
    by_backup,
    by_walk,
    by_origin,
)


@pytest.mark.live
@pytest.mark.parametrize("keep", PLACES, ids=lambda keep: keep.__name__)
def test_what_is_kept_is_refused_in_another_topic(live_cluster: Any, tmp_path: Path, keep: Callable[..., Use]) -> None:
    with raftmq.connect(live_cluster.servers) as mq:
        number = next(names)
        place = Place(live_cluster, mq, tmp_path, f"kept-{number}", f"keeps-{number}")
        mq.admin.create_topic(place.topic, queues=1)
        mq.send_batch(place.topic, OLD, queue_id=0)
        use = keep(place)
        place.make_again()
        assert GONE in use(place)


TAKES_NUMBERS = {
    "consumer.start": "where a group begins that has committed nothing: it is no offset that was kept",
    "pull_frames.offset": "of a range whose topic is compared before and after the read (raftmq.arrow.tables)",
    "pull_frames_soon.offset": "the same",
    "begin.start": "a word, a time, or what `consumer` was given",
}
"""A parameter of the client that takes an offset as a bare number -> why."""
OFFSETS = {"offset", "start", "end", "to", "message_offset", "queue_offset"}


def bare_offsets(*kinds: Any) -> set[str]:
    """Returns the parameters of public functions and methods that take an offset and no Position."""
    found = set()
    for kind in kinds:
        methods = dict(inspect.getmembers(kind, inspect.isfunction)) if inspect.isclass(kind) else {kind.__name__: kind}
        for name, method in methods.items():
            for parameter in inspect.signature(method).parameters.values():
                told = str(parameter.annotation)
                if (
                    parameter.name in OFFSETS
                    and not name.startswith("_")
                    and not {"Position", "WrittenBound"} & words_of(told)
                ):
                    found.add(f"{name}.{parameter.name}")
    return found


def words_of(annotation: str) -> set[str]:
    return set(re.findall(r"\w+", annotation))


@pytest.mark.parametrize("planted", [False, True])
def test_whatever_takes_an_offset_takes_a_position(planted: bool) -> None:
    class Planted:
        def rewind(self, topic: str, offset: int) -> None:
            """Takes a bare number."""

    exported = [getattr(raftmq, name) for name in raftmq.__all__]
    kinds = [kind for kind in exported if inspect.isclass(kind) or inspect.isroutine(kind)]
    found = bare_offsets(*kinds, *([Planted] if planted else []))
    assert found == TAKES_NUMBERS.keys() | ({"rewind.offset"} if planted else set())
