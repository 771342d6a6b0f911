"""The last part of a demo with a tier: uploads all of the log to the object store, and reads it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.local.final_tier_upload import bring_rest
from raftmq.local.http.admin_http import AdminApi, admin_addresses, scrubbed
from raftmq_wire.errors import LocalError

if TYPE_CHECKING:
    from jepsen_like.demo_story import DemoStory
    from raftmq.local.cluster import LocalCluster

UPLOAD_S = SCRUB_S = 60.0


def into_the_tier(cluster: LocalCluster, story: DemoStory) -> None:
    """Uploads the log to the tier, reads it back and compares it. Raises LocalError if either takes longer than a
    minute, or if an object of the tier is bad.
    """
    addresses = admin_addresses(None, str(cluster.data))
    api = AdminApi(addresses)
    story.chapter(f"The log goes to {api.local('/v1/tier')['url']}")
    with story.working("uploading"):
        rest, _ = bring_rest(addresses, UPLOAD_S)
    if rest is not None:
        raise rest.error(UPLOAD_S)
    with story.working("reading it back"):
        found = scrubbed(api, {"reads": True}, SCRUB_S)
    if found is None:
        raise LocalError(
            f"the tier was not read within {SCRUB_S:.0f} s",
            "the store is slow, or another node leads now",
            f"raftmq tier verify --data {cluster.data}",
        )
    story.tell(
        f"{found['read_bytes']:,} bytes in {found['objects']:,} objects written, read back and compared;"
        f" bad: {found['bad']:,}"
    )
    if found["bad"] or found["failure"]:
        raise LocalError(
            f"{found['bad']} objects of the tier are bad",
            found["failure"] or "; ".join(found["findings"][:3]),
            f"raftmq tier verify --data {cluster.data}",
        )
