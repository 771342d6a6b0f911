"""Defines signals, which connect two services that need each other. A signal is made before both services. One service
sends it when an event happens, and the other adds a listener to it in its constructor. The event log for people is
`cluster.runtime.events`.
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
        """Adds a function that is called each time the signal is sent."""
        self._listeners = (*self._listeners, listener)

    def __call__(self, *args: Sent.args, **named: Sent.kwargs) -> None:
        """Sends the signal: calls all listeners. An exception of a listener is raised to the sender, and the listeners
        after it are not called."""
        for listener in self._listeners:
            listener(*args, **named)
