"""The options of a read, checked before a cluster is asked. Options of Kafka's source mean the same here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import raftmq
from pyspark_raftmq import login
from pyspark_raftmq.errors import OptionError, write
from pyspark_raftmq.kafka_names import column_advice, option_advice
from pyspark_raftmq.login import Login, parse_login
from pyspark_raftmq.subscription_options import Topics, parse_topics
from pyspark_raftmq.topic_bounds import TopicBounds, parse_offsets, parse_time, parse_times
from raftmq.arrow.columns import COLUMNS, DEFAULT_COLUMNS
from raftmq.arrow.log_copy import FILES, TIER, CopySource
from raftmq.arrow.ranges import EARLIEST, LATEST, Bound
from raftmq.arrow.tables import FOLLOWER, LEADER
from raftmq.arrow.undecodable import CHOICES, FAIL
from raftmq.client.discovery import parse_servers
from raftmq_wire.errors import LocalError
from raftmq_wire.local_path import check_local

DEFAULT_BATCH_ROWS = 8192
MAX_BATCH_ROWS = 1 << 20
OPTIONS = (
    "servers",
    *login.OPTIONS,
    "topic",
    "subscribe",
    "subscribePattern",
    "assign",
    "columns",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "batchRows",
    "readFrom",
    "path",
    "cluster",
    "failOnDataLoss",
    "onUndecodable",
    "filterPushdown",
    "maxBytesPerSecond",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "group",
)
"""The names of the options as documented; Spark compares them without case."""
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "group")
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "filterPushdown")
_SPARKS_OWN = frozenset(("__partition_columns", "checkpointlocation", "queryname"))
"""Options that Spark passes to every source for its own use."""
AUTO, TRUE, FALSE = "auto", "true", "false"
"""The words that the option filterPushdown takes."""
_NEVER = re.compile(r"password|secret|token|credential|access.?key", re.IGNORECASE)


class ReadOptions(NamedTuple):
    """The options of a read. `starting` is inclusive, `ending` exclusive; `batch_rows` is the most rows of one Arrow
    batch. A limit that is not set is None."""

    servers: str
    topics: Topics
    columns: tuple[str, ...]
    starting: TopicBounds
    ending: TopicBounds
    batch_rows: int
    read_from: str
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    group: str | None
    copy: CopySource | None = None
    """The copy of the log to read instead of a cluster; then `servers` is ""."""
    filter_pushdown: str = AUTO
    """AUTO: filters are used if Spark passes them; TRUE: the read fails if Spark does not; FALSE: they are not used."""
    max_bytes_per_second: int | None = None
    """The most bytes that one task reads per second; None: no limit."""
    on_undecodable: str = FAIL
    """The treatment of messages whose bodies cannot be decompressed, one of `raftmq.arrow.undecodable.CHOICES`."""
    login: Login = Login()

    def connect(self) -> raftmq.Client:
        """Returns a client of the cluster that is read. Raises OptionError."""
        return self.login.connect(self.servers)


def parse_options(options: Mapping[str, str], *, stream: bool | None = None) -> ReadOptions:
    """Parses Spark's options, names in any case. `stream` says if they are for a stream; None if that is not known yet.

    Raises OptionError naming the option and what to write.
    """
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        check_known(name, OPTIONS)
    if stream is not None:
        _check_use(given, stream=stream)
    topics = parse_topics(given)
    copy = _copy(given, stream=stream)
    return ReadOptions(
        servers=""
        if copy
        else read_servers(required(given, "servers", "127.0.0.1:9876;127.0.0.1:9877;127.0.0.1:9878")),
        topics=topics,
        columns=_columns(given.get("columns")),
        starting=_position(given, "starting", topics, LATEST if stream else EARLIEST),
        ending=_position(given, "ending", topics, LATEST),
        batch_rows=_batch_rows(given.get("batchrows", str(DEFAULT_BATCH_ROWS))),
        read_from=_word(given, "readFrom", (FOLLOWER, LEADER, FILES, TIER)),
        fail_on_data_loss=_word(given, "failOnDataLoss", ("true", "false")) == "true",
        min_partitions=whole_number(given, "minPartitions"),
        max_records_per_partition=whole_number(given, "maxRecordsPerPartition"),
        max_offsets_per_trigger=whole_number(given, "maxOffsetsPerTrigger"),
        min_offsets_per_trigger=whole_number(given, "minOffsetsPerTrigger"),
        max_bytes_per_trigger=whole_number(given, "maxBytesPerTrigger"),
        group=given.get("group"),
        copy=copy,
        filter_pushdown=_word(given, "filterPushdown", (AUTO, TRUE, FALSE)),
        max_bytes_per_second=whole_number(given, "maxBytesPerSecond"),
        on_undecodable=_word(given, "onUndecodable", CHOICES),
        login=parse_login(given),
    )


def _copy(given: Mapping[str, str], *, stream: bool | None) -> CopySource | None:
    """Returns the copy to read; None if a cluster is read. Raises OptionError."""
    kind = _word(given, "readFrom", (FOLLOWER, LEADER, FILES, TIER))
    if kind not in (FILES, TIER):
        for name in ("path", "cluster"):
            if name in given:
                raise OptionError(
                    f"the option {name} was given, and a cluster is read",
                    "load(PATH) sets the option path, too; it says where files or a tier are",
                    f"leave it out, or {write('readFrom', FILES)}",
                )
        return None
    if stream:
        raise OptionError(f"a stream cannot read from {kind}", "copies of the log do not grow", "use spark.read")
    if named := next((name for name in ("servers", *login.OPTIONS) if name.lower() in given), ""):
        raise OptionError(
            f"{named} was given, and {kind} are read without a cluster", "it has no effect", "leave it out"
        )
    if kind == FILES and "cluster" in given:
        raise OptionError("the option cluster was given, and files are read", "it is for a tier", "leave it out")
    example = "/backups/20260131T000000Z-…" if kind == FILES else "s3://bucket/prefix"
    path = required(given, "path", example)
    if kind == FILES:
        try:
            check_local(path, "the option path")
        except LocalError as error:
            raise OptionError(error.what, "readFrom=files reads a folder; readFrom=tier a URL", error.fix) from error
    return CopySource(kind, path, given.get("cluster"))


def check_known(name: str, known: Sequence[str]) -> None:
    """Raises OptionError unless the name, in lower case, is one of `known` or of Spark's own."""
    if name in _SPARKS_OWN or name in (option.lower() for option in known):
        return
    kafkas = option_advice(name, known)
    if _NEVER.search(name) and not kafkas:
        raise OptionError(
            f'the option "{name}" looks like a credential',
            "Spark hides the values of some names only, and this source knows no option of this name",
            "write accessKey and secretKey, or userFile, or set RAFTMQ_ACCESS_KEY and RAFTMQ_SECRET_KEY everywhere",
        )
    raise OptionError(
        f'unknown option "{name}"', f"the options are {', '.join(known)}", kafkas or _nearest(name, known)
    )


def _check_use(given: Mapping[str, str], *, stream: bool) -> None:
    """Raises OptionError for an option that would have no effect in this read. Otherwise the mistake would go
    unnoticed."""
    kind, other = ("a stream", "spark.read") if stream else ("a batch read", "spark.readStream")
    for name in _BATCH_ONLY if stream else _STREAM_ONLY:
        if name.lower() in given:
            raise OptionError(f"the option {name} has no meaning for {kind}", f"it belongs to {other}", "leave it out")


def _nearest(name: str, known: Iterable[str]) -> str:
    by_lower = {option.lower(): option for option in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f"did you mean {by_lower[found[0]]}?" if found else "leave it out"


def required(given: Mapping[str, str], name: str, example: str) -> str:
    """Returns the value of an option that must be given; names are in lower case. Raises OptionError."""
    value = given.get(name, "").strip()
    if not value:
        raise OptionError(
            f"the option {name} is missing", "without it nothing can be read or written", write(name, example)
        )
    return value


def read_servers(text: str) -> str:
    """Returns the value of the option `servers`, checked. Raises OptionError."""
    try:
        return ";".join(parse_servers(text))
    except ValueError as error:
        raise OptionError(
            f"the option servers is not understood: {text}", str(error), write("servers", "host:9876;host:9876")
        ) from error


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return DEFAULT_COLUMNS
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise OptionError(
                f'unknown column "{name}" in the option columns',
                f"the columns are {', '.join(COLUMNS)}",
                column_advice(name, COLUMNS) or _nearest(name, COLUMNS),
            )
    if len(set(names)) != len(names):
        raise OptionError("a column is named twice in the option columns", text, "name each column once")
    return names


def _position(given: Mapping[str, str], which: str, topics: Topics, default: Bound) -> TopicBounds:
    """Returns the bounds from one of the three options for the start, or the end, of a read. Returns `default` if none
    is given. Raises OptionError if two are given."""
    parsers = {
        f"{which}Offsets": parse_offsets,
        f"{which}Timestamp": parse_time,
        f"{which}OffsetsByTimestamp": parse_times,
    }
    used = [name for name in parsers if name.lower() in given]
    if len(used) > 1:
        raise OptionError(
            f"the options {' and '.join(used)} are both given", "they say the same thing twice", "keep one of them"
        )
    if not used:
        return TopicBounds(default)
    unlisted: Bound = EARLIEST if which == "starting" else LATEST
    return parsers[used[0]](used[0], given[used[0].lower()], unlisted, topics)


def _batch_rows(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_BATCH_ROWS:
        raise OptionError(
            f"the option batchRows is {text}",
            f"it must be a whole number from 1 to {MAX_BATCH_ROWS}",
            f"leave it out ({DEFAULT_BATCH_ROWS}), or make it smaller for large messages",
        )
    return int(text)


def whole_number(given: Mapping[str, str], name: str) -> int | None:
    """Returns the value of an option that is an integer of at least 1; None if it is not given. Raises OptionError."""
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(f"the option {name} is {text}", "it must be a whole number, 1 or more", "leave it out")
    return int(text)


def _word(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """Returns the value of an option that is one of `words`; the first if the option is not given. Raises
    OptionError."""
    text = given.get(name.lower(), words[0]).strip().lower()
    if text not in words:
        raise OptionError(f"the option {name} is {text}", f"it must be {' or '.join(words)}", write(name, words[0]))
    return text
