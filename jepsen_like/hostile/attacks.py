"""The table of all attacks by name."""

from __future__ import annotations

from jepsen_like.hostile import random_attacks, requests, resource_hogs, turns, unknown_peers
from jepsen_like.hostile.attack import Attack

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        *requests.ATTACKS,
        *resource_hogs.ATTACKS,
        *unknown_peers.ATTACKS,
        *turns.ATTACKS,
        *random_attacks.ATTACKS,
    )
}
