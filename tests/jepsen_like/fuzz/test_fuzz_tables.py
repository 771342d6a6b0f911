"""The fuzzer's tables: a handler that it does not know of fails here; what it draws is what it says."""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from cluster.admin.openapi import document
from cluster.admin.routes import ROUTES
from cluster.peer.wire import unpack
from cluster.requests.table import ROWS, VERBS
from cluster.runtime.peer_frames import Kind
from jepsen_like.fuzz import http, peer_frames, remoting, tls
from jepsen_like.fuzz.shot import Port, Shot, load, save
from jepsen_like.fuzz.shot_connections import ShotLine
from jepsen_like.hostile import almost_valid
from raftlog.core.message_plausibility import TERM_STEP_MAX
from raftmq_wire.codec import CodecError, decode_header, encode_frame, ext_of
from raftmq_wire.codes import RequestCode
from tests.support.rows import each_row

DRAWS = 4000


def requests(seed: int = 1) -> remoting.Requests:
    return remoting.Requests(random.Random(seed))


@functools.cache
def openapi() -> dict[str, Any]:
    return document(ROUTES)


def operations(seed: int = 1) -> http.HttpRequests:
    return http.HttpRequests(openapi(), random.Random(seed))


def frames(seed: int = 1, term: int = 7) -> peer_frames.Frames:
    hello = ["uuid", 1, 901, "node", 1, "control", 5, "127.0.0.1", 4000]
    return peer_frames.Frames(random.Random(seed), requests(seed), 901, 1, term, hello)


def test_every_request_that_a_node_handles_is_fuzzed() -> None:
    assert almost_valid.FIELDS.keys() == VERBS.keys()
    for verb in ROWS:
        names = [name.removesuffix("!") for name in verb.fields.split()]
        assert list(almost_valid.good(random.Random(1), verb.code).fields) == names


def test_a_field_without_a_line_of_its_own_is_drawn_too() -> None:
    verb = VERBS[101]._replace(fields="namespace! brandNew")
    drawn = {draw(random.Random(seed)) for seed in range(50) for draw in [almost_valid._draws(verb)["brandNew"]]}
    assert len(drawn) > 2


def test_every_operation_of_the_http_api_is_fuzzed() -> None:
    draw = operations().draw
    drawn = Counter(draw().handler for _ in range(3 * DRAWS))
    assert set(drawn) | {http.RAW} == set(operations().handlers)
    assert {f"{route.method} {route.path}" for route in ROUTES} == set(drawn)
    assert set(http.UNACCEPTABLE) | http.SELDOM <= set(drawn)


def test_every_kind_of_frame_between_nodes_is_fuzzed() -> None:
    assert set(Kind) == peer_frames.KNOWN, (
        "say in jepsen_like/fuzz/peer_frames.py what a good frame of the new kind holds"
    )
    draw = frames().draw
    drawn = Counter(draw().handler for _ in range(DRAWS))
    assert set(drawn) | {peer_frames.STRANGER, peer_frames.RAW} == set(peer_frames.HANDLERS)


def test_a_seed_repeats_what_is_sent() -> None:
    for draw in (lambda: requests(5).draw, lambda: operations(5).draw, lambda: frames(5).draw):
        one, two = draw(), draw()
        assert [one() for _ in range(300)] == [two() for _ in range(300)]


def test_what_waits_for_an_answer_is_a_request_that_a_node_can_read() -> None:
    draw, seen = requests().draw, Counter[str]()
    for _ in range(DRAWS):
        shot = draw()
        data = shot.data
        assert int.from_bytes(data[:4], "big") == len(data) - 4
        header = decode_header(data[4], data[8 : 8 + int.from_bytes(data[5:8], "big")])
        try:
            fields = ext_of(header)
        except CodecError:
            continue
        is_answered = not header.flag & 3
        assert (shot.opaque == header.opaque) == is_answered
        seen[shot.handler] += is_answered
        if header.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            is_short = fields.get("suspendTimeoutMillis", "0").isdigit()
            assert is_short or fields["sysFlag"] in ("0", "4"), "a pull that is held has no answer in time"
    assert set(seen) | {remoting.RAW} == set(remoting.HANDLERS)


@each_row("name", http.UNACCEPTABLE)
def test_verbs_that_change_leader_members_or_files_get_nothing_acceptable(name: str) -> None:
    draw = operations().draw
    for _ in range(3 * DRAWS):
        shot = draw()
        if shot.handler != name:
            continue
        head, _, body = shot.data.partition(b"\r\n\r\n")
        if "{id}" in name:
            member = head.split(b"/v1/members/")[1].split(b" ")[0].split(b"/")[0].split(b"?")[0]
            assert member not in (b"1", b"2", b"3")
        elif name == "POST /v1/leader/transfer":
            assert body not in (b'{"to": 1}', b'{"to": 2}', b'{"to": 3}')
        elif name == "POST /v1/members":
            assert b'"host"' not in body or b"00000000-0000" not in body


def test_peers_say_no_term_that_could_rightly_move_the_group() -> None:
    draw = frames(term=7).draw
    for _ in range(DRAWS):
        shot = draw()
        if shot.handler in ("REQUEST_VOTE", "HEARTBEAT", "APPEND_ENTRIES"):
            _, header, _ = unpack(shot.data, 4, len(shot.data))
            if len(header) > 2 and type(header[2]) is int:
                assert not 7 < header[2] <= 7 + TERM_STEP_MAX


def test_answers_are_counted_by_opaque() -> None:
    line = ShotLine()
    line.wanted = {3, 4}
    data = encode_frame(0, 3, 1) + encode_frame(0, 3, 1) + encode_frame(40, 4, 2)
    for at in range(0, len(data), 7):
        line.data_received(data[at : at + 7])
    assert (line.answers, line.wanted) == ({3: 2}, {4})


def test_what_is_found_can_be_kept_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    rows = [(1, requests().draw()), (2, operations().draw()), (3, Shot(Port.PEER, "HELLO", b"\x00\xff", -1))]
    save(path, rows)
    assert load(path) == rows


def test_tls_is_spoiled_and_the_same_again_for_the_same_seed() -> None:
    plans = tls.Plans(random.Random(1))
    shots = [plans.draw() for _ in range(DRAWS // 10)]
    assert {shot.handler for shot in shots} == set(tls.HANDLERS)
    assert {json.loads(shot.data)["port"] for shot in shots} == {"broker", "http", "peer"}
    hello = bytes(range(200)) * 2
    made = [tls.spoiled(random.Random(seed), hello) for seed in range(200)]
    assert made == [tls.spoiled(random.Random(seed), hello) for seed in range(200)]
    assert sum(each == hello for each in made) < 20  # one that is cut at its end is whole
    assert all(each for each in made)
