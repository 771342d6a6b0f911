"""Each key of the configuration says itself whose it is, when a change takes effect, and its unit."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from cluster.config.cluster_keys import CLUSTER_KEYS
from cluster.config.config import Config
from cluster.config.key_facts import CLUSTER, HOST, Unit, facts, fields_of, of_cluster, of_host, plain
from cluster.config.ranges import range_of, within
from cluster.config.reload import RELOADABLE

Number = Annotated[int, Meta(ge=1, extra=within(2, 9))]


def whole(kind: Any) -> type[msgspec.Struct]:
    """Returns a configuration with one key, `send.new_key`."""
    section = msgspec.defstruct("Section", [("new_key", kind)])
    return msgspec.defstruct("Whole", [("send", section)])


def test_every_key_says_it() -> None:
    said = facts(Config)
    assert said.keys() == fields_of(Config).keys()
    assert {key for key, one in said.items() if one.is_clusters} == set(CLUSTER_KEYS)
    assert not set(CLUSTER_KEYS) & set(RELOADABLE)
    assert all(one.reload for one in said.values() if one.is_clusters)


@pytest.mark.parametrize("kind", [bool, str, Number, Annotated[bool, HOST, CLUSTER]])
def test_a_key_that_says_nothing_or_two_things_is_found(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"send\.new_key: the type of its field must say whose it is"):
        facts(whole(kind))


@pytest.mark.parametrize("kind", [Annotated[Number, HOST], Annotated[bool, of_cluster(Unit.MS)]])
def test_a_number_without_a_unit_and_a_unit_without_a_number_are_found(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"send\.new_key: a number has a unit"):
        facts(whole(kind))


def test_what_is_said_changes_neither_type_nor_range() -> None:
    kind: Any = Annotated[Number, of_host(Unit.MS, reload=True)]
    known = range_of(kind)
    assert (plain(kind), plain(bool), known) == (int, bool, range_of(Number))
    assert msgspec.convert({"send": {"new_key": 3}}, whole(kind)).send.new_key == 3  # type: ignore[attr-defined]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"send": {"new_key": 0}}, whole(kind))
    assert facts(whole(kind)) == {"send.new_key": of_host(Unit.MS, reload=True)}
