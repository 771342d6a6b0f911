"""A signal tells its listeners in order, each once."""

from __future__ import annotations

from cluster.runtime.listeners import Signal


def test_listeners_are_told_in_the_order_in_which_they_came() -> None:
    told: list[str] = []
    signal: Signal[[str]] = Signal(lambda what: told.append(f"first {what}"))
    signal("one")
    signal.add(lambda what: told.append(f"second {what}"))
    signal("two")
    assert told == ["first one", "first two", "second two"]


def test_a_signal_that_nobody_hears_does_nothing() -> None:
    signal: Signal[[int]] = Signal()
    signal(1)
