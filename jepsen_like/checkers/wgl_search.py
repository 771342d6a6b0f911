"""Linearizability of one object: the search of Wing and Gong with Lowe's cache of visited configurations.

Sources: J. Wing and C. Gong, "Testing and verifying concurrent objects" (1993); G. Lowe, "Testing for linearizability"
(2017). Three measures make it fit for long histories with operations of unknown outcome:

- A configuration is (first operation not yet taken, bitset of those taken after it, bitset of unknown ones taken,
  state). The bitset is a window, so its size follows the concurrency and not the length of the history.
- Operations of unknown outcome never have to happen. They are tried only after every known operation has been tried, so
  that they are not used up too early. The operation taken next must lead to another state than it would have without
  them, or be impossible without them: else the same order without them is an explanation, too.
- A known operation that only observes and is possible now is taken at once, and no other choice is tried in its place:
  in any explanation it can be moved here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

OPEN: Final = 1 << 62
"""The completion of a call whose outcome is unknown: it may happen at any later time, or never."""


class Call(NamedTuple):
    """One operation on the object. Times are any totally ordered integers, e.g. indexes in the history."""

    invoked: int
    completed: int
    """Time of the completion; OPEN if the outcome is unknown."""
    f: str
    argument: Hashable
    result: Hashable
    """The result of the call; None if unknown: models must not use it then."""

    @property
    def is_open(self) -> bool:
        """True if the outcome is unknown."""
        return self.completed == OPEN


class Impossible:
    """The type of IMPOSSIBLE, which a model returns for a call that cannot take place in a state."""


IMPOSSIBLE: Final = Impossible()


class Model(NamedTuple):
    """A sequential specification of the object. Its first state is None."""

    step: Callable[[Hashable, Call], Hashable | Impossible]
    """A function (state, call) -> next state, or IMPOSSIBLE if the call could not have had this result."""
    observes: Callable[[Call], bool]
    """A function that returns True if this known call, in every state in which it is possible, leaves the state
    unchanged."""


class SearchResult(NamedTuple):
    """The result of a search."""

    linearizable: bool | None
    """True or False; None if the search ran out of steps."""
    steps: int
    stuck: Call | None
    """The call that could not be placed on the longest path; None unless `linearizable` is False."""


def search(calls: Sequence[Call], model: Model, max_steps: int) -> SearchResult:
    """Searches for one order of all known calls, and any of the unknown ones, that respects time and the model."""
    return _Search(calls, model).run(max_steps)


class _Nothing:
    """The type of `_NOTHING`, which stands for "no state" in `_Configuration.without`."""


_NOTHING: Final = _Nothing()


class _Configuration(NamedTuple):
    base: int
    """The first known call that has not been taken: all calls before it have."""
    window: int
    """Bit i: known call base + i has been taken."""
    taken: int
    """Bit i: unknown call i has been taken."""
    state: Hashable
    without: Hashable | _Nothing
    """If the last call taken was an unknown one, the state before that call; else `_NOTHING`."""


class _Frame(NamedTuple):
    """A choice that the search made: the configuration before it, and the event (`entry`) and call that it took."""

    configuration: _Configuration
    entry: int
    unknown: int
    """Index of the unknown call that was taken at this entry, or -1 if the entry's own call was."""
    is_forced: bool
    """True if there was no other choice."""


class _Search:
    """The search. Events of known calls form a doubly linked list; taking a call removes its two events from it.

    Event 0 is the head. `call_of[e]` is the call that event e begins, or -1 if e is a completion.
    """

    def __init__(self, calls: Sequence[Call], model: Model) -> None:
        self.step = model.step
        self.known = sorted((call for call in calls if not call.is_open), key=lambda call: call.invoked)
        self.unknown = sorted((call for call in calls if call.is_open), key=lambda call: call.invoked)
        events = sorted(
            [(call.invoked, 1, i) for i, call in enumerate(self.known)]
            + [(call.completed, 0, i) for i, call in enumerate(self.known)]
        )
        self.time = [-1, *(time for time, _, _ in events)]
        self.call_of = [-1, *(i if begins else -1 for _, begins, i in events)]
        self.owner = [-1, *(i for _, _, i in events)]
        self.observes = [model.observes(call) for call in self.known]
        self.completion = [0] * len(self.known)
        for event, (_, begins, i) in enumerate(events, 1):
            if not begins:
                self.completion[i] = event
        size = len(events) + 1
        self.after = [(event + 1) % size for event in range(size)]
        self.before = [(event - 1) % size for event in range(size)]

    def run(self, max_steps: int) -> SearchResult:
        here = _Configuration(0, 0, 0, None, _NOTHING)
        seen: set[_Configuration] = set()
        stack: list[_Frame] = []
        steps = depth = deepest = 0
        stuck: Call | None = None
        entry, candidate = self.after[0], 0
        is_new = True
        while depth < len(self.known):
            steps += 1
            if steps > max_steps:
                return SearchResult(None, steps, None)
            frame, there = self._choose(here, entry, candidate, is_new=is_new)
            is_new = False
            if there is not None:
                if there in seen and not frame.is_forced:
                    entry, candidate = self._after(frame)
                    continue
                if there not in seen:
                    seen.add(there)
                    stack.append(frame)
                    if frame.unknown < 0:
                        self._lift(frame.entry)
                        depth += 1
                    here, is_new = there, True
                    entry, candidate = self.after[0], 0
                    continue
            elif stuck is None or depth > deepest:
                deepest, stuck = depth, self.known[self.owner[frame.entry]]
            while True:
                if not stack:
                    return SearchResult(False, steps, stuck or self.known[0])
                frame = stack.pop()
                if frame.unknown < 0:
                    self._unlift(frame.entry)
                    depth -= 1
                if not frame.is_forced:
                    break
            here = frame.configuration
            entry, candidate = self._after(frame)
        return SearchResult(True, steps, None)

    def _after(self, frame: _Frame) -> tuple[int, int]:
        """Returns (entry, candidate) of the choice after this one."""
        return (self.after[frame.entry], 0) if frame.unknown < 0 else (frame.entry, frame.unknown + 1)

    def _choose(
        self, here: _Configuration, entry: int, candidate: int, *, is_new: bool
    ) -> tuple[_Frame, _Configuration | None]:
        """Returns the frame of the next call that can be taken, and the configuration after the call. The configuration
        is None if no further call can be taken before the completion at `entry`.
        """
        if is_new:
            free = self.after[0]
            while (i := self.call_of[free]) >= 0:
                if self.observes[i] and not isinstance(self._moved(here, self.known[i]), Impossible):
                    return _Frame(here, free, -1, True), _taken(here, i, here.state)
                free = self.after[free]
        while (i := self.call_of[entry]) >= 0:
            moved = self._moved(here, self.known[i])
            if not isinstance(moved, Impossible):
                return _Frame(here, entry, -1, False), _taken(here, i, moved)
            entry = self.after[entry]
        deadline = self.time[entry]
        while candidate < len(self.unknown) and self.unknown[candidate].invoked < deadline:
            if not here.taken >> candidate & 1:
                moved = self._moved(here, self.unknown[candidate])
                if not isinstance(moved, Impossible) and moved != here.state:
                    there = here._replace(taken=here.taken | 1 << candidate, state=moved, without=here.state)
                    return _Frame(here, entry, candidate, False), there
            candidate += 1
        return _Frame(here, entry, -1, False), None

    def _moved(self, here: _Configuration, call: Call) -> Hashable | Impossible:
        """Returns the state after this call; IMPOSSIBLE if the call cannot follow. Returns IMPOSSIBLE also if the call
        before it is an unknown one and this call leads to the same state without that one: then the unknown call need
        not be taken.
        """
        moved = self.step(here.state, call)
        if isinstance(here.without, _Nothing) or isinstance(moved, Impossible):
            return moved
        return IMPOSSIBLE if self.step(here.without, call) == moved else moved

    def _lift(self, begin: int) -> None:
        """Removes the call that begins with this event from the list."""
        for event in (begin, self.completion[self.call_of[begin]]):
            self.after[self.before[event]] = self.after[event]
            self.before[self.after[event]] = self.before[event]

    def _unlift(self, begin: int) -> None:
        """Puts a removed call back into the list: the exact reverse of `_lift`, in reverse order."""
        for event in (self.completion[self.call_of[begin]], begin):
            self.after[self.before[event]] = event
            self.before[self.after[event]] = event


def _taken(here: _Configuration, i: int, state: Hashable) -> _Configuration:
    """Returns the configuration with known call i taken; the window moves on so that its lowest bit is clear again."""
    base, window = here.base, here.window | 1 << (i - here.base)
    while window & 1:
        window >>= 1
        base += 1
    return _Configuration(base, window, here.taken, state, _NOTHING)
