"""Which offsets of which queues a read covers: fixed once, on the driver, before any task runs."""

from __future__ import annotations

import raftmq
from pyspark_raftmq.errors import PlanError
from pyspark_raftmq.options import ReadOptions
from raftmq.arrow.ranges import QueueRange, Unreadable, plan_topic

_WORDS = ("the option startingOffsets", "the option endingOffsets")


def plan(options: ReadOptions) -> list[QueueRange]:
    """One range per queue, in order of queue ids; empty ranges are kept. Raises PlanError.

    Bounds come from the leader, which confirms its leadership for each: everything acknowledged before the plan is in.
    """
    with raftmq.connect(options.servers) as mq:
        try:
            return plan_topic(mq.admin, options.topic, options.starting, options.ending, words=_WORDS)
        except raftmq.RaftMQError as error:
            raise _no_plan(options, error) from error


def _no_plan(options: ReadOptions, error: raftmq.RaftMQError) -> PlanError:
    if isinstance(error, Unreadable):
        return PlanError(error.what, error.why, error.hint)
    if isinstance(error, raftmq.NotFound):
        return PlanError(f"there is no topic {options.topic}", str(error), error.hint)
    if isinstance(error, raftmq.Unreachable):
        return PlanError(
            f"no server answers at {options.servers}",
            str(error),
            "check the option servers, and that every executor reaches the addresses that `raftmq status` lists",
        )
    return PlanError(f"the offsets of {options.topic} are not known", str(error), error.hint)
