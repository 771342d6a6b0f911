"""Finds problems of one node by itself: conditions from its status, its alarms and its configuration.

Each rule is a function of what the HTTP API knows of the node. Only `Look` remembers anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final

from cluster.admin.findings.catalogue import UNPROVEN_DO, code_of_alarm
from cluster.admin.findings.finding import CLUSTER, Condition
from cluster.admin.node_interface import AdminPort, NodeStatus, PeerStatus
from cluster.config.exposure_check import open_folder, open_ports, ports_beyond
from cluster.config.local_layout import link_object
from cluster.config.ranges import dangers
from cluster.config.source import toml_value
from cluster.members.cluster_level import UpgradeView
from cluster.peer.links import LinkView
from cluster.runtime.byte_sizes import size_of
from cluster.runtime.events import rfc3339
from raftlog.types import FIRST_GROUP
from statemachine.access.users import Mode

LEADER_HOLD_MS: Final = 2_000
"""Milliseconds without a leader that are reported. An election takes less."""
LINK_HOLD_MS: Final = 3_000
MARGIN_HOLD_MS: Final = 3_000
LATE_MS: Final = 3_000
"""Milliseconds. A follower is late if it lacks an entry that is older although it is heard."""
LATE_HOLD_MS: Final = 5_000
"""Milliseconds for which a follower must be late. One that was restarted catches up in less, unless it lacks much."""
SLOW_SYNC_MS: Final = 1_000.0
"""Milliseconds. Missing acknowledgements are the fault of a disk with such syncs, not of the link to it."""
OPERATOR_SHOWN_MS: Final = 3_600_000
UNCLEAN_SHOWN_MS: Final = 3_600_000
"""Milliseconds for which an unclean start is shown."""
DIGESTS_MISSED: Final = 10
DIGEST_MIN_MS: Final = 60_000
FLOOD_HOLD_MS: Final = 1_000
SHARED_TOLD_MAX: Final = 3
"""The most client ids with two clients that are findings at a time."""
MIXED_MS: Final = 86_400_000
"""Milliseconds for which members may know different levels before it is reported."""
WAITS_HOLD_MS: Final = 60_000
"""Milliseconds after which it is a finding that the first group waits for others before it is raised."""
_UNCLEAN: Final = {"process_died": "its process died", "machine_restarted": "its machine was restarted"}
_LINK_WORKS: Final = ("TRANSFER", "HANDSHAKE")
_NO_NEWS: Final = "neither of the two leads"


def own_conditions(port: AdminPort, status: NodeStatus, wall_ms: int) -> list[Condition]:
    """Returns everything that this node finds by itself at this moment, except its consumer groups."""
    return [
        *_leadership(status),
        *_life(status, wall_ms),
        *_links(port, status),
        *_followers(port, status),
        *_alarms(status),
        *_recovery(status, wall_ms),
        *_crashes(port, status, wall_ms),
        *_digests(port, status),
        *_clients(port, status),
        *_shared_ids(port, status),
        *_copies(port, status),
        *_configuration(port, status),
        *unfinished_upgrade(port.levels.view(port.services.monotonic_ms())),
        *_exposure(port, status),
        *_access(port, status, wall_ms),
        *_maintenance(port),
        *_drain(port),
        *_faults(port, status),
    ]


def _leadership(status: NodeStatus) -> Iterator[Condition]:
    if status.member != "voter":
        return
    if status.leader is None:
        yield Condition("no_leader", CLUSTER, f"no leader is known in term {status.term}", hold_ms=LEADER_HOLD_MS)
    quorum = status.quorum
    if quorum is None or not quorum.finding:
        return
    if quorum.survives < 0:
        yield Condition("no_quorum", CLUSTER, quorum.finding, hold_ms=MARGIN_HOLD_MS)
    elif quorum.away:
        yield Condition("no_quorum_margin", CLUSTER, quorum.finding, hold_ms=MARGIN_HOLD_MS)
    else:  # one or two voters: as it was set up
        yield Condition("no_quorum_margin", CLUSTER, quorum.finding, severity="info")


def _life(status: NodeStatus, wall_ms: int) -> Iterator[Condition]:
    me = status.object
    if status.failure is not None:
        yield Condition("node_stopped", me, f"the node has stopped taking part: {status.failure}")
    if status.stopping:
        yield Condition("node_stopping", me, "the node is stopping; its clients are being sent to other nodes")
    if status.drained:
        yield Condition("node_drained", me, "the node is drained: it does not lead until its next start")


def _links(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    removed = {voter.id for voter in port.membership.in_force.removed}
    slow = {peer.node for peer in status.peers if peer.sync_ms is not None and peer.sync_ms >= SLOW_SYNC_MS}
    for link in status.links:
        why = suspicion(link)
        if _unacknowledged(link) and link.peer in slow:
            continue  # `_followers` reports its disk
        if why and link.peer not in removed and status.member != "removed":
            yield Condition(
                "link_suspect",
                link_object(status.group, status.node, link.peer),
                f"{status.object} to {status.object_of(link.peer)}: {why}",
                do_now=UNPROVEN_DO if "secret" in why else "",
                hold_ms=LINK_HOLD_MS,
                since_ms=link.since_ms,
            )


def suspicion(link: LinkView) -> str:
    """Returns the reason why a link is suspect, "" if it is not: it is not connected, or nothing comes back on it."""
    if link.state in _LINK_WORKS or (link.state == "SUSPEND" and link.reason == _NO_NEWS):
        return ""
    if link.state == "SUSPEND" and "silent" not in link.reason and not _unacknowledged(link):
        return ""  # paused on purpose: a snapshot, the catch-up quota
    return link.finding or link.reason or f"the link is {link.state}"


def _unacknowledged(link: LinkView) -> bool:
    """Returns True if the peer is heard and acknowledges nothing: a way does not work, or its disk takes long."""
    return link.state == "SUSPEND" and "no acknowledgement" in link.reason


def _followers(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    """Yields a condition for each follower that is many entries behind for long, or whose disk does not keep up: what
    it lacks grows old although the node is heard. Nothing is acknowledged while a sync of seconds is under way, so a
    link on which only that is missing does not silence it. One whose course is not known yet has just joined, or
    fetches a snapshot."""
    health = port.config.health
    doubted = {link.peer for link in status.links if suspicion(link) and not _unacknowledged(link)}
    for peer in status.peers:
        is_far = peer.lag_entries >= health.follower_behind_entries
        is_late = peer.lag_ms >= LATE_MS and peer.lag_bytes_per_s is not None
        is_late = is_late and peer.connected and peer.node not in doubted
        if is_far or is_late:
            yield Condition(
                "follower_behind",
                status.object_of(peer.node),
                _behind(status, peer),
                severity="info" if not is_far and peer.caught_up_in_s is not None else None,
                hold_ms=LATE_HOLD_MS if is_late else health.follower_behind_ms,
            )


def _behind(status: NodeStatus, peer: PeerStatus) -> str:
    """Describes a lag: how far, since when, what becomes of it, and if the disk is to blame."""
    node, leader = status.object_of(peer.node), status.object
    says = (
        f"the disk of {node} is {peer.lag_entries} entries behind the log of the leader, {leader}: "
        f"{size_of(peer.lag_bytes)}, the oldest {_span(peer.lag_ms // 1000)} old"
    )
    rate = peer.lag_bytes_per_s
    if rate is not None and rate < 0:
        ends = f" and will be gone in about {_span(peer.caught_up_in_s)}" if peer.caught_up_in_s is not None else ""
        says += f". The lag shrinks by {size_of(-rate)} a second{ends}"
    elif rate is not None:
        says += f". The lag grows by {size_of(rate)} a second" if rate else ". The lag stays the same"
    if peer.snapshot_in_s is not None:
        when = f"in about {_span(peer.snapshot_in_s)}" if peer.snapshot_in_s else "now"
        says += f". The leader may delete what {node} lacks {when} ([retention]); {node} then needs a snapshot"
    if peer.sync_ms is not None:
        beside = "" if status.sync_ms is None else f" and {status.sync_ms:.0f} ms on {leader}"
        says += f". A sync takes {peer.sync_ms:.0f} ms on {node}{beside}"
    return says


def _alarms(status: NodeStatus) -> Iterator[Condition]:
    me = status.object
    for alarm in status.alarms:
        code = code_of_alarm(alarm.key)
        text = alarm.text
        if code == "disk_filling" and status.disk is not None and status.disk.full_in_s is not None:
            text = f"full in {_span(status.disk.full_in_s)} at this rate: {text}"
        yield Condition(
            code,
            CLUSTER if code == "unsafe_recovered" else me,
            text,
            severity="critical" if alarm.stops_service else None,
            since_ms=alarm.since_ms,
        )


def _recovery(status: NodeStatus, wall_ms: int) -> Iterator[Condition]:
    me, recovery, install = status.object, status.recovery, status.install
    began_ms = wall_ms - status.uptime_ms
    if recovery.replaying:
        left = max(0, recovery.replay_target - max(recovery.replay_index, 0))
        yield Condition(
            "recovering",
            me,
            f"the node applies its log again: {left} entries are left up to entry {recovery.replay_target}"
            f"{_replay_estimate(status, left)}",
            since_ms=began_ms,
        )
    elif install.stage != "none":
        yield Condition(
            "recovering",
            me,
            f"the node fetches what it lacks from {status.object_of(install.peer)}, stage {install.stage}: "
            f"{install.bytes_done} of {install.bytes_total} bytes",
        )
    previous = recovery.previous
    how = _UNCLEAN.get(previous.ended) if previous is not None else None
    if how is not None and status.uptime_ms < UNCLEAN_SHOWN_MS:
        says = f"the run before this one did not end in order: {how}; the log was checked"
        yield Condition("unclean_restart", me, says, since_ms=began_ms)


def _crashes(port: AdminPort, status: NodeStatus, wall_ms: int) -> Iterator[Condition]:
    health = port.config.health
    oldest = rfc3339(wall_ms - health.crash_loop_ms)
    crashes = [
        event
        for event in port.events.kept()
        if event.kind == "start" and event.severity == "warning" and event.at >= oldest
    ]
    if len(crashes) >= health.crash_loop_starts:
        says = (
            f"the node has started {len(crashes)} times in {health.crash_loop_ms // 1000} s after runs that did not "
            f"end in order, first at {crashes[0].at}"
        )
        yield Condition("crash_loop", status.object, says)


def _digests(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    """Yields conditions about digests. The leader compares every `digest_every_ms` while entries are applied, followers
    compare with each DIGEST entry."""
    every_ms = port.config.consistency.digest_every_ms
    behind = port.consistency.uncompared_ms() if every_ms and port.consistency is not None else None
    if behind is not None and behind > max(DIGESTS_MISSED * every_ms, DIGEST_MIN_MS):
        says = (
            f"the rows of {status.object} were last compared with the leader's {behind // 1000} s ago, although "
            f"entries were applied since (consistency.digest_every_ms = {every_ms})"
        )
        yield Condition("digest_not_compared", status.object, says)


def _clients(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    most, percent = port.config.limits.connections_max, port.config.health.connections_percent
    if 100 * status.load.connections >= percent * most:
        says = (
            f"{status.object} has {status.load.connections} client connections, and takes at most "
            f"limits.connections_max = {most}"
        )
        yield Condition("client_flood", status.object, says, hold_ms=FLOOD_HOLD_MS)


def _shared_ids(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    me, by_id = status.object, port.state.access.by_id

    def named(users: tuple[int, ...]) -> str:
        return " and ".join(by_id[user].name if user in by_id else "nobody proven" for user in users)

    if refused := port.shared_ids.refused_lately():
        newest = refused[0]
        says = (
            f"clients of two users have one client id in one consumer group, and the second was refused: client "
            f"{newest.client_id} of group {newest.group}, users {named(newest.users)}; {len(refused)} such ids in all"
        )
        yield Condition("client_id_shared", me, says, since_ms=min(each.first_ms for each in refused))
    for twice in port.shared_ids.twice_lately()[:SHARED_TOLD_MAX]:
        says = (
            f"heartbeats over two connections name client {twice.client_id} in group {twice.group}: two clients have "
            "one client id, and read the same queues, so that both get every message of them"
        )
        about = f"client {twice.client_id} of group {twice.group}"
        do_now = f"raftmq group describe {twice.group}"
        yield Condition("client_id_shared", about, says, do_now, since_ms=twice.first_ms)
    if undelivered := port.shared_ids.undelivered_lately():
        newest = undelivered[0]
        says = (
            f"a reply reached nobody, because its requester is one of several users with one client id: client "
            f"{newest.client_id}, users {named(newest.users)}; {sum(each.times for each in undelivered)} such replies"
        )
        yield Condition("reply_undelivered", me, says, since_ms=min(each.first_ms for each in undelivered))


def _replay_estimate(status: NodeStatus, left: int) -> str:
    replayed = status.recovery.entries_replayed
    if not replayed or not status.uptime_ms:
        return ""
    return f", about {_span(left * status.uptime_ms // replayed // 1000)} at this rate"


def _copies(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    """Yields a condition if no backups are made. Backups are for the cluster, so one node that makes them is enough."""
    if status.writes_open and not port.config.backup.to and port.backups.age_s is None:
        yield Condition("backup_off", CLUSTER, "no backup is scheduled on the leader: [backup] to is not set")


def _configuration(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    for key in port.overruled():
        says = (
            f"the raftmq.toml of {status.object}, or a variable, says {key.key} = {key.after}; the cluster's value "
            f"counts, which is {key.before}: correct the file, or change the cluster: raftmq config set"
        )
        yield Condition("config_differs", f"setting {key.key}", says)
    for held in port.held():
        says = (
            f"{held.key} = {held.value}, in the cluster's configuration or in the raftmq.toml of {status.object}, "
            f"is outside its range; the node goes by {held.held}"
        )
        yield Condition("config_held", f"setting {held.key}", says)
    for dangerous, why in dangers(port.config).items():
        value = toml_value(attrgetter(dangerous)(port.config))
        yield Condition("config_dangerous", f"setting {dangerous}", f"{dangerous} is {value}: {why}")


def unfinished_upgrade(view: UpgradeView) -> Iterator[Condition]:
    """Yields a condition for an upgrade that was begun and not finished: a downgrade is still possible, and new
    functions are not available."""
    if view.waits_for:
        says = (
            f"every member knows level {view.newest} for upgrade.finalize_after_ms, and group {FIRST_GROUP} keeps "
            f"level {view.level} until all other groups are raised: {'; '.join(view.waits_for)}"
        )
        yield Condition("upgrade_unfinished", CLUSTER, says, hold_ms=WAITS_HOLD_MS)
    elif view.mixed_ms is not None and view.mixed_ms >= MIXED_MS:
        why = "; ".join(view.reasons) or "every member knows it: finalize"
        says = f"for {_span(view.mixed_ms // 1000)}, members have known level {view.newest}, and the cluster has level"
        yield Condition("upgrade_unfinished", CLUSTER, f"{says} {view.level}: {why}")


def _exposure(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    me = status.object
    if folder := open_folder(Path(port.config.node.data_dir)):
        yield Condition("data_readable", me, folder.says, do_now=folder.command)
    if ports := open_ports(port.config):
        yield Condition("ports_open", me, ports)


def _access(port: AdminPort, status: NodeStatus, wall_ms: int) -> Iterator[Condition]:
    access = port.access
    recent = access.recent.look()
    if access.state.mode is Mode.OFF:
        if ports := ports_beyond(port.config):
            says = (
                f"other machines may reach {status.object} ({', '.join(ports)}), and auth.mode is off: whoever does "
                "can read, send and delete"
            )
            yield Condition("auth_off", status.object, says)
        if (row := recent.turned_off) is not None:
            says = f"auth.mode was set to off by {row.user or 'nobody'} at {row.address or '-'}: nothing is judged"
            yield Condition("auth_ended", CLUSTER, says, since_ms=row.time_ms)
    for each in access.guesses.last_hour():
        says = f"{each.times} wrong secrets for user {each.name!a} came from {each.address} at {status.object}"
        yield Condition("secret_guessed", f"user {each.name!a} at {each.address}", says, since_ms=each.last_ms)
    if (row := recent.by_operator) is not None and wall_ms - row.time_ms < OPERATOR_SHOWN_MS:
        says = f"the operator, who has the cluster's secret, changed {row.about} from {row.address}: {row.action}"
        yield Condition("operator_acted", CLUSTER, says, since_ms=row.time_ms)


def _maintenance(port: AdminPort) -> Iterator[Condition]:
    for node, row in port.state.settings.maintenance.items():
        if node in port.membership.in_force.node_uuids:
            why = f": {row.reason}" if row.reason else ""
            says = f"{port.object_of(node)} is in maintenance ({row.author}){why}; what is found about it is expected"
            do_now = f"raftmq node maintenance off {port.name_of(node)}"
            yield Condition("node_maintenance", port.object_of(node), says, do_now=do_now, since_ms=row.since_ms)


def _drain(port: AdminPort) -> Iterator[Condition]:
    groups = port.state.broker_groups
    row = groups.by_number.get(groups.own)
    if row is None or row.is_active:
        return
    if row.is_retired:
        says = f"group {groups.own} has retired: nobody sends to its nodes or reads there, and they do not start again"
        do_now = f"raftmq broker-group retire {groups.own}"
        yield Condition("group_retired", CLUSTER, says, do_now=do_now, since_ms=row.since_ms)
    else:
        says = f"group {groups.own} takes no new messages, and is read until nothing is left"
        do_now = f"raftmq broker-group drain {groups.own} --plan"
        yield Condition("group_draining", CLUSTER, says, do_now=do_now, since_ms=row.since_ms)


def _faults(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    for point in port.failpoints.states():
        if point.action != "off":
            says = f"failpoint {point.name} is {point.action}: this node has a fault on purpose"
            yield Condition("failpoint_set", status.object, says)


def _span(seconds: int) -> str:
    """Formats a duration as "3 h", "12 min", "40 s"."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
