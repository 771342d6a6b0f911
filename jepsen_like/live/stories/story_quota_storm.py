"""The story `quota-storm`: quotas change all the time, while clients send and ignore the answers.

First nothing else happens: no node may end, the leader must stay, no turn of an event loop may be long, and each
invalid request must be refused. Then the leader is killed at the moment of a change, again and again. Then there are as
many rules as a cluster may have. At last all are taken away, and sends go through.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator
from typing import Final

from jepsen_like.live.probes.long_turns import TURN_MAX_S, ask_turns
from jepsen_like.live.probes.node_watch import Watch
from jepsen_like.live.probes.noise import Noise
from jepsen_like.live.probes.noise_check import Window
from jepsen_like.live.probes.quota_changes import LIMITS, WORKERS, Changes, QuotaChange, QuotaRows, body_of, others
from jepsen_like.live.stories.quota_scene import ROWS_AT_ONCE, QuotaScene, quota_scene, refused_by_quota
from jepsen_like.live.stories.story import Scene, Story
from jepsen_like.live.subjects.subject import LoadPlan, leader_of
from raftmq.client.errors import RaftMQError
from statemachine.access.quotas import QUOTAS_MAX

TOPIC: Final = "storm"
SUBJECT: Final = f"topic={TOPIC}"
CALM_S, MANY_S = 60.0, 20.0
SETTLE_S: Final = 2.0
KILLS: Final = 10
ASKING_S: Final = 5.0
INTO_S: Final = 0.01
"""Longest time in seconds from the beginning of a change until the leader is killed."""
AWAY_S: Final = (0.3, 1.5)
PACE_MIN: Final = 20.0
AFTER: Final = 15 * max(LIMITS)
AFTER_S: Final = 10.0
"""Longest time in seconds for AFTER sends at once, after all quotas were removed. With any of LIMITS in force, they
take longer, even after a second in which nothing was sent.
"""
PAUSE_S: Final = 0.01
TOPICS_S: Final = 0.2
TOPIC_PATIENCE_S: Final = 1.5


def play(scene: Scene) -> None:
    """Plays the acts; raises StoryEnds, OSError and RaftMQError if it cannot continue."""
    rng = random.Random(scene.rng.getrandbits(32))
    with (
        quota_scene(scene, TOPIC) as quotas,
        Noise(quotas.orders(connections=16, at_once=50, ours=100)) as noise,
        Watch(scene.subject) as watch,
    ):
        quotas.insist({SUBJECT: {"send_messages": max(LIMITS)}})
        scene.stage.sleep(SETTLE_S)
        begin_s, term = time.monotonic(), quotas.term()
        with Changes(_Asks(scene), SUBJECT, rng) as changes:
            with scene.act("quotas change, and nothing else happens") as told, _topics_come_and_go(scene, quotas):
                seconds = max(5.0, scene.scale * CALM_S)
                scene.stage.sleep(seconds)
                pace = (changes.made + changes.refused) / seconds
                told.append(f"{changes.made} changes, {changes.refused} bad ones refused, {pace:.0f} a second")
            calm_s, calm_terms = time.monotonic(), quotas.term() - term
            judge_calm(scene, watch, calm_terms)
            wrong = changes.compare(lambda: quotas.quotas(scene.stage.leader()))
            scene.demand(not wrong, wrong)
            scene.gate("changes a second", round(pace, 1), PACE_MIN)
            changes.calm = False
            with scene.act("the leader is killed at the moment of a change") as told:
                for _ in range(scene.count(KILLS)):
                    _kill_at_a_change(scene, changes)
                    scene.stage.sleep(scene.rng.uniform(*AWAY_S))
                    scene.stage.start_all()
                    scene.wait_well()
                told.append(f"{scene.stage.kills} kills, {changes.failed} changes failed")
        kills_s, changed_terms = time.monotonic(), quotas.term() - term
        with scene.act(f"{QUOTAS_MAX:,} rules") as told:
            told.append(_many_rules(scene, quotas, rng))
        with scene.act("all quotas are taken away") as told:
            _judge_turns(scene)
            quotas.take_all_away()
            took_s = quotas.flows(AFTER)
            told.append(f"{AFTER} sends stored in {took_s:.1f} s")
            scene.gate(f"seconds for {AFTER} sends without a quota", round(took_s, 1), AFTER_S, at_most=True)
        with scene.act("the judgement") as told:
            sent = noise.stop()
            # The limit changes all the time; its highest value must never be exceeded.
            calm = Window(begin_s, calm_s, max(LIMITS), calm_terms)
            whole = Window(begin_s, kills_s, max(LIMITS), changed_terms)
            quotas.judge(sent, [calm, whole], (begin_s, calm_s), others=b"after/")
            told += [quotas.told(), f"{changed_terms} terms began"]
        for wrong in changes.wrong:
            scene.demand(False, wrong)
        exits = {node: codes for node, codes in scene.subject.processes.exits.items() if codes}
        scene.demand(not exits, f"nodes ended by themselves: {exits}")
        refused = refused_by_quota(scene, scene.subject.topic)
        scene.demand(not refused, f"{len(refused)} sends to another topic were refused: {' '.join(refused[:1])}")
        scene.measured |= {"changes": changes.made, "bad changes": changes.refused, "changes a second": round(pace, 1)}


class _Asks:
    """Sends changes to the leader."""

    def __init__(self, scene: Scene) -> None:
        self._subject, self._stage = scene.subject, scene.stage
        self._leader = scene.stage.leader()

    def __call__(self, body: object) -> object:
        try:
            return self._subject.request(self._leader, "PUT", "/v1/quotas", body)
        except OSError:
            states = self._subject.states()
            self._leader = leader_of(states) or self._leader
            raise


@contextlib.contextmanager
def _topics_come_and_go(scene: Scene, quotas: QuotaScene) -> Iterator[None]:
    """Makes and deletes the topics that quotas of the storm name."""
    stop, rng = threading.Event(), random.Random(scene.rng.getrandbits(32))

    def run() -> None:
        for topic in itertools.cycle([topic for worker in range(WORKERS) for topic in others(worker)]):
            if stop.wait(TOPICS_S):
                return
            with contextlib.suppress(RaftMQError):
                quotas.mq.admin.create_topic(topic, 1)
                with contextlib.suppress(RaftMQError), quotas.mq.producer(timeout_s=TOPIC_PATIENCE_S) as producer:
                    producer.send(topic, b"x" * 100)
                if rng.random() < 0.7:
                    quotas.mq.admin.delete_topic(topic)

    thread = threading.Thread(target=run, name="raftmq-chaos-topics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def judge_calm(scene: Scene, watch: Watch, terms: int) -> None:
    """Demands that no node ended, and that no new term began (`terms` is their number). If the machine itself stood
    still for more than a second, a new term is a doubt and not a broken promise.
    """
    for change in watch.changes:
        scene.demand(change.is_reign, f"{change.what} while nothing but quotas changed")
    if terms and (late := max((late for _, late in watch.late), default=0.0)) > 1.0:
        scene.doubts.append(f"leadership changed, and the machine stood still for {late:.1f} s")
        return
    scene.demand(not terms, f"{terms} terms began while nothing but quotas changed")


def _kill_at_a_change(scene: Scene, changes: Changes) -> None:
    leader = scene.stage.leader()
    changes.asking.clear()
    changes.asking.wait(ASKING_S)
    scene.stage.sleep(scene.rng.uniform(0.0, INTO_S))
    scene.stage.strike([leader])


def _many_rules(scene: Scene, quotas: QuotaScene, rng: random.Random) -> str:
    """Fills the table of quotas, checks that one more is refused, and changes quotas for a while with the table
    full."""
    rows: QuotaRows = {f"topic=rule-{number}": {"send_messages": 1 + number} for number in range(QUOTAS_MAX)}
    room = QUOTAS_MAX - len(quotas.quotas(scene.stage.leader()))
    names = list(rows)[:room]
    for first in range(0, room, ROWS_AT_ONCE):
        quotas.insist({name: rows[name] for name in names[first : first + ROWS_AT_ONCE]})
    there = len(quotas.quotas(scene.stage.leader()))
    scene.demand(there == QUOTAS_MAX, f"there are {there} quotas, and {QUOTAS_MAX} were set")
    ask = _Asks(scene)
    changes = Changes(ask, SUBJECT, rng)
    changes.make(QuotaChange(body_of({"topic=one-more": {"send_messages": 1}}), None, f"quota {QUOTAS_MAX + 1}"))
    begun, count = time.monotonic(), 0
    while time.monotonic() < begun + max(2.0, scene.scale * MANY_S):
        name = rng.choice(names)
        changes.make(QuotaChange(body_of({name: {"send_messages": rng.choice(LIMITS)}}), {name: None}, "one of many"))
        count += 1
        scene.stage.sleep(PAUSE_S)
    for wrong in changes.wrong:
        scene.demand(False, wrong)
    return f"{there:,} rules, of which {count / (time.monotonic() - begun):.0f} a second changed"


def _judge_turns(scene: Scene) -> None:
    """Demands that no turn of a node's loop was long."""
    turns = {node.id: asyncio.run(ask_turns(node)) for node in scene.subject.nodes}
    for node, told in turns.items():
        scene.demand(told.longest_s <= TURN_MAX_S, f"node {node}: a turn of its event loop took {told}")
    scene.measured["longest turn, ms"] = {node: round(1000 * told.longest_s) for node, told in turns.items()}


STORY = Story(play, load=LoadPlan(50, 128), is_direct=True)
