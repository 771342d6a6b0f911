"""Fetches the findings of the other nodes over their HTTP APIs. Also finds problems that show only when nodes are
compared, such as clocks that differ.

A request to this node waits at most WAIT_S for nodes that do not answer. While all other nodes are known to be silent,
it does not wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

import aiohttp
import msgspec

from cluster.admin.findings.finding import FindingsView, NodeReport
from cluster.admin.node_interface import AdminPort
from cluster.admin.peer_http_client import NodeSession
from cluster.config.cluster_keys import cluster_values
from cluster.config.local_layout import name_of, node_object
from cluster.config.source import toml_value
from cluster.runtime.findings import CLUSTER, Code, Condition
from cluster.runtime.request_limits import TooLongError, read_at_most
from raftlog.core.state.quorum import lower_median
from raftlog.types import FIRST_GROUP, NodeId

logger = logging.getLogger(__name__)

NODE_SILENT: Final = Code("node_silent", "info", "raftmq logs {n}")
CLOCK_OFF: Final = Code("clock_off", "warning", "timedatectl timesync-status")
CONFIG_DIFFERS: Final = Code("config_differs", "warning", "raftmq config diff")
PATH: Final = "/v1/findings"
ASK_S: Final = 2.0
"""Seconds after which a question to another node counts as not answered."""
WAIT_S: Final = 0.5
"""The most seconds for which a request to this node waits for the other nodes' answers. The questions go on in the
background."""
FRESH_S: Final = 1.0
"""The shortest time in seconds between the beginnings of two rounds of questions to the other nodes."""
OLD_S: Final = 15.0
"""Seconds after which a node's last answer no longer counts."""
SILENT_HOLD_MS: Final = 3_000
SILENT_TIMES: Final = 3
"""Number of questions in a row without an answer after which a node is reported as silent. One is not enough: nodes
that start together do not all answer the first question."""
CLOCK_HOLD_MS: Final = 2_000
FAR_OFF_MS: Final = 10_000
"""Milliseconds. A refusal states the other node's time in whole seconds, so only a larger difference of the clocks
counts."""
ANSWER_BYTES_MAX: Final = 1 << 20


class Heard(NamedTuple):
    """The last answer of another node, and when it came."""

    view: FindingsView
    at_s: float
    """The event loop's time in seconds when the answer came."""
    clock_off_ms: int
    """The other node's wall clock minus this node's, in milliseconds. The duration of the request leaves a range of
    possible values; this is the one nearest to 0."""


class OtherNodes:
    """Asks the other members for their findings, and keeps the last answers. Event loop only."""

    def __init__(self, port: AdminPort, fresh_s: float = FRESH_S) -> None:
        """`fresh_s`: the seconds after which the others are asked again."""
        self._port, self._fresh_s = port, fresh_s
        self._session = NodeSession(port.configuration.tls.http_dialling())
        self._heard: dict[int, Heard] = {}
        self._silent: dict[int, str] = {}
        """Node -> the reason why it did not answer when it was last asked."""
        self._far_off: dict[int, int] = {}
        """Node -> its wall clock minus this node's in milliseconds. Only nodes that refused the last question, and
        whose clocks differ by more than FAR_OFF_MS."""
        self._failed: dict[int, int] = {}
        """Node -> number of questions in a row that it did not answer."""
        self._round: asyncio.Task[None] | None = None
        self._asked_s = float("-inf")

    async def close(self) -> None:
        """Cancels the questions in progress and closes the connections."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)
        await self._session.close()

    async def refresh(self, wait_s: float = WAIT_S) -> None:
        """Starts a round of questions to all other members, unless one runs or began less than `fresh_s` seconds ago.
        Waits at most `wait_s` seconds for its end, but not at all if every other member was silent when it was last
        asked."""
        loop = asyncio.get_running_loop()
        if self._round is None or (self._round.done() and loop.time() - self._asked_s >= self._fresh_s):
            self._asked_s = loop.time()
            self._round = loop.create_task(self._ask_all(), name="findings")
        expected = [node for node in self._addresses() if node not in self._silent]
        if not self._round.done() and expected:
            await asyncio.wait([self._round], timeout=wait_s)

    @property
    def doubts(self) -> bool:
        """True if a node did not answer when it was last asked, so that it should be asked again soon."""
        return bool(self._silent)

    def views(self) -> dict[int, FindingsView]:
        """Returns node -> its last answer, for members that answered the last question less than OLD_S ago."""
        now_s, members = asyncio.get_running_loop().time(), self._addresses()
        return {
            node: heard.view
            for node, heard in self._heard.items()
            if node in members and node not in self._silent and now_s - heard.at_s < OLD_S
        }

    def reports(self) -> list[NodeReport]:
        """Returns a report on every other member, also on those without a known HTTP address, by node id."""
        now_s, views = asyncio.get_running_loop().time(), self.views()
        nodes = sorted(set(self._port.nodes.membership.in_force.node_uuids) - {self._port.config.node.id})
        ages = {node: int(1000 * (now_s - heard.at_s)) for node, heard in self._heard.items()}
        return [NodeReport(node=node, answers=node in views, age_ms=ages.get(node)) for node in nodes]

    def conditions(self) -> Iterator[Condition]:
        """Yields conditions about other nodes: silent ones, clocks that differ, and settings that differ."""
        for node, why in self._silent.items():
            if self._failed[node] < SILENT_TIMES:
                continue
            says = f"the HTTP API of {self._port.object_of(node)} does not answer: {why}; its findings are not known"
            yield Condition(NODE_SILENT, self._port.object_of(node), says, hold_ms=SILENT_HOLD_MS)
        views, own = self.views(), self._port.config.node.id
        offsets = {own: 0, **self._far_off} | {node: self._heard[node].clock_off_ms for node in views}
        group = self._port.config.cluster.group
        yield from clock_conditions(offsets, self._port.config.health.clock_off_ms, group)
        if not self._port.state.settings.version:  # later the log has them, and files may differ
            settings = {own: shared_settings(self._port)} | {node: view.settings for node, view in views.items()}
            yield from setting_conditions(settings, group)

    def _addresses(self) -> dict[int, str]:
        """Returns node -> "host:port" of its HTTP API, for the other members with a known address."""
        service, own = self._port.nodes.membership, self._port.config.node.id
        known = {node: service.addresses.get(NodeId(node)) for node in service.in_force.node_uuids if node != own}
        return {int(node): each.admin for node, each in known.items() if each is not None and each.admin}

    async def _ask_all(self) -> None:
        addresses = self._addresses()
        for gone in [node for node in (*self._heard, *self._silent) if node not in addresses]:
            self._heard.pop(gone, None)
            self._silent.pop(gone, None)
            self._failed.pop(gone, None)
            self._far_off.pop(gone, None)
        await asyncio.gather(*(self._ask(node, address) for node, address in addresses.items()))

    def _note_clock(self, node: int, date: str, asked_ms: int) -> None:
        """Records how far the clock of a node that refused to answer is from this node's. `date` is the Date header of
        the refusal, in whole seconds; `asked_ms` is this node's clock at the question. A node refuses a pass from a
        clock that is more than a minute off, so this is the only way to learn the difference."""
        try:
            theirs_ms = int(1000 * parsedate_to_datetime(date).timestamp())
        except ValueError:
            return
        if abs(theirs_ms - asked_ms) > FAR_OFF_MS:
            self._far_off[node] = theirs_ms - asked_ms

    async def _ask(self, node: int, address: str) -> None:
        loop = asyncio.get_running_loop()
        began_s, before_ms = loop.time(), self._port.wall_ms()
        try:
            headers = self._port.access.own_pass(self._port.name_of(node), PATH)
            asks = self._session.request(
                "GET", address, PATH, headers=headers, limits=aiohttp.ClientTimeout(total=ASK_S)
            )
            async with asks as answer:
                body = b"".join(await read_at_most(answer.content, ANSWER_BYTES_MAX))
            self._far_off.pop(node, None)
            if answer.status != 200:
                self._note_clock(node, answer.headers.get("Date", ""), before_ms)
                raise ValueError(f"it answers with status {answer.status}{_message(body)}")
            view = msgspec.json.decode(body, type=FindingsView)
            if view.node != node:
                raise ValueError(f"{self._port.object_of(view.node)} answers at its address")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, TooLongError, msgspec.DecodeError) as error:
            self._silent[node] = why_silent(error)
            self._failed[node] = self._failed.get(node, 0) + 1
            return
        self._silent.pop(node, None)
        self._failed.pop(node, None)
        took_ms = int(1000 * (loop.time() - began_s))
        self._heard[node] = Heard(view, loop.time(), clock_offset_ms(view.wall_ms, before_ms, took_ms))


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error = _Error()


def _message(body: bytes) -> str:
    """Returns the error message in the body of a refusal, in parentheses and after a space; "" if it has none."""
    try:
        said = msgspec.json.decode(body, type=_Refusal).error.message
    except msgspec.DecodeError:
        return ""
    return f" ({' '.join(said.split())[:150]})" if said else ""


def why_silent(error: Exception) -> str:
    """Describes the error for people, in one line."""
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return f"{error.host}:{error.port}: {os.strerror(error.os_error.errno)}"
    return " ".join((str(error) or f"no answer for {ASK_S:g} s").split())[:200]


def clock_offset_ms(theirs_ms: int, asked_ms: int, took_ms: int) -> int:
    """Returns the other node's clock minus this node's in milliseconds. `theirs_ms` is the clock in the answer,
    `asked_ms` this node's clock at the question, and `took_ms` the time until the answer. These leave a range of
    possible values; the one nearest to 0 is returned."""
    least, most = theirs_ms - asked_ms - took_ms, theirs_ms - asked_ms
    return max(least, min(0, most))


def clock_conditions(offsets_ms: Mapping[int, int], bound_ms: int, group: int = FIRST_GROUP) -> Iterator[Condition]:
    """Yields a condition for each node whose clock is more than `bound_ms` from the median of all clocks. Two nodes get
    one condition about the cluster, because nobody can tell which of the clocks is wrong. `offsets_ms`: node -> its
    clock minus this node's."""
    median = lower_median(offsets_ms.values())
    off = {node: offset - median for node, offset in sorted(offsets_ms.items()) if abs(offset - median) > bound_ms}
    if off and len(offsets_ms) == 2:
        one, other = sorted(offsets_ms)
        apart = abs(offsets_ms[one] - offsets_ms[other])
        yield Condition(
            CLOCK_OFF,
            CLUSTER,
            f"the clocks of nodes {name_of(group, one)} and {name_of(group, other)} are {apart} ms apart; only a third "
            "could show which is wrong",
            hold_ms=CLOCK_HOLD_MS,
        )
        return
    for node, offset in off.items():
        way, about = "ahead of" if offset > 0 else "behind", node_object(group, node)
        yield Condition(
            CLOCK_OFF,
            about,
            f"the clock of {about} is {abs(offset)} ms {way} the others' (health.clock_off_ms = {bound_ms})",
            hold_ms=CLOCK_HOLD_MS,
        )


def setting_conditions(settings: Mapping[int, Mapping[str, str]], group: int = FIRST_GROUP) -> Iterator[Condition]:
    """Yields a condition for each key whose value is not the same on all given nodes. A key that some nodes do not
    report, because their version does not know it, is not compared. `settings`: node -> key -> value as TOML."""
    for key in sorted(set.intersection(*(set(own) for own in settings.values()))):
        values = {node: own[key] for node, own in sorted(settings.items())}
        if len(set(values.values())) > 1:
            told = ", ".join(f"{value} on {node_object(group, node)}" for node, value in values.items())
            says = f"{key} differs: {told}; the leader's counts until another node leads. Make them equal in every file"
            yield Condition(CONFIG_DIFFERS, f"setting {key}", says)


def shared_settings(port: AdminPort) -> dict[str, str]:
    """Returns key -> value in force on this node, as TOML, for the keys that should be equal on all nodes."""
    return {key: toml_value(value) for key, value in cluster_values(port.config).items()}
