"""Keeps the filters that consumers of a node have asked for. A filter is parsed once for its text, in bounded steps.

Consumers send their filter with every pull. The table keeps the newest filters, also refusals of faulty ones, and the
filters of pulls that wait. Each node has a table of its own. So only earlier requests to the same node decide how much
work a filter costs and, in a simulation, when it is ready.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Generator
from typing import Final
from weakref import WeakValueDictionary

from cluster.broker.filters import grammar
from cluster.broker.filters.java_values import FilterError
from cluster.broker.filters.sql import SqlFilter, check_length
from cluster.broker.filters.subscription import (
    CACHED_TEXT_MAX,
    SQL92,
    Expression,
    MessageFilter,
    check_text,
    hashing,
    tag_hashes,
)
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.runtime.turns.work import WorkSteps
from raftlog.kept_errors import bare

logger = logging.getLogger(__name__)

KEPT_MAX = 128 << 10
"""The most characters of the texts of all kept filters together."""


class Unknown:
    """The type of UNKNOWN, the value for a filter that is not made yet."""


UNKNOWN: Final = Unknown()
_Made = MessageFilter | Refused


class KnownFilters:
    """The filters of one node. Event loop only."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._kept: OrderedDict[Expression, _Made] = OrderedDict()
        """Expression -> its filter, or the refusal if the expression is faulty. Short tag expressions are not in this
        table, because the module `subscription` remembers them."""
        self._characters = 0
        self._alive: WeakValueDictionary[str, SqlFilter] = WeakValueDictionary()
        """Text -> SQL92 filter, for the filters in `_kept` and for those of waiting pulls."""
        self._making: WeakValueDictionary[Expression, _Making] = WeakValueDictionary()
        grammar.prepare()

    def get(self, kind: str | None, text: str | None) -> MessageFilter | Unknown:
        """Returns the filter of a subscription, or UNKNOWN if it must be made first (see `learn`). Raises Refused:
        BAD_SUBSCRIPTION if the text is not a filter, is too long or costs too much; ERROR for an expression type that
        RocketMQ does not have."""
        if (not kind or kind == "TAG") and len(text or "") <= CACHED_TEXT_MAX:
            return tag_hashes(text or "*")
        found = self._find(_expression(kind, text))
        if isinstance(found, Refused):
            raise Refused(found.reason, found.remark)
        if isinstance(found, SqlFilter):
            self._check_cost(found)
        return found

    def learn(self, kind: str | None, text: str | None) -> WorkSteps:
        """Makes a filter in steps. Afterwards `get` returns it, or raises the refusal if the text is faulty. If several
        callers want the same filter, they share the work. Raises Refused, as `get` does, if the text is too long or the
        expression type is unknown."""
        expression = _expression(kind, text)
        making = self._making.get(expression)
        if making is None:
            self._making[expression] = making = _Making(expression)
        while not making.step():
            yield
        self._keep(expression, making.made)

    def _find(self, expression: Expression) -> _Made | Unknown:
        if expression in self._kept:
            self._kept.move_to_end(expression)
            return self._kept[expression]
        alive = self._alive.get(expression.text or "") if expression.type == SQL92 else None
        return UNKNOWN if alive is None else alive

    def _keep(self, expression: Expression, made: _Made) -> None:
        text = expression.text or ""
        if isinstance(made, SqlFilter):
            self._alive[text] = made
        if expression not in self._kept:
            self._characters += len(text) + 1
        self._kept[expression] = made
        while self._characters > KEPT_MAX:
            self._characters -= len(self._kept.popitem(last=False)[0].text or "") + 1

    def _check_cost(self, wanted: SqlFilter) -> None:
        limits = self._services.config.limits
        units = wanted.units(limits.properties_bytes_max)
        if units > limits.filter_units_max:
            remark = (
                f"the filter takes up to {units} us for one message, whose properties may have "
                f"limits.properties_bytes_max = {limits.properties_bytes_max} bytes; "
                f"limits.filter_units_max is {limits.filter_units_max}"
            )
            raise Refused(Reason.BAD_SUBSCRIPTION, remark)


class _Making:
    """A filter that is being made. All callers that wait for it make steps in turn."""

    def __init__(self, expression: Expression) -> None:
        self.made: _Made = None
        self._done = False
        self._steps = self._make(expression)

    def step(self) -> bool:
        """Makes one step. Returns True if the filter is made, or found to be faulty."""
        if not self._done:
            next(self._steps, None)
        return self._done

    def _make(self, expression: Expression) -> WorkSteps:
        text = expression.text or ""
        making: Generator[None, None, MessageFilter] = (
            SqlFilter.parsing(text) if expression.type == SQL92 else hashing(text)
        )
        try:
            self.made = yield from making
        except FilterError as error:
            self.made = Refused(Reason.BAD_SUBSCRIPTION, f"not an SQL92 filter: {error}")
        except Refused as refused:
            self.made = bare(refused)
        except Exception as error:
            logger.exception("a filter of %d characters cannot be made", len(text))
            self.made = Refused(Reason.ERROR, f"making the filter failed: {error}")
        self._done = True


def _expression(kind: str | None, text: str | None) -> Expression:
    """Returns the key of a filter in the table. Raises Refused if the text is too long, or for an unknown expression
    type."""
    if not kind or kind == "TAG":
        check_text(text or "*")
        return Expression("TAG", text or "*")
    if kind != SQL92:
        remark = f"The broker does not support consumer to filter message by {kind[:40]}"
        raise Refused(Reason.ERROR, remark)
    try:
        check_length(text or "")
    except FilterError as error:
        raise Refused(Reason.BAD_SUBSCRIPTION, f"not an SQL92 filter: {error}") from None
    return Expression(SQL92, text or "")
