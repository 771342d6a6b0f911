"""The probe of an HTTP API's address: a node says who it is, and anything else is bounded."""

from __future__ import annotations

import json

import pytest

from cluster.members.addresses import ANSWER_BYTES_MAX, probe_http
from raftlog.types import NodeId
from raftmq.local.process import free_base_port
from tests.support.plain_server import Listen

THREE = NodeId(3)
ASKED = b"\r\n\r\n"


def answer(body: object, status: str = "200 OK") -> bytes:
    return f"HTTP/1.0 {status}\r\nContent-Type: application/json\r\n\r\n{json.dumps(body)}".encode()


def status(**changes: object) -> dict[str, object]:
    return {"schema": 1, "node": 3, "cluster_id": "c", "uuid": "uuid-3", "links": []} | changes


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([answer(status())], ""),
        ([answer(status())[:30], answer(status())[30:]], ""),
        ([answer({"node": 3, "cluster_id": "c"})], ""),  # an earlier release
        ([answer(status(node=2))], "node 2 answers there"),
        ([answer(status(cluster_id="d"))], "a node of another cluster answers there (d)"),
        ([answer(status(uuid="other"))], "node 3 with another disk answers there (uuid other)"),
        ([answer({"error": {}}, "403 Forbidden")], "what answers there is no node (HTTP status 403)"),
        ([answer([])], "what answers there is no node (HTTP status 200)"),
        ([b"HTTP/1.0 200 OK\r\n\r\n\xff"], "what answers there is no node (HTTP status 200)"),
        ([b"SSH-2.0-OpenSSH\r\n"], "what listens there does not speak HTTP"),
        ([b""], "what listens there does not speak HTTP"),
        ([b"x" * 70_000] * 5, f"its answer is longer than {ANSWER_BYTES_MAX} bytes"),
    ],
)
async def test_who_answers(listens: Listen, parts: list[bytes], why: str) -> None:
    host, port = await listens(*parts, after=ASKED)
    assert await probe_http(THREE, "uuid-3", "c", f"{host}:{port}") == why


async def test_nobody_listens_or_nobody_answers(listens: Listen) -> None:
    nobody = f"127.0.0.1:{free_base_port(1)}"
    assert await probe_http(THREE, "uuid-3", "c", nobody) == "Connection refused"
    host, port = await listens(after=ASKED, hangs_up=False)
    found = await probe_http(THREE, "uuid-3", "c", f"{host}:{port}", limit_s=0.05)
    assert found == "no answer within 0.05 s"
