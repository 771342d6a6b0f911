"""Handles requests with an unsupported code: refuses, counts and logs them, and delays the answers to repeated ones.

A client that takes a refusal for "not now" asks again at once. For example, an orderly C++ consumer asked for its queue
locks several thousand times a second before nodes had any. The answers to a code that one connection repeats are
therefore delayed, longer each time and never longer than DELAY_MAX_MS; other requests of the connection are not
delayed. Only the answers wait, a bounded number of them. The known codes of tools are never delayed: a tool asks once
for each topic and group that it prints, whatever the answer is, and a person waits for it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.remoting.request import Connection, Request
from raftmq_wire.codec import LANGUAGES
from raftmq_wire.codes import INSTEAD, REFUSED_NAMES, REPEATED, ResponseCode

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.requests.request_metrics import RequestMetrics

logger = logging.getLogger(__name__)

FREE = 5
"""Refusals of one code that are answered at once: a program that tries out a broker's codes is not slowed down."""
DELAY_MAX_MS = 1_000
"""The longest delay in milliseconds, below every client's timeout (3 s and more)."""
QUIET_MS = 10_000
"""Milliseconds without a refusal after which the count of a code starts again."""
WAITING_MAX, CONNECTION_WAITING_MAX = 4_096, 32
"""The most answers that wait, per node and per connection; a further one is given at once."""
LOGGED_MAX = 1_024
"""The most pairs of client and code that are remembered as logged. Above this, the oldest pair is forgotten, and is
logged again if it occurs again."""
OTHER = "other"


class _Repeats:
    """The refusals on one connection: for each code, their number and the time of the last one; and the functions that
    cancel the answers that wait."""

    __slots__ = ("cancels", "codes")

    def __init__(self) -> None:
        self.codes: dict[str, tuple[int, int]] = {}
        self.cancels: dict[int, Callable[[], None]] = {}


class RefusedCodes:
    """Answers requests without a handler."""

    def __init__(self, services: Services, metrics: RequestMetrics | None = None) -> None:
        self._services = services
        self._metrics = metrics
        self._repeats: dict[Connection, _Repeats] = {}
        self._logged: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._waiting = 0
        self._answers = 0

    def refuse(self, request: Request) -> None:
        """Answers with 3 (REQUEST_CODE_NOT_SUPPORTED), at once, or after a delay of at most DELAY_MAX_MS."""
        name = REFUSED_NAMES.get(request.code)
        code = str(request.code) if name else OTHER
        language = request.language if request.language in LANGUAGES else "OTHER"
        if self._metrics is not None:
            self._metrics.code_refused(code, language)
        remark = f" request type {request.code} not supported"
        if name:
            remark += f": RaftMQ has no {name} yet"
            remark += f"; {INSTEAD[request.code]}" if request.code in INSTEAD else ""
        self._log(request, code, language, name)
        # The answer waits, so the request, of up to 16 MiB, is freed now.
        request.drop()
        is_tools = name is not None and request.code not in REPEATED
        delay_ms = 0 if is_tools else self._delay_ms(request.connection, code)
        if not delay_ms or not self._wait(request, remark, delay_ms):
            request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    @property
    def waiting(self) -> int:
        """The number of answers that wait."""
        return self._waiting

    @property
    def remembered(self) -> int:
        """The number of remembered connections and log lines."""
        return len(self._repeats) + len(self._logged)

    def _log(self, request: Request, code: str, language: str, name: str | None) -> None:
        client = request.connection.peer_address[0]
        key = client, code, language
        if key in self._logged:
            return
        self._logged[key] = None
        if len(self._logged) > LOGGED_MAX:
            self._logged.popitem(last=False)
        logger.warning(
            "client %s (%s, version %d): request code %d%s is not supported and is refused; more from this client "
            "are only counted (raftmq_codes_refused_total)",
            client,
            language,
            request.version,
            request.code,
            f" {name}" if name else "",
        )

    def _delay_ms(self, connection: Connection, code: str) -> int:
        repeats = self._repeats.get(connection)
        if repeats is None:
            if connection.closed:
                return 0
            repeats = self._repeats[connection] = _Repeats()
            connection.on_close.append(lambda: self._forget(connection))
        now = self._services.monotonic_ms()
        count, last_ms = repeats.codes.get(code, (0, now))
        count = 1 if now - last_ms > QUIET_MS else count + 1
        repeats.codes[code] = count, now
        return 0 if count <= FREE else min(1 << min(count - FREE, 10), DELAY_MAX_MS)

    def _wait(self, request: Request, remark: str, delay_ms: int) -> bool:
        repeats = self._repeats.get(request.connection)
        if repeats is None or self._waiting >= WAITING_MAX or len(repeats.cancels) >= CONNECTION_WAITING_MAX:
            return False
        self._waiting += 1
        self._answers += 1
        number = self._answers

        def answer() -> None:
            self._waiting -= 1
            del repeats.cancels[number]
            request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

        repeats.cancels[number] = self._services.call_later(delay_ms, answer)
        return True

    def _forget(self, connection: Connection) -> None:
        repeats = self._repeats.pop(connection, None)
        if repeats is not None:
            self._waiting -= len(repeats.cancels)
            for cancel in repeats.cancels.values():
                cancel()
