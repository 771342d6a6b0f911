"""Finds the problems that a node can see by itself, from its status, its alarms and its configuration.

A service that sees a problem of its own yields it in `cluster.runtime.service_lifecycle.Part.findings` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final

from cluster.admin.findings.catalogue import UNPROVEN_DO
from cluster.admin.node_interface import AdminPort, NodeStatus, PeerStatus
from cluster.config.exposure_check import open_folder, open_ports, ports_beyond
from cluster.config.local_layout import link_object
from cluster.config.ranges import dangers
from cluster.config.source import toml_value
from cluster.members.service import EVENT
from cluster.peer.links import LinkView
from cluster.retention.disk_warnings import FILLING
from cluster.runtime.byte_sizes import size_of, span_of
from cluster.runtime.events import rfc3339
from cluster.runtime.findings import CLUSTER, Code, Condition
from statemachine.access.user_rows import Mode

NO_LEADER: Final = Code("no_leader", "critical", "raftmq status")
NO_QUORUM: Final = Code("no_quorum", "critical", "raftmq status")
NO_QUORUM_MARGIN: Final = Code("no_quorum_margin", "warning", "raftmq node list")
NODE_STOPPED: Final = Code("node_stopped", "critical", "raftmq logs {n}")
NODE_STOPPING: Final = Code("node_stopping", "info", "raftmq status")
NODE_DRAINED: Final = Code("node_drained", "info", "raftmq node drain {n} --undo")
NODE_MAINTENANCE: Final = Code("node_maintenance", "info", "raftmq node maintenance off {n}")
LINK_SUSPECT: Final = Code("link_suspect", "warning", "raftmq links")
FOLLOWER_BEHIND: Final = Code("follower_behind", "warning", "raftmq node list")
CONFIG_DIFFERS: Final = Code("config_differs", "warning", "raftmq config diff")
CONFIG_HELD: Final = Code("config_held", "warning", "raftmq config show")
CONFIG_DANGEROUS: Final = Code("config_dangerous", "info", "raftmq config show")
AUTH_OFF: Final = Code("auth_off", "critical", "raftmq auth show")
AUTH_ENDED: Final = Code("auth_ended", "critical", "raftmq audit")
SECRET_GUESSED: Final = Code("secret_guessed", "warning", "raftmq auth show")
OPERATOR_ACTED: Final = Code("operator_acted", "info", "raftmq audit")
PORTS_OPEN: Final = Code("ports_open", "info", "raftmq doctor")
DATA_READABLE: Final = Code("data_readable", "warning", "raftmq doctor")
GROUP_DRAINING: Final = Code("group_draining", "info", "raftmq status")
GROUP_RETIRED: Final = Code("group_retired", "info", "raftmq status")
RECOVERING: Final = Code("recovering", "info", "raftmq recovery --node {n}")
UNCLEAN_RESTART: Final = Code("unclean_restart", "info", "raftmq recovery --node {n}")
CRASH_LOOP: Final = Code("crash_loop", "critical", "raftmq logs {n}")
BACKUP_OFF: Final = Code("backup_off", "info", "raftmq backup create --help")
CLIENT_FLOOD: Final = Code("client_flood", "warning", "raftmq status")
LEADER_HOLD_MS: Final = 2_000
"""Milliseconds without a leader after which this is reported. An election takes less."""
LINK_HOLD_MS: Final = 3_000
MARGIN_HOLD_MS: Final = 3_000
LATE_MS: Final = 3_000
"""Milliseconds. A connected follower is late if the oldest entry that it lacks is at least this old."""
LATE_HOLD_MS: Final = 5_000
"""Milliseconds for which a follower must be late before this is reported. A restarted follower usually catches up in
less."""
SLOW_SYNC_MS: Final = 1_000.0
"""Milliseconds. If a peer's syncs take this long, missing acknowledgements are blamed on its disk, not on the link to
it."""
OPERATOR_SHOWN_MS: Final = 3_600_000
UNCLEAN_SHOWN_MS: Final = 3_600_000
"""Milliseconds since the start for which an unclean end of the run before is reported."""
FLOOD_HOLD_MS: Final = 1_000
_UNCLEAN: Final = {"process_died": "its process died", "machine_restarted": "its machine was restarted"}
_LINK_WORKS: Final = ("TRANSFER", "HANDSHAKE")
_NO_NEWS: Final = "neither of the two leads"


def own_conditions(port: AdminPort, status: NodeStatus, wall_ms: int) -> list[Condition]:
    """Returns the conditions that this node finds by itself now. Those of its services, such as consumer groups, are
    not among them."""
    return [
        *_leadership(status),
        *_life(status, wall_ms),
        *_links(port, status),
        *_followers(port, status),
        *_alarms(port, status),
        *_recovery(status, wall_ms),
        *_crashes(port, status, wall_ms),
        *_clients(port, status),
        *_copies(port, status),
        *_configuration(port, status),
        *_exposure(port, status),
        *_access(port, status, wall_ms),
        *_maintenance(port),
        *_drain(port),
    ]


def _leadership(status: NodeStatus) -> Iterator[Condition]:
    if status.member != "voter":
        return
    if status.leader is None:
        yield Condition(NO_LEADER, CLUSTER, f"no leader is known in term {status.term}", hold_ms=LEADER_HOLD_MS)
    quorum = status.quorum
    if quorum is None or not quorum.finding:
        return
    if quorum.survives < 0:
        yield Condition(NO_QUORUM, CLUSTER, quorum.finding, hold_ms=MARGIN_HOLD_MS)
    elif quorum.away:
        yield Condition(NO_QUORUM_MARGIN, CLUSTER, quorum.finding, hold_ms=MARGIN_HOLD_MS)
    else:  # With one or two voters no failure is ever survived. The cluster was set up so, so this is only information.
        yield Condition(NO_QUORUM_MARGIN, CLUSTER, quorum.finding, severity="info")


def _life(status: NodeStatus, wall_ms: int) -> Iterator[Condition]:
    me = status.object
    if status.failure is not None:
        yield Condition(NODE_STOPPED, me, f"the node has stopped taking part: {status.failure}")
    if status.stopping:
        yield Condition(NODE_STOPPING, me, "the node is stopping; its clients are being sent to other nodes")
    if status.drained:
        yield Condition(NODE_DRAINED, me, "the node is drained: it does not lead until its next start")


def _links(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    removed = {voter.id for voter in port.nodes.membership.in_force.removed}
    slow = {peer.node for peer in status.peers if peer.sync_ms is not None and peer.sync_ms >= SLOW_SYNC_MS}
    for link in status.links:
        why = suspicion(link)
        if _unacknowledged(link) and link.peer in slow:
            continue  # `_followers` reports the slow disk of this peer
        if why and link.peer not in removed and status.member != "removed":
            yield Condition(
                LINK_SUSPECT,
                link_object(status.group, status.node, link.peer),
                f"{status.object} to {status.object_of(link.peer)}: {why}",
                do_now=UNPROVEN_DO if "secret" in why else "",
                hold_ms=LINK_HOLD_MS,
                since_ms=link.since_ms,
            )


def suspicion(link: LinkView) -> str:
    """Returns the reason why a link is suspect: it is not connected, or nothing comes back on it. Returns "" if the
    link works, or is paused on purpose."""
    if link.state in _LINK_WORKS or (link.state == "SUSPEND" and link.reason == _NO_NEWS):
        return ""
    if link.state == "SUSPEND" and "silent" not in link.reason and not _unacknowledged(link):
        return ""  # The leader has paused the link on purpose: for a snapshot, or within the quota for catching up.
    return link.finding or link.reason or f"the link is {link.state}"


def _unacknowledged(link: LinkView) -> bool:
    """Returns True if frames arrive from the peer, but no acknowledgements. Either one direction of the network is
    broken, or the peer's disk is slow."""
    return link.state == "SUSPEND" and "no acknowledgement" in link.reason


def _followers(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    """Yields a condition for each follower that is too far behind: it lacks many entries, or it lacks old ones although
    frames arrive from it. In the second case its disk is too slow.

    A disk acknowledges nothing during a sync of several seconds. A link on which only acknowledgements are missing
    therefore does not suppress the condition. A follower whose trend is not known yet is not late: it has just joined,
    or fetches a snapshot.
    """
    health = port.config.health
    doubted = {link.peer for link in status.links if suspicion(link) and not _unacknowledged(link)}
    for peer in status.peers:
        is_far = peer.lag_entries >= health.follower_behind_entries
        is_late = peer.lag_ms >= LATE_MS and peer.lag_bytes_per_s is not None
        is_late = is_late and peer.connected and peer.node not in doubted
        if is_far or is_late:
            yield Condition(
                FOLLOWER_BEHIND,
                status.object_of(peer.node),
                _behind(status, peer),
                severity="info" if not is_far and peer.caught_up_in_s is not None else None,
                hold_ms=LATE_HOLD_MS if is_late else health.follower_behind_ms,
            )


def _behind(status: NodeStatus, peer: PeerStatus) -> str:
    """Returns a text for people about a follower's lag: its size, its age, how it changes, and how long a sync takes on
    both nodes."""
    node, leader = status.object_of(peer.node), status.object
    says = (
        f"the disk of {node} is {peer.lag_entries} entries behind the log of the leader, {leader}: "
        f"{size_of(peer.lag_bytes)}, the oldest {span_of(peer.lag_ms // 1000)} old"
    )
    rate = peer.lag_bytes_per_s
    if rate is not None and rate < 0:
        ends = f" and will be gone in about {span_of(peer.caught_up_in_s)}" if peer.caught_up_in_s is not None else ""
        says += f". The lag shrinks by {size_of(-rate)} a second{ends}"
    elif rate is not None:
        says += f". The lag grows by {size_of(rate)} a second" if rate else ". The lag stays the same"
    if peer.snapshot_in_s is not None:
        when = f"in about {span_of(peer.snapshot_in_s)}" if peer.snapshot_in_s else "now"
        says += f". The leader may delete what {node} lacks {when} ([retention]); {node} then needs a snapshot"
    if peer.sync_ms is not None:
        beside = "" if status.sync_ms is None else f" and {status.sync_ms:.0f} ms on {leader}"
        says += f". A sync takes {peer.sync_ms:.0f} ms on {node}{beside}"
    return says


def _alarms(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    me = status.object
    for alarm in status.alarms:
        code = port.observed.alarms.code(alarm.key)
        text = alarm.text
        if code == FILLING and status.disk is not None and status.disk.full_in_s is not None:
            text = f"full in {span_of(status.disk.full_in_s)} at this rate: {text}"
        yield Condition(
            code,
            CLUSTER if code == EVENT else me,
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
            RECOVERING,
            me,
            f"the node applies its log again: {left} entries are left up to entry {recovery.replay_target}"
            f"{_replay_estimate(status, left)}",
            since_ms=began_ms,
        )
    elif install.stage != "none":
        yield Condition(
            RECOVERING,
            me,
            f"the node fetches what it lacks from {status.object_of(install.peer)}, stage {install.stage}: "
            f"{install.bytes_done} of {install.bytes_total} bytes",
        )
    previous = recovery.previous
    how = _UNCLEAN.get(previous.ended) if previous is not None else None
    if how is not None and status.uptime_ms < UNCLEAN_SHOWN_MS:
        says = f"the run before this one did not end in order: {how}; the log was checked"
        yield Condition(UNCLEAN_RESTART, me, says, since_ms=began_ms)


def _crashes(port: AdminPort, status: NodeStatus, wall_ms: int) -> Iterator[Condition]:
    health = port.config.health
    oldest = rfc3339(wall_ms - health.crash_loop_ms)
    crashes = [
        event
        for event in port.observed.events.kept()
        if event.kind == "start" and event.severity == "warning" and event.at >= oldest
    ]
    if len(crashes) >= health.crash_loop_starts:
        says = (
            f"the node has started {len(crashes)} times in {health.crash_loop_ms // 1000} s after runs that did not "
            f"end in order, first at {crashes[0].at}"
        )
        yield Condition(CRASH_LOOP, status.object, says)


def _clients(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    most, percent = port.config.limits.connections_max, port.config.health.connections_percent
    if 100 * status.load.connections >= percent * most:
        says = (
            f"{status.object} has {status.load.connections} client connections, and takes at most "
            f"limits.connections_max = {most}"
        )
        yield Condition(CLIENT_FLOOD, status.object, says, hold_ms=FLOOD_HOLD_MS)


def _replay_estimate(status: NodeStatus, left: int) -> str:
    replayed = status.recovery.entries_replayed
    if not replayed or not status.uptime_ms:
        return ""
    return f", about {span_of(left * status.uptime_ms // replayed // 1000)} at this rate"


def _copies(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    """Yields a condition if this node leads, has no schedule of backups, and knows of no backup. One node that makes
    backups is enough for the cluster."""
    if status.writes_open and not port.config.backup.to and port.storage.backups.age_s is None:
        yield Condition(BACKUP_OFF, CLUSTER, "no backup is scheduled on the leader: [backup] to is not set")


def _configuration(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    for key in port.configuration.overruled():
        says = (
            f"the raftmq.toml of {status.object}, or a variable, says {key.key} = {key.after}; the cluster's value "
            f"counts, which is {key.before}: correct the file, or change the cluster: raftmq config set"
        )
        yield Condition(CONFIG_DIFFERS, f"setting {key.key}", says)
    for held in port.configuration.held():
        says = (
            f"{held.key} = {held.value}, in the cluster's configuration or in the raftmq.toml of {status.object}, "
            f"is outside its range; the node goes by {held.held}"
        )
        yield Condition(CONFIG_HELD, f"setting {held.key}", says)
    for dangerous, why in dangers(port.config).items():
        value = toml_value(attrgetter(dangerous)(port.config))
        yield Condition(CONFIG_DANGEROUS, f"setting {dangerous}", f"{dangerous} is {value}: {why}")


def _exposure(port: AdminPort, status: NodeStatus) -> Iterator[Condition]:
    me = status.object
    if folder := open_folder(Path(port.config.node.data_dir)):
        yield Condition(DATA_READABLE, me, folder.says, do_now=folder.command)
    if ports := open_ports(port.config):
        yield Condition(PORTS_OPEN, me, ports)


def _access(port: AdminPort, status: NodeStatus, wall_ms: int) -> Iterator[Condition]:
    access = port.access
    recent = access.recent.look()
    if access.state.mode is Mode.OFF:
        if ports := ports_beyond(port.config):
            says = (
                f"other machines may reach {status.object} ({', '.join(ports)}), and auth.mode is off: whoever does "
                "can read, send and delete"
            )
            yield Condition(AUTH_OFF, status.object, says)
        if (row := recent.turned_off) is not None:
            says = f"auth.mode was set to off by {row.user or 'nobody'} at {row.address or '-'}: nothing is judged"
            yield Condition(AUTH_ENDED, CLUSTER, says, since_ms=row.time_ms)
    for each in access.guesses.last_hour():
        says = f"{each.times} wrong secrets for user {each.name!a} came from {each.address} at {status.object}"
        yield Condition(SECRET_GUESSED, f"user {each.name!a} at {each.address}", says, since_ms=each.last_ms)
    if (row := recent.by_operator) is not None and wall_ms - row.time_ms < OPERATOR_SHOWN_MS:
        says = f"the operator, who has the cluster's secret, changed {row.about} from {row.address}: {row.action}"
        yield Condition(OPERATOR_ACTED, CLUSTER, says, since_ms=row.time_ms)


def _maintenance(port: AdminPort) -> Iterator[Condition]:
    for node, row in port.state.settings.maintenance.items():
        if node in port.nodes.membership.in_force.node_uuids:
            why = f": {row.reason}" if row.reason else ""
            says = f"{port.object_of(node)} is in maintenance ({row.author}){why}; what is found about it is expected"
            do_now = f"raftmq node maintenance off {port.name_of(node)}"
            yield Condition(NODE_MAINTENANCE, port.object_of(node), says, do_now=do_now, since_ms=row.since_ms)


def _drain(port: AdminPort) -> Iterator[Condition]:
    groups = port.state.broker_groups
    row = groups.by_number.get(groups.own)
    if row is None or row.is_active:
        return
    if row.is_retired:
        says = f"group {groups.own} has retired: nobody sends to its nodes or reads there, and they do not start again"
        do_now = f"raftmq broker-group retire {groups.own}"
        yield Condition(GROUP_RETIRED, CLUSTER, says, do_now=do_now, since_ms=row.since_ms)
    else:
        says = f"group {groups.own} takes no new messages, and is read until nothing is left"
        do_now = f"raftmq broker-group drain {groups.own} --plan"
        yield Condition(GROUP_DRAINING, CLUSTER, says, do_now=do_now, since_ms=row.since_ms)
