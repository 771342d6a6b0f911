"""A whole run of the fuzzer on a running cluster: it sends shots (almost valid requests, `fuzz.shot`) to all ports of
the nodes, and checks meanwhile and afterwards that the nodes still work."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cluster.config.local_layout import NodeRecord
from cluster.peer import secret
from cluster.runtime import key_file
from jepsen_like.client_kit.frames import request
from jepsen_like.client_kit.node_http import ask_node
from jepsen_like.fuzz import http, peer_frames, remoting, tls
from jepsen_like.fuzz.guard import Guard, guard_of
from jepsen_like.fuzz.guest_handshake import Greeting
from jepsen_like.fuzz.honest import TOPIC, Honest, HonestOrders, SendFigures
from jepsen_like.fuzz.loads import Ground, LaneLoad, Pace, handlers_of, loads_of
from jepsen_like.fuzz.shot import Port, Shot, save
from jepsen_like.fuzz.shot_connections import PeerLane, RemotingLane, ShotDefect
from jepsen_like.fuzz.vandal import KINDS, Vandal
from jepsen_like.hostile import almost_valid
from jepsen_like.live.probes.bytes_in_flight import wait_given_back
from jepsen_like.live.probes.long_turns import TURN_MAX_S, ask_turns
from jepsen_like.live.probes.node_watch import Watch
from jepsen_like.live.probes.tier_probe import STORE
from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject
from jepsen_like.live.subjects.subject import leader_of
from raftmq.commands.bench_load import signed_frame

PKI = "pki"
"""The name of the folder with the certificates, beside the nodes' folders."""
ALONE_EVERY = 12
"""One batch in this many, on average, is followed by shots that each get a connection of their own."""
HOSTILE_S, HARMLESS_S = 30.0, 10.0
"""Seconds of hostile load, and of harmless load after it."""
TURN_NS = 1_000_000_000
"""Nanoseconds at the beginning of each load in which honest sends are not measured."""
SLOWER_MAX, SENDS_MIN = 2.0, 200
"""SLOWER_MAX: the factor by which the p99 latency of honest sends may be higher beside hostile than beside harmless
load. SENDS_MIN: the number of sends beside harmless load below which the latency is not judged.
"""
LOOK_S = 1.0
STRIKE_S = 0.2
"""Seconds between two damages of the tier's objects."""
FILL, FILL_BYTES = 2000, 10_000
"""The number of messages, and the bytes of each, that are sent at first, so that the tier holds some."""
TIER_S = 60.0
"""The most seconds until the tier holds some of the first messages, and, at the end of a run, until it holds the last
sealed segments.
"""
REMEMBERED = 40
"""The number of the last batches per node that are remembered, as those that may have caused a defect."""
MEMORY_MAX = 1 << 30
"""Bytes by which a node's memory may grow (`jepsen_like.live.stories.story_hostile.MEMORY_MAX` says why)."""
SETTLE_S = 2.0
_NUMBER = re.compile(r"\d+")
_BAD_LOG = re.compile(rb"Traceback|CRITICAL|Task exception was never retrieved")
_BAD_LOG_OF_CLIENTS = re.compile(_BAD_LOG.pattern + rb"|a bad frame on the peer port")
"""Pattern of log lines that count as defects while only clients are fuzzed. A bad frame on the peer port then counts
too, because only nodes write to these ports: a node must have passed an attack on."""
_SHOWN = 10
"""The number of different defects after which a run ends."""
_ALONE_S = 0.03
"""Seconds that a replay of several shots waits after each."""


class Defect(NamedTuple):
    """A defect, and the (node, shot) rows that may reproduce it."""

    what: str
    shots: list[tuple[int, Shot]]


class FuzzResult(NamedTuple):
    """The result of a run of the fuzzer."""

    fired: int
    seconds: float
    counts: Counter[str]
    """Handler -> the number of shots that reached it."""
    missed: list[str]
    """Handlers that no shot reached."""
    found: list[Defect]
    memory_mib: int
    """The largest growth of a node's memory, in MiB."""
    fired_at: Counter[Port]
    ways: Counter[str]
    """The shots by port, by TLS or plain text, and by authentication."""
    honest: tuple[SendFigures, SendFigures]
    """Honest sends beside the hostile load, and beside a harmless load of the same rate."""

    @property
    def is_clean(self) -> bool:
        """True if nothing was found and every handler was reached."""
        return not self.found and not self.missed


class Campaign:
    """One run of the fuzzer on a cluster that is up; call `run` once."""

    def __init__(
        self,
        subject: RaftMQSubject,
        wanted: Mapping[Port, int],
        seed: int,
        tell: Callable[[str], None],
        *,
        pki: Path,
        rate: float = 0.0,
        time_s: float = float("inf"),
    ) -> None:
        """`wanted`: port -> the number of shots to send there. `pki`: the folder of `tls.make_files`. `rate`: shots per
        second; 0: as many as the nodes take. `time_s`: seconds after which no more shots are sent.
        """
        self._subject = subject
        self._pki = tls.Pki(pki, tls.context_of(pki))
        self._rate = rate
        self._time_s = time_s
        self._ways: Counter[str] = Counter()
        self._spans: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._calls = 0.0
        """Connections per hostile shot at the peer ports."""
        self._honest = (SendFigures(0, 0.0, 0), SendFigures(0, 0.0, 0))
        self._guard: Guard | None = None
        self._wanted = wanted
        self._seed = seed
        self._tell = tell
        self._fired: Counter[Port] = Counter()
        self._counts: Counter[str] = Counter()
        self._found: list[Defect] = []
        self._recent: dict[int, list[list[Shot]]] = {node.id: [] for node in subject.nodes}
        self._logs: dict[int, int] = {}
        self._alike: Counter[str] = Counter()
        self._stopping = False
        self._handlers: tuple[str, ...] = ()
        self._bad_log = _BAD_LOG if {Port.PEER, Port.TLS} & set(wanted) else _BAD_LOG_OF_CLIENTS

    async def run(self) -> FuzzResult:
        """Runs the campaign and returns its result. Raises OSError if the cluster does not answer at the start."""
        begun = time.monotonic()
        with Watch(self._subject) as watch:
            document = await self._prepare()
            rest = await _at_rest(watch, len(self._subject.nodes))
            self._logs = _log_sizes(self._subject)
            greetings = await self._greet()
            ground = Ground(self._guard, greetings, self._pki, document, self._term)
            with Honest(self._subject.processes, self._honest_orders()) as honest:
                await self._fire_all(ground, watch, honest)
            for greeting in greetings.values():
                greeting.close()
            await asyncio.sleep(SETTLE_S)
            self._look(watch)
            await self._still_serves()
            await self._still_uploads()
            await self._no_long_turn()
            await self._given_back()
            grown = max((peak - rest.get(node, peak) for node, peak in watch.peak.items()), default=0)
        if grown > MEMORY_MAX:
            self._found.append(Defect(f"a node grew by {grown >> 20} MiB; the bound is {MEMORY_MAX >> 20}", []))
        missed = [name for name in self._handlers if not self._counts[name]]
        took_s = time.monotonic() - begun
        return FuzzResult(
            sum(self._fired.values()),
            took_s,
            self._counts,
            missed,
            self._found,
            grown >> 20,
            self._fired,
            self._ways,
            self._honest,
        )

    def _honest_orders(self) -> HonestOrders:
        options = self._subject.client_options if self._subject.has_users else {}
        return HonestOrders(
            [port for node in self._subject.nodes for port in (node.namesrv_port, node.broker_port)],
            options.get("access_key") or "",
            options.get("secret_key") or "",
            str(self._pki.folder / "ca.crt"),
        )

    async def _given_back(self) -> None:
        """Checks that the nodes count no bytes in flight any more after the last request."""
        for what in await wait_given_back(self._subject.nodes):
            self._note(what, [])

    async def _prepare(self) -> dict[str, object]:
        """Creates topics, groups and messages for the requests; returns the OpenAPI document."""
        states = await asyncio.to_thread(self._subject.states)
        self._leader = leader_of(states) or self._subject.node_ids[0]
        state = states[self._leader]
        self._term = state.term if state is not None else 1
        node = next(node for node in self._subject.nodes if node.id == self._leader)
        if self._subject.has_users:
            self._guard = await guard_of(self._subject, node)
        for name in (*almost_valid.TOPICS, TOPIC):
            body = {"name": name, "read_queues": 4, "write_queues": 4}
            await ask_node(node, "POST", "/v1/topics", json.dumps(body).encode())
        setup = [
            request(200, {}, json.dumps({"groupName": group}).encode(), opaque=n)
            for n, group in enumerate(almost_valid.GROUPS, 1)
        ]
        for n, topic in enumerate(almost_valid.TOPICS, 100):
            ext = {"a": "g", "b": topic, "e": "0", "i": "UNIQ_KEY\1u\2KEYS\1k1\2TAGS\1a\2", "g": "1"}
            setup += [request(310, ext, b"seed", opaque=1000 * n + each) for each in range(30)]
        lane = RemotingLane(node.namesrv_port)
        await lane.fire(self._shots(setup))
        await self._fill(lane, node)
        lane.close()
        return http.load_document((await ask_node(node, "GET", "/openapi.json")).body)

    async def _fill(self, lane: RemotingLane, node: NodeRecord) -> None:
        """Sends messages; returns when the tier holds some. Raises OSError if it holds none after TIER_S."""
        sends = []
        for number in range(FILL):
            ext = {"a": "g", "b": almost_valid.TOPICS[number % 6], "e": str(number % 4), "i": "TAGS\1a\2", "g": "1"}
            sends.append(request(310, ext, bytes(FILL_BYTES), opaque=200_000 + number))
        await lane.fire(self._shots(sends))
        if not await _is_tiered(node, 1):
            raise OSError(f"nothing came into the tier within {TIER_S:g} s")

    def _shots(self, requests: Sequence[tuple[int, bytes]]) -> list[Shot]:
        """Returns shots for valid requests, given as (opaque, frame), and signs them if the nodes have users."""
        guard = self._guard
        frames = [
            (opaque, data if guard is None else signed_frame(data, guard.credentials)) for opaque, data in requests
        ]
        return [Shot(Port.REMOTING, "", data, opaque) for opaque, data in frames]

    async def _greet(self) -> dict[int, Greeting]:
        answer = await ask_node(self._subject.nodes[0], "GET", "/v1/status")
        cluster = json.loads(answer.body)["cluster_id"]
        keys = {node.id: _key_of(self._subject.data_of(node.id)) for node in self._subject.nodes}
        greetings = {node.id: Greeting(cluster, node.id, keys[node.id]) for node in self._subject.nodes}
        for greeting in greetings.values():
            await greeting.start()
        return greetings

    async def _fire_all(self, ground: Ground, watch: Watch, honest: Honest) -> None:
        """Alternates hostile and harmless load of equal rate until all ports have had their share."""
        nodes = self._subject.nodes
        loads = [each for port in self._wanted for node in nodes for each in loads_of(port, node, ground, self._seed)]
        handlers = [name for port in self._wanted for name in handlers_of(port, ground.document)]
        self._handlers = (*handlers, *KINDS)
        beside = [asyncio.create_task(self._keep_looking(watch)), asyncio.create_task(self._keep_striking())]
        end_s = time.monotonic() + self._time_s
        while not self._stopping and any(map(self._left, self._wanted)) and time.monotonic() < end_s:
            rates = await self._hostile(loads, min(HOSTILE_S, end_s - time.monotonic()))
            if not self._stopping:
                await self._harmless(loads, rates)
        self._stopping = True
        await asyncio.gather(*beside)
        for load in loads:
            load.lane.close()
        self._judge_honest(honest)

    async def _hostile(self, loads: Sequence[LaneLoad], time_s: float) -> dict[Port, float]:
        """Sends hostile shots for some seconds; returns the shots per second of each port."""
        before, begun_s, begun_ns = dict(self._fired), time.monotonic(), time.monotonic_ns()
        left = sum(map(self._left, self._wanted))
        rates = {port: self._rate * self._left(port) / left for port in self._wanted}
        paces = {port: Pace() for port in self._wanted}
        dials = _dials(loads)

        async def fire(load: LaneLoad) -> None:
            while self._left(load.port) and not self._stopping and time.monotonic() < begun_s + time_s:
                shots = load.hostile.batch()
                await paces[load.port].wait(len(shots), rates[load.port])
                await self._one(load, load.lane.fire, shots)
                if load.rng.randrange(ALONE_EVERY) == 0:
                    await self._one(load, load.lane.fire_raw, load.hostile.alone())

        await asyncio.gather(*map(fire, loads))
        took_s = time.monotonic() - begun_s
        self._spans[True].append((begun_ns + TURN_NS, time.monotonic_ns()))
        fired = {port: self._fired[port] - before.get(port, 0) for port in self._wanted}
        self._calls = (_dials(loads) - dials) / max(1, fired.get(Port.PEER, 0))
        return {port: count / took_s for port, count in fired.items()}

    async def _harmless(self, loads: Sequence[LaneLoad], rates: Mapping[Port, float]) -> None:
        """Sends harmless shots, as many per second as hostile ones were sent, on as many new connections."""
        begun_s, begun_ns = time.monotonic(), time.monotonic_ns()
        paces = {port: Pace() for port in rates}

        async def fire(load: LaneLoad) -> None:
            rng, lane = random.Random(0), load.lane
            calls = self._calls if load.port is Port.PEER else 0.0
            while not self._stopping and time.monotonic() < begun_s + HARMLESS_S:
                shots = load.harmless.batch()
                for each in [shots] if not calls else [[shot] for shot in shots]:
                    await paces[load.port].wait(len(each), rates[load.port])
                    await self._one(load, lane.fire, each, is_hostile=False)
                    if rng.random() < calls:
                        lane.close()  # hostile frames end their connections, so harmless ones need as many
                if rng.randrange(ALONE_EVERY) == 0:
                    await self._one(load, lane.fire_raw, load.harmless.alone(), is_hostile=False)

        await asyncio.gather(*(fire(load) for load in loads if rates[load.port]))
        self._spans[False].append((begun_ns + TURN_NS, time.monotonic_ns()))

    def _left(self, port: Port) -> int:
        return max(0, self._wanted[port] - self._fired[port])

    def _judge_honest(self, honest: Honest) -> None:
        """Compares the honest sends during hostile load with those during harmless load of the same rate."""
        self._honest = honest.seen_in(self._spans[True]), honest.seen_in(self._spans[False])
        hostile, harmless = self._honest
        if hostile.wrong:
            self._found.append(Defect(f"{hostile.wrong} of {hostile.sends} honest sends were not acknowledged", []))
        if harmless.sends >= SENDS_MIN and hostile.p99_ms > SLOWER_MAX * harmless.p99_ms:
            slower = f"{hostile.p99_ms:.1f} ms, and {harmless.p99_ms:.1f} ms beside a harmless load of the same rate"
            self._found.append(Defect(f"the p99 of honest sends is {slower}", []))

    async def _one(
        self,
        load: LaneLoad,
        fire: Callable[[list[Shot]], Awaitable[list[Shot]]],
        shots: list[Shot],
        *,
        is_hostile: bool = True,
    ) -> None:
        node = load.node
        self._remember(node, shots)
        try:
            reached = await fire(shots)
        except ShotDefect as finding:
            handlers = ", ".join(dict.fromkeys(shot.handler for shot in finding.shots[:5]))
            self._note(f"node {node}: {finding.what}: {handlers}", [(node, shot) for shot in finding.shots])
            return
        except OSError as error:
            await self._unreachable(node, error)
            return
        if not is_hostile:
            return
        way = "TLS" if load.lane.ways.is_tls else "plain text"
        for shot in reached:
            self._counts[shot.handler] += 1
            self._ways[f"{load.port.value}, {way}, {'after' if shot.is_proven else 'before'} authentication"] += 1
        self._fired[load.port] += len(reached)  # shots that a closed connection lost do not count

    async def _unreachable(self, node: int, error: OSError) -> None:
        """Handles a failed connection. Closing a connection is an acceptable answer. If the node does not run, ends the
        run; `_look` then reports the node.
        """
        if not self._subject.is_running(node):
            self._stopping = True
        await asyncio.sleep(0.05)

    def _note(self, what: str, suspects: list[tuple[int, Shot]]) -> None:
        """Records a defect; the same one again is only counted."""
        alike = _NUMBER.sub("N", what)
        self._alike[alike] += 1
        if self._alike[alike] == 1:
            self._found.append(Defect(what, suspects))
            self._stopping = self._stopping or len(self._found) >= _SHOWN

    def _remember(self, node: int, shots: list[Shot]) -> None:
        recent = self._recent[node]
        recent.append(shots)
        if len(recent) > REMEMBERED:
            del recent[0]

    async def _keep_striking(self) -> None:
        """Damages the tier's objects again and again, until the run stops and each kind of object was damaged. No
        damage may cost the leader its leadership.
        """
        vandal = Vandal(self._subject.data / STORE, random.Random(f"{self._seed}-store"))
        while not self._stopping or not all(self._counts[kind] for kind in KINDS):
            kind = await asyncio.to_thread(vandal.strike)
            if kind is not None:
                self._counts[kind] += 1
            await asyncio.sleep(0.0 if self._stopping else STRIKE_S)

    async def _keep_looking(self, watch: Watch) -> None:
        told = time.monotonic()
        while not self._stopping:
            await asyncio.sleep(LOOK_S)
            self._look(watch)
            if time.monotonic() - told > 30:
                told = time.monotonic()
                self._tell(f"{sum(self._fired.values()):,} sent")

    def _look(self, watch: Watch) -> None:
        """Checks the nodes' processes and logs."""
        changes, watch.changes = watch.changes, []
        everything = [(node, shot) for node, batches in self._recent.items() for batch in batches for shot in batch]
        for change in changes:
            ended = [node for node in self._subject.node_ids if change.what.startswith(f"node {node} ended")]
            suspects = [(node, shot) for node, shot in everything if not ended or node in ended] or everything
            self._note(change.what, suspects)
            self._stopping = True
        for node in self._subject.nodes:
            text = _tail(Path(node.log), self._logs.get(node.id, 0))
            self._logs[node.id] = self._logs.get(node.id, 0) + len(text)
            if match := self._bad_log.search(text):
                words = text[match.start() : match.start() + 3000].decode("utf-8", "replace")
                suspects = [(node.id, shot) for batch in self._recent[node.id] for shot in batch]
                self._note(f"node {node.id} logged: {_last_lines(words)}", suspects)

    async def _still_serves(self) -> None:
        """Checks that the leader and its term have not changed since the start of the run."""
        states = await asyncio.to_thread(self._subject.states)
        leader = leader_of(states)
        state = states[leader] if leader is not None else None
        if state is None or (leader, state.term) != (self._leader, self._term):
            now = f"node {leader} in term {state.term}" if state is not None else "nobody"
            what = f"the leader was node {self._leader} in term {self._term}, and is {now}"
            if not any("leads term" in found.what for found in self._found):
                self._found.append(Defect(what, []))

    async def _no_long_turn(self) -> None:
        """Checks that no turn of a node's event loop took more than TURN_MAX_S seconds of CPU time."""
        for node in self._subject.nodes:
            turns = await ask_turns(node)
            self._tell(f"longest turn of node {node.id}: {turns}")
            if turns.longest_s > TURN_MAX_S:
                self._found.append(Defect(f"node {node.id}: a turn of the event loop took {turns}", []))

    async def _still_uploads(self) -> None:
        """Checks that new segments still reach the tier, although `HEAD` and other objects were damaged."""
        leader = next(node for node in self._subject.nodes if node.id == self._leader)
        sealed = json.loads((await ask_node(leader, "POST", "/v1/tier/seal", b"{}")).body or b"{}")
        if not await _is_tiered(leader, sealed.get("position", 1 << 63)):
            what = (await ask_node(leader, "GET", "/v1/tier")).body.decode("utf-8", "replace")[:300]
            self._found.append(Defect(f"what was sealed does not come into the tier: {sealed}, {what}", []))


async def _is_tiered(node: NodeRecord, position: int) -> bool:
    """Returns True once the node reports that the tier holds the log up to `position` and that no attempt fails; False
    after TIER_S."""
    until = time.monotonic() + TIER_S
    while time.monotonic() < until:
        view = json.loads((await ask_node(node, "GET", "/v1/tier")).body or b"{}")
        if view.get("verified_to", 0) >= position and not view["failing"]:
            return True
        await asyncio.sleep(0.2)
    return False


async def _at_rest(watch: Watch, nodes: int) -> dict[int, int]:
    """Returns node -> resident memory in bytes, once all nodes have been measured."""
    while len(watch.latest) < nodes:  # noqa: ASYNC110 - a thread looks
        await asyncio.sleep(0.05)
    return dict(watch.latest)


def _dials(loads: Sequence[LaneLoad]) -> int:
    """Returns the number of connections on which guests spoke."""
    return sum(load.lane.entered for load in loads if isinstance(load.lane, PeerLane))


def _key_of(data: Path) -> bytes | None:
    """Returns the newest key of a node's secret; None if it has no secret."""
    path = data / secret.SECRET
    return key_file.parse(path.read_bytes())[0] if path.exists() else None


def _log_sizes(subject: RaftMQSubject) -> dict[int, int]:
    return {node.id: Path(node.log).stat().st_size for node in subject.nodes}


def _tail(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read()


def _last_lines(text: str) -> str:
    """Returns the end of the first traceback, which the log writes as one line: the place, and the exception."""
    words = [word.strip() for word in text.splitlines()[0].split(" | ")]
    places = [word for word in words if word.startswith("File ") and "/site-packages/" not in word]
    return " | ".join([*places[-2:], words[-1][:300]]) if len(words) > 1 else text[:300]


def write_found(folder: Path, found: Sequence[Defect]) -> list[Path]:
    """Writes one file per defect that has shots, for `raftmq chaos fuzz --replay`; returns the paths."""
    paths = []
    for number, each in enumerate(found):
        if each.shots:
            paths.append(folder / f"found-{number}.jsonl")
            save(paths[-1], each.shots)
    return paths


async def replay(
    subject: RaftMQSubject, rows: Sequence[tuple[int, Shot]], tell: Callable[[str], None], pki: Path
) -> tuple[int, Shot] | None:
    """Sends the shots, given as (node, shot), one after the other, and checks the nodes after each. Returns the first
    one that shows a defect; None if none does.
    """
    campaign = Campaign(subject, {Port.REMOTING: 0}, 0, tell, pki=pki)
    with Watch(subject) as watch:
        document = await campaign._prepare()
        campaign._logs = _log_sizes(subject)
        greetings = await campaign._greet()
        ground = Ground(campaign._guard, greetings, campaign._pki, document, campaign._term)
        try:
            for node_id, shot in rows:
                node = next(node for node in subject.nodes if node.id == node_id)
                is_raw = shot.handler in (remoting.RAW, http.RAW, peer_frames.RAW, peer_frames.STRANGER)
                load = loads_of(shot.port, node, ground, 0)[0]
                await campaign._one(load, load.lane.fire_raw if is_raw else load.lane.fire, [shot])
                load.lane.close()
                await asyncio.sleep(_ALONE_S if len(rows) > 1 else SETTLE_S)
                campaign._look(watch)
                if campaign._found:
                    tell(campaign._found[0].what)
                    return node_id, shot
        finally:
            for greeting in greetings.values():
                greeting.close()
    return None
