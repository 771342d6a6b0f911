"""SQL92 filters: RocketMQ's consumers get what they select, and the node selects what RocketMQ's own parser selects."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import raftmq
from cluster.broker.filters.java_values import FilterError
from cluster.broker.filters.sql import SqlFilter
from raftmq.local.cluster import LocalCluster
from tests.compat.conftest import COMMANDS, INSTALLED, NEWEST
from tests.compat.kills import killed
from tests.support import sql_reference
from tests.support.pace import at_most
from tests.support.sql_cases import PROPERTIES, TREES, VALUES, WORDS
from tests.support.tools import lack

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

Start = Callable[..., Any]
Case = tuple[str, dict[str, str]]
FILTER = "(TAGS = 'even' AND shade ENDSWITH '4') OR price BETWEEN 50 AND 99"
PATIENCE_S = at_most(60)
ZERO = re.compile(r"(?<![\w.$])((0+\.0*|\.0+)(e[+-]?[0-9]+)?(?![0-9])|0+e[+-]?[0-9])", re.IGNORECASE)
"""A Double that is 0."""
LAST_COMMENT = re.compile(r"--(?=[^\n\r]*\Z)")


def sell(mq: raftmq.Client, topic: str, first: int) -> set[str]:
    """100 messages with prices 0 to 99; returns the keys of those that FILTER selects."""
    for price in range(100):
        mq.send(topic, b"x", key=f"p{first + price}", properties={"price": str(price)}, queue_id=price % 4)
    return {f"p{first + price}" for price in range(50, 100)}


def wait_for(reader: Any, keys: set[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not keys <= {line["key"] for line in reader.lines("message")}:
        assert time.monotonic() < deadline, keys - {line["key"] for line in reader.lines("message")}
        time.sleep(0.2)


@pytest.mark.parametrize("kind", ["java-oldest", "java", "java-newest"])
def test_consumers_get_what_they_select(live: LocalCluster, mq: raftmq.Client, start: Start, kind: str) -> None:
    topic = f"{kind}-sql"
    mq.admin.create_topic(topic, queues=4)
    start(kind, "produce", topic, "--group", f"{topic}-writers", "--count", "100", "--prefix", "j").finish()
    wanted = {f"j-{n}" for n in range(4, 100, 10)} | sell(mq, topic, 0)
    reader = start(kind, "consume", topic, "--group", f"{topic}-readers", "--sql", FILTER)
    reader.wait("ready")
    wait_for(reader, wanted)
    wanted |= sell(mq, topic, 100)
    wait_for(reader, wanted)
    with killed(live, live.wait_leader()):
        wanted |= sell(mq, topic, 200)
        wait_for(reader, wanted)
    reader.finish()
    assert {line["key"] for line in reader.lines("message")} == wanted, "and nothing else"


@pytest.mark.parametrize("kind", ["java-oldest", "java", "java-newest"])
def test_a_consumer_with_a_wrong_filter_does_not_start(mq: raftmq.Client, start: Start, kind: str) -> None:
    topic = f"{kind}-sql-wrong"
    mq.admin.create_topic(topic, queues=1)
    reader = start(kind, "consume", topic, "--group", f"{topic}-readers", "--sql", "price LIKE 'x'")
    (refused,) = reader.wait("refused")
    assert refused["code"] == 23
    assert "at character 7: unexpected LIKE" in refused["remark"]
    reader.finish()


def test_rocketmq_s_own_parser_selects_the_same(tell: Callable[[str], None]) -> None:
    if not (INSTALLED / f"java-{NEWEST}" / "classes" / "FilterTwin.class").exists():
        lack("mvn", why="make test-compat builds RocketMQ's filter with it")
    number = int(os.environ.get("RAFTMQ_COMPAT_SEED") or 1)
    cases = drawn_cases(number)
    pairs = Counter[tuple[str, str]]()
    for (text, properties), theirs in zip(cases, java_outcomes(cases), strict=True):
        ours = outcome(text, properties)
        pairs[theirs, ours] += 1
        assert ours == theirs or differs_on_purpose(text, properties, theirs), (text, properties, theirs, ours)
    tell(f"{len(cases)} pairs of a filter and properties, seed {number}: (theirs, ours) {dict(pairs)}")
    assert {("selected", "selected"), ("passed", "passed"), ("refused", "refused")} <= pairs.keys()


def drawn_cases(number: int) -> list[Case]:
    """Trees, sequences of words, sequences of characters, and every value with every operator."""
    cases: list[Case] = []
    characters = st.text(alphabet="ab5.0eEL'-+<>=() \n*/", max_size=14)
    texts = st.one_of(
        TREES.map(sql_reference.render),
        st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join),
        st.tuples(st.sampled_from(("", "a ", "a = ")), characters).map("".join),
    )

    @seed(number)
    @settings(
        max_examples=6000,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(texts, PROPERTIES)
    def draw(text: str, properties: dict[str, str]) -> None:
        cases.append((text, properties))

    draw()
    for at, value in enumerate(VALUES):
        properties = {"a": value, "b": VALUES[(at * 7 + number) % len(VALUES)]}
        for sign in ("=", "<>", "<", "<=", ">", ">="):
            for other in ("5", "2147483648", "5.0", "-5.0", "TRUE", "'5'", "b"):
                cases += [(f"a {sign} {other}", properties), (f"{other} {sign} a", properties)]
    return cases


def java_outcomes(cases: list[Case]) -> list[str]:
    encoded = lambda text: base64.b64encode(text.encode()).decode()  # noqa: E731
    lines = ["\t".join(map(encoded, (text, *sum(properties.items(), ())))) for text, properties in cases]
    done = subprocess.run(COMMANDS["filter"], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    return done.stdout.split()


def outcome(text: str, properties: dict[str, str]) -> str:
    try:
        return "selected" if SqlFilter(text).matches(properties) else "passed"
    except FilterError:
        return "refused"


def differs_on_purpose(text: str, properties: dict[str, str], theirs: str) -> bool:
    """docs/adr/0052: RocketMQ ignores what follows the filter, takes a zero with a point for too small, and takes `--`
    without a line end behind it for two signs."""
    text = LAST_COMMENT.sub("- -", text)
    try:
        SqlFilter(text)
    except FilterError as error:
        if outcome(text, properties) == theirs:
            return True
        return error.reason.startswith("unexpected") and outcome(text[: error.at - 1], properties) == theirs
    return theirs == "refused" and ZERO.search(text) is not None
