"""One thing that happens in a node, and who is told of it: what ties together two services that need each other.

The signal is made before both. One of them sends it, the other adds itself in its constructor; neither has to name the
other afterwards. The event log for people is `cluster.runtime.events`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

Told = ParamSpec("Told")


class Signal(Generic[Told]):
    """Calls its listeners in the order in which they were added. Event loop only, unless its owner says otherwise."""

    __slots__ = ("_listeners",)

    def __init__(self, *listeners: Callable[Told, object]) -> None:
        self._listeners = listeners

    def add(self, listener: Callable[Told, object]) -> None:
        """Tells `listener` from now on."""
        self._listeners = (*self._listeners, listener)

    def __call__(self, *args: Told.args, **named: Told.kwargs) -> None:
        """Tells all of them; an exception of one goes to whom sends the signal."""
        for listener in self._listeners:
            listener(*args, **named)
