"""JSON of clients is charged to the meter by its size."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.runtime import metered_json
from raftlog.work import METER, TEXT_KIB_UNITS


class Body(msgspec.Struct):
    names: list[str]


def test_what_is_built_and_parsed_is_charged_by_its_size() -> None:
    before = METER.units
    text = metered_json.encode({"names": ["x" * 1000] * 100})
    built = METER.units - before
    assert built >= 97 * TEXT_KIB_UNITS // 4
    assert metered_json.decoder(Body)(text).names[99] == "x" * 1000
    assert METER.units - before - built >= 97 * metered_json.PARSE_KIB_UNITS


def test_text_that_is_no_such_json_is_charged_all_the_same() -> None:
    before = METER.units
    with pytest.raises(msgspec.ValidationError):
        metered_json.decoder(Body)(b"[" + b"1," * 10_000 + b"1]")
    assert METER.units - before >= 19 * metered_json.PARSE_KIB_UNITS


@pytest.mark.parametrize(("text", "what"), [("[" + "{}," * 5_001 + "{}]", "objects"), ("[" + "1," * 100_001, "values")])
@pytest.mark.parametrize("kind", [bytes, str])
def test_text_of_too_many_values_is_refused_before_it_is_parsed(text: str, what: str, kind: type) -> None:
    """Parsing is one piece of work: 20,000 queues took 20 ms of the loop."""
    parse = metered_json.decoder(Any)
    with pytest.raises(msgspec.ValidationError, match=f"{what}, .* are allowed"):
        parse(text if kind is str else text.encode())


def test_as_much_as_a_heartbeat_or_a_list_of_locks_may_name_is_parsed() -> None:
    assert len(metered_json.decoder(list)(b"[" + b'{"topic":"t","codeSet":[1,2,3]},' * 4_500 + b"{}]")) == 4_501
