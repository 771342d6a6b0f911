"""Every request code that a node serves, called with things of another user and with ones that do not exist: both get
the same answer, nothing changes, and nothing is told.

How a code is judged follows from its row, but for three sets that are kept by hand: what tells nothing of one user,
what is for a Super alone, and what is judged by more than its row says. So a row that judges by no name, although its
request tells something of a user, fails here. Which action a row asks for is not seen here: docs/access-table.md and
tests/cluster/remoting/test_route_rights.py have that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.broker.groups.reply_notes import TTL_MIN_MS
from cluster.requests.judge import needs_of
from cluster.requests.table import ROWS, SUPERS_ALONE, VERBS
from raftmq_wire.codes import RequestCode as Code
from statemachine.access.rules import Kind
from tests.support.sim_cluster import SimCluster
from tests.support.two_users import KEY, MAL, PID, VIC, Said, TwoUsers, key_file, make, slice_body

NOTHING = {
    Code.GET_BROKER_CONFIG,
    Code.GET_BROKER_RUNTIME_INFO,
    Code.CHECK_CLIENT_CONFIG,
    Code.GET_BROKER_CLUSTER_INFO,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    Code.GET_KVLIST_BY_NAMESPACE,
    Code.GET_TOPICS_BY_CLUSTER,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    Code.ENTRIES_AT,  # numbers of entries, which whoever may see the cluster may know
}
"""Codes that tell nothing of one user, so that what they name is not judged. No row says so: this is the promise."""
FOUND = {
    Code.SEND_MESSAGE,
    Code.SEND_MESSAGE_V2,
    Code.SEND_BATCH_MESSAGE,
    Code.SEND_REPLY_MESSAGE,
    Code.SEND_REPLY_MESSAGE_V2,
    Code.QUERY_MESSAGE,
    Code.UPDATE_CONSUMER_OFFSET,
    Code.HEART_BEAT,
    Code.UNREGISTER_CLIENT,
    Code.LOCK_BATCH_MQ,
    Code.UNLOCK_BATCH_MQ,
    Code.GET_CONSUMER_RUNNING_INFO,
    Code.STAGE_MESSAGES,
}
"""Codes that are judged by what they name, and by more: who is registered, whose session it is, or
whose message a key finds."""
SUPER = {
    Code.AUTH_CREATE_USER,
    Code.AUTH_UPDATE_USER,
    Code.AUTH_DELETE_USER,
    Code.AUTH_GET_USER,
    Code.AUTH_LIST_USER,
    Code.AUTH_CREATE_ACL,
    Code.AUTH_UPDATE_ACL,
    Code.AUTH_DELETE_ACL,
    Code.AUTH_GET_ACL,
    Code.AUTH_LIST_ACL,
    Code.SET_AUTH_MODE,
}
"""Codes for a Super alone."""
STORED = FOUND | {verb.code for verb in ROWS if verb.stored}
"""Codes with cases of their own below."""
NAMED = VERBS.keys() - NOTHING - STORED - SUPER
"""All other codes: each is asked with the names that its row finds in it."""
ABSENT = 1 << 40
NOTES_S = TTL_MIN_MS / 1000 + 1
INSIDE = 3
"""No message begins so many bytes behind the beginning of another."""
NOTICES = {Code.NOTIFY_CONSUMER_IDS_CHANGED}
"""What a node tells members of a group that changed."""
REPLY = {"a": "mal-producers", "b": "mal-topic", "e": "0", "g": "1"}


class Case(NamedTuple):
    """One request of mal in two forms: with a thing of vic, and with one that does not exist."""

    code: int
    ext: dict[str, str]
    absent: dict[str, str]
    body: bytes = b""
    absent_body: bytes = b""
    acts: bool = False
    """True if the request does something with mal's own things in both forms."""

    @property
    def name(self) -> str:
        """The test's name for it."""
        more = [f"{name}={value}"[:30] for name, value in self.ext.items() if "vic" in value and len(value) < 20]
        return " ".join([str(int(self.code)), *more])


def stored_cases(both: TwoUsers) -> Iterator[Case]:
    """Yields the requests that name a thing by a position, id, handle, client id, session or attempt."""
    position = both.position
    inside = position + INSIDE
    there, nowhere = {"offset": str(position)}, {"offset": str(inside)}
    yield Case(Code.VIEW_MESSAGE_BY_ID, there, nowhere)
    for more in ({}, {"topic": "vic-topic"}):
        to = {"destGroup": "mal-group", **more}
        yield Case(Code.CLONE_GROUP_OFFSET, to | {"srcGroup": "vic-group"}, to | {"srcGroup": "no-group"})
    times = {"beginTimestamp": "0", "endTimestamp": str(1 << 50), "maxNum": "8"}
    for topic in ("mal-topic", "%RETRY%mal-group"):
        for unique in ({}, {"_UNIQUE_KEY_QUERY": "true"}):
            query = {"topic": topic, **times, **unique}
            yield Case(Code.QUERY_MESSAGE, query | {"key": KEY}, query | {"key": "no-such-key"})
            ids = both.message_id(position), both.message_id(inside)
            yield Case(Code.QUERY_MESSAGE, query | {"key": ids[0]}, query | {"key": ids[1]})
    for more in ({}, {"originTopic": "mal-topic"}, {"originTopic": "%RETRY%mal-group"}, {"delayLevel": "-1"}):
        back = {"group": "mal-group", "originMsgId": "x", **more}
        yield Case(Code.CONSUMER_SEND_MSG_BACK, back | there, back | nowhere)
    directly = {"consumerGroup": "mal-group", "clientId": "mal-client", "brokerName": "b"}
    ids = both.message_id(position), both.message_id(inside)
    yield Case(Code.CONSUME_MESSAGE_DIRECTLY, directly | {"msgId": ids[0]}, directly | {"msgId": ids[1]})
    for code in (Code.CONSUME_MESSAGE_DIRECTLY, Code.GET_CONSUMER_RUNNING_INFO):
        own = {"consumerGroup": "mal-group", "msgId": ids[1]}
        yield Case(code, own | {"clientId": "vic-client"}, own | {"clientId": "no-client"})
    for topic in ("vic-topic", "mal-topic"):
        handle = both.handle._replace(topic=topic)
        recall = {"topic": topic, "producerGroup": "p"}
        absent = {"recallHandle": handle._replace(position=ABSENT).encode()}
        if topic == "mal-topic":
            yield Case(Code.RECALL_MESSAGE, recall | {"recallHandle": handle.encode()}, recall | absent)
    both.sim.loop.run_for(NOTES_S)  # no node has started so lately that it can have lost what vic asked
    yield from half_cases(both)
    yield from slice_cases(both)
    yield from client_cases(both)
    yield from session_cases()


def half_cases(both: TwoUsers) -> Iterator[Case]:
    """The end of a half message, whose position is what its answer named."""
    position = str(int(both.half.ext["queueOffset"]))
    end = {"producerGroup": "vic-producers", "msgId": "vic-half"}
    for topic in ({}, {"topic": "mal-topic"}):
        for wish in ("8", "12", "0"):
            asked = {**end, **topic, "commitOrRollback": wish}
            there = {"tranStateTableOffset": position, "commitLogOffset": position}
            absent = {"tranStateTableOffset": str(ABSENT), "commitLogOffset": str(ABSENT)}
            yield Case(Code.END_TRANSACTION, asked | there, asked | absent)


def slice_cases(both: TwoUsers) -> Iterator[Case]:
    """A slice for an attempt."""
    stage = {"sequence": "1", "topic": "mal-topic"}
    there, absent = {"attempt": str(both.attempt)}, {"attempt": str(ABSENT)}
    yield Case(Code.STAGE_MESSAGES, stage | there, stage | absent, slice_body(), slice_body())


def client_cases(both: TwoUsers) -> Iterator[Case]:
    """Requests with another's client id."""
    unregister = {"producerGroup": "vic-producers"}
    yield Case(Code.UNREGISTER_CLIENT, unregister | {"clientID": "vic-client"}, unregister | {"clientID": "no-client"})
    for code in (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ):
        yield Case(code, {}, {}, both.locks("vic-client"), both.locks("no-client"))
    for code in (Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2):
        for client_id in ("vic-client", "no-client"):
            properties = "CORRELATION_ID\x01{0}\x02REPLY_TO_CLIENT\x01{1}\x02MSG_TYPE\x01reply\x02TTL\x0150\x02"
            fields = [properties.format("a guess", client_id), properties.format("a guess", "no-client")]
            long = {"topic": "mal-topic", "producerGroup": "p", "queueId": "0", "bornTimestamp": "1", "flag": "0"}
            long |= {"defaultTopic": "t", "defaultTopicQueueNums": "4", "sysFlag": "0"}
            exts = [
                {**REPLY, "i": each} if code == Code.SEND_REPLY_MESSAGE_V2 else {**long, "properties": each}
                for each in fields
            ]
            yield Case(code, exts[0], exts[1], b"forged", b"forged")
    for client_id, group in (("vic-client", "mal-producers"), ("mal-client", "vic-producers")):
        bodies = [
            json.dumps({"clientID": name, "producerDataSet": [{"groupName": other}]}).encode()
            for name, other in ((client_id, group), (client_id.replace("vic", "no"), group.replace("vic", "no")))
        ]
        yield Case(Code.HEART_BEAT, {}, {}, bodies[0], bodies[1], acts=True)


def session_cases() -> Iterator[Case]:
    """Requests in another's session: of its sequences the first is stored, the second comes next."""
    short = {"a": "g", "b": "mal-topic", "c": "t", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}
    long = {"producerGroup": "g", "topic": "mal-topic", "defaultTopic": "t", "defaultTopicQueueNums": "4"}
    long |= {"queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": ""}
    batch = short | {"m": "true"}
    commit = {"consumerGroup": "mal-group", "topic": "mal-topic", "queueId": "0", "commitOffset": "0"}
    codes = (
        (Code.SEND_MESSAGE_V2, short, b"mine"),
        (Code.SEND_MESSAGE, long, b"mine"),
        (Code.SEND_BATCH_MESSAGE, batch, slice_body()),
        (Code.UPDATE_CONSUMER_OFFSET, commit, b""),
    )
    for code, fields, body in codes:
        for sequence in (1, 2, 1 << 40):
            named = {**fields, "raftmqSeq": str(sequence), "raftmqLow": "1" if sequence < 3 else str(sequence)}
            absent = {**named, "raftmqPid": b"nobody's session".hex()}
            yield Case(code, {**named, "raftmqPid": PID.hex()}, absent, body, body, acts=True)


class Names(dict[str, str]):
    """Ext fields, each of which contains its own name."""

    def get(self, name: str, default: Any = None) -> Any:
        return f"<{name}>"


BODIES = {
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: b'{"groupName":"<groupName>"}',
    Code.QUERY_ASSIGNMENT: b'{"topic":"<topic>","consumerGroup":"<consumerGroup>"}',
}


def named_cases() -> Iterator[Case]:
    """Yields each code that is judged by the names in it, with vic's names and with ones that do not exist."""
    for code in sorted(NAMED):
        needs = needs_of(code, Names(), BODIES.get(Code(code), b""), "c")
        assert needs, f"{code} names nothing"
        kinds = {need.name: need.kind for need in needs}
        forms: list[tuple[dict[str, str], bytes]] = []
        for owner in ("vic", "no"):
            names = {field: f"{owner}-{'topic' if kind is Kind.TOPIC else 'group'}" for field, kind in kinds.items()}
            body = BODIES.get(Code(code), b"")
            for field, name in names.items():
                body = body.replace(field.encode(), name.encode())
            forms.append(({field.strip("<>"): name for field, name in names.items()}, body))
        (ext, body), (absent, absent_body) = forms
        yield Case(code, ext, absent, body, absent_body)


def leveled(both: TwoUsers, said: Said, case: Case, ext: dict[str, str]) -> tuple[object, ...]:
    """The answer without what the request itself has named."""
    if case.acts:  # it has got the next place of mal's own topic
        return said.code, sorted(said.ext)
    named = {value for value in ext.values() if len(value) > 2}
    named |= {"vic-group", "no-group", "vic-topic", "no-topic", "vic-client", "no-client"}
    named |= {str(both.position), str(both.position + INSIDE)}
    text = repr((said.remark, sorted(said.ext.items()), said.body))
    for name in sorted(named, key=len, reverse=True):
        text = text.replace(name, "<named>")
    return said.code, re.sub(r"attempt \d+", "attempt <named>", text)


@pytest.fixture
def both(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TwoUsers]:
    mode, follower = getattr(request, "param", ("enforce", False))
    overrides: dict[str, Any] = {"auth.key_file": str(key_file(tmp_path))}
    with SimCluster(53, **overrides) as sim:
        yield make(sim, mode, follower=follower)


def wrong_with(both: TwoUsers, case: Case) -> str:
    """Asks both forms; returns what is wrong, "" if nothing is."""
    registered = both.registrations()
    both.sim.settle()
    told, heard, rows = len(both.vic.said), len(both.mal.said), both.rows()
    answers = []
    for ext, body in ((case.ext, case.body), (case.absent, case.absent_body)):
        got = both.ask(both.mal, MAL, case.code, ext, body, limit_s=25)
        answers.append(leveled(both, got, case, ext))
    both.sim.settle()
    if answers[0] != answers[1]:
        return f"with vic's {answers[0]}, with nobody's {answers[1]}"
    if read := [topic for topic in both.mal.marks(heard) if not topic.startswith(("mal", "shared"))]:
        return f"mal got messages of {read}"
    for who, since in ((both.mal, heard), (both.vic, told)):
        if asked := [each.code for each in who.said[since:] if not each.is_answer and each.code not in NOTICES]:
            return f"{'mal' if who is both.mal else 'vic'} was asked {asked}"
    if not case.acts and both.rows() != rows:
        return "rows have changed"
    return "" if both.registrations() == registered else f"{registered} became {both.registrations()}"


def next_of_vic(both: TwoUsers) -> None:
    """What vic does next in every session of his is done."""
    before = len(both.sim.leader().bodies("vic-topic"))
    for sequence in (2, 3):
        assert both.send(both.vic, VIC, "vic-topic", pid=PID, seq=sequence, low=1).code == 0
    assert both.send(both.vic, VIC, "vic-topic").code == 0
    assert len(both.sim.leader().bodies("vic-topic")) == before + 3, "an acknowledged message of vic is nowhere"


def test_what_is_for_a_super_alone_stays_so() -> None:
    assert SUPERS_ALONE == SUPER


def test_what_tells_nothing_of_one_user_names_no_topic_and_no_group() -> None:
    assert VERBS.keys() > NOTHING
    for code in NOTHING:
        needs = needs_of(code, Names(), BODIES.get(code, b""), "c")
        assert needs is not None
        assert {need.kind for need in needs} <= {Kind.CLUSTER}, code


def test_every_code_that_is_judged_by_what_is_stored_has_a_case(both: TwoUsers) -> None:
    assert {case.code for case in stored_cases(both)} == STORED


@pytest.mark.parametrize("both", [("enforce", False), ("enforce", True)], indirect=True, ids=["leader", "follower"])
def test_names_of_others_are_as_good_as_names_of_nobody(both: TwoUsers) -> None:
    assert faults(both, named_cases()) == []


@pytest.mark.parametrize("both", [("enforce", False), ("enforce", True)], indirect=True, ids=["leader", "follower"])
def test_things_of_others_are_as_good_as_things_of_nobody(both: TwoUsers) -> None:
    assert faults(both, stored_cases(both)) == []
    next_of_vic(both)


def faults(both: TwoUsers, cases: Iterator[Case]) -> list[str]:
    """What is wrong with each of these cases."""
    return [f"{case.name}: {what}" for case in cases if (what := wrong_with(both, case))]


@pytest.mark.parametrize("both", [("observe", False), ("observe", True)], indirect=True, ids=["leader", "follower"])
def test_what_is_only_observed_passes_and_is_counted(both: TwoUsers) -> None:
    position, half = str(both.position), str(int(both.half.ext["queueOffset"]))
    end = {"producerGroup": "vic-producers", "msgId": "vic-half", "commitOrRollback": "12"}
    end |= {"tranStateTableOffset": half, "commitLogOffset": half}
    back = {"group": "mal-group", "originMsgId": "x", "offset": position}
    handle = both.handle._replace(topic="mal-topic")
    asked = (
        (Code.VIEW_MESSAGE_BY_ID, {"offset": position}),
        (Code.CONSUMER_SEND_MSG_BACK, back),
        (Code.RECALL_MESSAGE, {"topic": "mal-topic", "recallHandle": handle.encode()}),
        (Code.END_TRANSACTION, end),
    )
    for code, ext in asked:
        before = both.denials()
        answer = both.ask(both.mal, MAL, code, ext)
        assert (answer.code, both.denials() - before) == (0, 1), (code, answer)
    before = both.denials()
    directly = {"consumerGroup": "mal-group", "clientId": "mal-client", "msgId": both.message_id(both.position)}
    both.ask(both.mal, MAL, Code.CONSUME_MESSAGE_DIRECTLY, directly, limit_s=25)
    assert both.mal.marks() == ["vic-topic"]
    assert both.denials() > before
    assert not both.sim.leader().state.halves.pending.count
