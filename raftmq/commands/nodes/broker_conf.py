"""`raftmq config import`: translates RocketMQ's broker.conf into keys of RaftMQ, and names what has no counterpart.

The file has the form of Java's Properties. Keys and defaults are those of RocketMQ's BrokerConfig, MessageStoreConfig
and NettyServerConfig.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, groupby
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgspec

from cluster.config.cluster_keys import CLUSTER_KEYS, in_type, typed
from cluster.config.config import Config
from cluster.config.key_facts import fields_of
from cluster.config.loading import load
from cluster.config.ranges import DANGEROUS_WORDS, range_of
from cluster.config.source import ConfigError, toml_value
from raftmq.commands.shared_options import json_option, plain, print_json, print_table
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

FILE_BYTES_MAX: Final = 1 << 20
TRIED_MAX: Final = 2
"""The most lines that are left out to make the remaining ones valid together. If more would have to go, all are left
out."""
_TYPE: Final = "raftmq config import conf/broker.conf"


class Translated(NamedTuple):
    """A line of the file that has a counterpart."""

    old: str
    """The key in broker.conf."""
    text: str
    """The value there."""
    key: str
    """The key here, "section.name"."""
    value: bool | int | str


class Left(NamedTuple):
    """A line of the file that is not translated."""

    old: str
    text: str
    why: str


class Translation(NamedTuple):
    """The translation of one broker.conf."""

    translated: tuple[Translated, ...]
    unneeded: tuple[Left, ...]
    """Lines about things that RaftMQ does by itself."""
    left_out: tuple[Left, ...]
    """Lines that the user has to look at."""


TRANSLATED: Final[Mapping[str, str]] = {
    "brokerClusterName": "cluster.name",
    "brokerName": "cluster.broker_name",
    "autoCreateTopicEnable": "topics.auto_create",
    "defaultTopicQueueNums": "topics.default_queues",
    "maxMessageSize": "limits.message_bytes_max",
    "fileReservedTime": "retention.hours",
    "deleteWhen": "retention.delete_when",
    "diskMaxUsedSpaceRatio": "retention.disk_max_used_percent",
    "diskSpaceCleanForciblyRatio": "retention.disk_force_clean_percent",
    "diskSpaceWarningLevelRatio": "retention.disk_refuse_writes_percent",
    "deleteFilesBatchMax": "retention.delete_batch_files",
    "deleteCommitLogFilesInterval": "retention.delete_gap_ms",
    "messageDelayLevel": "timer.delay_levels",
    "timerMaxDelaySec": "timer.max_delay_ms",
    "transactionTimeOut": "transaction.timeout_ms",
    "transactionCheckInterval": "transaction.check_interval_ms",
    "transactionCheckMax": "transaction.check_max",
    "messageIndexEnable": "index.enabled",
    "flushDiskType": "modes.flush_disk_type",
    "brokerRole": "modes.broker_role",
    "transientStorePoolEnable": "modes.transient_store_pool_enable",
    "slaveReadEnable": "modes.slave_read_enable",
    "accessMessageInMemoryMaxRatio": "modes.access_message_in_memory_max_ratio",
    "mappedFileSizeCommitLog": "log.segment_size_bytes",
    "mapedFileSizeCommitLog": "log.segment_size_bytes",
}
FACTORS: Final[Mapping[str, int]] = {"timerMaxDelaySec": 1000}
"""Key of broker.conf -> the factor from its unit to the unit here."""
_MAJORITY: Final = "a majority of the nodes has a message before it is acknowledged"
_UNNEEDED: Final[Mapping[str, str]] = {
    "namesrvAddr": "each node answers as a name server itself",
    "brokerId": "nodes elect their leader; each has a node.id of its own",
    "enableDLegerCommitLog": "the log is always replicated, with Raft",
    "dLegerGroup": "there is one group",
    "dLegerSelfId": "each node has a node.id",
    "haListenPort": "nodes replicate at the port of [peer]",
    "haMasterAddress": "nodes elect their leader",
    "storePathCommitLog": "all files of a node lie in node.data_dir",
    "storePathConsumeQueue": "all files of a node lie in node.data_dir",
    "storePathIndex": "all files of a node lie in node.data_dir",
    "autoCreateSubscriptionGroup": "a group is created when a consumer connects",
    "enablePropertyFilter": "SQL92 filters always work",
    "longPollingEnable": "pulls always wait for messages",
    "offsetCheckInSlave": "offsets are entries of the log",
    "inSyncReplicas": _MAJORITY,
    "minInSyncReplicas": _MAJORITY,
    "allAckInSyncStateSet": _MAJORITY,
}
"""Key of broker.conf -> the reason why RaftMQ needs no counterpart."""
_TUNING: Final = ("ThreadPoolNums", "ThreadNums", "ThreadPoolQueueCapacity")
"""The ends of keys that tune RocketMQ's own threads."""
_ADDRESSES: Final = (
    "it belongs to one node: raftmq config init HOST... writes files with ports and addresses of all nodes"
)
_BY_HAND: Final[Mapping[str, str]] = {
    "listenPort": _ADDRESSES,
    "brokerIP1": _ADDRESSES,
    "brokerIP2": _ADDRESSES,
    "dLegerPeers": _ADDRESSES,
    "storePathRootDir": "RocketMQ's files cannot be opened here: choose a new directory as node.data_dir",
    "aclEnable": "import the users with raftmq acl import plain_acl.yml, then type: raftmq auth mode enforce",
    "authenticationEnabled": "create users with raftmq user create, then type: raftmq auth mode enforce",
    "authorizationEnabled": "give rights with raftmq acl set, then type: raftmq auth mode enforce",
}
"""Key of broker.conf -> the steps that the user has to take."""


def properties(text: str) -> Iterator[tuple[str, str]]:
    """Yields (key, value) for each entry in the text of Java's Properties. A value goes on in the next line after a
    backslash. Raises ValueError for a line without key and separator."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        entry = line.strip()
        if not entry or entry[0] in "#!":
            continue
        while entry.endswith("\\"):
            entry = entry[:-1] + next(lines, (0, ""))[1].strip()
        at = min((found for mark in "=:" if (found := entry.find(mark)) >= 0), default=0)
        if at == 0:
            raise ValueError(f"line {number} is not KEY=VALUE: {entry[:80]!r}")
        yield entry[:at].rstrip(), entry[at + 1 :].lstrip()


def plan_of(text: str) -> Translation:
    """Returns the translation of the text of a broker.conf. Raises ValueError if the text is not in the form of
    Properties."""
    entries = dict(properties(text))  # as in Java, the last line of a key counts
    unneeded = {old: why for old, value in entries.items() if (why := _why_unneeded(old, value))}
    lines = [_line(old, value) for old, value in entries.items() if old not in unneeded]
    translated = [line for line in lines if isinstance(line, Translated)]
    unfit = _unfit(translated)
    return Translation(
        tuple(line for line in translated if line not in unfit),
        tuple(Left(old, entries[old], why) for old, why in unneeded.items()),
        (*(line for line in lines if isinstance(line, Left)), *unfit.values()),
    )


def _unfit(lines: Sequence[Translated]) -> dict[Translated, Left]:
    """Returns the fewest lines without which a node accepts all other lines together: line -> the reason. If more than
    TRIED_MAX would have to go, returns all lines that differ from the defaults."""
    why, changing = _conflict(lines), [line for line in lines if _differs(line)]
    for count in range(1, TRIED_MAX + 1) if why else ():
        for some in combinations(changing, count):
            if not _conflict([line for line in lines if line not in some]):
                return {line: _left_as_unfit(line, why) for line in some}
    return {line: _left_as_unfit(line, why) for line in changing} if why else {}


def _left_as_unfit(line: Translated, why: str) -> Left:
    return Left(line.old, line.text, f"{line.key} = {line.value} does not fit the other values: {why}")


def _conflict(lines: Sequence[Translated]) -> str:
    """Returns the reason why a node would refuse these values together; "" if it would not."""
    try:
        load(overrides={"node.id": 1, "node.data_dir": "data"} | {line.key: line.value for line in lines})
    except ConfigError as error:
        return error.what.partition(": ")[2]
    return ""


def _why_unneeded(old: str, text: str) -> str:
    if (old, text) == ("brokerRole", "SLAVE"):
        return "nodes elect their leader, and each may lead"
    return "it tunes RocketMQ's own threads" if old.endswith(_TUNING) else _UNNEEDED.get(old, "")


def _line(old: str, text: str) -> Translated | Left:
    if old in _BY_HAND:
        return Left(old, text, _BY_HAND[old])
    if old not in TRANSLATED:
        return Left(old, text, 'no key here has this meaning; see the page "Foreign clients" of the docs')
    key = TRANSLATED[old]
    if why := DANGEROUS_WORDS.get((key, text)):
        return Left(old, text, f"with it, {why}; if you want that, type: raftmq config set {key} {text}")
    try:
        return Translated(old, text, key, _value(key, text, FACTORS.get(old, 1)))
    except ConfigError as error:
        return Left(old, text, f"{key} cannot have this value: {error.why}")


def _value(key: str, text: str, factor: int) -> bool | int | str:
    """Returns the value of the key. Raises ConfigError for a value that the key cannot have."""
    known = range_of(fields_of(Config)[key].type)
    if known is None:
        return in_type(key, text) if key in CLUSTER_KEYS else text
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ConfigError(f"{key} cannot be {text}", "it is a whole number", f"raftmq config explain {key}")
    value = int(text) * factor
    if not known.has(value):
        low_high = f"{'0, or ' if known.zero else ''}{known.low} to {known.high} are allowed"
        raise ConfigError(f"{key} cannot be {value}", low_high, f"raftmq config explain {key}")
    return value


def _differs(line: Translated) -> bool:
    """Returns True if the value is not the default."""
    return bool(fields_of(Config)[line.key].default != line.value)


def set_command(plan: Translation) -> str:
    """Returns the command that gives the cluster the values that are not its defaults; "" if there are none."""
    lines = [line for line in plan.translated if line.key in CLUSTER_KEYS and _differs(line)]
    pairs = [f"{line.key} {typed(line.value)}" for line in lines]
    return f"raftmq config set {' '.join(pairs)}" if pairs else ""


def toml_text(plan: Translation) -> str:
    """Returns the lines for each node's raftmq.toml, for values that are not the defaults; "" if there are none."""
    lines = [(*line.key.partition(".")[::2], line.value) for line in plan.translated if _is_of_host(line)]
    found = []
    for section, keys in groupby(sorted(lines, key=lambda each: each[0]), key=lambda each: each[0]):
        found += [f"[{section}]", *(f"{name} = {toml_value(value)}" for _, name, value in keys), ""]
    return "\n".join(found).strip()


def _is_of_host(line: Translated) -> bool:
    return line.key not in CLUSTER_KEYS and _differs(line)


@click.command("import")
@click.argument("file", type=LocalPath(path_type=Path, dir_okay=False), metavar="FILE")
@json_option
def import_(file: Path, as_json: bool) -> None:
    """Translate FILE, RocketMQ's broker.conf: print the command and the lines of raftmq.toml that mean the same.

    Changes nothing, and needs no cluster. Lines without a counterpart are listed with the reason.
    """
    plan = _plan_in(file)
    command, toml = set_command(plan), toml_text(plan)
    if as_json:
        print_json({"schema": 1, **msgspec.to_builtins(plan._asdict()), "command": command, "toml": toml})
        return
    rows = [
        [f"{line.old} = {line.text}", f"{line.key} = {toml_value(line.value)}", _note(line)] for line in plan.translated
    ]
    print_table([file.name, "here", ""], rows, none=f"{file.name} has no line that can be translated")
    _echo("nothing to do", _told(plan.unneeded))
    _echo("to look at", _told(plan.left_out))
    _echo("in the raftmq.toml of each node", toml.splitlines())
    _echo("once the cluster runs", [command] if command else [])


def _told(lines: Sequence[Left]) -> list[str]:
    return [f"{line.old} = {line.text}: {line.why}" for line in lines]


def _echo(title: str, lines: Sequence[str]) -> None:
    if lines:
        click.echo(f"\n{title}:")
    for line in lines:
        click.echo(plain(f"  {line}" if line else ""))


def _note(line: Translated) -> str:
    if not _differs(line):
        return "the default"
    return "cluster" if line.key in CLUSTER_KEYS else "raftmq.toml"


def _plan_in(file: Path) -> Translation:
    """Reads and translates a file. Raises LocalError if it cannot be read or is no broker.conf."""
    what = f"{file} cannot be imported"
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise LocalError(what, f"it is larger than {FILE_BYTES_MAX >> 20} MiB", _TYPE, ExitCode.USAGE)
        return plan_of(data.decode())
    except OSError as error:
        raise LocalError(what, error.strerror or str(error), _TYPE, ExitCode.USAGE) from None
    except UnicodeDecodeError:
        raise LocalError(what, "it is no text in UTF-8", _TYPE, ExitCode.USAGE) from None
    except ValueError as error:
        raise LocalError(what, str(error), _TYPE, ExitCode.USAGE) from None
