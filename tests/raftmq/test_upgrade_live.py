"""From a build that knows one level less to this tree, back, and forward again, under load, with nodes that die.

No send of ours may end in an error. Nothing acknowledged may be lost, and nothing may be there twice: messages, timers,
transactions, offsets, tier. RocketMQ's Java client sends and consumes beside ours; it may store twice what it sends
twice (docs/adr/0011), and it gives up some sends that no node can save (EXCUSES): its application sends those again.
After `finalize`, the older build refuses directory, snapshot, backup and tier.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from raftmq.client import Client, Message, RaftMQError, Resolution, SendResult, connect
from tests.compat.conftest import INSTALLED, JAVA, ForeignClient
from tests.support.distributions import run
from tests.support.pace import at_most
from tests.support.two_versions import QUEUES, Cluster, both_commands, messages
from tests.support.wait_until import wait

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.timeout(900)]

PATIENCE_S = at_most(120)
PLAIN, TIMED, BOTH = "plain", "timed", "both"
DECISIONS = "COMMIT_MESSAGE,COMMIT_MESSAGE,ROLLBACK_MESSAGE"
PATIENT = ("--timeout-ms", "60000")
ANEW = ("--timeout-ms", "10000", "--again", "200")
SENDERS = (
    (
        "java-plain",
        "java",
        "--group",
        "java-plain",
        "--prefix",
        "plain",
        "--threads",
        "64",
        "--rate",
        "1000",
        *ANEW,
    ),
    (
        "java-timed",
        "java",
        "--group",
        "java-timed",
        "--prefix",
        "timed",
        "--delay-ms",
        "3000",
        "--pace-ms",
        "50",
        *ANEW,
    ),
    (
        "java-both",
        "java-transactions",
        "java-both",
        "both",
        "100000",
        DECISIONS,
        "DECIDED",
        "100",
        "10000",
        "45000",
        "200",
    ),
)
"""Topic, kind and arguments of the Java clients that send. Java ends a transaction with a oneway request, which a
killed node loses: the client is asked again after `transaction.check_interval_ms`, 30 s."""
EXCUSES = ("RemotingConnectException", "RemotingSendRequestException", "RemotingTooMuchRequestException")
"""What Java may say of a send that it gives up. The names of its route all led to one node, which was down by then: it
asks for one every 30 s, and a leader of the older build leads several names to the last node that was not restarted.
Or a connection was closed while another of its threads made the next one: then it never ends the requests on the first
(`channelInactive` of its `NettyRemotingClient` fails only those of a connection that stands in its table)."""
CLOSED = re.compile(r"(?:channelInactive|exceptionCaught)\b.*\bid=(\w+)\]")
TIMED_OUT = re.compile(r"close socket because of timeout,.*\bid=(\w+)\]")
REFUSES = "a newer RaftMQ was finalized there"
"""In the older build's error about a file of the newer level."""
PEERS_REFUSE = "so it would misread the log: start it with the newer version"
"""In its log, if all its files are of its own level, such as a checkpoint from before the end of the upgrade."""


class Load:
    """Clients that never stop, and the answers that they got."""

    def __init__(self, servers: str) -> None:
        self.acked: dict[str, set[bytes]] = {PLAIN: set(), TIMED: set(), BOTH: set()}
        self.rolled_back: set[bytes] = set()
        self.errors: list[str] = []
        self.consumed: set[bytes] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._consumes = threading.Event()
        self._mq = connect(servers, timeout_s=PATIENCE_S)
        for topic in self.acked:
            self._mq.admin.create_topic(topic, queues=QUEUES)
        works = [self._send, self._time, self._decide]
        self._senders = [threading.Thread(target=self._run, args=(work,)) for work in works]
        self._consumer = threading.Thread(target=self._run, args=(self._consume,))
        for thread in (*self._senders, self._consumer):
            thread.start()

    def stop(self) -> None:
        """Sends no more, and waits for every answer and every message."""
        self._stopping.set()
        for thread in self._senders:
            thread.join()
        self._consumes.set()
        self._consumer.join()
        self._mq.close()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the test shows it
            self.errors.append(f"{work.__name__}: {error!r}")

    def _answered(self, topic: str, body: bytes, future: Future[SendResult]) -> None:
        error = future.exception()
        with self._lock:
            if error is None:
                self.acked[topic].add(body)
            else:
                self.errors.append(f"{body!r}: {error!r}")

    def _send(self) -> None:
        """A thousand messages a second."""
        with self._mq.producer(timeout_s=PATIENCE_S) as producer:
            began_s = time.monotonic()
            for number in itertools.count():
                if self._stopping.is_set():
                    break
                body = b"plain %d" % number
                producer.send_soon(PLAIN, body).add_done_callback(partial(self._answered, PLAIN, body))
                time.sleep(max(0.0, began_s + number / 1000 - time.monotonic()))

    def _time(self) -> None:
        """Messages that are due a few seconds later."""
        with self._mq.producer(timeout_s=PATIENCE_S) as producer:
            for number in itertools.count():
                if self._stopping.wait(0.05):
                    break
                body = b"timed %d" % number
                future = producer.send_soon(TIMED, body, delay=1 + number % 7)
                future.add_done_callback(partial(self._answered, TIMED, body))

    def _decide(self) -> None:
        """Transactions, of which every third is rolled back."""
        with self._mq.transaction_producer(
            "deciders", check=lambda _: Resolution.UNDECIDED, timeout_s=PATIENCE_S
        ) as own:
            for number in itertools.count():
                if self._stopping.wait(0.1):
                    break
                body = b"both %d" % number
                transaction = own.transaction(BOTH, body).begin()
                if number % 3 == 2:
                    transaction.rollback()
                    self.rolled_back.add(body)
                else:
                    transaction.commit()
                    self.acked[BOTH].add(body)

    def _consume(self) -> None:
        """A group that commits its offsets as it goes, member after member."""
        while not self._consumes.is_set():
            with self._mq.consumer("readers", PLAIN) as consumer:
                until_s = time.monotonic() + 5
                while time.monotonic() < until_s:
                    message = consumer.poll(0.5)
                    if message is not None:
                        self.consumed.add(message.body)


class JavaLoad:
    """Java clients: threads that send, one that sends delayed messages, transactions, and a push consumer."""

    def __init__(self, servers: str, home: Path, ends: ExitStack) -> None:
        self._home, self._servers, self._ends = home, servers, ends
        with connect(servers) as mq:
            for topic, *_ in SENDERS:
                mq.admin.create_topic(topic, queues=QUEUES)

        self.consumer = self._start("java", "consume", "java-plain", "--group", "java-readers", *PATIENT)
        self.consumer.wait("ready")
        self.senders: dict[str, ForeignClient] = {}
        for topic, kind, *arguments in SENDERS:
            self.senders[topic] = self._start(kind, "produce", topic, *arguments)
            self.senders[topic].wait("send")
        self.acked: dict[str, set[str]] = {}
        self.errors: list[dict[str, Any]] = []
        self.sends: list[dict[str, Any]] = []
        self.given_up: list[dict[str, Any]] = []
        self.rolled_back: set[str] = set()

    def _start(self, kind: str, what: str, topic: str, *arguments: str) -> ForeignClient:
        client = ForeignClient(kind, self._home, what, self._servers, topic, *arguments)
        self._ends.callback(client.kill)
        return client

    def stop(self) -> None:
        """Ends the senders, and notes their answers."""
        for topic, sender in self.senders.items():
            lines = sender.finish(timeout_s=at_most(120))
            sends = [line for line in lines if line["event"] == "send"]
            self.given_up += [line for line in lines if line["event"] == "gave up"]
            self.sends += sends
            self.errors += [line for line in sends if line.get("error") or line.get("status", "SEND_OK") != "SEND_OK"]
            self.rolled_back |= {line["key"] for line in sends if line.get("state") == "ROLLBACK_MESSAGE"}
            self.acked[topic] = {line["key"] for line in sends} - self.rolled_back

    def unexcused(self) -> list[str]:
        """The sends that Java gave up although a node could have answered."""
        logs = [path.read_text(errors="replace") for path in self._home.glob("logs/rocketmqlogs/*.log")]
        closed = {name for log in logs for name in CLOSED.findall(log)}
        silent = [name for log in logs for name in TIMED_OUT.findall(log) if name not in closed]
        errors = [line.get("error") or line["about"] for line in self.given_up]
        return silent + [error for error in errors if not any(excuse in error for excuse in EXCUSES)]


def bodies(mq: Client, topic: str) -> Iterator[bytes]:
    """Their bodies."""
    return (each.body for each in messages(mq, topic))


def keys(mq: Client, topic: str) -> Iterator[str]:
    """Their keys."""
    return (str(each.key) for each in messages(mq, topic))


def once_settled(acked: set[Any], read: Callable[[], Iterator[Any]], topic: str) -> Counter[Any]:
    """Reads again until all that was acknowledged is there: timers may not be due yet."""
    assert acked, topic
    there: Counter[Any] = Counter()

    def settled() -> bool:
        nonlocal there
        there = Counter(read())
        return acked <= there.keys()

    wait(settled, f"{topic}: lost", progress=lambda: there, every_s=1)
    return there


def judge(servers: str, load: Load) -> None:
    """Each acknowledged message is there once; nothing that was rolled back is."""
    assert not load.errors, str(load.errors[:3])
    with connect(servers) as mq:
        for topic, acked in load.acked.items():
            there = once_settled(acked, partial(bodies, mq, topic), topic)
            assert [body for body, times in there.items() if times > 1] == [], f"{topic}: twice"
            assert load.rolled_back & there.keys() == set()
        with mq.consumer("readers", PLAIN, follow=False) as consumer:
            load.consumed |= {message.body for message in consumer}
        assert load.acked[PLAIN] - load.consumed == set(), "the group's offsets passed over these"


def judge_repeats(same: list[Message], sent: dict[str, Any]) -> None:
    """Each copy is a request of its own, with its own born time, that Java made within the one call of `send`."""
    assert len({each.born_ms for each in same}) == len(same), f"one request is there twice: {same}, {sent}"
    if "started" in sent:
        began, ended = sent["started"] * 1000 - 1, sent["ended"] * 1000 + 1
        assert all(began <= each.born_ms <= ended for each in same), f"{same}, {sent}"


def judge_java(servers: str, load: JavaLoad, seconds: float) -> Iterator[str]:
    """Each acknowledged message is there once, or as often as the client sent it. Yields what was found."""
    assert not load.errors, str(load.errors[:3])
    plain = len(load.acked["java-plain"])
    yield f"{len(load.sends)} sends of Java, 0 errors; {plain / seconds:.0f} plain ones a second"
    given_up = Counter(line["key"].partition("-")[0] for line in load.given_up)
    yield f"tries that Java gave up: {dict(given_up)}"
    assert not (unexcused := load.unexcused()), unexcused[:3]
    sends = {line["key"]: line for line in load.sends}
    with connect(servers) as mq:
        for topic, acked in load.acked.items():
            once_settled(acked, partial(keys, mq, topic), topic)
            copies: dict[str, list[Message]] = {}
            for message in messages(mq, topic):
                copies.setdefault(message.message_id, []).append(message)
            repeated = [same for same in copies.values() if len(same) > 1]
            for same in repeated:
                judge_repeats(same, sends[str(same[0].key)])
            places = [(each.queue_id, each.queue_offset, each.born_ms, each.store_ms) for each in chain(*repeated[:1])]
            yield f"{topic}: {len(repeated)} sent again by Java; the first (queue, offset, born, stored): {places}"
            assert load.rolled_back & {str(each[0].key) for each in copies.values()} == set()
    acked = load.acked["java-plain"]
    deadline = time.monotonic() + at_most(60)
    while (missing := acked - {line["key"] for line in load.consumer.lines("message")}) and time.monotonic() < deadline:
        time.sleep(1)
    assert missing == set(), "the group's offsets passed over these"


def with_java() -> bool:
    """Returns True if `make test-compat` has built the Java client."""
    return (INSTALLED / f"java-{JAVA}" / "lib").is_dir()


def there_and_back(cluster: Cluster) -> None:
    """Every node to the newer version, back, and there again; then the end of the upgrade."""
    older, newer = cluster.older, cluster.newer
    before = json.loads(cluster.do(newer, "upgrade", "plan", "--json"))
    assert before["known"] == before["level"] + 1
    verbs = (
        ["topic", "list"],
        ["group", "list"],
        ["node", "list"],
        ["user", "list"],
        ["status"],
        ["config", "show"],
        ["links"],
    )
    for verb in verbs:
        cluster.do(newer, *verb)
    for node in (1, 2, 3):
        cluster.change(node, newer)
        leader = cluster.leader()
        if node == 2:  # half way: the leader dies too, whichever version it runs
            cluster.change(leader, newer if leader <= node else older)
    cluster.do(newer, "topic", "create", "mixed")
    for verb in verbs:
        cluster.do(older, *verb)
    cluster.do(older, "upgrade", "run")
    for node in (3, 2, 1):
        cluster.change(node, newer)
    cluster.kills.append((time.time(), 3))
    cluster.do(newer, "kill", "3")
    named = cluster.do(newer, "upgrade", "finalize", "--yes", fails=True)
    assert "node 3 (voter) is down" in named
    cluster.do(newer, "restart", "3")
    raised = json.loads(cluster.do(newer, "upgrade", "finalize", "--yes", "--json"))
    assert (raised["before"], raised["level"]) == (before["level"], before["known"])
    cluster.do(newer, "topic", "create", "after")
    time.sleep(5)


def test_forward_back_and_forward_under_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older, newer = both_commands(tmp_path)
    cluster = Cluster(tmp_path, older, newer)
    with ExitStack() as ends:
        ends.callback(cluster.do, newer, "down")
        java = JavaLoad(cluster.servers, tmp_path, ends) if with_java() else None
        load, began_s = Load(cluster.servers), time.monotonic()
        try:
            there_and_back(cluster)
        finally:
            load.stop()
            seconds = time.monotonic() - began_s
            if java is not None:
                java.stop()
        ours = len(load.acked[PLAIN]) / seconds
        told = [
            f"{sum(map(len, load.acked.values()))} sends of ours in {seconds:.0f} s; {ours:.0f} plain ones a second"
        ]
        told.append(f"kills: {cluster.kills}")
        judge(cluster.servers, load)
        try:
            if java is not None:
                told += judge_java(cluster.servers, java, seconds)
        finally:
            with capsys.disabled():
                sys.stdout.write("\n    " + "\n    ".join(told) + "\n")
        assert cluster.json(newer, "topic", "describe", "after", "--json")["topic"]["changed_by"]
        cluster.do(newer, "backup", "create", "--to", str(tmp_path / "backups"))
        cluster.do(newer, "kill", "1")
        older_is_refused(cluster, "its directory")
        cluster.do(newer, "kill", "1")
        state = cluster.data / "n1" / "data" / "state"
        state.rename(tmp_path / "state-away")
        older_is_refused(cluster, "its snapshot")
    (backup,) = (tmp_path / "backups").iterdir()
    refused_backup = run(older, "backup", "verify", str(backup), cwd=tmp_path)
    assert REFUSES in refused_backup.stderr
    assert run(newer, "backup", "verify", str(backup), cwd=tmp_path).returncode == 0
    refused_tier = run(older, "restore", "--from-tier", cluster.tier, "--into", str(tmp_path / "r"), cwd=tmp_path)
    assert REFUSES in refused_tier.stderr
    with pytest.raises(RaftMQError):
        connect(cluster.servers, timeout_s=1).send(PLAIN, b"nobody is there")


def older_is_refused(cluster: Cluster, what: str) -> None:
    """Node 1, which is down, does not start with the older build, which says why; it starts with the newer one."""
    log = cluster.data / "n1" / "node.log"
    before = len(log.read_text())
    cluster.do(cluster.older, "restart", "1", fails=True)
    told = log.read_text()[before:]
    assert REFUSES in told or PEERS_REFUSE in told, what
    cluster.do(cluster.newer, "restart", "1")
