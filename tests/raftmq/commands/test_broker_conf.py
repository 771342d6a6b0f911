"""`raftmq config import`: RocketMQ's broker.conf, translated line by line."""

from __future__ import annotations

import json
import shlex
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cluster.config.cluster_keys import CLUSTER_KEYS, in_type
from cluster.config.explain import keys
from cluster.config.loading import load
from raftmq.cli import cli
from raftmq.commands.nodes import broker_conf
from tests.support.rows import each_row

SHIPPED = """\
# as RocketMQ ships it
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""


def run(folder: Path, text: str, *options: str) -> Result:
    file = folder / "broker.conf"
    file.write_text(text)
    return CliRunner().invoke(cli, ["config", "import", str(file), *options])


def plan(folder: Path, text: str) -> dict[str, Any]:
    done = run(folder, text, "--json")
    assert done.exit_code == 0
    return dict(json.loads(done.stdout))


def test_the_file_that_rocketmq_ships(tmp_path: Path) -> None:
    told = run(tmp_path, SHIPPED).stdout
    assert told.endswith("once the cluster runs:\n  raftmq config set retention.hours 48\n")
    assert '[cluster]\n  broker_name = "broker-a"\n' in told
    assert "brokerId = 0: nodes elect their leader" in told


@pytest.mark.parametrize("line", ["flushDiskType=ASYNC_FLUSH", "brokerRole=ASYNC_MASTER"])
def test_a_weaker_acknowledgement_is_never_taken_over(tmp_path: Path, line: str) -> None:
    found = plan(tmp_path, line)
    assert not found["command"]
    (left,) = found["left_out"]
    assert "acknowledged before" in left[2]


def test_every_counterpart_exists_and_takes_its_default(tmp_path: Path) -> None:
    own = load(overrides={"node.id": 1, "node.data_dir": "data"})
    for old, key in broker_conf.TRANSLATED.items():
        assert key in keys(), old
        default = attrgetter(key)(own)
        text = str(default).lower() if isinstance(default, bool) else default
        if old in broker_conf.FACTORS:
            text = default // broker_conf.FACTORS[old]
        (line,) = plan(tmp_path, f"{old}={text}")["translated"]
        assert line[2:] == [key, default]
        assert not plan(tmp_path, f"{old}={text}")["command"], "a default needs no command"


def test_units_and_forms_of_java(tmp_path: Path) -> None:
    text = (
        "timerMaxDelaySec : 3600\n! a comment\nmessageDelayLevel=1s \\\n  5s\nfileReservedTime=1\nfileReservedTime=24\n"
    )
    found = {line[2]: line[3] for line in plan(tmp_path, text)["translated"]}
    assert found == {"timer.max_delay_ms": 3_600_000, "timer.delay_levels": "1s 5s", "retention.hours": 24}


def test_the_command_is_one_that_config_set_takes(tmp_path: Path) -> None:
    text = "deleteWhen=04;16\nautoCreateTopicEnable=false\nmessageDelayLevel=1s 5s\ndefaultTopicQueueNums=16\n"
    words = shlex.split(plan(tmp_path, text)["command"])
    assert words[:3] == ["raftmq", "config", "set"]
    values = dict(zip(words[3::2], words[4::2], strict=True))
    assert values.keys() <= set(CLUSTER_KEYS)
    assert {key: in_type(key, value) for key, value in values.items()} == {
        "retention.delete_when": "04;16",
        "topics.auto_create": False,
        "timer.delay_levels": "1s 5s",
        "topics.default_queues": 16,
    }


@each_row(
    ("line", "why"),
    [
        ("maxMessageSize=99999999999", "1024 to 32505856 are allowed"),
        ("maxMessageSize=4M", "it is a whole number"),
        ("maxMessageSize=" + "9" * 5000, "it is a whole number"),
        ("autoCreateTopicEnable=yes", "topics.auto_create cannot have this value"),
        ("flushDiskType=NEVER", "modes.flush_disk_type cannot have this value"),
        ("traceTopicEnable=true", "no key here has this meaning"),
        ("listenPort=10911", "raftmq config init HOST..."),
    ],
)
def test_lines_to_look_at(tmp_path: Path, line: str, why: str) -> None:
    found = plan(tmp_path, line)
    (left,) = found["left_out"]
    assert why in left[2]
    assert not found["translated"]


def taken(found: dict[str, Any]) -> None:
    """The cluster and each node take what the plan gives them."""
    words = shlex.split(found["command"])[3:]
    given = {key: in_type(key, value) for key, value in zip(words[::2], words[1::2], strict=True)}
    hosts = {line[2]: line[3] for line in found["translated"] if line[2] not in CLUSTER_KEYS}
    load(overrides={"node.id": 1, "node.data_dir": "data", **given, **hosts})


@pytest.mark.parametrize(
    ("text", "left", "command"),
    [
        ("diskMaxUsedSpaceRatio=88\nfileReservedTime=24", ["diskMaxUsedSpaceRatio"], "retention.hours 24"),
        (
            "diskMaxUsedSpaceRatio=88\ndiskSpaceCleanForciblyRatio=89",
            [],
            "retention.disk_max_used_percent 88 retention.disk_force_clean_percent 89",
        ),
        (
            "diskSpaceCleanForciblyRatio=70\nfileReservedTime=24",
            ["diskSpaceCleanForciblyRatio"],
            "retention.hours 24",
        ),
        (
            "diskMaxUsedSpaceRatio=88\nmaxMessageSize=32505856\nfileReservedTime=24",
            ["diskMaxUsedSpaceRatio", "maxMessageSize"],
            "retention.hours 24",
        ),
    ],
)
def test_values_that_do_not_fit_each_other_are_left_out(
    tmp_path: Path, text: str, left: list[str], command: str
) -> None:
    found = plan(tmp_path, text)
    assert [line[0] for line in found["left_out"]] == left
    assert all("does not fit the other values" in line[2] for line in found["left_out"])
    assert found["command"] == f"raftmq config set {command}"
    taken(found)
    assert all(f"{name} = " in run(tmp_path, text).stdout.partition("to look at:")[2] for name in left)


@each_row("old", broker_conf.TRANSLATED)
@each_row("text", ["1", "5", "60", "88", "99", "1048576", "32505856", "1073741824"])
def test_whatever_a_line_says_the_command_is_taken(tmp_path: Path, old: str, text: str) -> None:
    taken(plan(tmp_path, f"{old}={text}"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("brokerName", "line 1 is not KEY=VALUE"),
        ("\n=x", "line 2 is not KEY=VALUE"),
        ("a" * (broker_conf.FILE_BYTES_MAX + 1), "it is larger than 1 MiB"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str, why: str) -> None:
    done = run(tmp_path, text)
    assert done.exit_code != 0
    assert why in str(done.exception) + done.output + str(getattr(done.exception, "why", ""))


def test_an_empty_file(tmp_path: Path) -> None:
    assert run(tmp_path, "").stdout == "broker.conf has no line that can be translated\n"
