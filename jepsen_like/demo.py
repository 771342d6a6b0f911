"""`raftmq demo`: three nodes, a load, a leader killed in the middle of it, and the proof that no message is missing.

It sends N records with many in flight, kills the leader with -9 at a message drawn by the seed, goes on sending, and
restarts the old leader. When all three replicas have applied the same entries, it reads every queue of each of them,
and `checker_log` compares that with the answers that the client got.
"""

from __future__ import annotations

import random
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from raftmq.commands.value_types import StoreType
from raftmq.local_path import LocalPath

if TYPE_CHECKING:
    from jepsen_like.checker_log import LogVerdict
    from jepsen_like.demo_story import DemoStory
    from jepsen_like.history import HistoryWriter
    from raftmq.client import Client
    from raftmq.local.cluster import LocalCluster
    from raftmq.local.status import GroupStatus

T = TypeVar("T")

TOPIC = "packages"
QUEUES = 6
NODES = 3
IN_FLIGHT_MIN = 64
MESSAGES_MIN = 1000
CATCH_UP_S = 60.0

_CONCLUSIONS = {
    True: "[green]nothing lost, nothing twice, nothing out of order[/]",
    False: "[red]a promise was broken[/]",
    None: "[red]nothing is proved: not every queue could be read to its end[/]",
}


class DemoPlan(NamedTuple):
    """The parameters of a run, fixed before it starts."""

    seed: int
    messages: int
    file: Path | None
    strike_at: int
    """The number of sends after which the leader is killed."""
    tier: str | None
    """The object store to which the log is uploaded at the end; None for none."""
    secured: bool = False
    """True if the nodes take TLS alone and enforce users and rules."""


class DemoResult(NamedTuple):
    """The result of the run. It is printed as the last line, and decides the exit code."""

    verdict: LogVerdict
    failover_ms: int
    term_before: int
    term_after: int

    def to_json(self, seed: int) -> dict[str, Any]:
        """Returns the object that is printed as the last line of the output. `lost` and `duplicated` are sums over all
        replicas; `read` is the number of messages on the replica with the fewest.
        """
        return {
            "seed": seed,
            "acked": self.verdict.acked,
            "read": min(self.verdict.read.values(), default=0),
            "lost": self.verdict.count("lost"),
            "duplicated": self.verdict.count("duplicated"),
            "failover_ms": self.failover_ms,
            "term_before": self.term_before,
            "term_after": self.term_after,
        }


@click.command()
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Seed for the moment of the kill; it is printed, so a run can be repeated.",
)
@click.option(
    "--messages",
    type=click.IntRange(min=MESSAGES_MIN),
    default=20_000,
    show_default=True,
    help="Number of messages to send.",
)
@click.option(
    "--file", type=LocalPath(exists=True, dir_okay=False, path_type=Path), help="Send the lines of this file instead."
)
@click.option(
    "--tier",
    metavar="URL",
    type=StoreType(paths=True),
    help="Upload the log to this object store, or to a directory, and read it back.",
)
@click.option("--secured", is_flag=True, help="Over TLS, as a user: up --tls --auth.")
@click.option("--data", type=LocalPath(path_type=Path), help="Use this new directory and keep it.")
@click.option("--keep", is_flag=True, help="Keep the temporary directory.")
@click.option("--json", "as_json", is_flag=True, help="Print only the last line.")
def demo(
    seed: int | None,
    messages: int,
    file: Path | None,
    tier: str | None,
    secured: bool,
    data: Path | None,
    keep: bool,
    as_json: bool,
) -> int:
    """Kill a leader under load and prove that nothing is lost."""
    from jepsen_like.demo_input import InputError, read_lines
    from jepsen_like.demo_send import SendError
    from jepsen_like.demo_story import DemoStory
    from raftmq.commands.shared_options import ended_like_ctrl_c
    from raftmq.local.cluster_files import prepare_data_dir
    from raftmq_wire.errors import ExitCode, LocalError

    plan = make_plan(secrets.randbelow(2**31) if seed is None else seed, messages, file, tier, secured=secured)
    story = DemoStory(quiet=as_json)
    try:
        read_lines(file)
    except InputError as error:
        raise LocalError(
            str(error), "the demo sends one message per line", "raftmq demo    (it makes its own lines)", ExitCode.USAGE
        ) from None
    if data is not None and data.exists() and any(data.iterdir()):
        raise LocalError(
            f"{data} is not empty", "the demo starts from nothing", "raftmq demo --data NEW_DIR", ExitCode.REFUSED
        )
    folder = (data or Path(tempfile.mkdtemp(prefix="raftmq-demo-"))).absolute()
    prepare_data_dir(folder)
    good, remove = False, False
    try:
        with ended_like_ctrl_c():
            outcome = run(plan, folder, story)
        good = remove = outcome.verdict.valid is True
    except KeyboardInterrupt:
        remove = True
        raise
    except SendError as error:
        raise LocalError(
            str(error),
            f"the run with seed {plan.seed} proves nothing; its files are in {folder}",
            f"raftmq demo --seed {plan.seed} --messages {2 * messages}",
        ) from None
    finally:
        if data is None and not keep and remove:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            story.tell(f"kept: {folder}    (history.jsonl, n1 to n{NODES})")
    story.result(outcome.to_json(plan.seed))
    return ExitCode.OK if good else ExitCode.FAILED


def make_plan(
    seed: int, messages: int, file: Path | None, tier: str | None = None, *, secured: bool = False
) -> DemoPlan:
    """Makes the plan; the leader is killed in the middle half of the run."""
    strike_at = random.Random(seed).randrange(messages // 4, messages * 3 // 4)
    return DemoPlan(seed, messages, file, strike_at, tier, secured)


def run(plan: DemoPlan, folder: Path, story: DemoStory) -> DemoResult:
    """Runs the whole demo in an empty directory, and ends every process that it started, however the run ends."""
    from jepsen_like.history import HistoryWriter
    from raftmq.local.cluster import LocalCluster
    from raftmq.local.process import free_base_port

    cluster = LocalCluster(folder)
    story.chapter(f"Three nodes start in {folder}")
    try:
        with story.working("starting"):
            ports, secured = free_base_port(4 * NODES), plan.secured
            view, took = _timed(lambda: cluster.up(NODES, ports, tier=plan.tier, tls=secured, auth=secured))
        story.tell(f"ready after {took:.1f} s: node {view.leader} leads in term {view.term}")
        with HistoryWriter(folder / "history.jsonl", {"seed": plan.seed, "messages": plan.messages}) as history:
            return _act(plan, cluster, view, history, story)
    finally:
        if (folder / "cluster.json").exists():
            cluster.down()


def _act(
    plan: DemoPlan, cluster: LocalCluster, view: GroupStatus, history: HistoryWriter, story: DemoStory
) -> DemoResult:
    from jepsen_like.checker_log import check_log
    from jepsen_like.demo_send import longest_pause
    from jepsen_like.demo_tier import into_the_tier
    from raftmq.client import connect

    assert view.term is not None
    term_before = view.term
    with connect(cluster.servers, **cluster.client_options) as mq:
        mq.admin.create_topic(TOPIC, queues=QUEUES)
        dead = _send(plan, cluster, mq, history, story)
    pause = longest_pause(history.ops)
    story.tell(
        f"longest time without an acknowledgement: [bold]{pause.milliseconds:,} ms[/]"
        f" (after {pause.after_acks:,} of them)"
    )
    term_after = _bring_back(cluster, dead, story)
    _read(cluster, history, story)
    story.chapter("Compare what was acknowledged with what is there")
    verdict = check_log(history.ops)
    story.verdict(verdict)
    story.tell(_CONCLUSIONS[verdict.valid])
    if plan.tier is not None:
        into_the_tier(cluster, story)
    return DemoResult(verdict, pause.milliseconds, term_before, term_after)


def _send(plan: DemoPlan, cluster: LocalCluster, mq: Client, history: HistoryWriter, story: DemoStory) -> int:
    """Sends all records and kills the leader after `plan.strike_at` of them; returns the killed leader's id."""
    from jepsen_like.demo_input import records
    from jepsen_like.demo_send import Sender

    source = str(plan.file) if plan.file else "the bundled package records"
    story.chapter(f"Send {plan.messages:,} messages from {source}; the leader will die at message {plan.strike_at:,}")
    story.tell(f"seed {plan.seed}    (repeat with: raftmq demo --seed {plan.seed})")
    victims: list[int] = []

    def aim() -> Callable[[], None]:
        leader = cluster.view().leader
        assert leader is not None
        victims.append(leader)
        return cluster.aim(leader)

    with mq.producer() as producer:
        sender = Sender(producer, TOPIC, history)
        strike, took = _timed(
            lambda: sender.send_all(records(plan.file, plan.messages), plan.strike_at, IN_FLIGHT_MIN, aim)
        )
    story.tell(
        f"kill -9 on the leader, node {victims[0]}: {strike.acked:,} acknowledged, {strike.in_flight:,} in flight"
    )
    story.tell(f"{sender.acked:,} acknowledged in {took:.1f} s, failover included")
    return victims[0]


def _bring_back(cluster: LocalCluster, dead: int, story: DemoStory) -> int:
    """Restarts the dead node and waits until all replicas have applied the same entries; returns the term."""
    story.chapter(f"Node {dead} comes back and catches up")
    with story.working("catching up"):
        view, took = _timed(lambda: _caught_up(cluster, dead))
    assert view.term is not None
    story.tell(
        f"after {took:.1f} s all three have applied entry {_applied(view)[0]:,};"
        f" node {view.leader} leads in term {view.term}"
    )
    return view.term


def _caught_up(cluster: LocalCluster, dead: int) -> GroupStatus:
    from raftmq_wire.errors import LocalError

    cluster.restart(dead)
    deadline = time.monotonic() + CATCH_UP_S
    while True:
        view = cluster.view()
        applied = _applied(view)
        if view.ready and len(set(applied)) == 1 and applied[0] >= _last_index(view):
            return view
        if time.monotonic() > deadline:
            raise LocalError(
                f"the replicas did not catch up within {CATCH_UP_S:.0f} s",
                f"applied entries per node: {applied}, last entry: {_last_index(view)}",
                f"raftmq logs --data {cluster.data}",
            )
        time.sleep(0.05)


def _applied(view: GroupStatus) -> list[int]:
    return [int(node.status["applied_index"]) if node.status else -1 for node in view.nodes]


def _last_index(view: GroupStatus) -> int:
    """Returns the highest commit index of any node, -1 if no node answers. Acknowledged entries are at or below it."""
    return max((int(node.status["commit_index"]) for node in view.nodes if node.status), default=-1)


def _read(cluster: LocalCluster, history: HistoryWriter, story: DemoStory) -> None:
    from jepsen_like.demo_input import message_id_of
    from jepsen_like.read_node import read_node
    from raftmq.client import connect

    story.chapter("Read every queue of each node, nothing removed")
    with connect(cluster.servers, **cluster.client_options) as mq:
        for node in cluster.nodes:
            count, took = _timed(partial(read_node, mq, node, TOPIC, range(QUEUES), history, message_id_of))
            story.tell(f"node {node.id}: {count:,} messages in {took:.1f} s")


def _timed(action: Callable[[], T]) -> tuple[T, float]:
    began = time.monotonic()
    return action(), time.monotonic() - began
