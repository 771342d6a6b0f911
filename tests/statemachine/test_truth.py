"""What all groups of brokers have in common: the first group's journal, and what others copy (docs/adr/0108)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from jepsen_like.sim.checks.truth_check import told
from statemachine import commands
from statemachine.access.access_commands import CreateUser, PutToken, RemoveUser, SetAuthKey, SetRules
from statemachine.access.rules import RuleRow
from statemachine.cluster_wide.broker_groups import AddBrokerGroup
from statemachine.cluster_wide.settings import SetConfig
from statemachine.cluster_wide.truth_journal import FORGOTTEN_MAX, ForgetEnds, TruthKind
from statemachine.commands import Command
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.removal_slices import DeleteGroup, DeleteTopic
from statemachine.removals import Removals
from statemachine.rows import meta_keys
from statemachine.rows.kv import KV, META
from statemachine.rows.running_digest import count
from statemachine.topics.topics import CreateTopic
from statemachine.truth import PAGE_BYTES, CopyTruth, JournalNames, TruthPage
from tests.support.rows import each_row
from tests.support.state_kit import applied_in_groups
from tests.support.truth_kit import ASKED, KEY, SECOND, BrokerLog, copy, copy_all, drawn_change

NewLog = Callable[[], Any]
TOPIC = CreateTopic({"name": "t", "read_queues": 2, "write_queues": 2}, False)
EVERYTHING = 2**30


@pytest.fixture
def first(new_log: NewLog) -> BrokerLog:
    """The first group, beside which a second one was added."""
    made = BrokerLog(new_log())
    made.run(SECOND)
    made.make_ready()
    return made


@pytest.fixture
def other(new_log: NewLog) -> BrokerLog:
    return BrokerLog(new_log(), group=2)


def names(page: TruthPage) -> list[tuple[int, object, bool]]:
    """Kind and name of each row of a page, and True if the name has ended."""
    return [(kind, name, row is None) for kind, name, row in page.rows]


def news(first: BrokerLog, *run: Command) -> list[tuple[int, object, bool]]:
    """The names of what these commands changed."""
    before = first.state.truth_journal.version
    first.run(*run)
    return names(first.state.truth.after(before, EVERYTHING))


# -- the journal


def test_each_change_of_a_name_is_its_newest(first: BrokerLog) -> None:
    assert news(first, TOPIC) == [(1, "t", False)]
    version = first.state.truth_journal.version
    assert news(first, CreateTopic({"name": "t", "perm": 4}, False)) == [(1, "t", False)]
    assert first.state.truth_journal.version == version + 1
    rows = [row for kind, name, row in first.state.truth.after(0, EVERYTHING).rows if (kind, name) == (1, "t")]
    assert [row[0] for row in rows] == [4], "one row of the name, as it is now"


def test_a_change_that_changes_nothing_is_none(first: BrokerLog) -> None:
    first.run(TOPIC, PutGroup({"name": "g"}, False))
    assert news(first, CreateTopic({"name": "t"}, True), PutGroup({"name": "g"}, True), DeleteTopic("none")) == []


def test_the_end_of_a_name_is_a_row_of_its_own(first: BrokerLog) -> None:
    first.run(TOPIC)
    assert news(first, DeleteTopic("t")) == [(1, "t", True)]
    assert news(first, TOPIC) == [(1, "t", False)]
    both = [(1, "t", True), (1, "t", False)]
    assert [each for each in names(first.state.truth.after(0, EVERYTHING)) if each[1] == "t"] == both
    assert news(first, DeleteTopic("t"), TOPIC) == both, "the newest end, and no earlier one"


def test_what_a_consumer_group_shares(first: BrokerLog) -> None:
    assert news(first, PutGroup({"name": "g"}, False)) == [(2, "g", False)]
    assert news(first, Subscribe("g", [("t", "TAG", "*", 1)])) == [], "each group of brokers learns it by itself"
    assert news(first, DeleteGroup("g", clean_offsets=False)) == [(2, "g", True)]
    first.run(PutGroup({"name": "g"}, False))
    assert news(first, DeleteGroup("g", clean_offsets=True)) == [(2, "g", True), (3, "g", True)]


def test_what_a_user_shares(first: BrokerLog) -> None:
    assert news(first, SetAuthKey(ASKED, KEY)) == [(7, "", False)]
    assert news(first, CreateUser(ASKED, 1, "ann", True, True, b"s", KEY)) == [(4, 1, False)]
    rule: RuleRow = (1, "Topic:a", ["Pub"], [], True)
    assert news(first, SetRules(ASKED, 1, [rule])) == [(5, (1, 1, "Topic:a"), False)], "and not the user's row"
    token = b"d" * 32
    assert news(first, PutToken(ASKED, 1, token, 9, "")) == [(6, (1, token), False)]
    first.run(CreateUser(ASKED, 2, "bob", True, True, b"s", KEY))
    assert news(first, RemoveUser(ASKED, 1)) == [(4, 1, True)], "its rules and tokens end with it"
    assert [kind for kind, *_ in first.state.truth.after(0, EVERYTHING).rows].count(5) == 0


def test_pages_are_cut_to_their_size(first: BrokerLog) -> None:
    first.run(*[CreateTopic({"name": f"t{number}"}, False) for number in range(50)])
    whole = first.state.truth.after(0, EVERYTHING)
    assert not whole.more
    for bytes_max in (0, 100, 500):
        rows, version, more = list[Any](), 0, True
        while more:
            page = first.state.truth.after(version, bytes_max)
            assert page.rows, "at least one"
            size = sum([len(msgpack.packb(row)) for row in page.rows])
            assert len(page.rows) == 1 or size <= bytes_max
            rows, version, more = [*rows, *page.rows], page.version, page.more
        assert (tuple(rows), version) == (whole.rows, whole.version)
    assert first.state.truth.after(whole.version, EVERYTHING) == ((), whole.version, False)


class ReadMeanwhile(MemoryKV):
    """Something happens after the next row of a scan is read."""

    then: Callable[[], object] | None = None

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row in super().scan(family, start, end):
            then, self.then = self.then, None
            if then is not None:
                then()
            yield row


def test_a_name_that_changes_while_it_is_read_comes_with_its_later_version(first: BrokerLog) -> None:
    first.run(TOPIC)
    first.kv = kv = ReadMeanwhile()
    first.restart()
    first.state.apply(first.log.entries)
    at, truth = first.state.truth_journal.version, first.state.truth
    kv.then = lambda: first.run(DeleteTopic("t"), TOPIC)
    assert truth.after(at - 1, EVERYTHING) == ((), at, False)
    assert first.state.truth_journal.version > at


def test_names_that_were_there_get_their_rows_in_slices(new_log: NewLog) -> None:
    first = BrokerLog(new_log())
    first.run(SetAuthKey(ASKED, KEY), CreateUser(ASKED, 1, "ann", True, True, b"s", KEY))
    first.run(SetRules(ASKED, 1, [(1, f"Topic:{number}", ["Pub"], [], True) for number in range(7)]))
    first.run(PutToken(ASKED, 1, b"d" * 32, 9, ""), SetConfig(0, 1, "ann", "", {"a.b": 1, "a.c": 2}))
    first.run(*[CreateTopic({"name": f"t{number}"}, False) for number in range(30)], PutGroup({"name": "g"}, False))
    first.run(JournalNames(5))
    assert not first.state.truth_journal.is_kept
    assert first.state.truth_journal.version == 0
    first.run(SECOND)
    assert first.state.truth_journal.is_kept
    assert not first.state.truth_journal.is_ready
    before = first.state.truth_journal.version
    first.run(JournalNames(10))
    assert first.state.truth_journal.version == before + 10
    first.restart()
    first.run(CreateTopic({"name": "t31"}, False), DeleteTopic("t9"), CreateTopic({"name": "t8", "perm": 4}, False))
    assert first.make_ready(10) == 3, (
        "18 topics, the group and the user, whose rules and token come with it; three more"
    )
    found = names(first.state.truth.after(0, EVERYTHING))
    assert len(found) == len(set(found))
    kinds = [kind for kind, *_ in found]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {1: 31, 2: 1, 4: 1, 5: 7, 6: 1, 7: 1, 8: 2, 9: 2}
    assert first.one(JournalNames(5)) == (True, "", True)


def test_names_that_were_made_in_the_same_run_get_their_rows_too(new_log: NewLog) -> None:
    first = BrokerLog(new_log())
    first.run(CreateTopic({"name": "a"}, False), CreateTopic({"name": "gone"}, False))
    runs: list[list[Command]] = [
        [TOPIC, PutGroup({"name": "g"}, False), DeleteTopic("gone"), SetConfig(0, 1, "ann", "", {"a.b": 1})],
        [SetAuthKey(ASKED, KEY), CreateUser(ASKED, 1, "ann", True, True, b"s", KEY)],
        [SECOND],
    ]
    slices: list[list[Command]] = [[JournalNames(1)] for _ in range(8)]
    first.state.apply([first.log.command(*run) for run in (*runs, *slices)])
    assert first.state.truth_journal.is_ready
    found = [(kind, name) for kind, name, _ in first.state.truth.after(0, EVERYTHING).rows]
    assert found == [(9, 1), (9, 2), (1, "a"), (1, "t"), (2, "g"), (4, 1), (7, ""), (8, "a.b")]


def test_ends_are_forgotten_once_they_are_confirmed(first: BrokerLog) -> None:
    for number in range(FORGOTTEN_MAX + 2):
        first.run(CreateTopic({"name": f"t{number}"}, False), DeleteTopic(f"t{number}"))
    first.run(TOPIC)
    journal = first.state.truth_journal
    ends = [change for change in journal.changes(0) if change.ended]
    assert first.one(ForgetEnds(ends[0].version - 1)) == (True, "", False)
    assert journal.forgotten == 0
    assert first.one(ForgetEnds(ends[-2].version)) == (True, "", True), "a bounded number at once"
    assert journal.forgotten == ends[FORGOTTEN_MAX - 1].version
    assert first.one(ForgetEnds(ends[-2].version)) == (True, "", False)
    assert journal.forgotten == ends[-2].version
    first.restart()
    assert first.state.truth_journal.forgotten == ends[-2].version
    left = [change for change in first.state.truth_journal.changes(0) if change.kind is TruthKind.TOPIC]
    assert [(change.name, change.ended) for change in left] == [(ends[-1].name, True), ("t", False)]


# -- copies


def test_a_copy_is_what_the_first_group_has(first: BrokerLog, other: BrokerLog) -> None:
    first.state.apply([first.by("ann", CreateTopic({"name": "t", "place": [[2, 3, 4]]}, False))])
    first.run(PutGroup({"name": "g", "consume_broadcast_enable": False}, False))
    assert copy_all(first, other, 50) > 1
    topic = other.state.topics["t"]
    assert (topic.read_queues, topic.write_queues, topic.changed_by) == (3, 4, "ann")
    assert topic.created_ms == first.state.topics["t"].created_ms > 0
    assert other.state.groups["g"].refuses_broadcasts
    assert told(other.state) == told(first.state)
    other.restart()
    assert told(other.state) == told(first.state)
    assert other.state.truth.copied == first.state.truth_journal.version


def test_a_topic_that_was_made_again_is_another_one(first: BrokerLog, other: BrokerLog) -> None:
    first.run(TOPIC)
    copy_all(first, other)
    before = other.state.topics["t"].id
    first.run(DeleteTopic("t"), TOPIC)
    copy_all(first, other)
    assert other.state.topics["t"].id > before
    assert before in other.state[Removals].topics, "with its messages"


def test_offsets_go_with_a_group_only_where_it_was_deleted_with_them(first: BrokerLog, other: BrokerLog) -> None:
    group = PutGroup({"name": "g"}, False)
    first.run(TOPIC, group)
    copy_all(first, other)
    topic = other.state.topics["t"].id
    for clean, left in ((False, 5), (True, None)):
        other.run(CommitOffsets([("g", topic, 0, 5)]), Subscribe("g", [("t", "TAG", "*", 1)]))
        first.run(DeleteGroup("g", clean), group)
        copy_all(first, other)
        assert other.state.offset("g", topic, 0) == left
        assert other.state.groups["g"].subscriptions == {}, "it is another one"
    other.run(CommitOffsets([("g", topic, 0, 5)]), Subscribe("g", [("t", "TAG", "*", 1)]))
    first.run(DeleteGroup("g", True), group, DeleteGroup("g", False))
    copy_all(first, other)
    assert "g" not in other.state.groups
    assert other.state.offset("g", topic, 0) is None


def test_subscriptions_are_the_own_groups(first: BrokerLog, other: BrokerLog) -> None:
    first.run(PutGroup({"name": "g"}, False))
    copy_all(first, other)
    assert other.one(Subscribe("g", [("t", "TAG", "*", 1)])).ok
    first.run(PutGroup({"name": "g", "retry_max_times": 3}, False))
    copy_all(first, other)
    assert (other.state.groups["g"].retry_max_times, [*other.state.groups["g"].subscriptions]) == (3, ["t"])


def test_rules_and_tokens_wait_for_their_user(first: BrokerLog, other: BrokerLog) -> None:
    first.run(SetAuthKey(ASKED, KEY), CreateUser(ASKED, 1, "ann", True, True, b"s", KEY))
    token = b"d" * 32
    first.run(SetRules(ASKED, 1, [(1, "Topic:a", ["Pub"], [], True)]), PutToken(ASKED, 1, token, 9, ""))
    rows = {kind: (kind, name, row) for kind, name, row in first.state.truth.after(0, EVERYTHING).rows}
    assert other.one(CopyTruth(0, 1, [rows[5], rows[6]])).ok
    assert (len(other.state.access.by_id), other.state.access.tokens) == (0, {})
    other.restart()
    assert (len(other.state.access.by_id), other.state.access.tokens) == (0, {})
    assert other.one(CopyTruth(1, 2, [rows[4]])).ok
    user = other.state.access.users["ann"]
    assert (len(user.rules), user.tokens) == (1, (token,))
    assert other.state.access.tokens == {token: first.state.access.tokens[token]}
    version = user.version
    assert other.one(CopyTruth(2, 3, [(5, [1, 1, "Topic:a"], None), (6, [1, token], None)])).ok
    user = other.state.access.users["ann"]
    assert (user.rules, user.tokens, other.state.access.tokens) == ((), (), {})
    assert user.version > version, "else what was allowed stays in caches"


def test_pages_that_do_not_follow_are_refused(first: BrokerLog, other: BrokerLog) -> None:
    first.run(TOPIC)
    one = first.state.truth.after(0, 0)
    two = first.state.truth.after(one.version, EVERYTHING)
    gap = other.one(copy(two, one.version))
    assert (gap.ok, gap.code) == (False, "conflict")
    assert other.one(copy(one, 0)).ok
    assert other.one(copy(two, one.version)).ok
    rows = told(other.state)
    assert other.one(copy(two, one.version)) == (True, "", two.version), "twice: nothing changes"
    older = other.one(copy(one, 0))
    assert (older.ok, older.code) == (False, "conflict")
    assert other.one(CopyTruth(two.version, two.version - 1, [])).code == "conflict"
    assert told(other.state) == rows
    assert other.state.truth.copied == two.version
    refused = first.one(copy(one, 0))
    assert (refused.ok, refused.code, first.state.truth.copied) == (False, "refused", 0)


BAD = {
    "an unknown kind": (10, "t", None),
    "no kind": (0, "t", None),
    "a name of no topic": (1, "a b", None),
    "a name of another type": (1, 5, None),
    "a short row of a topic": (1, "t", [6, False, 0, {}]),
    "a topic in no group": (1, "t", [6, False, 0, {}, 0, 0, "", []]),
    "a topic in group 65": (1, "t", [6, False, 0, {}, 0, 0, "", [[65, 1, 1]]]),
    "a topic without queues": (1, "t", [6, False, 0, {}, 0, 0, "", [[2, 0, 1]]]),
    "a wrong attribute": (1, "t", [6, False, 0, {"dedup": "x"}, 0, 0, "", [[2, 1, 1]]]),
    "a short row of a group": (2, "g", [True]),
    "offsets that begin": (3, "g", [1]),
    "user 0": (4, 0, None),
    "a user without secret": (4, 1, ["ann", True, True, b"", KEY, 1]),
    "a user without name": (4, 1, ["", True, True, b"s", KEY, 1]),
    "a rule of another user": (5, [1, 1, "Topic:a"], [1, "Topic:b", ["Pub"], [], True]),
    "a rule without user": (5, "Topic:a", None),
    "a rule of no resource": (5, [1, 1, "x"], None),
    "a short token": (6, [1, b"d"], None),
    "a token of a text": (6, [1, b"d" * 32], ["soon", ""]),
    "no mode": (7, "", ["never", KEY]),
    "the end of access": (7, "", None),
    "the end of a key": (8, "a.b", None),
    "a value of no type": (8, "a.b", [1.5, 1]),
    "no key": (8, "ab", [1, 1]),
    "the end of a group": (9, 2, None),
    "group 65": (9, 65, ["a", 3]),
}


@each_row("row", BAD.values(), ids=BAD)
def test_a_bad_row_spoils_its_page_and_nothing_else(first: BrokerLog, other: BrokerLog, row: Any) -> None:
    first.run(TOPIC)
    copy_all(first, other)
    before, at = told(other.state), other.state.truth.copied
    good = (1, "u", [6, False, 0, {}, 0, 0, "", [[2, 1, 1]]])
    assert other.one(CopyTruth(at, at + 1, [good, row])).code == "invalid"
    assert (told(other.state), other.state.truth.copied) == (before, at)
    assert other.one(CopyTruth(at, at + 1, [good])).ok


@each_row(
    "command",
    [
        TOPIC,
        DeleteTopic("t"),
        PutGroup({"name": "g"}, False),
        DeleteGroup("g", True),
        SetConfig(0, 1, "ann", "", {"a.b": 1}),
        SetAuthKey(ASKED, KEY),
        AddBrokerGroup(3, "c", ("a", 3)),
        JournalNames(1),
        ForgetEnds(1),
    ],
    ids=lambda each: commands.name_of(type(each)),
)
def test_other_groups_change_nothing_of_the_truth(other: BrokerLog, command: Command) -> None:
    before = told(other.state)
    result = other.one(command)
    assert (result.ok, result.code) == (False, "refused")
    assert told(other.state) == before


# -- both together


def sync(first: BrokerLog, other: BrokerLog, ids: dict[int, int], rng: Random) -> None:
    """Copies some pages of drawn sizes, some of them twice; compares if it copied all."""
    for _ in range(rng.randint(1, 4)):
        after = other.state.truth.copied
        page = first.state.truth.after(after, rng.choice([0, 80, 300, 5_000]))
        if page.version == after:
            break
        entries = [other.log.command(copy(page, after)) for _ in range(rng.choice([1, 1, 2]))]
        if rng.random() < 0.5:
            other.state.apply(entries)
        else:
            for entry in entries:
                other.state.apply([entry])
    if rng.random() < 0.2:
        other.restart()
    if first.state.truth_journal.is_ready and other.state.truth.copied == first.state.truth_journal.version:
        agree(first, other, ids)


def agree(first: BrokerLog, other: BrokerLog, ids: dict[int, int]) -> None:
    """Compares a group with the first one. `ids`: id of a topic there -> its id here."""
    assert told(other.state) == told(first.state)
    for name, topic in first.state.topics.items():
        here = other.state.topics[name].id
        assert ids.setdefault(topic.id, here) == here, "the same topic has one id"
    assert len(set(ids.values())) == len(ids), "a topic that was made again has another one"


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.integers(0, 2**32), min_size=40, max_size=120), begins=st.integers(0, 40))
def test_copies_end_equal_to_the_truth(
    new_log: NewLog, rows_of: Callable[[KV], object], steps: list[int], begins: int
) -> None:
    first = BrokerLog(new_log())
    others = [(BrokerLog(new_log(), group), dict[int, int]()) for group in (2, 3)]
    first.run(SetAuthKey(ASKED, KEY), CreateUser(ASKED, 1, "a", True, True, b"s", KEY))
    for number, step in enumerate(steps):
        rng = Random(step)
        if number == begins:
            first.run(SECOND)
        run = [drawn_change(first, rng) for _ in range(rng.randint(1, 5))]
        if number < begins:
            run = [each for each in run if not isinstance(each, AddBrokerGroup)]
        first.state.apply([first.by("ann", each) if rng.random() < 0.3 else first.log.command(each) for each in run])
        if rng.random() < 0.1:
            first.restart()
        if rng.random() < 0.3:
            sync(first, *rng.choice(others), rng)
        if rng.random() < 0.2:
            first.run(ForgetEnds(min(other.state.truth.copied for other, _ in others)))
    if not first.state.truth_journal.is_kept:
        first.run(SECOND)
    first.make_ready(3)
    for other, ids in others:
        copy_all(first, other, 150)
        agree(first, other, ids)
        other.restart()
        agree(first, other, ids)
        of_rules = {meta_keys.rule_user(key) for key, _ in other.kv.scan(META, *meta_keys.RULES)}
        assert of_rules <= set(other.state.access.by_id), "none waits for its user"
        assert other.state.sums.totals == count(other.kv)
    assert first.state.sums.totals == count(first.kv)
    for broker in (first, *[other for other, _ in others]):
        _, kv = applied_in_groups(broker.log.entries, grouping=begins, group=broker.group)
        assert rows_of(kv) == rows_of(broker.kv), "however entries are grouped"


def test_slices_and_copies_are_bounded_in_names_and_bytes(new_log: NewLog) -> None:
    first = BrokerLog(new_log())
    topics, place = 5_000, [[group, 8, 8] for group in range(1, 9)]
    first.run(SECOND, *[AddBrokerGroup(group, f"g{group:02}", None) for group in range(3, 9)])
    first.make_ready()
    for start in range(0, topics, 500):
        run = [CreateTopic({"name": f"topic-{at:05}", "place": place}, False) for at in range(start, start + 500)]
        first.run(*run)
    second = BrokerLog(new_log(), group=2)
    pages, page = 0, TruthPage((), 0, more=True)
    while page.more:
        after = page.version
        page = first.state.truth.after(after)
        entry = second.log.command(copy(page, after))
        assert len(entry.payload) < PAGE_BYTES + 100
        second.state.apply([entry])
        pages += 1
    assert pages > 1
    assert (len(second.state.topics), second.state.queue_count) == (topics, 8 * topics)
