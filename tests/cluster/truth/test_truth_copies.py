"""Two groups of brokers on one loop without time of its own: the first one's leader gives the truth, the other's copies
it. Frames are packed and read as on a connection."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.peer_frames import Kind, WireError
from cluster.truth.truth_copies import ANSWER_MS, ASK_EVERY_MS, REFUSED_MS
from cluster.truth.truth_frames import NOT_LEADING, PAYLOAD_MAX, TruthQuestion, read_answer, read_question
from cluster.truth.truth_source import COPIED_MS, FORGET_EVERY_MS
from statemachine.cluster_wide.broker_groups import AddBrokerGroup, DrainBrokerGroup
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import DRAINS_LEVEL, GROUPS_LEVEL
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic
from statemachine.truth import CopyTruth
from tests.support.truth_kit import SECOND, drawn_change
from tests.support.two_groups import Ends, Two


@pytest.fixture
def two(new_log: Any) -> Two:
    made = Two(new_log)
    for n in range(700):
        made.first.log.one(CreateTopic({"name": f"before-{n:03}", "read_queues": 2, "write_queues": 2}, True))
    return made


def test_what_is_there_and_what_comes_is_copied_within_a_second(two: Two) -> None:
    two.run(1000)
    assert two.second.log.state.truth.copied == 0, "there is one group: nobody copies"
    two.first.log.one(SECOND)
    two.run(3000)
    assert two.first.log.state.truth_journal.is_ready
    assert two.is_equal()
    assert len(two.second.log.state.topics) == 700
    assert (two.copies.unconfirmed_ms() or 0) <= ASK_EVERY_MS + 50
    two.first.log.one(DeleteTopic("before-003"))
    two.first.log.one(CreateTopic({"name": "new"}, True))
    two.run(800)
    assert two.is_equal()
    assert "new" in two.second.log.state.topics
    assert "before-003" not in two.second.log.state.topics


def test_without_the_first_group_copies_stay_and_say_how_old_they_are(two: Two) -> None:
    two.first.log.one(SECOND)
    two.run(3000)
    two.back.is_open = False
    two.run(9_500)
    assert not two.alarms.all()
    two.run(1_000)
    assert two.is_equal()
    assert (two.copies.unconfirmed_ms() or 0) >= 9_500
    [alarm] = two.alarms.all()
    assert alarm.text.startswith("for 10 s no leader of group 1 has confirmed that this group has the newest topics")
    two.back.is_open = True
    two.run(500)
    assert not two.alarms.all()
    assert (two.copies.unconfirmed_ms() or 0) <= ASK_EVERY_MS + 50


def test_a_node_that_does_not_lead_the_first_group_confirms_nothing(two: Two) -> None:
    two.first.log.one(SECOND)
    two.run(3000)
    two.first.leads = False
    two.run(2000)
    assert (two.copies.unconfirmed_ms() or 0) >= 1_900
    two.first.leads = True
    two.copies.tick(two.now_ms + ASK_EVERY_MS)
    two.now_ms += ASK_EVERY_MS
    for _, header, payload in two.back.take():
        two.source.on_question(two.there, header, payload)
    two.first.confirm(ok=False)
    [(kind, header, payload)] = two.there.take()
    assert (kind, header[1], payload) == (Kind.TRUTH_REPLY, NOT_LEADING, b"")


def test_a_lost_question_is_put_again_and_a_late_answer_changes_nothing(two: Two) -> None:
    two.first.log.one(SECOND)
    two.run(3000)
    two.first.log.one(CreateTopic({"name": "new"}, True))
    two.now_ms += ASK_EVERY_MS
    two.copies.tick(two.now_ms)
    [(_, late, _)] = two.back.take()
    two.now_ms += ANSWER_MS - 1
    two.copies.tick(two.now_ms)
    assert not two.back.sent
    two.now_ms += 1
    two.copies.tick(two.now_ms)
    assert len(two.back.sent) == 1
    two.source.on_question(two.there, late, b"")
    two.first.confirm()
    for _, header, payload in two.there.take():
        two.copies.on_answer(two.back, header, payload)
    assert not two.second.proposed
    two.carry()
    two.second.decide()
    assert "new" in two.second.log.state.topics


def test_it_is_confirmed_as_of_the_question(two: Two) -> None:
    two.first.log.one(SECOND)
    two.run(3000)
    two.copies.tick(two.now_ms + ASK_EVERY_MS)
    two.now_ms += 900
    two.carry()
    assert two.copies.unconfirmed_ms() == 900
    two.second.leads = False
    two.copies.lose_leadership()
    assert two.copies.unconfirmed_ms() is None


def test_one_page_and_one_slice_are_under_way_at_a_time(two: Two) -> None:
    two.first.log.one(SECOND)
    for _ in range(3):
        two.source.tick(0)
    assert len(two.first.proposed) == 1
    two.run(3000)
    two.first.log.one(CreateTopic({"name": "new"}, True))
    for _ in range(20):
        two.now_ms += ASK_EVERY_MS
        two.copies.tick(two.now_ms)
        two.carry()
    assert len(two.second.proposed) == 1


def test_one_question_of_a_connection_waits_for_the_confirmation(two: Two) -> None:
    two.first.log.one(SECOND)
    for number in range(1, 100):
        two.source.on_question(two.there, [number, 0, GROUPS_LEVEL], b"")
    assert len(two.first.confirming) == 1
    two.first.confirm()
    assert [header[0] for _, header, _ in two.there.take()] == [99]


def test_a_copy_of_unknown_fate_is_made_again(two: Two) -> None:
    two.first.log.one(SECOND)
    two.run(3000)
    two.first.log.one(CreateTopic({"name": "new"}, True))
    two.copies.tick(two.now_ms + ASK_EVERY_MS)
    two.carry()
    assert two.second.proposed
    two.second.decide(Outcome.UNKNOWN)
    two.run(3000)
    assert two.is_equal()


def test_two_leaders_of_a_group_copy_the_same_page_once(two: Two) -> None:
    two.first.log.one(SECOND)
    two.run(3000)
    two.first.log.one(CreateTopic({"name": "new"}, True))
    two.now_ms += ASK_EVERY_MS
    two.copies.tick(two.now_ms)
    two.carry()
    [([page], _)] = two.second.proposed
    assert isinstance(page, CopyTruth)
    two.second.log.one(page)
    two.first.log.one(CreateTopic({"name": "newer"}, True))
    newer = two.first.log.state.truth.after(page.version, 1000)
    two.second.log.one(CopyTruth(page.version, newer.version, newer.rows))
    two.second.decide()
    assert not two.copies.rejected
    two.run(1000)
    assert two.is_equal()


def test_a_page_that_the_log_does_not_accept_is_told_and_asked_for_again_later(two: Two) -> None:
    two.first.log.one(SECOND)
    two.run(3000)
    two.first.log.one(CreateTopic({"name": "new"}, True))
    two.now_ms += ASK_EVERY_MS
    two.copies.tick(two.now_ms)
    [(_, header, _)] = two.back.take()
    version = two.second.log.state.truth.copied
    bad = b"\x91\x93\x63\xa1x\xc0"  # [[99, "x", nil]]
    two.copies.on_answer(two.back, [header[0], version + 1, False], bad)
    two.second.decide()
    assert two.copies.rejected == "the truth has no kind 99"
    two.run(REFUSED_MS - 1000)
    [alarm] = two.alarms.all()
    assert alarm.text == "what all groups share cannot be copied: the truth has no kind 99"
    assert "new" not in two.second.log.state.topics
    two.run(2000)
    assert "new" in two.second.log.state.topics
    assert not two.copies.rejected


def test_ends_are_forgotten_once_all_groups_have_them(two: Two) -> None:
    two.first.log.one(SECOND)
    two.run(3000)
    two.first.log.one(AddBrokerGroup(3, "raftmq-g03", None))
    two.first.log.one(DeleteTopic("before-001"))
    two.run(2 * FORGET_EVERY_MS)
    journal = two.first.log.state.truth_journal
    assert journal.oldest_end, "group 3 has copied nothing"
    two.now_ms += FORGET_EVERY_MS
    two.source.tick(two.now_ms)
    assert not two.first.proposed
    third = Ends(3)
    two.source.on_question(third, [1, journal.version, GROUPS_LEVEL], b"")
    two.first.confirm()
    two.run(FORGET_EVERY_MS + 1000)
    assert (journal.oldest_end, journal.forgotten > 0) == (0, True)


def test_a_version_that_nothing_can_follow_is_never_confirmed(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    two.first.log.one(SECOND)
    two.run(3000)
    two.first.log.one(DeleteTopic("before-001"))
    two.run(2 * FORGET_EVERY_MS)
    journal = two.first.log.state.truth_journal
    assert 0 < journal.forgotten <= journal.version
    for version, follows in ((journal.forgotten - 1, False), (journal.forgotten, True), (journal.version + 1, False)):
        two.source.on_question(two.there, [1, version, GROUPS_LEVEL], b"")
        two.first.confirm()
        [(_, header, _)] = two.there.take()
        assert (header[1] != NOT_LEADING) is follows
    assert [record.message for record in caplog.records] == [
        f"group 2 cannot copy the truth: it has version {version}, and versions from {journal.forgotten} to "
        f"{journal.version} can be followed"
        for version in (journal.forgotten - 1, journal.version + 1)
    ]


def test_a_group_that_is_added_copies_page_by_page_what_is_older_than_forgotten_ends(two: Two, new_log: Any) -> None:
    for n in range(700):
        two.first.log.one(CreateTopic({"name": f"{n:03}-" + 100 * "x"}, True))
    two.first.log.one(SECOND)
    two.run(5000)
    two.first.log.one(DeleteTopic("before-001"))
    two.run(2 * FORGET_EVERY_MS)
    journal = two.first.log.state.truth_journal
    assert (journal.oldest_end, journal.forgotten) == (0, journal.version)
    two.first.log.one(AddBrokerGroup(3, "raftmq-g03", None))
    third = two.with_new_group(3, new_log)
    while not third.second.log.state.truth.copied:
        third.run(50)
    copied = third.second.log.state.truth.copied
    assert 0 < copied < journal.forgotten, "in the middle of its first copy"
    third.run(3000)
    assert third.is_equal()
    assert third.second.log.state.truth.copied == journal.version


def test_changes_at_random_end_as_copies(new_log: Any) -> None:
    seed = 59
    rng = Random(seed)
    two = Two(new_log)
    two.first.log.one(SECOND)
    for _ in range(400):
        two.first.log.one(drawn_change(two.first.log, rng))
        if rng.random() < 0.1:
            two.back.is_open = not two.back.is_open
        if rng.random() < 0.1:
            two.second.decide(Outcome.UNKNOWN)
        two.run(rng.choice([0, 50, 300]))
    two.back.is_open = True
    two.run(3000)
    assert two.is_equal(), f"seed {seed}"


def test_a_group_below_the_level_of_the_first_one_copies_what_its_own_level_has(new_log: Any) -> None:
    """The first group was raised alone, by a person. The others, of the older or the newer version, are raised when
    they like."""
    two = Two(new_log, first=GROUPS_LEVEL + 1, second=GROUPS_LEVEL)
    two.first.log.one(SECOND)
    two.first.log.one(CreateTopic({"name": "t"}, True))
    two.run(3000)
    assert (two.first.log.state.level, two.second.log.state.level) == (GROUPS_LEVEL + 1, GROUPS_LEVEL)
    assert two.is_equal()
    assert not two.alarms.all()


def test_a_copy_that_nobody_confirms_judges_no_request_if_that_is_set(two: Two) -> None:
    two.first.log.one(SECOND)
    two.run(3000)
    two.back.is_open = False
    two.run(60_000)
    assert two.copies.why_stale() == "", "it is off unless somebody sets it"
    two.limit_copies(20_000)
    assert "for 60" in two.copies.why_stale()
    two.back.is_open = True
    two.run(500)
    assert two.copies.why_stale() == ""
    two.back.is_open = False
    two.run(19_500)
    assert two.copies.why_stale() == ""
    two.run(1_000)
    assert two.copies.why_stale().endswith(
        "no leader of group 1 has confirmed its copy of users and rules, auth.copy_ms_max is 20000"
    )


def test_a_node_that_does_not_lead_knows_how_old_its_copy_is(two: Two) -> None:
    """It asks for itself, and only if requests are refused for that. It is as sure as what it has applied."""
    two.first.log.one(SECOND)
    two.run(3000)
    two.second.leads = False
    two.run(5_000)
    asked = two.back.frames
    two.limit_copies(5_000)
    two.run(1_100)
    assert two.back.frames > asked
    assert two.copies.why_stale() == ""
    two.first.log.one(CreateTopic({"name": "new"}, True))  # it is told of it, and its leader copies nothing
    two.run(4_000)
    assert two.copies.why_stale() == ""
    two.run(3_000)
    assert "auth.copy_ms_max is 5000" in two.copies.why_stale()
    page = two.first.log.state.truth.after(two.second.log.state.truth.copied)
    two.second.log.one(CopyTruth(two.second.log.state.truth.copied, page.version, page.rows))
    two.run(1_100)
    assert two.copies.why_stale() == ""


def test_a_node_that_was_never_told_that_its_copy_is_the_newest_says_so(two: Two) -> None:
    two.limit_copies(5_000)
    assert two.copies.why_stale().startswith("since this node started no leader of group 1 has confirmed")


def test_a_group_below_the_level_of_groups_asks_nothing_and_says_what_to_do(new_log: Any) -> None:
    two = Two(new_log, second=GROUPS_LEVEL - 1)
    two.first.log.one(SECOND)
    results: list[ProposeResult] = []
    two.acts.ask([CreateTopic({"name": "t"}, True)], results.append, "ann")
    two.run(9_500)
    assert not two.alarms.all(), "a new group is below for a moment"
    two.run(1_000)
    [alarm] = two.alarms.all()
    for says in (alarm.text, results[0].remark):
        assert "this group has level 13, and several groups need 14: raftmq upgrade finalize" in says
    assert (two.first.log.state.topics.get("t"), two.second.log.state.truth.copied) == (None, 0)
    two.second.log.one(Finalize(GROUPS_LEVEL))
    two.run(1_000)
    assert two.is_equal()
    assert not two.alarms.all()


def test_the_first_group_below_the_level_of_groups_gives_nothing_and_does_nothing(new_log: Any) -> None:
    two = Two(new_log, first=GROUPS_LEVEL - 1)
    results: list[ProposeResult] = []
    two.acts.ask([CreateTopic({"name": "t"}, True)], results.append, "ann")
    two.run(11_000)
    assert "group 1: this group has level 13" in results[0].remark
    assert two.first.log.state.topics.get("t") is None
    assert len(two.alarms.all()) == 1, "nothing is confirmed"
    two.first.log.one(Finalize(GROUPS_LEVEL))
    two.run(500)
    assert not two.alarms.all()


def test_a_group_below_the_level_of_drains_gets_no_row_of_one(new_log: Any) -> None:
    """A group that was added below it, while another one drains."""
    two = Two(new_log, first=DRAINS_LEVEL, second=GROUPS_LEVEL)
    two.first.log.one(SECOND)
    two.run(500)
    copied = two.second.log.state.truth.copied
    assert copied
    two.first.log.one(DrainBrokerGroup(2, draining=True))
    two.run(500)
    assert two.second.log.state.truth.copied == copied
    two.second.log.one(Finalize(DRAINS_LEVEL))
    two.run(500)
    assert two.is_equal()
    assert not two.second.log.state.broker_groups.by_number[2].is_active


def test_frames_that_are_none() -> None:
    for header in (
        [],
        [1, 2],
        [-1, 0, 14],
        [1, -1, 14],
        [1, 1 << 63, 14],
        [1, 0, -1],
        [1, 0, 1 << 16],
        ["1", 0, 14],
        [1.0, 0, 14],
    ):
        with pytest.raises(WireError):
            read_question(header)
    assert read_question([1, 2, 14]) == TruthQuestion(1, 2, 14)
    for header, payload in (
        ([1, 2], b""),
        ([1, -2, False], b"\x90"),
        ([1, 2, 0], b"\x90"),
        ([1, 2, False], b""),
        ([1, 2, False], b"\x80"),
        ([1, 2, False], b"\x91\x92\x01\x02"),
        ([1, 2, False], b"\x91\x93\xa1x\xa1x\xc0"),
        ([1, 2, False], b"\x90" * 2),
        ([1, 2, False], b"\xdd\x7f\xff\xff\xff"),
        ([1, 2, False], b"\x91" * 5000 + b"\x90"),
        ([1, 2, False], bytes(PAYLOAD_MAX + 1)),
    ):
        with pytest.raises(WireError):
            read_answer(header, payload)


@given(st.lists(st.integers() | st.booleans() | st.binary() | st.none(), max_size=5), st.binary(max_size=200))
def test_whatever_comes_is_a_frame_or_an_error(header: list[Any], payload: bytes) -> None:
    for read in (lambda: read_question(header), lambda: read_answer(header, payload)):
        with suppress(WireError):
            read()


class Changes:
    """Changes of the first group, which are answered once they are copied."""

    def __init__(self, two: Two) -> None:
        self._two, self.answered = two, list[str]()

    def make(self, name: str, outcome: Outcome = Outcome.OK) -> None:
        """Makes a topic."""
        two = self._two
        done = two.source.when_copied(lambda result: self.answered.append(name))
        two.first.submit([CreateTopic({"name": name}, True)], done)
        two.first.decide(outcome)


def test_a_change_is_answered_once_the_groups_in_contact_have_it(two: Two) -> None:
    changes = Changes(two)
    changes.make("alone")
    assert changes.answered == ["alone"], "nobody copies it"
    two.first.log.one(SECOND)
    two.run(3000)
    changes.make("a")
    changes.make("b")
    changes.make("refused", Outcome.FAIL)
    assert changes.answered == ["alone", "refused"]
    for _ in range(3):  # the news, the page, the word that there is no more: no time passes
        two.carry()
        two.second.decide()
    two.carry()
    assert changes.answered == ["alone", "refused", "a", "b"]
    assert two.is_equal()


def test_a_group_that_is_slow_is_waited_for_once(two: Two) -> None:
    changes = Changes(two)
    two.first.log.one(SECOND)
    two.run(3000)
    changes.make("a")
    two.second.decide(Outcome.UNKNOWN)

    def ask(ms: int) -> None:
        for _ in range(ms // 50):
            two.now_ms += 50
            two.first.now_ms = two.now_ms
            two.copies.tick(two.now_ms)
            two.carry()
            two.source.tick(two.now_ms)
            two.second.decide(Outcome.UNKNOWN)

    ask(COPIED_MS - 50)
    assert changes.answered == []
    ask(50)
    changes.make("b")
    assert changes.answered == ["a", "b"]
    two.run(1000)
    changes.make("c")
    assert changes.answered == ["a", "b"], "it has copied all, and is waited for again"
    two.run(500)
    assert changes.answered == ["a", "b", "c"]
    two.back.is_open = False
    two.run(COPIED_MS + 50)
    changes.make("d")
    assert changes.answered == ["a", "b", "c", "d"], "it is not in contact"


def test_a_leader_that_loses_the_first_group_answers_what_is_done(two: Two) -> None:
    changes = Changes(two)
    role: Any = two.source.part().role
    two.first.log.one(SECOND)
    two.run(3000)
    changes.make("a")
    role(None)
    assert changes.answered == []
    two.first.leads = False
    role(None)
    assert changes.answered == ["a"]
