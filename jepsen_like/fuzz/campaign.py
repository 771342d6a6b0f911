"""A whole run of the fuzzer: it starts from three nodes, sends shots to all their ports, and checks the nodes'
invariants afterwards."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cluster.config.local_layout import NodeRecord
from cluster.peer import keyring, secret
from jepsen_like.fuzz import http, peer_frames, remoting, tls
from jepsen_like.fuzz.guard import Guard, guard_of
from jepsen_like.fuzz.guest_handshake import Greeting
from jepsen_like.fuzz.shot import Port, Shot, save
from jepsen_like.fuzz.shot_connections import Finding, HttpLane, PeerLane, RemotingLane
from jepsen_like.hostile import almost_valid, almost_valid_values
from jepsen_like.hostile.wire import request
from jepsen_like.live.probes.bytes_in_flight import wait_given_back
from jepsen_like.live.probes.long_turns import TURN_MAX_S, ask_turns
from jepsen_like.live.probes.node_http import ask_node
from jepsen_like.live.probes.node_watch import Watch
from jepsen_like.live.probes.tier_probe import STORE
from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject
from jepsen_like.live.subjects.subject import leader_of
from raftmq.commands.bench_load import signed_frame

KINDS = ("object HEAD", "object manifest", "object log", "object index")
"""Kinds of the tier's objects that are damaged; every long run must damage each kind."""
_GLOBS = dict(zip(KINDS, ("manifest/HEAD", "manifest/*.json", "log/*.seg", "index/*.idx"), strict=True))


class Vandal:
    """Damages the tier of live nodes: cuts, changes, mixes up or removes objects of a directory store while the nodes
    read, upload, scrub and publish. It draws the next object and the damage."""

    def __init__(self, store: Path, rng: random.Random) -> None:
        """`store`: the directory of `tier.url`, with one cluster's folder."""
        self._store = store
        self._rng = rng

    def strike(self) -> str | None:
        """Damages one object; returns its kind, or None if there is none yet."""
        rng = self._rng
        kind = rng.choice(KINDS)
        found = sorted(self._store.glob(f"[0-9a-f]*/{_GLOBS[kind]}"))
        if not found:
            return None
        path = rng.choice(found[-8:] if rng.random() < 0.5 else found)  # the newest are what is read
        with suppress(FileNotFoundError):  # swept, or deleted by the nodes meanwhile
            data = path.read_bytes()
            damaged = self._damaged(data, rng.choice(found))
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            return kind
        return None

    def _damaged(self, data: bytes, other: Path) -> bytes | None:
        """Returns the damaged content of the object; None if it is to be removed."""
        rng, fate = self._rng, self._rng.random()
        if data.startswith((b"{", b"[")) and fate < 0.6:
            with suppress(ValueError, RecursionError):  # it is damaged already
                return almost_valid_values.encode(
                    rng, almost_valid_values.tree(rng, json.loads(data), rng.choice((1, 1, 2)))
                )
        if fate < 0.7 and data:
            at = rng.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        if fate < 0.8:
            return data[: rng.randrange(len(data) + 1)]
        if fate < 0.85:
            return data + almost_valid_values.noise(rng)
        if fate < 0.9:
            return almost_valid_values.noise(rng)
        return other.read_bytes() if fate < 0.95 else None


BATCH = {Port.REMOTING: 60, Port.HTTP: 10, Port.PEER: 20, Port.TLS: 10}
"""The number of shots that one connection sends at once, or one after the other."""
LANES = {Port.REMOTING: 3, Port.HTTP: 1, Port.PEER: 1, Port.TLS: 4}
"""The number of connections to each node."""
SHARE = {Port.REMOTING: 0.8, Port.HTTP: 0.06, Port.PEER: 0.12, Port.TLS: 0.02}
PKI = "pki"
"""The folder with the certificates, beside those of the nodes."""
RAW_EVERY = 12
"""One in this many batches is followed by bytes that are no request."""
LOOK_S = 1.0
STRIKE_S = 0.2
"""Seconds between two damages of the tier's objects."""
FILL, FILL_BYTES = 2000, 10_000
"""The number of messages, and the bytes of each, that are sent at first, so that the tier holds some."""
TIER_S = 60.0
"""Seconds in which these messages must reach the tier, and at the end those that were sealed last."""
REMEMBERED = 40
"""The number of the last batches per node that are kept, and written to a file if the node ends."""
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
"""Seconds that a replay waits after each request."""


AnyLane = RemotingLane | HttpLane | PeerLane | tls.TlsLane
Draw = Callable[[], list[Shot]]


class Defect(NamedTuple):
    """A defect, and the (node, shot) rows that may reproduce it."""

    what: str
    shots: list[tuple[int, Shot]]


class Result(NamedTuple):
    """The result of a run of the fuzzer."""

    fired: int
    seconds: float
    counts: Counter[str]
    """Handler -> the number of shots that reached it."""
    missed: list[str]
    """Handlers that no shot reached."""
    found: list[Defect]
    memory_mib: int
    """The most that a node's memory grew, in MiB."""

    @property
    def is_clean(self) -> bool:
        """True if nothing was found and every handler was reached."""
        return not self.found and not self.missed


class Campaign:
    """One run of the fuzzer on a cluster that is up; call `run` once."""

    def __init__(
        self, subject: RaftMQSubject, targets: Sequence[Port], requests: int, seed: int, tell: Callable[[str], None]
    ) -> None:
        self._subject = subject
        self._guard: Guard | None = None
        self._targets = targets
        self._wanted = requests
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
        self._bad_log = _BAD_LOG if {Port.PEER, Port.TLS} & set(targets) else _BAD_LOG_OF_CLIENTS

    async def run(self) -> Result:
        """Runs the campaign and returns its result. Raises OSError if the cluster does not answer at the start."""
        begun = time.monotonic()
        with Watch(self._subject) as watch:
            document = await self._prepare()
            rest = await _at_rest(watch, len(self._subject.nodes))
            self._logs = _log_sizes(self._subject)
            greetings = await self._greet()
            await self._fire_all(document, greetings, watch)
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
        return Result(
            sum(self._fired.values()), time.monotonic() - begun, self._counts, missed, self._found, grown >> 20
        )

    async def _given_back(self) -> None:
        """Checks that the nodes count no bytes in flight any more, when there are no requests."""
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
            self._guard = await guard_of(self._subject, node, tls.context_of(self._subject.data.parent / PKI))
        for name in almost_valid.TOPICS:
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
        """Sends messages; returns when the tier holds some."""
        sends = []
        for number in range(FILL):
            ext = {"a": "g", "b": almost_valid.TOPICS[number % 6], "e": str(number % 4), "i": "TAGS\1a\2", "g": "1"}
            sends.append(request(310, ext, bytes(FILL_BYTES), opaque=200_000 + number))
        await lane.fire(self._shots(sends))
        if not await _is_tiered(node, 1):
            raise OSError(f"nothing came into the tier within {TIER_S:g} s")

    def _shots(self, requests: Sequence[tuple[int, bytes]]) -> list[Shot]:
        """Returns shots of right requests, (opaque, frame), signed if users are asked for."""
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

    async def _fire_all(self, document: dict[str, object], greetings: dict[int, Greeting], watch: Watch) -> None:
        tasks = []
        handlers: list[str] = []
        for port in self._targets:
            for node in self._subject.nodes:
                for number in range(LANES[port]):
                    rng = random.Random(f"{self._seed}-{port.value}-{node.id}-{number}")
                    draws = self._draws(port, node, document, greetings, rng)
                    tasks.append(self._fire(node.id, port, self._lane(port, node, greetings), *draws, rng))
            handlers += {
                Port.REMOTING: remoting.HANDLERS,
                Port.HTTP: http.Operations(document, random.Random(0)).handlers,
                Port.PEER: peer_frames.HANDLERS,
                Port.TLS: tls.HANDLERS,
            }[port]
        self._handlers = (*handlers, *KINDS)
        beside = [asyncio.create_task(self._keep_looking(watch)), asyncio.create_task(self._keep_striking())]
        await asyncio.gather(*tasks)
        self._stopping = True
        await asyncio.gather(*beside)

    def _lane(self, port: Port, node: NodeRecord, greetings: dict[int, Greeting]) -> AnyLane:
        return lane_of(port, node, greetings, self._subject.data.parent / PKI, self._guard)

    def _left(self, port: Port) -> bool:
        whole = sum(SHARE[each] for each in self._targets)
        return not self._stopping and self._fired[port] < self._wanted * SHARE[port] / whole

    async def _fire(self, node: int, port: Port, lane: AnyLane, draw: Draw, draw_raw: Draw, rng: random.Random) -> None:
        """Sends batches, and now and then bytes that are no request, until the port has had its share."""
        while self._left(port):
            await self._one(node, lane.fire, draw())
            if rng.randrange(RAW_EVERY) == 0:
                await self._one(node, lane.fire_raw, draw_raw())
        lane.close()

    def _draws(
        self,
        port: Port,
        node: NodeRecord,
        document: dict[str, object],
        greetings: dict[int, Greeting],
        rng: random.Random,
    ) -> tuple[Draw, Draw]:
        """Returns two functions for a port: one draws its batches, the other draws bytes that are no request."""
        count = BATCH[port]
        if port is Port.REMOTING:
            requests = remoting.Requests(rng, self._guard)
            return lambda: requests.batch(count), lambda: [requests.raw() for _ in range(3)]
        if port is Port.HTTP:
            operations = http.Operations(document, rng, self._guard)
            return lambda: [operations.draw() for _ in range(count)], lambda: [operations.raw()]
        if port is Port.TLS:
            plans = tls.Plans(rng)
            return lambda: [plans.draw() for _ in range(count)], lambda: [plans.draw("TLS inside")]
        me = greetings[node.id]
        frames = peer_frames.Frames(rng, remoting.Requests(rng), me.me, node.id, self._term, me.hello)
        return lambda: [frames.draw() for _ in range(count)], lambda: [frames.stranger(), frames.raw()]

    async def _one(self, node: int, fire: Callable[[list[Shot]], Awaitable[list[Shot]]], shots: list[Shot]) -> None:
        self._remember(node, shots)
        try:
            reached = await fire(shots)
        except Finding as finding:
            handlers = ", ".join(dict.fromkeys(shot.handler for shot in finding.shots[:5]))
            self._note(f"node {node}: {finding.what}: {handlers}", [(node, shot) for shot in finding.shots])
            return
        except OSError as error:
            await self._unreachable(node, error)
            return
        for shot in reached:
            self._counts[shot.handler] += 1
        self._fired[shots[0].port] += len(reached)  # what a closed connection swallowed does not count

    async def _unreachable(self, node: int, error: OSError) -> None:
        """Handles an error of a connection: to close it is an answer, but if the node does not run, the run ends, and
        `_look` reports it."""
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
        """Damages the tier's objects again and again: the leadership must not depend on how nodes react to damaged
        objects."""
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
        """Checks that leader and term have not changed, and that a send is acknowledged."""
        states = await asyncio.to_thread(self._subject.states)
        leader = leader_of(states)
        state = states[leader] if leader is not None else None
        if state is None or (leader, state.term) != (self._leader, self._term):
            now = f"node {leader} in term {state.term}" if state is not None else "nobody"
            what = f"the leader was node {self._leader} in term {self._term}, and is {now}"
            if not any("leads term" in found.what for found in self._found):
                self._found.append(Defect(what, []))

    async def _no_long_turn(self) -> None:
        """Checks that no turn of a node's event loop took too long because of the shots."""
        for node in self._subject.nodes:
            turns = await ask_turns(node)
            self._tell(f"longest turn of node {node.id}: {turns}")
            if turns.longest_s > TURN_MAX_S:
                self._found.append(Defect(f"node {node.id}: a turn of the event loop took {turns}", []))

    async def _still_uploads(self) -> None:
        """Checks that new segments reach the tier, whatever happened to `HEAD` and other objects."""
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


def _key_of(data: Path) -> bytes | None:
    """Returns the newest key of a node's secret; None if it has no secret."""
    path = data / secret.SECRET
    return keyring.parse(path.read_bytes())[0] if path.exists() else None


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
    """Writes one file per defect for `raftmq chaos fuzz --replay`; returns the paths."""
    paths = []
    for number, each in enumerate(found):
        if each.shots:
            paths.append(folder / f"found-{number}.jsonl")
            save(paths[-1], each.shots)
    return paths


async def replay(
    subject: RaftMQSubject, rows: Sequence[tuple[int, Shot]], tell: Callable[[str], None]
) -> tuple[int, Shot] | None:
    """Sends the shots one after the other, checks the nodes after each, and returns the first one that shows a
    defect."""
    campaign = Campaign(subject, [Port.REMOTING], 0, 0, tell)
    with Watch(subject) as watch:
        await campaign._prepare()
        campaign._logs = _log_sizes(subject)
        greetings = await campaign._greet()
        try:
            for node_id, shot in rows:
                node = next(node for node in subject.nodes if node.id == node_id)
                lane = lane_of(shot.port, node, greetings, subject.data.parent / PKI, campaign._guard)
                is_raw = shot.handler in (remoting.RAW, http.RAW, peer_frames.RAW, peer_frames.STRANGER)
                await campaign._one(node.id, lane.fire_raw if is_raw else lane.fire, [shot])
                lane.close()
                await asyncio.sleep(_ALONE_S if len(rows) > 1 else SETTLE_S)
                campaign._look(watch)
                if campaign._found:
                    tell(campaign._found[0].what)
                    return node_id, shot
        finally:
            for greeting in greetings.values():
                greeting.close()
    return None


def lane_of(port: Port, node: NodeRecord, greetings: dict[int, Greeting], pki: Path, guard: Guard | None) -> AnyLane:
    """Returns a lane to that port of the node. `pki`: the folder of `tls.make_files`."""
    if port is Port.TLS:
        return tls.TlsLane(node, tls.context_of(pki))
    if port is Port.REMOTING:
        return RemotingLane(node.namesrv_port, guard)
    if port is Port.HTTP:
        return HttpLane(node.admin_port, guard)
    return PeerLane(node.peer_port, greetings[node.id].dial)
