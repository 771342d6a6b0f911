"""The questions of `tests.support.recorded_answers`: what the fuzzers' generators would send to each code and route.

A scene is a list of questions to one node of a new cluster, so that a difference in one scene changes no other.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from jepsen_like.client_kit.frames import request
from jepsen_like.fuzz import http, remoting
from jepsen_like.fuzz.guard import Guard
from jepsen_like.fuzz.shot import Port, Shot
from jepsen_like.hostile import almost_valid
from jepsen_like.sim.hostile.senseless_requests import CODES, draw_odd
from raftmq_wire.codec import JSON, encode_frame
from raftmq_wire.codes import RequestCode
from raftmq_wire.signature import Credentials
from tests.support.answering_cluster import ROOT, TOKEN, answering_cluster, as_text

MODES = ("off", "enforce")
NODES = {"leader": 1, "follower": 2}
GOOD, HOSTILE, ODD, RAW = 6, 24, 6, 60
"""Questions of each kind to a code at one node in one mode."""
HTTP_GOOD, HTTP_HOSTILE, HTTP_RAW = 4, 12, 40
"""The same for a route."""
MESSAGES = 30


class Question(NamedTuple):
    """A request as bytes."""

    scene: str
    """Mode, node and handler, as "off/leader/34 HEART_BEAT"."""
    number: int
    """Its place in the scene."""
    port: str
    data: bytes
    opaque: int
    """The opaque of the answer to wait for; -1 if none must come. Unused for HTTP."""

    def to_json(self) -> dict[str, Any]:
        """Returns the question as one JSON object."""
        return {
            "scene": self.scene,
            "number": self.number,
            "port": self.port,
            "opaque": self.opaque,
            "asked": base64.b64encode(self.data).decode(),
        }

    @staticmethod
    def of_json(row: dict[str, Any]) -> Question:
        """Reads what `to_json` returned. Raises KeyError, ValueError."""
        return Question(row["scene"], row["number"], row["port"], base64.b64decode(row["asked"]), row["opaque"])

    def __str__(self) -> str:
        return f"{self.scene} #{self.number}: {as_text(self.data)[:200]!r}"


def node_of(scene: str) -> int:
    """Returns the id of the node that a scene asks."""
    return NODES[scene.split("/")[1]]


def is_enforced(scene: str) -> bool:
    """Returns True if a scene's cluster judges requests."""
    return scene.startswith("enforce/")


def drawn(only: str = "") -> Iterator[list[Question]]:
    """Yields the questions of each scene whose name contains `only`."""
    with answering_cluster() as cluster:
        document = cluster.ask_json(1, "GET", "/openapi.json")
    for mode in MODES:
        guard = Guard(Credentials(*ROOT), TOKEN) if mode == "enforce" else None
        for node in NODES:
            for handler, shots in _handlers(f"{mode}/{node}", guard, document):
                scene = f"{mode}/{node}/{handler}"
                if only in scene:
                    yield [_question(scene, number, shot) for number, shot in enumerate([*_setup(guard), *shots()])]


def _question(scene: str, number: int, shot: Shot) -> Question:
    port = "http" if shot.port is Port.HTTP else "namesrv" if number % 7 == 3 else "broker"
    return Question(scene, number, port, shot.data, shot.opaque)


def _setup(guard: Guard | None) -> list[Shot]:
    """Returns requests that create topics, groups and messages."""
    asked: list[tuple[int, dict[str, str], bytes]] = []
    for topic in almost_valid.TOPICS:
        fields = {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
        asked.append((RequestCode.UPDATE_AND_CREATE_TOPIC, fields, b""))
    for group in almost_valid.GROUPS:
        body = json.dumps({"groupName": group}).encode()
        asked.append((RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body))
    for number in range(MESSAGES):
        topic = almost_valid.TOPICS[number % len(almost_valid.TOPICS)]
        fields = {"a": "g", "b": topic, "e": "0", "i": "UNIQ_KEY\1u\2KEYS\1k1\2TAGS\1a\2", "g": "1"}
        asked.append((RequestCode.SEND_MESSAGE_V2, fields, b"seed"))
    shots = []
    for opaque, (code, fields, body) in enumerate(asked, 1_000_000):
        ext = fields if guard is None else guard.credentials.signed(fields, body)
        shots.append(Shot(Port.REMOTING, "setup", request(code, ext, body, opaque=opaque)[1], opaque))
    return shots


def _handlers(
    seed: str, guard: Guard | None, document: dict[str, Any]
) -> Iterator[tuple[str, Callable[[], Iterable[Shot]]]]:
    """Yields the name of each handler, and a function that draws its requests."""
    for code in almost_valid.FIELDS:
        yield f"{int(code)} {RequestCode(code).name}", partial(_of_code, seed, code, guard)
    for odd in CODES:
        yield f"odd {int(odd)}", partial(_of_odd_code, seed, int(odd), guard)
    yield remoting.UNKNOWN, _unknown
    yield remoting.RAW, partial(_raw, seed, guard)
    families: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        family = families.setdefault("/".join(path.split("/")[:3]), [])
        family.extend(f"{method.upper()} {path}" for method in methods)
    for name, routes in families.items():
        yield f"http {name}", partial(_of_routes, seed, routes, guard, document)
    yield f"http {http.RAW}", partial(_raw_http, seed, guard, document)


def _of_code(seed: str, code: int, guard: Guard | None) -> Iterator[Shot]:
    for is_good, count in ((True, GOOD), (False, HOSTILE)):
        requests = remoting.Requests(random.Random(f"{seed}-{int(code)}-{is_good}"), guard, is_good=is_good)
        yield from (requests.draw([code]) for _ in range(count))


def _of_odd_code(seed: str, code: int, guard: Guard | None) -> Iterator[Shot]:
    rng = random.Random(f"{seed}-odd-{code}")
    return (_odd(rng, code, opaque, guard) for opaque in range(1, ODD + 1))


def _unknown() -> Iterator[Shot]:
    for opaque, code in enumerate(remoting.UNKNOWN_CODES, 1):
        yield Shot(Port.REMOTING, remoting.UNKNOWN, request(code, {"x": "1"}, opaque=opaque)[1], opaque)


def _raw(seed: str, guard: Guard | None) -> Iterator[Shot]:
    requests = remoting.Requests(random.Random(f"{seed}-raw"), guard)
    return (requests.raw() for _ in range(RAW))


def _of_routes(seed: str, routes: list[str], guard: Guard | None, document: dict[str, Any]) -> Iterator[Shot]:
    for route in routes:
        for is_good, count in ((True, HTTP_GOOD), (False, HTTP_HOSTILE)):
            rng = random.Random(f"{seed}-{route}-{is_good}")
            operations = http.HttpRequests(document, rng, guard, is_good=is_good)
            yield from (operations.draw(route) for _ in range(count))


def _raw_http(seed: str, guard: Guard | None, document: dict[str, Any]) -> Iterator[Shot]:
    operations = http.HttpRequests(document, random.Random(f"{seed}-raw-http"), guard)
    return (operations.raw() for _ in range(HTTP_RAW))


def _odd(rng: random.Random, code: int, opaque: int, guard: Guard | None) -> Shot:
    odd = draw_odd(rng, code)
    ext = odd.ext if guard is None else guard.credentials.signed(odd.ext, odd.body)
    # A binary header has 16 bits for the code.
    serialize_type = rng.randrange(2) if odd.code <= 0xFFFF else JSON
    data = encode_frame(odd.code, opaque, 0, ext=ext, body=odd.body, serialize_type=serialize_type)
    return Shot(Port.REMOTING, "odd", data, opaque)
