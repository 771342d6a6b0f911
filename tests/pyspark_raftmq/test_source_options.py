"""Options of the source: what is understood, and what the errors say."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from pyspark_raftmq.errors import OptionError, PlanError
from pyspark_raftmq.login import Login
from pyspark_raftmq.options import parse_options
from pyspark_raftmq.source import ddl
from pyspark_raftmq.subscription_options import Topics
from pyspark_raftmq.topic_bounds import TopicBounds
from raftmq.arrow.columns import COLUMNS, DEFAULT_COLUMNS
from raftmq.arrow.log_copy import CopySource
from raftmq.arrow.ranges import AtTime, Bounds
from raftmq.client.tls import Tls
from raftmq_wire.user_file import USER_VARIABLES

SPARKS_REDACTION = re.compile("(?i)secret|password|token|access[.]?key")
"""The default of spark.redaction.regex."""
NEEDED = {"servers": "a:1;b:2", "topic": "orders"}


def test_what_is_left_out() -> None:
    options = parse_options(NEEDED)
    assert options.columns == DEFAULT_COLUMNS == tuple(COLUMNS)[:-2]
    assert (options.starting, options.ending) == (TopicBounds("earliest"), TopicBounds("latest"))
    assert options.batch_rows == 8192
    assert (options.read_from, options.fail_on_data_loss) == ("follower", True)
    assert {*options[8:-4], options.max_bytes_per_second} == {None}
    assert options.filter_pushdown == "auto"
    assert options.on_undecodable == "fail"
    assert parse_options({**NEEDED, "onUndecodable": "Raw"}).on_undecodable == "raw"
    with pytest.raises(OptionError, match="it must be fail or raw or skip"):
        parse_options({**NEEDED, "onUndecodable": "ignore"})
    assert parse_options(NEEDED, stream=True).starting == TopicBounds("latest")


def test_names_have_no_case() -> None:
    options = parse_options({"SERVERS": "a:1, b:2", "Topic": "t", "startingoffsets": "LATEST", "batchROWS": "7"})
    assert options[:2] == ("a:1;b:2", Topics(("t",)))
    assert (options.starting, options.batch_rows) == (TopicBounds("latest"), 7)


def test_offsets_by_queue() -> None:
    options = parse_options({**NEEDED, "startingOffsets": '{"0": 5, "2": "latest"}', "endingOffsets": '{"0": 9}'})
    assert options.starting == TopicBounds("earliest", {"orders": Bounds("earliest", {0: 5, 2: "latest"})})
    assert options.ending == TopicBounds("latest", {"orders": Bounds("latest", {0: 9})})


def test_offsets_by_topic_as_kafka_writes_them() -> None:
    given = {"servers": "a:1", "subscribe": "orders, payments", "startingOffsets": '{"orders": {"0": 7, "1": -2}}'}
    options = parse_options({**given, "endingOffsets": '{"orders": {"0": -1}, "payments": {"2": 4}}'})
    assert options.topics == Topics(("orders", "payments"))
    assert options.starting.of("orders") == Bounds("earliest", {0: 7, 1: "earliest"})
    assert options.starting.of("payments") == Bounds("earliest")
    assert options.ending.of("orders") == Bounds("latest", {0: "latest"})
    assert options.ending.of("payments") == Bounds("latest", {2: 4})


def test_times() -> None:
    for text in ("1970-01-01T00:00:02", "1970-01-01 00:00:02Z", "1970-01-01T01:00:02+01:00", "2000"):
        assert parse_options({**NEEDED, "endingTimestamp": text}).ending == TopicBounds(AtTime(2000))
    given = {**NEEDED, "startingTimestamp": "1000", "endingTimestamp": "1970-01-01T01:00:02+01:00"}
    options = parse_options(given)
    assert (options.starting, options.ending) == (TopicBounds(AtTime(1000)), TopicBounds(AtTime(2000)))
    by_queue = parse_options({**NEEDED, "startingOffsetsByTimestamp": '{"orders": {"1": 5}}'}).starting
    assert by_queue.of("orders") == Bounds("earliest", {1: AtTime(5)})


def test_topics_by_pattern_and_by_queue() -> None:
    assert parse_options({"servers": "a:1", "subscribePattern": "or.*"}).topics == Topics(pattern="or.*")
    assigned = parse_options({"servers": "a:1", "assign": '{"orders": [0, 2]}'}).topics
    assert [assigned.has("orders", queue) for queue in range(3)] == [True, False, True]


def test_columns_keep_their_order() -> None:
    assert parse_options({**NEEDED, "columns": "body, topic"}).columns == ("body", "topic")
    assert ddl(("body", "queue_id")) == "body binary, queue_id int"


def test_the_columns_and_their_order_are_promised() -> None:
    assert ddl(tuple(COLUMNS)) == (
        "topic string, queue_id int, queue_offset bigint, body binary, tag string, keys string, message_id string, "
        "born_ms bigint, store_ms bigint, position bigint, properties map<string,string>, store_time timestamp, "
        "index bigint, term bigint"
    )


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        ({"topic": "t"}, "the option servers is missing", 'option("servers"'),
        ({"servers": "a:1"}, "the option topic is missing", 'option("topic"'),
        ({"servers": "a:1", "topic": " "}, "the option topic is missing", 'option("topic"'),
        ({**NEEDED, "servers": "nohost"}, "servers is not understood: nohost", "host:9876"),
        ({**NEEDED, "startingOffset": "1"}, 'unknown option "startingoffset"', "did you mean startingOffsets?"),
        ({**NEEDED, "qqqq": "1"}, 'unknown option "qqqq"', "leave it out"),
        ({**NEEDED, "path": "/x"}, "the option path was given, and a cluster is read", 'option("readFrom", "files")'),
        ({**NEEDED, "readFrom": "files", "path": "/x"}, "servers was given", "leave it out"),
        ({"topic": "t", "readFrom": "files"}, "the option path is missing", 'option("path", "/backups'),
        ({"topic": "t", "readFrom": "tier"}, "the option path is missing", 'option("path", "s3://'),
        ({"topic": "t", "readFrom": "files", "path": "/x", "cluster": "u"}, "cluster was given", "leave it out"),
        ({**NEEDED, "columns": "body,queueid"}, 'unknown column "queueid"', "did you mean queue_id?"),
        ({**NEEDED, "columns": "body,body"}, "named twice", "once"),
        ({**NEEDED, "columns": ""}, 'unknown column ""', "leave it out"),
        ({**NEEDED, "startingOffsets": "5"}, "startingOffsets is not understood: 5", "earliest, latest"),
        ({**NEEDED, "startingOffsets": '{"0": 5, "id": 7}'}, "startingOffsets is not understood", "earliest, latest"),
        ({**NEEDED, "startingOffsets": "{"}, "startingOffsets is not understood: {", "earliest, latest"),
        ({**NEEDED, "endingOffsets": '{"x": 1}'}, "endingOffsets is not understood", "earliest, latest"),
        ({**NEEDED, "endingOffsets": '{"0": -3}'}, "endingOffsets is not understood", "earliest, latest"),
        ({**NEEDED, "endingOffsets": '{"payments": {"0": 1}}'}, "endingOffsets is not understood", "earliest, latest"),
        ({**NEEDED, "topic": "a,b", "endingOffsets": '{"0": 1}'}, "endingOffsets is not understood", "earliest"),
        ({**NEEDED, "subscribe": "payments"}, "topic and subscribe are both given", "keep one"),
        ({**NEEDED, "topic": "a,,b"}, "has an empty name", 'option("topic"'),
        ({"servers": "a:1", "subscribePattern": "("}, "no regular expression", "orders-.*"),
        ({"servers": "a:1", "assign": '{"orders": 1}'}, "assign is not understood", "[0, 1]"),
        ({"servers": "a:1", "assign": "[]"}, "assign is not understood", "[0, 1]"),
        (
            {"servers": "a:1", "assign": '{"orders": [0]}', "startingOffsets": '{"orders": {"1": 0}}'},
            "startingOffsets is not understood",
            "earliest",
        ),
        ({**NEEDED, "startingOffsets": "latest", "startingTimestamp": "1"}, "are both given", "keep one"),
        ({**NEEDED, "startingTimestamp": "yesterday"}, "startingTimestamp is not understood", "+00:00"),
        ({**NEEDED, "readFrom": "anyone"}, "readFrom is anyone", "follower"),
        ({"kafka.bootstrap.servers": "h:1", "topic": "t"}, "unknown option", 'write .option("servers"'),
        ({"bootstrap.servers": "h:1", "topic": "t"}, "unknown option", 'write .option("servers"'),
        ({**NEEDED, "kafka.group.id": "g"}, "unknown option", 'write .option("group"'),
        ({**NEEDED, "failOnDataLoss": "no"}, "failOnDataLoss is no", "true"),
        ({**NEEDED, "minPartitions": "0"}, "minPartitions is 0", "leave it out"),
        ({**NEEDED, "password": "x"}, "looks like a credential", "userFile"),
        ({**NEEDED, "endingOffsets": '{"0": true}'}, "endingOffsets is not understood", "earliest, latest"),
        ({**NEEDED, "batchRows": "0"}, "batchRows is 0", "8192"),
        ({**NEEDED, "batchRows": "many"}, "batchRows is many", "8192"),
    ],
)
def test_errors_say_what_and_what_to_write(options: dict[str, str], what: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_options(options)
    assert what in caught.value.what
    assert hint in caught.value.hint
    assert len(str(caught.value).splitlines()) == 3


def test_a_copy_needs_no_servers() -> None:
    options = parse_options({"topic": "t", "readFrom": "tier", "path": "s3://b", "cluster": "u"}, stream=False)
    assert (options.servers, options.copy) == ("", CopySource("tier", "s3://b", "u"))
    with pytest.raises(OptionError, match="a stream cannot read from files"):
        parse_options({"topic": "t", "readFrom": "files", "path": "/x"}, stream=True)


def test_options_of_the_other_kind_of_read_are_refused() -> None:
    limited = {**NEEDED, "maxOffsetsPerTrigger": "5"}
    assert parse_options(limited, stream=True).max_offsets_per_trigger == 5
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger has no meaning for a batch read"):
        parse_options(limited, stream=False)
    for name, value in (("endingOffsets", "latest"), ("filterPushdown", "true")):
        with pytest.raises(OptionError, match=f"{name} has no meaning for a stream"):
            parse_options({**NEEDED, name: value}, stream=True)


def test_errors_survive_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(PlanError("what", "why", "hint")))
    assert (type(error), error.what, error.why, error.hint) == (PlanError, "what", "why", "hint")


def test_the_user_and_tls_of_a_read() -> None:
    keys = {"accessKey": "shop", "secretKey": "the-secret-of-shop"}
    options = parse_options({**NEEDED, **keys, "tlsCa": "/etc/ca.crt"})
    assert options.login == Login("shop", "the-secret-of-shop", "", Tls(ca="/etc/ca.crt"))
    assert pickle.loads(pickle.dumps(options)) == options, "tasks sign, too"
    assert "the-secret" not in f"{options!r} {options}"
    assert parse_options(NEEDED).login == Login()
    assert parse_options({**NEEDED, "userFile": "/etc/user"}).login.user_file == "/etc/user"
    for name in ("accessKey", "secretKey"):
        assert SPARKS_REDACTION.search(name), "Spark shows the value of any other name"


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"accessKey": "shop"}, "only one of the options accessKey"),
        ({"secretKey": "the-secret-of-shop"}, "only one of the options accessKey"),
        ({"accessKey": "shop", "secretKey": "the-secret-of-shop", "userFile": "/f"}, "are both given"),
        ({"tlsKey": "/k"}, "only one of the options tlsCert"),
        ({"readFrom": "files", "path": "/x", "secretKey": "the-secret-of-shop"}, "secretKey was given"),
    ],
)
def test_half_a_user_is_a_mistake_and_is_not_shown(more: dict[str, str], what: str) -> None:
    given = {"topic": "t"} if "readFrom" in more else NEEDED
    with pytest.raises(OptionError) as caught:
        parse_options({**given, **more})
    assert what in caught.value.what
    assert "the-secret" not in str(caught.value)


@pytest.mark.parametrize("given", USER_VARIABLES)
def test_half_a_user_in_the_environment_is_named_with_what_is_missing(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in USER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(given, "the-secret-of-shop")
    (missing,) = set(USER_VARIABLES) - {given}
    with pytest.raises(OptionError) as caught:
        parse_options({**NEEDED, "servers": "127.0.0.1:1"}).connect()
    assert caught.value.what == f"{given} is set, and {missing} is not"
    assert "/etc/raftmq/user" in caught.value.hint
    assert "the-secret" not in str(caught.value)


def test_a_user_s_file_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "user").write_text("shop\nthe-secret-of-shop\n")
    (tmp_path / "user").chmod(0o644)
    for path, why in (("user", "0644"), ("none", "No such file")):
        with pytest.raises(OptionError, match=why) as caught:
            parse_options({**NEEDED, "userFile": str(tmp_path / path)}).connect()
        assert "the-secret" not in str(caught.value)
