"""The parts of a node: the order of their hooks, and what becomes of the others when one fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cluster.config.config import ConfigError
from cluster.runtime.service_lifecycle import Closing, Part, Parts, Starting
from tests.support.contexts import CONFIG
from tests.support.rows import each_row

NAMES = ("log", "lanes", "driver", "ports")


def wrong(error: BaseException) -> None:
    pytest.fail(str(error))


class Told:
    """Notes what is called; `broken` names the call that fails."""

    def __init__(self, broken: str = "") -> None:
        self.calls: list[str] = []
        self._broken = broken

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call == self._broken:
            raise ConfigError(call, "it is broken", "nothing helps")

    def part(self, name: str) -> Part:
        async def close() -> None:
            await asyncio.sleep(0)
            self.note(f"close {name}")

        return Part(
            name=name,
            start=lambda: self.note(f"start {name}"),
            close=close,
            tick=lambda _: self.note(f"tick {name}"),
            applied=lambda _: self.note(f"applied {name}"),
            may_reload=lambda _: self.note(f"may {name}"),
            reload=lambda _: self.note(f"reload {name}"),
        )

    def parts(self) -> Parts:
        return Parts(map(self.part, NAMES))


async def test_parts_start_in_order_and_close_in_reverse() -> None:
    told = Told()
    parts = told.parts()
    await parts.start()
    await parts.close(wrong)
    assert told.calls == [f"start {name}" for name in NAMES] + [f"close {name}" for name in reversed(NAMES)]


async def test_parts_close_stage_by_stage_whatever_the_order_of_their_start() -> None:
    told = Told()
    stages = {"log": Closing.STORAGE, "ports": Closing.LANES, "driver": Closing.WORK, "clock": Closing.WORK}
    parts = Parts(replace(told.part(name), closes=stage) for name, stage in stages.items())
    await parts.start()
    told.calls.clear()
    await parts.close(wrong)
    assert told.calls == [f"close {name}" for name in ("clock", "driver", "ports", "log")]


async def test_parts_start_stage_by_stage_whatever_the_order_in_which_they_were_made() -> None:
    told = Told()
    stages = {"clock": Starting.WORK, "ports": Starting.CLIENTS, "tier": Starting.SERVICES, "index": Starting.SERVICES}
    parts = Parts(replace(told.part(name), starts=stage) for name, stage in stages.items())
    await parts.start()
    await parts.close(wrong)
    order = ("tier", "index", "ports", "clock")
    assert told.calls == [f"start {name}" for name in order] + [f"close {name}" for name in reversed(order)]


@pytest.mark.parametrize("broken", NAMES)
async def test_a_start_that_fails_closes_the_parts_before_it(broken: str) -> None:
    told = Told(f"start {broken}")
    with pytest.raises(ConfigError, match=f"start {broken}"):
        await told.parts().start()
    before = NAMES[: NAMES.index(broken)]
    assert told.calls == [f"start {name}" for name in (*before, broken)] + [f"close {name}" for name in before[::-1]]


async def test_a_part_without_a_start_is_closed_too_when_another_cannot_start() -> None:
    told = Told("start lanes")
    held = Part(name="thread", close=lambda: told.note("close thread"))
    with pytest.raises(ConfigError):
        await Parts([told.part("lanes"), held]).start()
    assert told.calls == ["start lanes", "close thread"], "it has a thread since it was made"


@pytest.mark.parametrize("broken", NAMES)
async def test_a_close_that_fails_is_told_and_goes_on_with_the_rest(broken: str) -> None:
    told = Told(f"close {broken}")
    parts, failures = told.parts(), list[BaseException]()
    await parts.start()
    told.calls.clear()
    await parts.close(failures.append)
    assert told.calls == [f"close {name}" for name in reversed(NAMES)]
    assert [type(failure) for failure in failures] == [ConfigError]


async def test_nothing_is_closed_twice() -> None:
    told = Told()
    parts = told.parts()
    await parts.start()
    await parts.close(wrong)
    told.calls.clear()
    await parts.close(wrong)
    assert told.calls == []


@pytest.mark.parametrize("broken", NAMES)
def test_a_configuration_that_one_part_refuses_changes_none(broken: str) -> None:
    told = Told(f"may {broken}")
    with pytest.raises(ConfigError):
        told.parts().reload(CONFIG)
    assert not [call for call in told.calls if call.startswith("reload")]


def test_all_are_asked_before_the_first_changes() -> None:
    told = Told()
    told.parts().reload(CONFIG)
    assert told.calls == [f"may {name}" for name in NAMES] + [f"reload {name}" for name in NAMES]


def test_a_list_of_hooks_has_only_the_parts_with_that_hook() -> None:
    told = Told()
    parts = Parts([Part(name="quiet"), told.part("log")])
    assert (len(parts.ticks), len(parts.applied), parts.role, parts.opened, parts.peer_closed) == (1, 1, (), (), ())


@each_row(
    ("parts", "says"),
    [
        ([Part(name="a"), Part(name="a")], "there twice"),
        ([Part(name="a", frames={4: print}), Part(name="b", frames={4: print})], r"b takes frames \[4\]"),
        ([Part(name="a", codes={10: print}), Part(name="b", codes={10: print})], r"b takes codes \[10\]"),
    ],
    ids=["name", "frame", "code"],
)
def test_parts_that_contradict_each_other_are_refused(parts: list[Part], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Parts(parts)
