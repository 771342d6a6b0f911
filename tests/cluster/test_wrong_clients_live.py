"""Twenty wrong clients of a node that takes TLS alone and enforces rules: each is answered as the protocol says, and
leaves one line in the log. Real sockets; each client has an address of its own, since lines are limited per address."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import addresses_of
from raftmq.local.local_users import ClientOptions
from raftmq.local.process import free_base_port
from raftmq.local.tls.certificates import CA, new_ca, new_client, read_ca, write_pair
from raftmq.local.waiting import until
from raftmq_wire.codec import decode_header, encode_frame
from raftmq_wire.codes import RequestCode
from raftmq_wire.signature import SIGNATURE, Credentials
from tests.support.pace import at_most

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]
SECRET = "the-secret-of-{}"
SEND = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}
PULL = {
    "consumerGroup": "billing", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "8",
    "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
}  # fmt: skip
CLOSED = -1
ALERT = 0x15030000
"""The least "length" of what is no frame but an alert of TLS."""
UPDATE_BROKER_CONFIG = 25
"""A code that no node serves (CVE-2023-33246)."""


class Door(NamedTuple):
    """The node's ports, and its CA."""

    broker: int
    admin: int
    tls: Path
    log: Path
    namesrv: int
    options: ClientOptions

    def context(self, ca: Path | None = None) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(ca or self.tls / "ca.crt"))


def keys(name: str, secret: str = "") -> Credentials:
    return Credentials(name, secret or SECRET.format(name))


def code_of(door: Door, source: str, frame: bytes, context: ssl.SSLContext | None) -> int:
    """The code of the answer to a frame that is sent from the address `source`; CLOSED if there is none."""
    try:
        with socket.create_connection(("127.0.0.1", door.broker), 10, (source, 0)) as plain:
            wire = plain if context is None else context.wrap_socket(plain, server_hostname="127.0.0.1")
            wire.settimeout(15)
            wire.sendall(frame)
            with wire.makefile("rb") as file:
                size = int.from_bytes(file.read(4), "big")
                if not size or size >= ALERT:
                    return CLOSED
                got = file.read(size)
            if wire is not plain:
                wire.close()
        return int(decode_header(got[0], got[4 : 4 + int.from_bytes(got[1:4], "big")]).code)
    except (OSError, ssl.SSLError):
        return CLOSED


def frame_of(
    who: Credentials | None, code: int = RequestCode.SEND_MESSAGE_V2, body: bytes = b"x", **fields: str
) -> bytes:
    ext = {**(SEND if code == RequestCode.SEND_MESSAGE_V2 else PULL if code == 11 else {}), **fields}
    return encode_frame(code, 7, 0, ext=ext if who is None else who.signed(ext, body), body=body)


def changed(frame: Callable[[dict[str, str]], dict[str, str]], body: bytes = b"x", signed_body: bytes = b"x") -> bytes:
    """A send that was signed and changed afterwards."""
    ext = frame(keys("shop").signed(SEND, signed_body))
    return encode_frame(RequestCode.SEND_MESSAGE_V2, 7, 0, ext=ext, body=body)


WRONG: dict[str, Callable[[], bytes]] = {
    "unsigned": lambda: frame_of(None),
    "another secret": lambda: frame_of(keys("shop", "another-secret")),
    "an old secret": lambda: frame_of(keys("moved", "the-old-secret-of-moved")),
    "unknown user": lambda: frame_of(keys("nobody")),
    "removed user": lambda: frame_of(keys("removed")),
    "disabled user": lambda: frame_of(keys("disabled")),
    "a truncated signature": lambda: changed(lambda ext: {**ext, SIGNATURE: ext[SIGNATURE][:-4]}),
    "an empty signature": lambda: changed(lambda ext: {**ext, SIGNATURE: ""}),
    "a signature of another body": lambda: changed(lambda ext: ext, body=b"x", signed_body=b"y"),
    "a signature of another topic": lambda: changed(lambda ext: {**ext, "b": "other"}),
    "a field that was not signed": lambda: changed(lambda ext: {**ext, "z": "1"}),
    "a topic without a rule": lambda: frame_of(keys("shop"), b="hidden"),
    "a topic that a rule denies": lambda: frame_of(keys("shop"), b="orders-secret"),
    "reads only": lambda: frame_of(keys("reader")),
    "writes only": lambda: frame_of(keys("shop"), 11),
    "a group without a rule": lambda: frame_of(keys("reader"), 11, consumerGroup="other"),
    "from another address": lambda: frame_of(keys("inside")),
    "no Super makes a user": lambda: frame_of(keys("shop"), RequestCode.AUTH_CREATE_USER, b"{}", username="mine"),
    "no Super sets the mode": lambda: frame_of(keys("shop"), RequestCode.SET_AUTH_MODE, b"", mode="off"),
    "a code that only Supers may send": lambda: frame_of(keys("shop"), UPDATE_BROKER_CONFIG, b"x=1"),
}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One node with users of all kinds."""
    cluster = LocalCluster(tmp_path_factory.mktemp("wrong") / "data")
    cluster.up(1, free_base_port(4), tls=True, auth=True)
    (node,) = cluster.nodes
    with raftmq.connect(cluster.servers, **cluster.client_options) as root:
        for topic in ("orders", "orders-secret", "hidden"):
            root.admin.create_topic(topic, 2)
        for name in ("shop", "reader", "inside", "removed", "disabled", "moved"):
            root.admin.create_user(name, SECRET.format(name) if name != "moved" else "the-old-secret-of-moved")
        for name in ("shop", "removed", "disabled", "moved"):
            root.admin.set_rule(name, "Topic:orders*", ["Pub"])
        root.admin.set_rule("shop", "Topic:orders-secret", ["All"], allow=False)
        root.admin.set_rule("reader", "Topic:orders", ["Sub"])
        root.admin.set_rule("inside", "Topic:orders", ["Pub"], sources=["10.0.0.0/8"])
        root.admin.delete_user("removed")
    api = AdminApi(addresses_of(cluster.nodes))
    api.put("/v1/users/disabled", {"enabled": False})
    api.put("/v1/users/moved", {"secret": SECRET.format("moved")})
    yield Door(
        node.broker_port,
        node.admin_port,
        cluster.data / "tls",
        Path(node.log),
        node.namesrv_port,
        cluster.client_options,
    )
    cluster.down()


def lines_of(door: Door, source: str) -> list[str]:
    return [line for line in door.log.read_text().splitlines() if f"{source}:" in line or f"{source} " in line]


def test_each_is_told_16_and_leaves_one_line(door: Door) -> None:
    assert len(WRONG) == 20
    context = door.context()
    assert code_of(door, "127.0.0.9", frame_of(keys("shop")), context) == 0, "the right one is let through"
    answers = {}
    for number, (name, made) in enumerate(WRONG.items(), 20):
        answers[name] = [code_of(door, f"127.0.0.{number}", made(), context) for _ in range(2)]
    assert {name: codes for name, codes in answers.items() if codes != [16, 16]} == {}
    for number, name in enumerate(WRONG, 20):
        lines = lines_of(door, f"127.0.0.{number}")
        assert len(lines) == 1, (name, lines)
        assert "denied" in lines[0], name
        assert "the-secret" not in lines[0]
    assert lines_of(door, "127.0.0.9") == []


def _has_one_line(door: Door, source: str) -> bool:
    return len(lines_of(door, source)) == 1


def test_who_speaks_no_tls_or_another_ca_s_gets_no_answer_and_one_line(door: Door, tmp_path: Path) -> None:
    assert code_of(door, "127.0.0.60", frame_of(keys("shop")), None) == CLOSED
    write_pair(new_ca(), tmp_path, CA)
    assert code_of(door, "127.0.0.61", frame_of(keys("shop")), door.context(tmp_path / "ca.crt")) == CLOSED
    assert code_of(door, "127.0.0.62", b"\x16\x03\x01\x00\x05hello" * 3, None) == CLOSED
    for number in (60, 61, 62):
        assert until(partial(_has_one_line, door, f"127.0.0.{number}"), 5.0, 0.05), number


def ask(door: Door, source: str, path: str, **headers: str) -> int:
    connection = http.client.HTTPSConnection(
        "127.0.0.1", door.admin, timeout=at_most(20), source_address=(source, 0), context=door.context()
    )
    try:
        connection.request("GET", path, None, {name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_http_api_answers_401_and_403(door: Door) -> None:
    context = http.client.HTTPSConnection("127.0.0.1", door.admin, timeout=at_most(20), context=door.context())
    body = {"user": "shop", "secret": SECRET.format("shop"), "answer": "token"}
    context.request("POST", "/v1/session", json.dumps(body), {"Content-Type": "application/json"})
    token = json.loads(context.getresponse().read())["token"]
    context.close()
    asked = {
        "nothing": (401, ask(door, "127.0.0.70", "/v1/users")),
        "a wrong token": (401, ask(door, "127.0.0.71", "/v1/users", Authorization=f"Bearer {token[::-1]}")),
        "another scheme": (401, ask(door, "127.0.0.72", "/v1/users", Authorization=f"Basic {token}")),
        "no right": (403, ask(door, "127.0.0.73", "/v1/users", Authorization=f"Bearer {token}")),
    }
    assert {name: codes for name, codes in asked.items() if codes[0] != codes[1]} == {}
    refused = ask(door, "127.0.0.74", f"/v1/topics?token={token}")
    assert refused in (400, 401), "a token in the address is none"
    time.sleep(0.1)
    assert token not in door.log.read_text()
    for number in range(70, 74):
        assert len(lines_of(door, f"127.0.0.{number}")) == 1


def test_a_field_that_is_there_twice_gets_nothing_that_was_not_signed(door: Door) -> None:
    context, body = door.context(), b"twice"
    ext = keys("shop").signed(SEND, body)
    for first, last in (("hidden", "orders"), ("orders", "hidden")):
        fields = [("b", first), *((name, value) for name, value in ext.items() if name != "b"), ("b", last)]
        told = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in fields)
        header = f'{{"code":310,"language":"JAVA","version":477,"opaque":7,"flag":0,"extFields":{{{told}}}}}'.encode()
        frame = (8 + len(header) + len(body) - 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body
        assert code_of(door, "127.0.0.81", frame, context) in (0, 16)
    with raftmq.connect(f"127.0.0.1:{door.namesrv}", **door.options) as root:
        assert [root.admin.max_offset("hidden", queue) for queue in (0, 1)] == [0, 0]


def test_a_client_s_certificate_opens_nothing_by_itself(door: Door, tmp_path: Path) -> None:
    """A certificate says who may connect, where nodes ask for one; users and rules say what is allowed."""
    write_pair(new_client(read_ca(door.tls), "shop"), tmp_path, "shop")
    context = door.context()
    context.load_cert_chain(str(tmp_path / "shop.crt"), str(tmp_path / "shop.key"))
    assert code_of(door, "127.0.0.80", frame_of(None), context) == 16
