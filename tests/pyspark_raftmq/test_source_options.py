"""Options of the source: what is understood, and what the errors say."""

from __future__ import annotations

import pickle

import pytest

from pyspark_raftmq.columns import ddl
from pyspark_raftmq.errors import OptionError, PlanError
from pyspark_raftmq.options import parse_options
from raftmq.arrow.columns import COLUMNS
from raftmq.arrow.ranges import Bounds

NEEDED = {"servers": "a:1;b:2", "topic": "orders"}


def test_what_is_left_out() -> None:
    options = parse_options(NEEDED)
    assert options.columns == tuple(COLUMNS)
    assert (options.starting, options.ending) == (Bounds("earliest"), Bounds("latest"))
    assert options.batch_rows == 8192


def test_names_have_no_case() -> None:
    options = parse_options({"SERVERS": "a:1, b:2", "Topic": "t", "startingoffsets": "LATEST", "batchROWS": "7"})
    assert options[:2] == ("a:1;b:2", "t")
    assert (options.starting, options.batch_rows) == (Bounds("latest"), 7)


def test_offsets_by_queue() -> None:
    options = parse_options({**NEEDED, "startingOffsets": '{"0": 5, "2": "latest"}', "endingOffsets": '{"0": 9}'})
    assert options.starting == Bounds("earliest", {0: 5, 2: "latest"})
    assert options.ending == Bounds("latest", {0: 9})


def test_columns_keep_their_order() -> None:
    assert parse_options({**NEEDED, "columns": "body, topic"}).columns == ("body", "topic")
    assert ddl(("body", "queue_id")) == "body binary, queue_id int"


def test_the_columns_and_their_order_are_promised() -> None:
    assert ddl(tuple(COLUMNS)) == (
        "topic string, queue_id int, queue_offset bigint, body binary, tag string, keys string, message_id string, "
        "born_ms bigint, store_ms bigint, position bigint, properties map<string,string>, store_time timestamp"
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
        ({**NEEDED, "path": "/x"}, "a path was given", ".load()"),
        ({**NEEDED, "columns": "body,queueid"}, 'unknown column "queueid"', "did you mean queue_id?"),
        ({**NEEDED, "columns": "body,body"}, "named twice", "once"),
        ({**NEEDED, "columns": ""}, 'unknown column ""', "leave it out"),
        ({**NEEDED, "startingOffsets": "5"}, "startingOffsets is not understood: 5", "earliest, latest"),
        ({**NEEDED, "startingOffsets": "{"}, "startingOffsets is not understood: {", "earliest, latest"),
        ({**NEEDED, "endingOffsets": '{"x": 1}'}, "endingOffsets is not understood", "earliest, latest"),
        ({**NEEDED, "endingOffsets": '{"0": -1}'}, "endingOffsets is not understood", "earliest, latest"),
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


def test_errors_survive_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(PlanError("what", "why", "hint")))
    assert (type(error), error.what, error.why, error.hint) == (PlanError, "what", "why", "hint")
