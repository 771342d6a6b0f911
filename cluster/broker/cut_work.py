"""What a client asked for and what is cut into steps (`cluster.runtime.work`): while much of it waits for its turn, no
more is taken from the client's connection, so that the work that waits is bounded."""

from __future__ import annotations

from cluster.broker.services import Client
from cluster.runtime.work import Steps, Turns


def begin(turns: Turns, client: Client, steps: Steps) -> None:
    """Does the steps, now or in later turns, fairly between clients. They end by themselves if the client is gone."""
    client.work_waits(1)
    turns.begin(client.owner, _counted(client, steps))


def _counted(client: Client, steps: Steps) -> Steps:
    try:
        yield from steps
    finally:
        client.work_waits(-1)
