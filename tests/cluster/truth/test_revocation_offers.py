"""Rights that are taken away in the second group while the first one cannot be asked, and how the first one gets to
know: two groups of brokers on one loop without time of its own."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.peer_frames import Kind
from cluster.truth.revocation_offers import ALARM, OFFER_EVERY_MS
from statemachine.access.access_commands import ChangeUser, CreateUser, Origin, RemoveUser, SetAuthKey, SetRules
from statemachine.commands import Command
from tests.support.truth_kit import ASKED, KEY, SECOND
from tests.support.two_groups import DEADLINE_MS, Two

SUPER = Origin(7_000, "root", "10.0.0.7")
DISABLE = ChangeUser(SUPER, 2, {"enabled": False})


@pytest.fixture
def two(new_log: Any) -> Two:
    made = Two(new_log)
    made.first.log.run(
        SetAuthKey(ASKED, KEY),
        CreateUser(ASKED, 1, "root", True, True, b"s", KEY),
        CreateUser(ASKED, 2, "shop", False, True, b"s", KEY),
        SECOND,
    )
    made.run(3_000)
    assert "shop" in made.second.log.state.access.users
    return made


def ask(two: Two, *run: Command) -> list[ProposeResult]:
    results: list[ProposeResult] = []
    two.submit_in_second(list(run), results.append, author="root")
    return results


def is_enabled(two: Two) -> list[bool]:
    """As the groups see the user."""
    return [each.log.state.access.users["shop"].enabled for each in (two.first, two.second)]


def test_a_right_is_taken_away_without_the_first_group_which_does_it_later(two: Two) -> None:
    two.back.is_open = False
    results = ask(two, DISABLE)
    two.run(500)
    assert [each.outcome for each in results] == [Outcome.OK]
    assert is_enabled(two) == [True, False]
    two.run(60_000)
    [alarm] = [each for each in two.alarms.all() if each.key == ALARM]
    assert alarm.text.startswith("1 changes that took rights away count in group 2 alone")
    two.back.is_open = True
    two.run(1_500)
    assert is_enabled(two) == [False, False]
    assert not two.second.log.state.revocations.waiting
    two.run(100)
    assert not two.alarms.raised(ALARM)
    newest = next(two.first.log.state.access.audit((1 << 63) - 1, 1))
    assert newest[1:] == (7_000, "root", "10.0.0.7", "disabled", "User:shop"), "as it was asked for"
    two.first.log.one(ChangeUser(ASKED, 2, {"enabled": True}))
    two.run(1_000)
    assert is_enabled(two) == [True, True], "it is over"


def test_what_gives_rights_is_refused_without_the_first_group(two: Two) -> None:
    two.back.is_open = False
    rule = SetRules(SUPER, 2, [(1, "Topic:a", ["Pub"], [], True)])
    for run in ([rule], [DISABLE, rule], [ChangeUser(SUPER, 2, {"enabled": True})]):
        results = ask(two, *run)
        two.run(100)
        assert results[0].outcome is Outcome.FAIL
        assert "group 1 has no leader now" in results[0].remark
    assert is_enabled(two) == [True, True]


@pytest.mark.parametrize("leads", [False, True], ids=["it leads no more", "no answer"])
def test_a_first_group_that_does_not_do_it_is_not_waited_for(two: Two, *, leads: bool) -> None:
    two.first.leads = leads
    results = ask(two, DISABLE)
    for _ in range((DEADLINE_MS + 500) // 50):
        two.now_ms += 50
        two.acts.tick(two.now_ms)
        if leads:
            two.back.take()
        else:
            two.carry()
        two.second.decide()
    assert [each.outcome for each in results] == [Outcome.OK]
    assert is_enabled(two) == [True, False]
    two.first.leads = True
    two.run(2 * DEADLINE_MS)
    assert is_enabled(two) == [False, False]


def test_while_the_first_group_leads_it_decides(two: Two) -> None:
    ask(two, DISABLE)
    two.run(1_000)
    assert is_enabled(two) == [False, False]
    assert two.second.log.state.revocations.waiting == {}


def test_it_is_offered_until_it_is_answered_and_ends_with_the_copy_of_the_answer(two: Two) -> None:
    two.back.is_open = False
    ask(two, DISABLE)
    two.run(100)
    two.back.is_open = True
    two.first.leads = False  # its next leader is not known yet: no answer says that it is done
    two.run(2 * DEADLINE_MS)
    assert is_enabled(two) == [True, False]
    two.first.leads = True
    lost = 0
    for _ in range(400):
        two.now_ms += 50
        two.offers.tick(two.now_ms)
        two.acts.tick(two.now_ms)
        two.carry_asked()
        two.first.decide()
        sent = two.there.take()
        lost += sum(kind == Kind.ACT_REPLY for kind, *_ in sent)
    assert lost > 1, "it is made again after an answer that was lost"
    assert lost <= 400 * 50 / OFFER_EVERY_MS
    assert two.first.log.state.access.users["shop"].enabled is False
    assert list(two.second.log.state.revocations.waiting), "this group has not copied it"
    two.run(2 * DEADLINE_MS)
    assert not two.second.log.state.revocations.waiting
    assert is_enabled(two) == [False, False]


def test_one_that_is_done_and_not_copied_yet_is_not_ended(two: Two) -> None:
    """However long the copy takes: without the revocation, the group would go by the rows of before."""
    two.back.is_open = False
    ask(two, DISABLE)
    two.run(100)
    two.back.is_open = True
    for _ in range(3 * DEADLINE_MS // 50):
        two.now_ms += 50
        two.offers.tick(two.now_ms)
        two.acts.tick(two.now_ms)
        two.carry_asked()
        two.first.decide()
        for kind, header, payload in two.there.take():
            if kind == Kind.ACT_REPLY:  # copies are lost
                two.acts.on_reply(two.back, header, payload)
        two.second.decide()
    assert is_enabled(two) == [False, False]
    assert two.second.log.state.revocations.waiting
    two.run(2_000)
    assert not two.second.log.state.revocations.waiting
    assert is_enabled(two) == [False, False]


def test_what_the_first_group_refuses_ends_as_well(two: Two) -> None:
    """Two Supers, of whom each group takes one away: the last one stays."""
    two.first.log.one(CreateUser(ASKED, 3, "ann", True, True, b"s", KEY))
    two.run(1_000)
    two.back.is_open = False
    ask(two, RemoveUser(SUPER, 3))
    two.first.log.one(RemoveUser(ASKED, 1))
    two.run(1_000)
    assert not two.second.log.state.access.users["ann"].enabled
    two.back.is_open = True
    two.run(2_500)
    assert not two.second.log.state.revocations.waiting
    assert [list(each.log.state.access.users) for each in (two.first, two.second)] == [["ann", "shop"]] * 2
    assert two.second.log.state.access.users["ann"].enabled
