"""Accepted sockets before they become connections: each waits for its first byte, and TLS for its handshake.

The first byte is peeked at: 0x16 is TLS, anything else plain text. Strangers cost little and are bounded. A waiting
socket holds only its descriptor, and at most ARRIVALS_MAX wait. At most HANDSHAKES_MAX handshakes are open, ADDRESS_MAX
of one address. The others wait unread, one address after the other, so a client that floods a port delays only itself.
When too many wait, the address with the most of them loses its oldest.

Strangers with many addresses could occupy all handshakes and never complete them. So a handshake is given less time
while others wait for its place, and addresses that let one run out of time come after those that did not.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from cluster.runtime.host.connection_eviction import ConnectionSlots, shared_part
from cluster.runtime.logs import Seldom
from cluster.runtime.tls.port_security import HELLO, Security, why_failed
from cluster.runtime.tls.transport import TlsTransport
from raftlog.kept_errors import bare
from raftlog.work import METER

logger = logging.getLogger(__name__)

ARRIVALS_MAX = 1024
"""The most sockets of one port that wait, for a byte or for their handshake."""
HANDSHAKES_MAX, ADDRESS_MAX = 64, 8
STARTS_PER_TURN = 4
"""Handshakes begun in one turn of the loop: each signs once, which takes up to 0.3 ms with RSA."""
HANDSHAKE_UNITS = 500
FIRST_BYTE_S = HANDSHAKE_S = TURN_S = 5.0
"""The most seconds for which a socket may wait for its first byte, take for its handshake, and wait for that handshake
to begin."""
GIVES_WAY_S = 0.25
"""Seconds after which the handshake of a stranger is ended if a newcomer needs its place."""
PRESSED_S = 1.0
"""Seconds after which a handshake is ended if all places are taken and others wait. The handshake of an honest client
takes a round trip."""
SWEEP_S = 0.5

Factory = Callable[[], asyncio.BaseProtocol]


class ArrivalLimits(NamedTuple):
    """Limits the number of sockets that wait at one port, and their times."""

    arrivals: int = ARRIVALS_MAX
    handshakes: int = HANDSHAKES_MAX
    first_byte_s: float = FIRST_BYTE_S
    handshake_s: float = HANDSHAKE_S
    turn_s: float = TURN_S
    gives_way_s: float = GIVES_WAY_S
    pressed_s: float = PRESSED_S


ARRIVAL_LIMITS = ArrivalLimits()


class AcceptedSocket(NamedTuple):
    """A socket that waits for its first byte or for its handshake, until `until_s` by the clock of the loop."""

    connection: socket.socket
    address: tuple[str, int]
    until_s: float


class AcceptedSockets:
    """Handles the accepted sockets of one port until they are connections. Event loop only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        security: Security,
        factory: Factory,
        open_plain: Callable[[socket.socket], None],
        may_have_all: Callable[[str], bool] = lambda _: True,
        limits: ArrivalLimits = ARRIVAL_LIMITS,
    ) -> None:
        """`open_plain` takes a socket that speaks plain text. A TLS socket becomes a connection here. `may_have_all`
        returns False for addresses that may not have the last quarter of the handshakes."""
        self._may_have_all = may_have_all
        self._limits = limits
        self._loop = loop
        self._security = security
        self._factory = factory
        self._open_plain = open_plain
        self._silent: dict[int, AcceptedSocket] = {}
        """Descriptor -> a socket that has sent no byte, the oldest first."""
        self._queued: dict[int, AcceptedSocket] = {}
        """Descriptor -> a socket that waits for its handshake, the oldest first."""
        self._lines: dict[str, deque[int]] = {}
        """Address -> descriptors of its queued sockets; the address that is next comes first."""
        self._late_lines: dict[str, deque[int]] = {}
        """Address -> descriptors, as in `_lines`, for the addresses in `_slow`. These come after all others."""
        self._slow: OrderedDict[str, None] = OrderedDict()
        """Addresses of which a handshake ran out of time and no handshake has succeeded since. At most `arrivals` are
        kept, the newest."""
        self._begun: dict[asyncio.Future[Exception | None], tuple[float, str]] = {}
        """Outcome of an open handshake -> (the loop's time in seconds at which it began, address), the oldest first."""
        self._ending: set[asyncio.Future[Exception | None]] = set()
        """Handshakes that gave way, and end in this turn."""
        self._pressing: asyncio.TimerHandle | None = None
        self._shaking: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unbegun: set[socket.socket] = set()
        """Sockets for whose handshake a task was made that has not run yet."""
        self._places: ConnectionSlots[int] = ConnectionSlots(lambda _: 0.0)
        self._told = Seldom(logger)
        self._starts = False
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._silent) + len(self._queued) + self._shaking.total() - len(self._ending)

    @property
    def shaking(self) -> int:
        """The number of open handshakes."""
        return self._shaking.total()

    @property
    def _reserves(self) -> bool:
        return not self._may_have_all("")

    @property
    def _most(self) -> int:
        """The most handshakes of strangers at the same time."""
        return shared_part(self._limits.handshakes) if self._reserves else self._limits.handshakes

    def take(self, connection: socket.socket, address: tuple[str, int]) -> None:
        """Takes an accepted, non-blocking socket. If too many wait, closes the socket of another address or this
        one."""
        host, number = address[0], connection.fileno()
        if len(self._silent) + len(self._queued) >= self._limits.arrivals:
            victim = self._places.victim(host)
            self._tell(address, "too many connections wait for a first byte or for a handshake")
            if victim is None:
                connection.close()
                return
            self._drop(victim)
        self._silent[number] = AcceptedSocket(connection, address, self._loop.time() + self._limits.first_byte_s)
        self._places.add(host, number)
        self._loop.add_reader(number, self._look, number)
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_S, self._look_at_all)

    def give_way(self, newcomer: str) -> bool:
        """Closes a socket to make room for a client of this address. It is a waiting one of the address with the most;
        or, while places are reserved, the one that waits longest; or that of a stranger whose handshake has lasted for
        at least `gives_way_s`. Returns False if there is no such socket."""
        victim = self._places.victim(newcomer)
        if victim is None and self._reserves:
            victim = next(iter(self._silent), next(iter(self._queued), None))
        if victim is not None:
            self._drop(victim)
            return True
        for ended, (since_s, host) in itertools.islice(self._begun.items(), self._limits.handshakes):
            if ended.done() or self._may_have_all(host):
                continue
            if since_s > self._loop.time() - self._limits.gives_way_s:
                break
            limit_s = self._limits.gives_way_s
            ended.set_result(TimeoutError(f"the handshake was not over after {limit_s:g} s, and others wait"))
            self._ending.add(ended)
            return True
        return False

    def close(self) -> None:
        """Closes all waiting sockets, and ends the open handshakes."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        if self._pressing is not None:
            self._pressing.cancel()
        for number in [*self._silent, *self._queued]:
            self._drop(number)
        for task in self._tasks:
            task.cancel()
        for connection in self._unbegun:
            connection.close()

    def _look(self, number: int) -> None:
        """Handles the first byte of a socket, or its end if the other side has closed it. `number` is the
        descriptor."""
        arrival = self._silent[number]
        try:
            first = arrival.connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        mode = self._security.mode
        if not first:
            self._drop(number)
        elif first[0] == HELLO:
            self._loop.remove_reader(number)
            del self._silent[number]
            self._queued[number] = arrival._replace(until_s=self._loop.time() + self._limits.turn_s)
            host = arrival.address[0]
            lines = self._late_lines if host in self._slow else self._lines
            lines.setdefault(host, deque()).append(number)
            self._start_soon()
        elif mode == "enforcing":
            self._tell(arrival.address, "it speaks plain text, and this port takes TLS only")
            _answer(arrival.connection, self._security.refusal)
            self._drop(number)
        else:
            self._open_plain(self._leave(number).connection)

    def _leave(self, number: int) -> AcceptedSocket:
        """Removes a socket from the waiting ones, and returns it."""
        silent = self._silent.pop(number, None)
        if silent is not None:
            self._loop.remove_reader(number)
        arrival = silent or self._queued.pop(number)
        self._places.remove(arrival.address[0], number)
        return arrival

    def _drop(self, number: int) -> None:
        arrival = self._leave(number)
        for lines in (self._lines, self._late_lines):
            line = lines.get(arrival.address[0])
            if line is not None and number in line:
                line.remove(number)
                if not line:
                    del lines[arrival.address[0]]
        arrival.connection.close()

    def _start_soon(self) -> None:
        if not self._starts:
            self._starts = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        """Begins handshakes, a few in each turn of the loop."""
        self._starts = False
        for _ in range(STARTS_PER_TURN):
            number = self._next()
            if number is None:
                self._press()
                return
            self._shake(self._leave(number))
        if self._lines or self._late_lines:
            self._start_soon()

    def _next(self) -> int | None:
        """Removes the next socket from its line, and returns its descriptor; None if no handshake may begin. Passes
        over addresses with ADDRESS_MAX open handshakes, and over strangers while only the reserved places are free."""
        if self._shaking.total() >= self._limits.handshakes or self._closed:
            return None
        all_may = self._shaking.total() < self._most
        for lines in (self._lines, self._late_lines):
            host = next((each for each in lines if self._may_begin(each, all_may)), None)
            if host is not None:
                line = lines.pop(host)
                number = line.popleft()
                if line:
                    lines[host] = line
                return number
        return None

    def _may_begin(self, host: str, all_may: bool) -> bool:
        return self._shaking[host] < ADDRESS_MAX and (all_may or self._may_have_all(host))

    def _press(self) -> None:
        """While sockets wait and all places of handshakes are taken, schedules the end of handshakes that have lasted
        `pressed_s`."""
        if self._pressing is None and self._is_pressed():
            oldest_s, _ = next(iter(self._begun.values()), (self._loop.time(), ""))
            self._pressing = self._loop.call_at(oldest_s + self._limits.pressed_s, self._end_oldest)

    def _is_pressed(self) -> bool:
        waits = bool(self._lines or self._late_lines)
        return waits and self._shaking.total() >= self._most and not self._closed

    def _end_oldest(self) -> None:
        self._pressing = None
        if not self._is_pressed():
            return
        limit_s = self._limits.pressed_s
        due_s = self._loop.time() - limit_s
        for ended, (since_s, _) in list(itertools.islice(self._begun.items(), STARTS_PER_TURN)):
            if since_s <= due_s and not ended.done():
                ended.set_result(TimeoutError(f"the handshake was not over after {limit_s:g} s, and others wait"))
        self._press()

    def _shake(self, arrival: AcceptedSocket) -> None:
        METER.units += HANDSHAKE_UNITS
        self._shaking[arrival.address[0]] += 1
        self._unbegun.add(arrival.connection)
        task = self._loop.create_task(self._connect(arrival))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, arrival: AcceptedSocket) -> None:
        self._unbegun.discard(arrival.connection)
        ended: asyncio.Future[Exception | None] = self._loop.create_future()
        self._begun[ended] = self._loop.time(), arrival.address[0]

        def done(transport: TlsTransport, error: Exception | None) -> None:
            if not ended.done():
                ended.set_result(error)
            if error is None:
                self._security.accepted(transport)

        made = TlsTransport(self._loop, self._security.context(), self._factory, done, server_side=True)
        error: Exception | None
        try:
            await self._loop.connect_accepted_socket(lambda: made, arrival.connection)
            async with asyncio.timeout(self._limits.handshake_s):
                error = await ended
            if isinstance(error, TimeoutError):
                made.give_up(error)
        except TimeoutError:
            error = TimeoutError(f"the handshake was not over after {self._limits.handshake_s:g} s")
            made.give_up(error)
        except OSError as failed:
            error = bare(failed)
            arrival.connection.close()
        except asyncio.CancelledError:
            made.abort()
            if made.get_extra_info("socket") is None:  # no transport has it yet
                arrival.connection.close()
            raise
        finally:
            del self._begun[ended]
            self._ending.discard(ended)
            self._shaking[arrival.address[0]] -= 1
            if not self._shaking[arrival.address[0]]:
                del self._shaking[arrival.address[0]]
            self._start_soon()
        if error is None:
            self._slow.pop(arrival.address[0], None)
            return
        if isinstance(error, TimeoutError):
            self._note_slow(arrival.address[0])
        self._tell(arrival.address, why_failed(error))

    def _note_slow(self, host: str) -> None:
        self._slow.pop(host, None)
        self._slow[host] = None
        if len(self._slow) > self._limits.arrivals:
            self._slow.popitem(last=False)

    def _look_at_all(self) -> None:
        """Closes sockets that have waited for too long."""
        now_s = self._loop.time()
        for waiting, why in (
            (self._silent, f"it has sent nothing for {self._limits.first_byte_s:g} s"),
            (self._queued, f"{self._limits.handshakes} handshakes, or {ADDRESS_MAX} of its address, are open"),
        ):
            while waiting:
                number, arrival = next(iter(waiting.items()))
                if arrival.until_s > now_s:
                    break
                self._tell(arrival.address, why)
                self._drop(number)
        waits = bool(self._silent or self._queued)
        self._sweep = self._loop.call_later(SWEEP_S, self._look_at_all) if waits and not self._closed else None

    def _tell(self, address: tuple[str, int], why: str) -> None:
        self._told.warn(f"a connection from {address[0]} to port {self._security.name} is closed", why)


def _answer(connection: socket.socket, data: bytes) -> None:
    """Sends a few bytes, if the socket takes them at once. Then reads what has arrived, because a socket that is closed
    with unread bytes loses the answer."""
    if not data:
        return
    try:
        connection.send(data)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(64 << 10)
    except OSError:
        pass
