"""Calls the handler of a request by its code, after the checks that the table of verbs prescribes for the code: a body
that is short enough, a turn among the costly requests, memory for a large answer, a confirmed read.

A code without a handler is refused by name (`cluster.remoting.handlers.unsupported_codes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from cluster.broker.refusal import Reason, Refused
from cluster.remoting.answers import after_read_index, refusing
from cluster.remoting.connection.connection_memory import sizes, with_room
from cluster.remoting.connection.server import LONG_FRAME_BYTES
from cluster.remoting.costly_requests import CostlyRequests
from cluster.remoting.request import handle_late, text
from cluster.requests.table import VERBS, codes_where, too_long
from cluster.requests.verb import Cost, Serves

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.config.service_sections import LimitsSection
    from cluster.remoting.request import Handler, Handlers, Request
    from cluster.requests.verb import Verb
    from cluster.runtime.turns.work import Soon

DeniedSince = Callable[["Request"], Refused | None]
"""Judges a request that has waited by the rules of now (`cluster.remoting.admission.Admission.denied_since`)."""
_WAITS = codes_where(
    lambda verb: verb.answer_bytes is not None or verb.cost is not Cost.SMALL or verb.serves is Serves.CONFIRMED
)
RETRY_MS = 100
RETRIES = 30
"""The number of times that a silent read without a leader's confirmation is tried again, each time after RETRY_MS
milliseconds. All tries together take longer than a failover, and less time than a client waits."""


class HandlerTable:
    """Serves all requests of one node but sends. Event loop only."""

    def __init__(
        self,
        handlers: Handlers,
        refuse: Callable[[Request], None],
        *,
        services: Services,
        limits: LimitsSection,
        soon: Soon,
        denied_since: DeniedSince,
    ) -> None:
        """`refuse` answers a code without a handler. `services` confirms reads, and its state tells how large answers
        are. `soon` calls a function in the next turn of the loop. `denied_since` judges requests that have waited."""
        self._refuse = refuse
        self._limits = limits
        self._large_answers = sizes(services.state, lambda: self._limits)
        self.costly = tuple([CostlyRequests(soon, cost) for cost in (Cost.READS_MUCH, Cost.WRITES_MUCH)])
        self._handlers = with_room(once_confirmed(services, judged(handlers, denied_since)), self._large_answers)
        for each in self.costly:
            self._handlers = each.dealt_out(self._handlers)
        self._handlers = within_limits(self._handlers)

    def handle(self, request: Request, refuse: Callable[[Request], None] | None = None) -> None:
        """Calls the handler of the request's code. `refuse` replaces the usual refusal of a code without a handler."""
        handler = self._handlers.get(request.code)
        if handler is None:
            handler = refuse or self._refuse
        handler(request)

    def answer_bytes(self, code: int) -> int | None:
        """Returns the estimated bytes of an answer that may be large; None if it is small."""
        size = self._large_answers.get(code)
        return None if size is None else size()

    def tick(self, now_ms: int) -> None:
        """Frees the places of lost requests. Called several times a second."""
        for each in self.costly:
            each.tick(now_ms)

    def reload(self, limits: LimitsSection) -> None:
        """Uses `limits` from now on."""
        self._limits = limits


def judged(handlers: Mapping[int, Handler], denied_since: DeniedSince) -> dict[int, Handler]:
    """Returns the handlers by request code. Those whose requests may wait (for other requests, memory or a leader's
    confirmation) are wrapped: the request is judged again before it is handled. A client that reads no answers could
    otherwise keep a request waiting until after its rights were removed."""

    def after_waiting(handler: Handler) -> Handler:
        def handle(request: Request) -> None:
            refused = denied_since(request)
            if refused is not None:
                raise refused
            handler(request)

        return refusing(handle)

    return {code: after_waiting(handler) if code in _WAITS else handler for code, handler in handlers.items()}


def within_limits(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Returns the handlers by request code. Those whose row has a limit below LONG_FRAME_BYTES are wrapped: they refuse
    a body above their limit. Connections enforce the limits only for frames above LONG_FRAME_BYTES, so higher limits
    need no check here."""
    return {code: _within_limit(handler) if _is_low(code) else handler for code, handler in handlers.items()}


def _is_low(code: int) -> bool:
    verb = VERBS.get(code)
    most = None if verb is None else verb.body_bytes_max
    return most is not None and most < LONG_FRAME_BYTES


def _within_limit(handler: Handler) -> Handler:
    def handle(request: Request) -> None:
        if remark := too_long(request.code, len(request.body)):
            raise Refused(Reason.INVALID, remark)
        handler(request)

    return refusing(handle)


def once_confirmed(services: Services, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Returns the handlers by request code. Those whose row says `Serves.CONFIRMED` are called once the applied state
    is linearizable. If the row names the field of a group (`Verb.settles`), the group's earlier offset commits are
    settled before. A request that no leader confirms is answered 14. A silent request is tried again instead (RETRIES),
    and at last dropped without an answer: its clients take every error for "nothing committed" and might jump to the
    end of the queue, but without an answer they ask again."""
    confirmed = {code: verb for code, verb in VERBS.items() if verb.serves is Serves.CONFIRMED}
    return {
        code: _confirmed(services, handler, confirmed[code]) if code in confirmed else handler
        for code, handler in handlers.items()
    }


def _confirmed(services: Services, handler: Handler, verb: Verb) -> Handler:
    serve = partial(handle_late, refusing(handler))

    def read(request: Request, tries: int = 0) -> None:
        confirm = partial(after_read_index, services, request, serve)
        if verb.is_silent:
            if request.connection.closed:
                return
            confirm = partial(services.read_index, partial(told, request, tries))
        if verb.settles:
            services.settle_offsets(text(request, verb.settles), confirm)
        else:
            confirm()

    def told(request: Request, tries: int, ok: bool) -> None:
        if ok:
            serve(request)
        elif tries < RETRIES:
            services.call_later(RETRY_MS, partial(read, request, tries + 1))

    return refusing(read)
