"""Shrinks the proof that a register is not linearizable, so that a person can read it.

A call is removed only if every linearizable history stays linearizable without such a call. So if the remaining calls
are not linearizable, the whole history is not, either. The calls that may be removed are:

- all calls after the first completion that no order explains; calls that were open at that time become unknown;
- reads, one by one;
- all writes of one value together with all reads of it, if there are no compares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable

from jepsen_like.checkers.wgl_search import OPEN, Call, Model, search

_TRIES = 300
_STEPS_PER_TRY = 20_000
_STEPS_PER_PREFIX = 100_000


def smallest(calls: list[Call], stuck: Call, model: Model) -> list[Call]:
    """Returns a small subset of the calls that is not linearizable either, in order of invocation."""
    kept = _without(_write_units, _shortest_prefix(calls, stuck, model), model)
    return _without(_reads, kept, model)


def _shortest_prefix(calls: list[Call], stuck: Call, model: Model) -> list[Call]:
    """Returns the history up to the first completion that no order explains. A binary search finds it, because prefixes
    of a linearizable history are linearizable. The first guess is the completion of `stuck`, the call that the search
    could not place on its longest path; on a shorter path it may have stopped at a later call.
    """

    def proves(end: int) -> bool:
        return search(_until(calls, end), model, _STEPS_PER_PREFIX).linearizable is False

    ends = sorted(call.completed for call in calls if not call.is_open)
    low, high = 0, len(ends) - 1
    guess = ends.index(stuck.completed)
    if proves(ends[guess]):
        high = guess
    while low < high:
        middle = (low + high) // 2
        if proves(ends[middle]):
            high = middle
        else:
            low = middle + 1
    return _until(calls, ends[high])


def _without(units_of: Callable[[list[Call]], list[list[Call]]], kept: list[Call], model: Model) -> list[Call]:
    """Returns the calls without those units (groups of calls that belong together) that are not needed for the proof.
    Tries to drop long runs of units first, and drops a run only if the remaining calls are still not linearizable.
    """
    units = units_of(kept)
    tries, size = _TRIES, max(1, len(units) // 2)
    while size and tries > 0:
        start = 0
        while start < len(units) and tries > 0:
            gone = {id(call) for unit in units[start : start + size] for call in unit}
            rest = [call for call in kept if id(call) not in gone]
            tries -= 1
            if search(rest, model, _STEPS_PER_TRY).linearizable is False:
                kept = rest
                del units[start : start + size]
            else:
                start += size
        size //= 2
    return kept


def _until(calls: list[Call], end: int) -> list[Call]:
    """Returns the history up to `end`, without reads that were still open then, which prove nothing."""
    known = [call for call in calls if call.completed <= end]
    open_then = [
        call._replace(completed=OPEN, result=None)
        for call in calls
        if call.invoked < end < call.completed and call.f != "get"
    ]
    return sorted(known + open_then, key=lambda call: call.invoked)


def _reads(calls: list[Call]) -> list[list[Call]]:
    return [[call] for call in calls if call.f == "get"]


def _write_units(calls: list[Call]) -> list[list[Call]]:
    if any(call.f not in ("put", "get") for call in calls):
        return []
    units: dict[Hashable, list[Call]] = defaultdict(list)
    for call in calls:
        units[call.argument if call.f == "put" else call.result].append(call)
    return list(units.values())
