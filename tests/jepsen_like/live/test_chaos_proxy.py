"""The proxy on an edge: carries, cuts one way, holds, delivers or resets, delays, and counts what it did."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from cluster.peer.wire import pack
from cluster.runtime.peer_frames import Kind
from jepsen_like.live.subjects.proxy import Fabric
from tests.support.pace import at_most
from tests.support.wait_until import wait

WAIT_S = at_most(10)


class Node:
    """Listens as a node does, keeps all it hears, and answers every connection with its name."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.heard = b""
        self.ended = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.sendall(self.name)
            try:
                while data := connection.recv(65536):
                    self.heard += data
            except OSError:
                pass
        self.ended += 1

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def nodes() -> Iterator[dict[int, Node]]:
    made = {1: Node(b"one"), 2: Node(b"two")}
    yield made
    for node in made.values():
        node.close()


@pytest.fixture
def fabric(nodes: dict[int, Node]) -> Iterator[Fabric]:
    made = Fabric({number: node.port for number, node in nodes.items()})
    yield made
    made.close()


def dial(fabric: Fabric, source: int, target: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", fabric.ports[source, target]), WAIT_S)


def test_carries_both_ways_and_passes_on_the_end(fabric: Fabric, nodes: dict[int, Node]) -> None:
    with dial(fabric, 1, 2) as connection:
        connection.sendall(b"hello")
        assert connection.recv(10) == b"two"
        wait(lambda: nodes[2].heard == b"hello")
        assert fabric.traffic()[1, 2].passed_bytes == 5
        assert fabric.traffic()[2, 1].passed_bytes == 0
    wait(lambda: nodes[2].ended == 1)


@pytest.mark.parametrize("reset", [False, True])
def test_a_cut_holds_one_direction_and_heals(fabric: Fabric, nodes: dict[int, Node], reset: bool) -> None:
    with dial(fabric, 1, 2) as forth, dial(fabric, 2, 1) as back:
        assert (forth.recv(10), back.recv(10)) == (b"two", b"one")
        fabric.cut([(1, 2)])
        assert fabric.cut_pairs() == {(1, 2)}
        forth.sendall(b"held")
        back.sendall(b"free")
        wait(lambda: nodes[1].heard == b"free")
        wait(lambda: fabric.traffic()[1, 2].taken_bytes == 4)
        assert fabric.traffic()[1, 2].passed_bytes == 0
        assert nodes[2].heard == b""
        fabric.heal(reset=reset)
        if reset:
            assert ended(forth)
            wait(lambda: nodes[2].ended == 1)
            assert nodes[2].heard == b""
        else:
            wait(lambda: nodes[2].heard == b"held")
        assert fabric.cut_pairs() == set()


def test_a_closed_connection_stays_unnoticed_while_cut(fabric: Fabric, nodes: dict[int, Node]) -> None:
    connection = dial(fabric, 1, 2)
    assert connection.recv(10) == b"two"
    fabric.cut([(1, 2)])
    connection.close()
    with dial(fabric, 2, 1) as other:  # the loop has turned: the close has been seen by the proxy
        assert other.recv(10) == b"one"
    assert nodes[2].ended == 0
    fabric.heal()
    wait(lambda: nodes[2].ended == 1)


def test_a_connection_made_during_a_cut_reaches_the_target_after_it(fabric: Fabric, nodes: dict[int, Node]) -> None:
    fabric.cut([(1, 2)])
    with dial(fabric, 1, 2) as connection:
        connection.sendall(b"early")
        wait(lambda: fabric.traffic()[1, 2].taken_bytes == 5)
        assert nodes[2].heard == b""
        fabric.heal()
        wait(lambda: nodes[2].heard == b"early")


def test_a_delay_keeps_the_order_and_is_counted(fabric: Fabric, nodes: dict[int, Node]) -> None:
    with dial(fabric, 1, 2) as connection:
        assert connection.recv(10) == b"two"
        fabric.slow([(1, 2)], 0.02, 0.02)
        for number in range(10):
            connection.sendall(b"%d" % number)
            time.sleep(0.001)
        wait(lambda: len(nodes[2].heard) == 10)
        assert nodes[2].heard == b"0123456789"
        assert fabric.traffic()[1, 2].late_pieces >= 1
        fabric.heal()
        before = fabric.traffic()[1, 2].late_pieces
        connection.sendall(b"x")
        wait(lambda: nodes[2].heard.endswith(b"x"))
        assert fabric.traffic()[1, 2].late_pieces == before


def test_a_dead_target_is_told_as_if_dialled_directly(fabric: Fabric, nodes: dict[int, Node]) -> None:
    nodes[2].close()
    wait(lambda: _refuses(fabric))


def _refuses(fabric: Fabric) -> bool:
    with dial(fabric, 1, 2) as connection:
        return ended(connection)


def ended(connection: socket.socket) -> bool:
    """The far side ended the connection, and nothing came before that."""
    try:
        return connection.recv(10) == b""
    except ConnectionResetError:
        return True


def test_on_a_duplex_fabric_answers_belong_to_the_edge_back(nodes: dict[int, Node]) -> None:
    fabric = Fabric({number: node.port for number, node in nodes.items()}, duplex=True)
    try:
        fabric.cut([(2, 1)])
        with dial(fabric, 1, 2) as connection:
            connection.sendall(b"hello")
            wait(lambda: nodes[2].heard == b"hello")
            wait(lambda: fabric.traffic()[2, 1].taken_bytes == 3)
            assert fabric.traffic()[2, 1].passed_bytes == 0
            fabric.heal([(2, 1)])
            assert connection.recv(10) == b"two"
    finally:
        fabric.close()


def test_edges_between_sets_of_nodes() -> None:
    fabric = Fabric({1: 1, 2: 2, 3: 3})
    try:
        assert fabric.between([1], [2, 3]) == {(1, 2), (2, 1), (1, 3), (3, 1)}
        assert len(fabric.pairs) == 6
    finally:
        fabric.close()
        fabric.close()


def hello(source: int) -> bytes:
    return pack(Kind.HELLO, ["cluster", 1, source, "uuid", 3, "control", 7])


def test_a_node_that_joined_is_reached_at_one_gate_and_has_an_edge_per_pair(fabric: Fabric) -> None:
    node = Node(b"three")
    fabric.add_node(3, node.port)
    first, second = (socket.create_connection(("127.0.0.1", fabric.gates[3])) for _ in range(2))
    try:
        fabric.cut([(2, 3)])
        for source, connection in ((1, first), (2, second)):
            connection.sendall(hello(source)[:9])
            connection.sendall(hello(source)[9:] + b"and more")
        wait(lambda: node.heard == hello(1) + b"and more")
        assert fabric.traffic()[2, 3].passed_bytes == 0, "the edge of node 2 is cut, and only that"
        fabric.heal()
        wait(lambda: node.heard.count(b"and more") == 2)
        assert {pair for pair in fabric.pairs if 3 in pair} == {(1, 3), (3, 1), (2, 3), (3, 2)}
        assert fabric.ports[3, 1] != fabric.ports[3, 2]
        fabric.remove_node(3)
        assert [pair for pair in fabric.pairs if 3 in pair] == []
        first.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionError):
            while first.recv(100):
                pass
    finally:
        for open_one in (first, second, node):
            open_one.close()


def test_a_gate_knows_a_connection_of_tls_by_the_process_that_dialled() -> None:
    owners: dict[int, int] = {}
    made = Fabric({1: 1, 2: 2}, owner=lambda port: owners.get(port, -1))
    node = Node(b"three")
    made.add_node(3, node.port)
    record = b"\x16\x03\x01 the rest of a handshake"
    try:
        for port, expected in ((2, record), (-1, record)):
            with socket.socket() as connection:
                connection.bind(("127.0.0.1", 0))
                owners[connection.getsockname()[1]] = port
                connection.settimeout(WAIT_S)
                connection.connect(("127.0.0.1", made.gates[3]))
                connection.sendall(record)
                if port > 0:
                    wait(lambda: node.heard == record)
                else:
                    with contextlib.suppress(ConnectionError):
                        while connection.recv(100):
                            pass
                assert node.heard == expected
        assert made.traffic()[2, 3].passed_bytes == len(record)
        assert made.traffic()[1, 3].passed_bytes == 0
    finally:
        made.close()
        node.close()


@pytest.mark.parametrize("early", [hello(9), b"\x00\x00\x00\x09nonsense!", b"\x7f\xff\xff\xff"])
def test_a_gate_lets_nobody_in_whom_it_does_not_know(fabric: Fabric, early: bytes) -> None:
    node = Node(b"three")
    fabric.add_node(3, node.port)
    try:
        with socket.create_connection(("127.0.0.1", fabric.gates[3])) as connection:
            connection.settimeout(WAIT_S)
            connection.sendall(early)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(10) == b""
        assert node.heard == b""
    finally:
        node.close()
