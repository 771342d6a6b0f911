"""Signals: an event of a node with its listeners, by which two services that need each other are connected.

The signal is made before both services. One of them sends it, the other adds itself in its constructor. The event log
for people is `cluster.runtime.events`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

Sent = ParamSpec("Sent")


class Signal(Generic[Sent]):
    """Calls its listeners in the order in which they were added. Event loop only, unless its owner says otherwise."""

    __slots__ = ("_listeners",)

    def __init__(self, *listeners: Callable[Sent, object]) -> None:
        self._listeners = listeners

    def add(self, listener: Callable[Sent, object]) -> None:
        """Adds a listener."""
        self._listeners = (*self._listeners, listener)

    def __call__(self, *args: Sent.args, **named: Sent.kwargs) -> None:
        """Calls all listeners; an exception of one is raised to the sender."""
        for listener in self._listeners:
            listener(*args, **named)
