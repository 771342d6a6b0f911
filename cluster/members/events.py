"""The alarm of an event in the log: raised on every node, after every start, until an operator acknowledges it."""

from __future__ import annotations

from cluster.runtime.alarms import Alarms
from raftlog.membership import UNSAFE_RECOVER
from statemachine.broker_state import BrokerState

EVENT = "unsafe_recovered"


def watch_event(state: BrokerState, alarms: Alarms) -> None:
    """Brings the alarm up to date with the applied state."""
    members = state.membership
    if members is None or members.reason != UNSAFE_RECOVER or state.acknowledged >= members.index:
        alarms.clear(EVENT)
        return
    alarms.raise_alarm(
        EVENT,
        f"{members.detail}. Tell everyone who relies on the messages that may be lost; then: raftmq alarm ack {EVENT}. "
        "Only one copy is left: back it up and restore it to three nodes.",
    )
