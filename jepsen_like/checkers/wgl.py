"""Linearizability of one object: the search of Wing and Gong with Lowe's cache of visited configurations.

Sources: J. Wing and C. Gong, "Testing and verifying concurrent objects" (1993); G. Lowe, "Testing for
linearizability" (2017). Two things are done for long histories with operations of unknown outcome:

- A configuration is (first operation not yet taken, bitset of those taken after it, bitset of unknown ones taken,
  state). The bitset is a window, so its size follows the concurrency and not the length of the history.
- Operations of unknown outcome never have to happen. They are tried only where every known operation has been tried,
  so that they are not spent too early, and only if they change the state.
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
    """OPEN if unknown."""
    f: str
    argument: Hashable
    result: Hashable
    """None if unknown; models must not look at it then."""

    @property
    def is_open(self) -> bool:
        """Whether the outcome is unknown."""
        return self.completed == OPEN


class Impossible:
    """What a model answers for a call that cannot take place in a state."""


IMPOSSIBLE: Final = Impossible()

Model = Callable[[Hashable, Call], "Hashable | Impossible"]
"""(state, call) -> next state, or IMPOSSIBLE if the call could not have had this result. The first state is None."""


class Answer(NamedTuple):
    """How a search ended."""

    linearizable: bool | None
    """None: out of steps."""
    steps: int
    stuck: Call | None
    """If not linearizable: the call that could not be placed on the longest path."""


def search(calls: Sequence[Call], model: Model, max_steps: int) -> Answer:
    """Looks for one order of all known calls, and any of the unknown ones, that respects time and the model."""
    return _Search(calls, model).run(max_steps)


class _Frame(NamedTuple):
    entry: int
    unknown: int
    """Index of the unknown call that was taken, or -1 if `entry` was."""
    state: Hashable
    base: int
    window: int
    taken: int


class _Search:
    """Events of known calls form a doubly linked list; taking a call lifts its two events out of it.

    Event 0 is the head. `call_of[e]` is the call that event e begins, or -1 if e is a completion.
    """

    def __init__(self, calls: Sequence[Call], model: Model) -> None:
        self.model = model
        self.known = sorted((call for call in calls if not call.is_open), key=lambda call: call.invoked)
        self.unknown = sorted((call for call in calls if call.is_open), key=lambda call: call.invoked)
        events = sorted(
            [(call.invoked, 1, i) for i, call in enumerate(self.known)]
            + [(call.completed, 0, i) for i, call in enumerate(self.known)]
        )
        self.time = [-1, *(time for time, _, _ in events)]
        self.call_of = [-1, *(i if begins else -1 for _, begins, i in events)]
        self.owner = [-1, *(i for _, _, i in events)]
        self.completion = [0] * len(self.known)
        for event, (_, begins, i) in enumerate(events, 1):
            if not begins:
                self.completion[i] = event
        size = len(events) + 1
        self.after = [(event + 1) % size for event in range(size)]
        self.before = [(event - 1) % size for event in range(size)]

    def run(self, max_steps: int) -> Answer:
        state: Hashable = None
        base = window = taken = steps = depth = deepest = 0
        stuck: Call | None = None
        seen: set[tuple[int, int, int, Hashable]] = set()
        stack: list[_Frame] = []
        entry, candidate = self.after[0], 0
        while depth < len(self.known):
            steps += 1
            if steps > max_steps:
                return Answer(None, steps, None)
            i = self.call_of[entry]
            if i >= 0:
                moved = self.model(state, self.known[i])
                if not isinstance(moved, Impossible):
                    next_base, next_window = _take(base, window, i)
                    key = (next_base, next_window, taken, moved)
                    if key not in seen:
                        seen.add(key)
                        stack.append(_Frame(entry, -1, state, base, window, taken))
                        state, base, window = moved, next_base, next_window
                        self._lift(entry, self.completion[i])
                        depth += 1
                        entry, candidate = self.after[0], 0
                        continue
                entry = self.after[entry]
                continue
            if stuck is None or depth > deepest:
                deepest, stuck = depth, self.known[self.owner[entry]]
            candidate, moved = self._unknown_call(candidate, taken, state, self.time[entry])
            if not isinstance(moved, Impossible):
                key = (base, window, taken | 1 << candidate, moved)
                if key in seen:
                    candidate += 1
                    continue
                seen.add(key)
                stack.append(_Frame(entry, candidate, state, base, window, taken))
                state, taken = moved, taken | 1 << candidate
                entry, candidate = self.after[0], 0
                continue
            if not stack:
                return Answer(False, steps, stuck)
            frame = stack.pop()
            state, base, window, taken = frame.state, frame.base, frame.window, frame.taken
            if frame.unknown >= 0:
                entry, candidate = frame.entry, frame.unknown + 1
            else:
                self._unlift(frame.entry, self.completion[self.call_of[frame.entry]])
                depth -= 1
                entry, candidate = self.after[frame.entry], 0
        return Answer(True, steps, None)

    def _unknown_call(
        self, candidate: int, taken: int, state: Hashable, deadline: int
    ) -> tuple[int, Hashable | Impossible]:
        """The first unknown call from `candidate` on, begun before `deadline`, that changes the state."""
        while candidate < len(self.unknown) and self.unknown[candidate].invoked < deadline:
            if not taken >> candidate & 1:
                moved = self.model(state, self.unknown[candidate])
                if not isinstance(moved, Impossible) and moved != state:
                    return candidate, moved
            candidate += 1
        return candidate, IMPOSSIBLE

    def _lift(self, *events: int) -> None:
        for event in events:
            self.after[self.before[event]] = self.after[event]
            self.before[self.after[event]] = self.before[event]

    def _unlift(self, first: int, second: int) -> None:
        for event in (second, first):
            self.after[self.before[event]] = event
            self.before[self.after[event]] = event


def _take(base: int, window: int, i: int) -> tuple[int, int]:
    """The window with call i taken, moved on so that its lowest bit is clear again."""
    window |= 1 << (i - base)
    while window & 1:
        window >>= 1
        base += 1
    return base, window
