"""Simulated links between members: delay, loss, repetition, one-way cuts, order kept or not."""

from __future__ import annotations

import random

from raftlog.types import NodeId

Link = tuple[NodeId, NodeId]


class SimNetwork:
    """Decides when a message arrives; it never examines the content."""

    __slots__ = ("cuts", "duplicate", "epoch", "fifo", "jitter_us", "last", "link_us", "loss", "rng", "slow")

    def __init__(self, rng: random.Random, *, fifo: bool, link_us: int, jitter_us: int) -> None:
        self.rng = rng
        self.fifo = fifo
        self.link_us = link_us
        self.jitter_us = jitter_us
        self.loss = 0.0
        self.duplicate = 0.0
        self.cuts: dict[Link, int] = {}
        """Directed link -> the number of faults that cut it now."""
        self.epoch = 0
        """Number of calls of `heal`. A cut from before the last `heal` needs no mending."""
        self.slow: dict[Link, int] = {}
        """Directed link -> additional delay in microseconds."""
        self.last: dict[Link, int] = {}

    def arrivals(self, link: Link, now: int) -> tuple[int, ...]:
        """Returns the times at which a message sent now arrives: never, once, or twice."""
        if self.cuts and link in self.cuts:
            return ()
        draw = self.rng.random
        if self.loss and draw() < self.loss:
            return ()
        at = now + self.link_us + int(draw() * self.jitter_us)
        if self.slow:
            at += self.slow.get(link, 0)
        if self.fifo:
            at = max(at, self.last.get(link, 0))
            self.last[link] = at
        if self.duplicate and draw() < self.duplicate:
            return at, at + int(draw() * 20 * self.link_us)
        return (at,)

    def cut(self, links: list[Link]) -> None:
        """Cuts these links; other faults may have cut them too."""
        for link in links:
            self.cuts[link] = self.cuts.get(link, 0) + 1

    def mend(self, links: list[Link], epoch: int) -> None:
        """Ends the cut of one fault, which began in `epoch`; links that no other fault cuts work again."""
        if epoch != self.epoch:
            return
        for link in links:
            left = self.cuts.get(link, 0) - 1
            if left > 0:
                self.cuts[link] = left
            else:
                self.cuts.pop(link, None)

    def heal(self) -> None:
        """Opens all links; they are fast and lossless again."""
        self.epoch += 1
        self.cuts.clear()
        self.slow.clear()
        self.loss = self.duplicate = 0.0
