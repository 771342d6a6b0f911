"""The table of all attacks by name."""

from __future__ import annotations

from jepsen_like.hostile import expensive_requests, invalid_requests, random_attacks, resource_hogs, unknown_peers
from jepsen_like.hostile.attack import Attack

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        *invalid_requests.ATTACKS,
        *resource_hogs.ATTACKS,
        *unknown_peers.ATTACKS,
        *expensive_requests.ATTACKS,
        *random_attacks.ATTACKS,
    )
}
