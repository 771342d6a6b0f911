"""The ranges of numbers in the configuration: every one has both ends, and what is outside is held, not refused."""

from __future__ import annotations

import random
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster.config.cluster_keys import CLUSTER_KEYS, changed
from cluster.config.config import Config, ConfigError
from cluster.config.cross_key_rules import check
from cluster.config.loading import load
from cluster.config.ranges import OutOfRange, dangers, hold, outside, range_of, ranges_of
from cluster.config.source import Source
from cluster.members.config_activation import LayeredConfig
from cluster.node.__main__ import usable
from cluster.peer.wire import FRAME_MAX
from cluster.runtime.environment import Environment
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.core.state.config import RaftConfig
from raftlog.frame import FRAME_LENGTH_MAX
from raftlog.types import NodeId
from statemachine.cluster_wide.settings import Settings

RANGES = ranges_of(Config)
TLS_FIRST_BYTE = 0x16
"""The first byte of a client that speaks TLS: no length of a frame may begin with it."""


def with_values(values: dict[str, int]) -> Config:
    """Returns a configuration with values that a log or a file of an earlier release may have."""
    config = load(None, {}, {"node.id": 1, "node.data_dir": "/data"})
    for key, value in values.items():
        section, name = key.split(".")
        config = replace(config, **{section: replace(getattr(config, section), **{name: value})})
    return config


def test_every_number_has_two_ends_and_its_default_is_usual() -> None:
    usual = with_values({})
    for key, known in RANGES.items():
        assert known.low <= known.usual_low <= known.usual_high <= known.high < 1 << 63, key
        assert known.is_usual(attrgetter(key)(usual)), key
        assert bool(known.why) == ((known.usual_low, known.usual_high) != (known.low, known.high)), key
    assert list(outside(usual)) == []
    assert dangers(usual) == {}


def test_no_frame_begins_as_tls_does() -> None:
    assert RANGES["limits.frame_bytes_max"].high < TLS_FIRST_BYTE << 24


def test_the_nearest_value_is_in_the_range_and_a_small_number_is_no_zero() -> None:
    for key, known in RANGES.items():
        for value in (0, 1, known.low - 1, known.low, known.high, known.high + 1, 1 << 62):
            assert known.has(known.nearest(value)), key
            assert known.nearest(value) == value or not known.has(value), key
            if value > 0:
                assert known.nearest(value) > 0, key


def relation_error(config: Config) -> str:
    try:
        check(config, Source())
    except ConfigError as error:
        return str(error)
    return ""


@given(st.integers(0, 1 << 32))
def test_what_held_between_keys_holds_when_they_are_held(seed: int) -> None:
    rng = random.Random(seed)
    rising = sorted(1 << rng.randrange(62) for _ in range(5))
    values = {
        "limits.message_bytes_max": rising[0],
        "limits.frame_bytes_max": rising[1] + (64 << 10),
        "limits.connection_inflight_bytes_max": rising[2] + (64 << 10),
        "limits.node_inflight_bytes_max": rising[3] + (64 << 10),
        "limits.connection_unsent_bytes_max": rising[1],
        "limits.node_unsent_bytes_max": rising[4],
        "raft.append_bytes_max": rising[0],
        "raft.inflight_bytes_max": rising[3],
    }
    if (before := relation_error(with_values(values))) and "segment_size" not in before:
        return
    after = relation_error(hold(with_values(values)))
    assert after == "" or ("segment_size" in before and "segment_size" in after)


def test_every_key_may_be_at_both_ends_and_not_beyond() -> None:
    config = with_values({})
    for key in RANGES:
        known = RANGES[key]
        for value in (known.low - 1, known.high + 1):
            if value < 1 or key not in CLUSTER_KEYS:
                continue
            with pytest.raises(ConfigError) as caught:
                changed(config, {key: value})
            assert key in str(caught.value), key


def test_what_a_range_allows_fits_the_formats_below() -> None:
    """A node whose file had 64 MiB for an append ended at its start, and a message of 40 MiB could not be stored."""
    assert RANGES["raft.append_bytes_max"].high <= FRAME_LENGTH_MAX
    assert RANGES["limits.message_bytes_max"].high + (1 << 20) <= FRAME_LENGTH_MAX
    assert RANGES["limits.batch_bytes_max"].high + (8 << 20) <= FRAME_LENGTH_MAX
    assert RANGES["limits.frame_bytes_max"].high + (1 << 20) <= FRAME_MAX
    highest = with_values(
        {f"raft.{name}": RANGES[f"raft.{name}"].high for name in ("append_bytes_max", "inflight_bytes_max")}
    )
    raft = highest.raft
    RaftConfig(
        NodeId(1), 1, append_bytes_max=raft.append_bytes_max, inflight_bytes_max=raft.inflight_bytes_max
    ).validate()


def test_a_value_in_the_log_or_in_a_file_is_held_and_told(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(MemoryKV())
    own = with_values({"limits.properties_bytes_max": 1, "limits.frame_bytes_max": 1 << 62})
    layers = LayeredConfig(own, settings, Environment(fit_config=usable))
    config = layers.in_force()
    assert (config.limits.properties_bytes_max, config.limits.frame_bytes_max) == (1 << 10, 48 << 20)
    assert layers.held == [
        OutOfRange("limits.properties_bytes_max", 1, 1 << 10),
        OutOfRange("limits.frame_bytes_max", 1 << 62, 48 << 20),
    ]
    assert "limits.properties_bytes_max = 1 is not in its range and is held at 1024" in caplog.text


def test_a_type_without_ends_is_found() -> None:
    endless: Any = Annotated[int, msgspec.Meta(ge=1)]
    with pytest.raises(AssertionError):
        range_of(endless)
