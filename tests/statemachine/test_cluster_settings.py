"""The configuration of the cluster in the state: versions, the history, what is refused, and nodes in maintenance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.settings import CHANGES_KEPT, Change, Maintenance, SetConfig, SetMaintenance, Setting
from statemachine.rows import keys
from statemachine.rows.kv import META
from tests.support.rows import each_row
from tests.support.state_kit import FedState, applied_in_groups


class Broker(FedState):
    """A state, and the log that feeds it."""

    def set(self, version: int, author: str = "ops", **values: Any) -> Any:
        keys = {key.replace("__", "."): value for key, value in values.items()}
        return self.run(SetConfig(version, 1000 + version, author, "", keys))[0]


@pytest.fixture
def broker(new_log: Callable[[], Any]) -> Broker:
    return Broker(new_log())


def test_a_change_is_a_version_with_its_author_and_what_was_before(broker: Broker) -> None:
    assert broker.state.settings.version == 0
    assert broker.set(0, "node 1", retention__hours=72, topics__auto_create=True).value == 1
    assert broker.set(1, retention__hours=48, topics__auto_create=True).value == 2
    settings = broker.state.settings
    assert settings.by_key == {"retention.hours": Setting(48, 2), "topics.auto_create": Setting(True, 1)}
    assert list(settings.changes(before=99, limit=9)) == [
        Change(2, 1001, "ops", "", {"retention.hours": (72, 48)}),
        Change(1, 1000, "node 1", "", {"retention.hours": (None, 72), "topics.auto_create": (None, True)}),
    ]
    assert [change.version for change in settings.changes(before=2, limit=9)] == [1]
    assert [change.version for change in settings.changes(before=99, limit=1)] == [2]


def test_of_two_changes_for_one_version_only_the_first_takes_effect(broker: Broker) -> None:
    broker.set(0, retention__hours=72)
    first, second = broker.set(1, retention__hours=48), broker.set(1, retention__hours=24)
    assert (first.ok, second.ok, second.code) == (True, False, "conflict")
    assert "version 2, not 1" in second.value
    assert broker.state.settings.by_key["retention.hours"].value == 48


def test_the_same_value_again_is_no_new_version(broker: Broker) -> None:
    broker.set(0, retention__hours=1)
    assert broker.set(1, retention__hours=1).value == 1
    assert broker.set(1, retention__hours=True).value == 2, "true is not 1"


def test_the_history_forgets_the_oldest(broker: Broker) -> None:
    for version in range(CHANGES_KEPT + 3):
        broker.set(version, retention__hours=version)
    kept = [change.version for change in broker.state.settings.changes(before=2**63, limit=CHANGES_KEPT + 9)]
    assert kept == list(range(CHANGES_KEPT + 3, 3, -1))


@each_row(
    "arguments",
    [
        [-1, 0, "", "", {"a.b": 1}],
        ["0", 0, "", "", {"a.b": 1}],
        [0, 0, "x" * 257, "", {"a.b": 1}],
        [0, 0, "", None, {"a.b": 1}],
        [0, 0, "", "", {}],
        [0, 0, "", "", [["a.b", 1]]],
        [0, 0, "", "", {"ab": 1}],
        [0, 0, "", "", {"a.B": 1}],
        [0, 0, "", "", {1: 1}],
        [0, 0, "", "", {"a.b": 1.5}],
        [0, 0, "", "", {"a.b": None}],
        [0, 0, "", "", {"a.b": 2**63}],
        [0, 0, "", "", {"a.b": "x" * 4097}],
        [0, 0, "", "", {f"a.b{n}": 1 for n in range(1025)}],
    ],
)
def test_what_is_no_change_is_refused_and_changes_nothing(broker: Broker, arguments: list[Any]) -> None:
    assert broker.run(SetConfig(*arguments))[0].code == "invalid"
    assert (broker.state.settings.version, broker.state.settings.by_key) == (0, {})


def test_the_rows_say_all_of_it(broker: Broker) -> None:
    broker.set(0, retention__hours=72)
    broker.set(1, retention__hours=48)
    broker.run(SetMaintenance(2, 7, "ops", "a new disk"))
    again = BrokerState(broker.kv).settings
    assert (again.version, again.by_key, again.maintenance) == (
        2,
        {"retention.hours": Setting(48, 2)},
        {2: Maintenance(7, "ops", "a new disk")},
    )
    assert list(again.changes(9, 9)) == list(broker.state.settings.changes(9, 9))


def test_maintenance_lasts_from_its_first_word_to_its_end(broker: Broker) -> None:
    assert broker.run(SetMaintenance(2, 7, "ops", "a new disk"))[0].value is True
    assert broker.run(SetMaintenance(2, 9, "ops", "a new disk"))[0].value is False
    assert broker.run(SetMaintenance(2, 9, "ops", "and memory"))[0].value is True
    assert broker.state.settings.maintenance == {2: Maintenance(7, "ops", "and memory")}
    assert broker.run(SetMaintenance(2, 9, "ops", None))[0].value is True
    assert broker.run(SetMaintenance(2, 9, "ops", None))[0].value is False
    assert broker.state.settings.maintenance == {}
    assert broker.run(SetMaintenance(0, 9, "ops", None))[0].code == "invalid"


@given(grouping=st.integers(0, 2**32))
def test_rows_do_not_depend_on_how_entries_were_grouped(new_log: Callable[[], Any], grouping: int) -> None:
    log = new_log()
    entries = [
        log.command(command)
        for command in (
            SetConfig(0, 1, "a", "", {"a.b": 1, "a.c": "x"}),
            SetConfig(1, 2, "a", "", {"a.b": 2}),
            SetConfig(1, 2, "a", "", {"a.b": 3}),
            SetMaintenance(3, 4, "a", "r"),
            SetConfig(2, 5, "a", "", {"a.b": 1}),
            SetMaintenance(3, 6, "a", None),
        )
    ]
    whole, pieces = MemoryKV(), applied_in_groups(entries, grouping)[1]
    BrokerState(whole).apply(entries)
    assert list(whole.scan(META, keys.FIRST, keys.LAST)) == list(pieces.scan(META, keys.FIRST, keys.LAST))
