"""etcd as a system under test: three members with default settings; a message is a put, a batch is one transaction of
puts.

The quota of the database is raised from 2 GiB, because a run would fill it, and etcd then refuses everything.
"""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from bench.peers import fetch
from bench.peers.grpc import UnaryCalls
from bench.peers.loads import body
from bench.peers.system import HERE, NODES, Generator, Load, Node, NoLeader, Places, Traits
from bench.peers.three_processes import Group

READY_S = 60.0
QUOTA_BYTES = 16 << 30
PUT, TXN = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Txn"


class Etcd(Group):
    """A `System` of three etcd members."""

    def __init__(self, name: str, release: fetch.GoPeer, places: Places = HERE) -> None:
        super().__init__(places)
        self.traits = Traits(name, f"etcd {release.version}", "majority fdatasync", warm_s=5.0, batches=True)
        self._binary = fetch.built(release)

    def start(self, directory: Path) -> None:
        """Starts the members and waits until one leads, READY_S at most. Raises NoLeader."""
        self._start_in_pairs(directory, READY_S)

    def leader(self) -> Node:
        """Returns the member that says that it leads (Maintenance.Status)."""
        alive = set(self.processes.pids)
        for node in self._nodes:
            if node.pid in alive:
                try:
                    told = _status(node.host, node.port)
                except OSError:
                    continue
                if told.get("leader") == told["header"]["member_id"]:
                    return node
        raise NoLeader("no member of etcd leads")

    def generator(self, load: Load) -> Generator:
        """Returns a generator of calls on one connection; each place of the window has keys of its own."""
        if load.batch == 1:
            return UnaryCalls(load, PUT, lambda place: put(place, load.size))
        return UnaryCalls(load, TXN, lambda place: transaction(place, load.size, load.batch))

    def _start(self, number: int) -> int:
        host, enter = self.places.nodes[number]
        client, peer = (f"http://{host}:{self._base + offset + number}" for offset in (0, NODES))
        places = enumerate(self.places.nodes)
        members = ",".join(f"n{each}=http://{place.host}:{self._base + NODES + each}" for each, place in places)
        flags = {
            "name": f"n{number}",
            "data-dir": self._home / f"n{number}",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": members,
            "quota-backend-bytes": QUOTA_BYTES,
            "log-level": "error",
        }
        command = [*enter, str(self._binary), *(f"--{name}={value}" for name, value in flags.items())]
        return self.processes.start(command, self._home / f"n{number}.log")


def put(place: int, size: int) -> bytes:
    """Encodes a PutRequest of `size` bytes, with a key of its own for each place."""
    return _field(1, b"bench/%08d" % place) + _field(2, body(size))


def transaction(place: int, size: int, batch: int) -> bytes:
    """Encodes a TxnRequest whose success branch has `batch` puts; etcd allows 128 (--max-txn-ops)."""
    puts = (put(place * batch + number, size) for number in range(batch))
    return b"".join(_field(2, _field(2, one)) for one in puts)  # fields TxnRequest.success and RequestOp.request_put


def _field(number: int, content: bytes) -> bytes:
    """Encodes a protobuf field with a length (wire type 2); `number` must be below 16."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _status(host: str, port: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("POST", "/v3/maintenance/status", b"{}", {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found: dict[str, Any] = json.loads(answer.read())
    except (http.client.HTTPException, ValueError) as error:
        raise ConnectionError(f"no status from etcd: {error}") from error
    finally:
        connection.close()
    if "header" not in found:
        raise ConnectionError(f"no status from etcd: {found}")
    return found
