"""Nodes talk to each other over TLS, and each checks that the other's certificate is that node's. Real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from cluster.config.config import Config
from cluster.config.node_sections import NodeSection, TlsMode, TlsSection
from cluster.peer.allowed_peers import Membership
from cluster.peer.group_links import GroupLinks, LinkTarget
from cluster.peer.keyring import OPEN, Keyring
from cluster.peer.probe import probe
from cluster.peer.transport import BULK, CONTROL, PLAIN_REFUSAL, PeerTransport
from cluster.peer.transport_options import FrameHandlers, PeerLevels
from cluster.runtime.alarms import Alarms
from cluster.runtime.peer_frames import Kind
from cluster.runtime.tls.tls_maintenance import CHECK_AFTER_MS, TlsMaintenance
from cluster.runtime.tls.transport import TlsTransport
from raftlog.messages import Heartbeat, Message
from raftlog.types import NodeId
from raftmq.local.process import free_base_port
from raftmq.local.tls.certificates import Pair, new_ca, new_client, new_node, write_pair
from statemachine.levels import LEVEL
from tests.support.wait_until import PATIENCE_S, until

ONE, TWO = NodeId(1), NodeId(2)
CLUSTER = "6f9a2f9e-52a7-4d0f-8f3c-0d6d3a1f0001"
UUIDS = {ONE: "6f9a2f9e-52a7-4d0f-8f3c-0d6d3a1f0011", TWO: "6f9a2f9e-52a7-4d0f-8f3c-0d6d3a1f0012"}
KEYS = Keyring((b"k" * 32,))


class Pki:
    """A folder with a CA, and the certificate of each node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = new_ca()
        write_pair(self.ca, folder, "ca")
        for node in (ONE, TWO):
            self.issue(node)

    def issue(self, node: NodeId, ca: Pair | None = None, cluster: str = CLUSTER, of: NodeId | None = None) -> None:
        pair = new_node(ca or self.ca, cluster, UUIDS[of or node], ["127.0.0.1"])
        write_pair(pair, self.folder, f"node-{node}", replace=True)

    def trust(self, *authorities: Pair) -> None:
        parts = []
        for number, each in enumerate(authorities):
            write_pair(each, self.folder / "cas", f"ca-{number}", replace=True)
            parts.append((self.folder / "cas" / f"ca-{number}.crt").read_bytes())
        staged = self.folder / "staged"
        staged.write_bytes(b"".join(parts))
        staged.replace(self.folder / "ca.crt")

    def keeper(self, node: NodeId, mode: TlsMode, alarms: Alarms) -> TlsMaintenance:
        section = TlsSection(
            mode=mode if mode != "" else "disabled",
            cert_file=str(self.folder / f"node-{node}.crt"),
            key_file=str(self.folder / f"node-{node}.key"),
            ca_file=str(self.folder / "ca.crt"),
        )
        config = Config(node=NodeSection(id=node, data_dir="/nowhere"), tls=section)
        return TlsMaintenance(config, alarms, lambda: time.time_ns() // 1_000_000)


class Peer:
    def __init__(self, pki: Pki, node: NodeId, mode: TlsMode, ports: dict[NodeId, int], keyring: Keyring) -> None:
        self.node, self.port = node, ports[node]
        self.alarms = Alarms(lambda: 0)
        self.tls = pki.keeper(node, mode, self.alarms)
        addresses = {each: (("127.0.0.1", port),) for each, port in ports.items()}
        known = Membership(CLUSTER, 1, node, UUIDS[node], UUIDS)
        self.transport = PeerTransport(
            known,
            addresses,
            ("127.0.0.1", ports[node]),
            keyring=keyring,
            incarnation=int.from_bytes(os.urandom(4)) + 1,
            security=self.tls.peer_security(PLAIN_REFUSAL),
            dialling=self.tls.peer_dialling(),
            levels=PeerLevels(of_cluster=lambda: LEVEL),
        )
        self.tls.changed.add(self.transport.renew_certified)
        self.messages: list[Message] = []
        self.closed: list[NodeId] = []

    @property
    def other(self) -> NodeId:
        return TWO if self.node == ONE else ONE

    async def start(self) -> None:
        await self.transport.start(
            FrameHandlers(self.messages.append, self.closed.append, lambda peer, kind, header, payload: None)
        )

    def is_linked(self) -> bool:
        """Returns True if it has both links to the other."""
        return {(self.other, BULK), (self.other, CONTROL)} <= self.transport.links.keys()

    def over_tls(self) -> set[bool]:
        return {isinstance(link.transport, TlsTransport) for link in self.transport.links.values()}

    @property
    def why(self) -> str:
        return self.transport.dial_errors.get(self.other, "")

    def is_refused(self, why: str) -> bool:
        """Returns True if it cannot reach the other for that reason."""
        return why in self.why and not self.is_linked()


Made = Callable[..., tuple[Peer, Peer]]


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


@pytest.fixture
async def made(pki: Pki) -> AsyncIterator[Made]:
    peers: list[Peer] = []

    def make(first: TlsMode, second: TlsMode, keyring: Keyring = KEYS) -> tuple[Peer, Peer]:
        base = free_base_port(2)
        ports = {ONE: base, TWO: base + 1}
        peers.extend([Peer(pki, ONE, first, ports, keyring), Peer(pki, TWO, second, ports, keyring)])
        return peers[0], peers[1]

    yield make
    for peer in peers:
        await peer.transport.close()
    await asyncio.sleep(0.05)


async def started(pair: tuple[Peer, Peer]) -> tuple[Peer, Peer]:
    for peer in pair:
        await peer.start()
    return pair


def _exchanged(one: Peer, two: Peer) -> bool:
    """Returns True once each has a message of the other; else sends some."""
    if one.messages and two.messages:
        return True
    for peer in (one, two):
        peer.transport.send([Heartbeat(peer.node, peer.other, 1, 0, 0)])
    return False


@pytest.mark.parametrize("keyring", [KEYS, OPEN])
@pytest.mark.parametrize(
    ("first", "second", "secure"),
    [
        ("enforcing", "enforcing", True),
        ("permissive", "enforcing", True),
        ("permissive", "permissive", True),
        ("permissive", "disabled", False),
        ("disabled", "permissive", False),
    ],
)
async def test_each_step_of_a_rolling_change(
    made: Made, first: TlsMode, second: TlsMode, secure: bool, keyring: Keyring
) -> None:
    one, two = await started(made(first, second, keyring))
    await until(lambda: one.is_linked() and two.is_linked() and _exchanged(one, two))
    assert one.over_tls() == two.over_tls() == {secure}
    wants = two.transport.roster.membership.node_uuid
    assert await probe(one.transport, TWO, wants, ("127.0.0.1", two.port)) == ""


async def test_plain_text_is_refused_where_tls_is_enforced(made: Made) -> None:
    one, two = await started(made("enforcing", "disabled"))
    await until(lambda: "TLS: " in one.why and "takes TLS only" in two.why)
    assert not one.transport.inlets
    assert not one.is_linked()
    assert not two.messages


def _of_another_node(pki: Pki) -> None:
    pki.issue(TWO, of=ONE)


def _of_another_cluster(pki: Pki) -> None:
    pki.issue(TWO, cluster="6f9a2f9e-52a7-4d0f-8f3c-0d6d3a1f0009")


def _of_a_client(pki: Pki) -> None:
    write_pair(new_client(pki.ca, "a client"), pki.folder, "node-2", replace=True)


def _of_another_ca(pki: Pki) -> None:
    pki.issue(TWO, ca=new_ca())


def _expired(pki: Pki) -> None:
    write_pair(new_node(pki.ca, CLUSTER, UUIDS[TWO], [], days=-1), pki.folder, "node-2", replace=True)


@pytest.mark.parametrize(
    ("spoil", "says", "hears"),
    [
        (_of_another_node, "another disk", "its certificate is of node"),
        (_of_another_cluster, "at its address is cluster", "its certificate is of node"),
        (_of_a_client, "TLS: ", "names no node"),
        (_of_another_ca, "TLS: its certificate is refused", "TLS: "),
        (_expired, "certificate has expired", "TLS: "),
    ],
)
async def test_a_wrong_certificate_is_refused_by_both_sides(
    made: Made, pki: Pki, spoil: Callable[[Pki], None], says: str, hears: str
) -> None:
    spoil(pki)
    one, two = await started(made("enforcing", "enforcing"))
    await until(lambda: one.is_refused(says) and hears in two.why)
    assert not one.transport.roster.is_guest(TWO)
    assert all(inlet.peer is None for inlet in (*one.transport.inlets, *two.transport.inlets))
    assert not one.messages
    assert not two.messages


async def test_where_plain_text_is_permitted_a_wrong_certificate_cuts_nobody_off(made: Made, pki: Pki) -> None:
    _of_another_ca(pki)
    one, two = await started(made("permissive", "permissive"))
    await until(lambda: one.is_linked() and two.is_linked() and _exchanged(one, two))
    assert one.over_tls() == two.over_tls() == {False}
    for peer, other in ((one, two), (two, one)):
        (alarm,) = peer.alarms.all()
        assert alarm.key == "tls_plain"
        assert f"127.0.0.1:{other.port}" in alarm.text
    pki.issue(TWO)
    two.tls.reload()
    for peer in (one, two):
        peer.tls.tick(60_000)
    await until(lambda: one.over_tls() == two.over_tls() == {True})
    for peer in (one, two):
        peer.tls.tick(120_000)
        assert not peer.alarms.raised("tls_plain")


async def test_other_certificates_replace_links_without_a_gap(made: Made, pki: Pki) -> None:
    one, two = await started(made("enforcing", "enforcing"))
    await until(lambda: one.is_linked() and two.is_linked() and _exchanged(one, two))
    before = set(one.transport.links.values())
    fresh = new_ca()
    pki.trust(pki.ca, fresh)
    for peer in (one, two):
        assert peer.tls.reload()
    for node, peer in ((ONE, one), (TWO, two)):
        pki.issue(node, ca=fresh)
        assert peer.tls.reload()
    await until(lambda: one.is_linked() and before.isdisjoint(one.transport.links.values()))
    await until(lambda: one.is_linked() and two.is_linked())
    pki.trust(fresh)
    linked = [*one.transport.links.values(), *two.transport.links.values()]
    for peer in (one, two):
        assert peer.tls.reload()
        peer.tls.tick(1)
    await until(lambda: set(linked).isdisjoint((*one.transport.links.values(), *two.transport.links.values())))
    for peer in (one, two):  # by then every link was made again under the new CA: nothing ends
        peer.tls.tick(CHECK_AFTER_MS + 2)
        peer.tls.tick(CHECK_AFTER_MS + 3)
    one.messages.clear()
    two.messages.clear()
    await until(lambda: _exchanged(one, two))
    assert not one.closed
    assert not two.closed


async def test_a_link_ends_when_its_ca_is_taken_away(made: Made, pki: Pki) -> None:
    one, two = await started(made("enforcing", "enforcing"))
    await until(lambda: one.is_linked() and two.is_linked())
    pki.trust(new_ca())
    assert one.tls.reload()
    one.tls.tick(CHECK_AFTER_MS + 1)
    one.tls.tick(CHECK_AFTER_MS + 2)
    await until(lambda: not one.transport.links and not any(inlet.peer for inlet in one.transport.inlets))
    await until(lambda: one.is_refused("TLS: its certificate is refused"))
    assert two.closed


async def test_strangers_that_shake_hands_keep_no_peer_out(made: Made) -> None:
    one, two = made("enforcing", "enforcing")
    await one.start()
    port = one.port
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    out, hello = ssl.MemoryBIO(), ssl.MemoryBIO()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(out, hello).do_handshake()
    begun = hello.read()
    crowd = []
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(100):  # from another address of this machine than the peer's
            crowd.append(await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)))
            crowd[-1][1].write(begun)
        await two.start()
        while not (one.is_linked() and two.is_linked() and _exchanged(one, two)):
            await asyncio.sleep(0.01)
    for _, writer in crowd:
        writer.transport.abort()
    assert sum(inlet.peer == TWO for inlet in one.transport.inlets) == 2


@pytest.mark.parametrize("spoil", [None, _of_another_node, _of_another_cluster, _of_another_ca])
async def test_nodes_of_different_groups_show_their_certificates(
    made: Made, pki: Pki, spoil: Callable[[Pki], None] | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "cluster.peer.group_links")
    if spoil is not None:
        spoil(pki)
    one, two = made("enforcing", "enforcing")
    two.transport.set_members(Membership(CLUSTER, 2, TWO, UUIDS[TWO], {TWO: UUIDS[TWO]}), {})
    one.transport.set_members(Membership(CLUSTER, 1, ONE, UUIDS[ONE], {ONE: UUIDS[ONE]}), {})
    ends = [GroupLinks(peer.transport, lambda group: 0) for peer in (one, two)]
    heard: list[tuple[int, bytes]] = []
    for end in ends:
        end.takes(Kind.GROUPS, lambda link, header, payload: heard.append((link.group, payload)))
    await started((one, two))
    for dialler, other in ((ends[0], two), (ends[1], one)):
        target = LinkTarget(3 - dialler.transport.roster.membership.group_id, other.node, (("127.0.0.1", other.port),))
        dialler.tend([target])
        key = target.group, target.node
        if spoil is None:
            await until(partial(dialler.reaches, *key))
            assert all(end.send(group, Kind.GROUPS, [], bytes(70_000)) for end, group in zip(ends, (2, 1), strict=True))
            await until(lambda: sorted(heard) == [(1, bytes(70_000)), (2, bytes(70_000))])
            heard.clear()
        else:
            await until(lambda: "is not reached at" in caplog.text)
            caplog.clear()
            assert not any(end.all() for end in ends)
    for end in ends:
        await end.close()
