"""Requests to a local cluster: its operator proves the secret, and the secret never travels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.admin.signed_identity import PASS_HEADER, Passes
from cluster.config.local_layout import NodeRecord
from cluster.config.node_files import plan_nodes, write_configs
from cluster.peer.keyring import Keyring
from cluster.peer.secret_files import new_key, read_keys, write_keys
from raftlog.storage.files import identity
from raftmq.local.http.admin_http import AdminApi, ApiRefusal
from raftmq.local.http.credentials import Address, Headers, address_of, proofs_for
from raftmq.local.http.http_exchange import exchange
from raftmq.local.init import create_data_dirs
from raftmq.local.process import free_base_port
from tests.raftmq.local.test_admin_http import Stub, stub

__all__ = ["stub"]
BAD = (400, {"error": {"code": "bad_pass", "message": "the pass is refused: it is old", "hint": "set the clocks"}})
DENIED = (401, {"error": {"code": "unauthenticated", "message": "the request names no user", "hint": "raftmq login"}})


class TwoKeys:
    """Has two proofs."""

    author = "an operator with two keys"

    def proofs(self, method: str, path: str, body: bytes) -> Iterator[Headers]:
        yield {PASS_HEADER: "newest"}
        yield {PASS_HEADER: "older"}


@pytest.fixture
def made(tmp_path: Path) -> NodeRecord:
    """The first node of a cluster that was made and never ran."""
    nodes = plan_nodes(tmp_path, 3, free_base_port(12))
    write_configs(nodes)
    create_data_dirs([node.config_path for node in nodes])
    return nodes[0]


def test_the_next_key_is_tried_and_then_none(stub: Stub) -> None:
    stub.answers = [BAD, BAD]
    assert AdminApi([Address(stub.address, TwoKeys())]).post("/v1/topics", {"name": "a"}) == {"fine": True}
    assert [given.get(PASS_HEADER) for given in stub.headers] == ["newest", "older", None]
    assert [body for _, _, body in stub.asked] == [b'{"name": "a"}'] * 3


@pytest.mark.parametrize("answer", [(200, {}), DENIED, (503, {"error": {"code": "busy", "message": "", "hint": ""}})])
def test_an_answer_of_another_kind_is_final(stub: Stub, answer: tuple[int, object]) -> None:
    stub.answer = answer
    assert exchange(Address(stub.address, TwoKeys()), "GET", "/", timeout_s=5).status == answer[0]
    assert len(stub.asked) == 1


def test_the_refused_pass_is_told_if_a_stranger_may_not(stub: Stub) -> None:
    stub.answers, stub.answer = [BAD, BAD], DENIED
    with pytest.raises(ApiRefusal, match="it is old"):
        AdminApi([Address(stub.address, TwoKeys())]).local("/v1/status")


def test_a_plain_address_proves_nothing(stub: Stub) -> None:
    assert exchange(stub.address, "GET", "/", timeout_s=5).status == 200
    assert PASS_HEADER not in stub.headers[0]
    assert "Authorization" not in stub.headers[0]


def test_each_key_in_the_file_makes_a_pass_that_the_node_takes(made: NodeRecord) -> None:
    secret, data = made.home / "data" / "SECRET", made.home / "data" / "IDENTITY"
    old = read_keys(secret)[0]
    write_keys(secret, [new_key(), old], "")
    uuid = str(identity.decode(data.read_bytes(), data).cluster_uuid)
    newest, older, none = proofs_for(address_of(made), "GET", "/v1/status", b"")
    assert none == {}
    for proof, key in ((newest, read_keys(secret)[0]), (older, old)):
        started = iter([0])  # long before the proof was made
        node = Passes(
            node=1,
            uuid=lambda: uuid,
            keyring=lambda key=key: Keyring([key]),  # type: ignore[misc]
            entropy=lambda size: b"",
            wall_ms=lambda started=started: next(started, time.time_ns() // 1_000_000),  # type: ignore[misc]
        )
        assert node.check(proof[PASS_HEADER], "GET", "/v1/status", b"").who == "operator"
        assert not [text for text in secret.read_text().split() if len(text) > 40 and text in proof[PASS_HEADER]]


@pytest.mark.parametrize("missing", ["data/SECRET", "data/IDENTITY", "raftmq.toml"])
def test_without_its_files_a_tool_is_a_stranger(made: NodeRecord, missing: str) -> None:
    (made.home / missing).unlink()
    assert list(proofs_for(address_of(made), "GET", "/", b"")) == [{}]
