"""Listeners that face different networks: which one's addresses a client is given is a key, not a name."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cluster.config.config import Config
from cluster.config.loading import addresses_behind, load, own_address
from cluster.config.source import ConfigError

TWO_NETWORKS: dict[str, Any] = {
    "node": {"id": 1, "data_dir": "/nowhere"},
    "listeners": [
        {"name": "inside", "bind": "0.0.0.0", "port": 1},
        {"name": "ask-inside", "bind": "0.0.0.0", "port": 2, "routes": "inside"},
        {"name": "outside", "bind": "0.0.0.0", "port": 3},
        {"name": "ask-outside", "bind": "0.0.0.0", "port": 4, "routes": "outside"},
    ],
    "peers": [
        {"id": n, "host": f"n{n}", "port": 9, "listeners": {"inside": f"n{n}:1", "outside": f"127.0.0.1:{n}03"}}
        for n in (1, 2)
    ],
}


def answers(config: Config, listener: str) -> list[str]:
    return list(addresses_behind(config, listener, config.broker_addresses).values())


def test_each_listener_answers_with_the_addresses_of_its_own_network() -> None:
    config = load(overrides=copy.deepcopy(TWO_NETWORKS))
    for name in ("inside", "ask-inside"):
        assert answers(config, name) == ["n1:1", "n2:1"]
    for name in ("outside", "ask-outside"):
        assert answers(config, name) == ["127.0.0.1:103", "127.0.0.1:203"]
    assert own_address(config) == "n1:1"


def test_no_name_decides() -> None:
    names = [{"name": name, "port": port} for port, name in enumerate(("namesrv", "broker"), 1)]
    config = load(overrides={"node": TWO_NETWORKS["node"], "listeners": names})
    assert answers(config, "namesrv") == ["127.0.0.1:1"]


def test_an_address_moved_in_the_log_is_the_one_that_is_given() -> None:
    config = load(overrides=copy.deepcopy(TWO_NETWORKS))
    in_the_log = {"inside": {1: "10.0.0.9:1"}}
    given = addresses_behind(config, "ask-inside", lambda name: in_the_log[name])  # type: ignore[return-value,arg-type]  # ids are plain numbers
    assert given == {1: "10.0.0.9:1"}


@pytest.mark.parametrize(
    ("change", "what", "fix"),
    [
        ({"listeners.1.routes": "insid"}, "listeners.1.routes cannot be insid", "did you mean inside?"),
        ({"listeners.1.routes": "ask-outside"}, "listeners.1.routes cannot be ask-outside", "did you mean outside?"),
        ({"listeners.1.routes": "ask-inside"}, "listeners.1.routes cannot be ask-inside", "did you mean inside?"),
        (
            {"peers.1.listeners.ask-inside": "n2:2"},
            "node 2 has two addresses for listener ask-inside",
            "remove ask-inside from `listeners` of that [[peers]] table",
        ),
    ],
)
def test_a_pairing_that_cannot_be_meant_is_refused(change: dict[str, Any], what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(overrides=copy.deepcopy(TWO_NETWORKS) | change)
    assert what in refused.value.what
    assert refused.value.fix == fix
