"""All codes of findings: severity, the first command to type, and the finding that may explain it.

Findings of alarms have the alarm's key as their code, except ALARM_CODES. Each code has a section in docs/runbooks.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cluster.admin.findings.finding import Severity
from cluster.config.local_layout import Place

RUNBOOKS: Final = "docs/runbooks.md"


class Code(NamedTuple):
    """The constant part of findings with one code."""

    severity: Severity
    do_now: str
    """The first command. `{n}` stands for the number of the node that the finding is about, else of the node that found
    it."""


CODES: Final[dict[str, Code]] = {
    # the cluster
    "no_leader": Code("critical", "raftmq status"),
    "no_quorum": Code("critical", "raftmq status"),
    "no_quorum_margin": Code("warning", "raftmq node list"),
    "node_down": Code("warning", "raftmq restart {n}"),
    "node_silent": Code("info", "raftmq logs {n}"),
    "node_stopped": Code("critical", "raftmq logs {n}"),
    "node_stopping": Code("info", "raftmq status"),
    "node_drained": Code("info", "raftmq node drain {n} --undo"),
    "node_maintenance": Code("info", "raftmq node maintenance off {n}"),
    "link_suspect": Code("warning", "raftmq links"),
    "follower_behind": Code("warning", "raftmq node list"),
    "clock_off": Code("warning", "timedatectl timesync-status"),
    "config_differs": Code("warning", "raftmq config diff"),
    "config_held": Code("warning", "raftmq config show"),
    "config_dangerous": Code("info", "raftmq config show"),
    "level_too_low": Code("critical", "raftmq upgrade plan"),
    "upgrade_unfinished": Code("warning", "raftmq upgrade plan"),
    "removed": Code("critical", "raftmq node list"),
    "unsafe_recovered": Code("critical", "raftmq alarm list"),
    "peer_secret": Code("warning", "raftmq secret status"),
    "tls_files": Code("warning", "raftmq cert show --help"),
    "tls_plain": Code("warning", "raftmq cert show --help"),
    "tls_expires": Code("warning", "raftmq cert show --help"),
    "tls_expires_soon": Code("critical", "raftmq cert show --help"),
    "user_key": Code("critical", "raftmq status"),
    "auth_off": Code("critical", "raftmq auth show"),
    "auth_ended": Code("critical", "raftmq audit"),
    "secret_guessed": Code("warning", "raftmq auth show"),
    "operator_acted": Code("info", "raftmq audit"),
    "ports_open": Code("info", "raftmq doctor"),
    "data_readable": Code("warning", "raftmq doctor"),
    "implausible_peer": Code("warning", "raftmq links"),
    "group_map": Code("warning", "raftmq status"),
    "registry_no_majority": Code("warning", "raftmq registry status"),
    "registry_not_ready": Code("warning", "raftmq registry status"),
    "truth_unconfirmed": Code("warning", "raftmq status"),
    "revocations_wait": Code("warning", "raftmq status"),
    "group_draining": Code("info", "raftmq status"),
    "group_retired": Code("info", "raftmq status"),
    # starts
    "recovering": Code("info", "raftmq recovery --node {n}"),
    "unclean_restart": Code("info", "raftmq recovery --node {n}"),
    "crash_loop": Code("critical", "raftmq logs {n}"),
    "state_replaced": Code("warning", "raftmq recovery --node {n}"),
    "slow_turns": Code("warning", "raftmq logs {n}"),
    "failpoint_set": Code("warning", "raftmq down"),
    # disks
    "data_lost": Code("critical", "raftmq node replace {n}"),
    "disk_full": Code("critical", "raftmq retention --run"),
    "disk_filling": Code("warning", "raftmq retention"),
    "disk_slow": Code("warning", "raftmq doctor"),
    "degraded": Code("warning", "raftmq status"),
    "log_waits_for_space": Code("critical", "df -h"),
    "log_pinned": Code("warning", "raftmq retention"),
    "write_left": Code("warning", "raftmq writes list"),
    "write_undecided": Code("warning", "raftmq writes list"),
    "trimmed_files_left": Code("warning", "raftmq retention"),
    "index_file_failed": Code("warning", "raftmq logs {n}"),
    "unconsumed_messages_expire": Code("warning", "raftmq group list"),
    "checkpoint_failed": Code("warning", "raftmq logs {n}"),
    # replicas
    "digest_unequal": Code("critical", "raftmq inspect-consistency"),
    "digest_not_compared": Code("warning", "raftmq inspect-consistency"),
    "fenced": Code("critical", "raftmq restart {n}"),
    "log_damage": Code("warning", "raftmq repair --node {n}"),
    "vote_withheld": Code("warning", "raftmq repair --node {n}"),
    "install_failing": Code("warning", "raftmq logs {n}"),
    "backfill_failing": Code("warning", "raftmq logs {n}"),
    "older_log_lost": Code("critical", "raftmq backup list"),
    # copies
    "backup_off": Code("info", "raftmq backup create --help"),
    "backup_failed": Code("warning", "raftmq backup create --help"),
    "backup_old": Code("warning", "raftmq backup create --help"),
    "tier_stuck": Code("warning", "raftmq tier status"),
    "tier_deletes_stuck": Code("warning", "raftmq tier status"),
    "tier_damaged": Code("warning", "raftmq tier repair"),
    # clients
    "group_without_consumers": Code("warning", "raftmq group list"),
    "queue_stuck": Code("warning", "raftmq group list"),
    "offset_beyond_end": Code("warning", "raftmq group list"),
    "hot_topic": Code("info", "raftmq topic hot"),
    "hot_queue": Code("info", "raftmq topic hot"),
    "quota_refuses": Code("info", "raftmq quota list"),
    "learnt_limits_expired": Code("info", "raftmq quota import --help"),
    "learnt_limits_cut": Code("info", "raftmq quota learnt"),
    "messages_hidden": Code("warning", "raftmq topic list"),
    "group_topics_differ": Code("warning", "raftmq group list"),
    "client_flood": Code("warning", "raftmq status"),
    "client_id_shared": Code("warning", "raftmq group list"),
    "reply_undelivered": Code("warning", "raftmq group list"),
}
"""Code -> its constant part. A code that is not listed (an alarm newer than this table) is a warning, or critical if it
stops service."""

ALARM_CODES: Final = {"digest_mismatch": "digest_unequal", "backup_overdue": "backup_old"}
"""Key of an alarm -> code of its finding, where they differ. Alarms `state_...` of a start have the code
`state_replaced`."""

BECAUSE_OF: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "no_leader": (("no_quorum", "same"), ("crash_loop", "any"), ("node_down", "any"), ("link_suspect", "end")),
    "no_quorum": (
        ("crash_loop", "any"),
        ("node_down", "any"),
        ("log_waits_for_space", "any"),
        ("link_suspect", "end"),
    ),
    "no_quorum_margin": (
        ("node_maintenance", "any"),
        ("crash_loop", "any"),
        ("node_down", "any"),
        ("node_stopping", "any"),
        ("link_suspect", "any"),
    ),
    "node_down": (("node_maintenance", "same"), ("crash_loop", "same"), ("node_stopped", "same")),
    "node_silent": (("node_maintenance", "same"), ("node_down", "same"), ("node_stopping", "same")),
    "node_stopped": (("data_lost", "same"), ("log_waits_for_space", "same"), ("disk_full", "same")),
    "link_suspect": (("node_down", "end"), ("node_silent", "end"), ("node_stopping", "end"), ("removed", "end")),
    "follower_behind": (
        ("node_maintenance", "same"),
        ("node_down", "same"),
        ("recovering", "same"),
        ("log_waits_for_space", "same"),
        ("disk_full", "same"),
        ("disk_slow", "same"),
        ("install_failing", "same"),
        ("link_suspect", "end"),
    ),
    "degraded": (("disk_slow", "any"), ("link_suspect", "any"), ("node_down", "any"), ("follower_behind", "any")),
    "recovering": (("crash_loop", "same"), ("unclean_restart", "same")),
    "unclean_restart": (("crash_loop", "same"),),
    "log_waits_for_space": (("disk_full", "same"),),
    "disk_full": (("log_pinned", "any"), ("tier_stuck", "any")),
    "disk_filling": (("log_pinned", "any"),),
    "checkpoint_failed": (("data_lost", "same"),),
    "digest_not_compared": (("no_quorum", "any"), ("no_leader", "any"), ("fenced", "any"), ("node_down", "any")),
    "vote_withheld": (("log_damage", "same"),),
    "install_failing": (("no_leader", "any"), ("node_down", "any")),
    "backup_failed": (("disk_full", "same"),),
    "backup_old": (("backup_failed", "same"),),
    "queue_stuck": (("no_leader", "any"),),
    "disk_slow": (("failpoint_set", "same"),),
    "slow_turns": (("failpoint_set", "same"),),
}
"""Code of a consequence -> codes of its causes, the most likely first. `same`: about the same object; `end`: about a
node at an end of the link (or a link of the node); `any`: about any object."""


def code_of_alarm(key: str) -> str:
    """Returns the code of the finding for an alarm."""
    if key.startswith("state_"):
        return "state_replaced"
    return ALARM_CODES.get(key, key)


UNPROVEN_DO: Final = "raftmq secret status"
"""The command about a link on which one of the nodes did not prove the secret. Both of them run."""

_BESIDE_UP: Final = ("raftmq restart {n}", "raftmq logs {n}", "raftmq down", "raftmq node replace {n}")
"""Commands that work only beside a cluster that `raftmq up` made."""
_REPLACE: Final = "raftmq node replace {n} --config FILE --via URL    (on the machine of the new node)"
_INSTEAD: Final[dict[Place, tuple[str, str, str, str]]] = {
    "up": _BESIDE_UP,
    "machine": (
        "raftmq serve --config FILE    (on the machine of node {n}, or start its service)",
        "journalctl -u raftmq    (on the machine of node {n}, or where its output is kept)",
        "raftmq serve --config FILE    (restart node {n} so, with failpoints.enabled = false)",
        _REPLACE,
    ),
    "container": (
        "docker restart CONTAINER    (that of node {n}; or start it as it was started: raftmq serve --config FILE)",
        "docker logs CONTAINER    (that of node {n}; or where its output is kept)",
        "docker restart CONTAINER    (that of node {n}, with failpoints.enabled = false in its file)",
        _REPLACE,
    ),
    "compose": (
        "docker compose restart n{n}    (on the machine of the containers; or start node {n} as it was started)",
        "docker compose logs n{n}    (on the machine of the containers; or where the output of node {n} is kept)",
        "docker compose restart n{n}    (with failpoints.enabled = false in the file of node {n})",
        _REPLACE,
    ),
    "kubernetes": (
        "kubectl delete pod POD    (the first word of the address of node {n} in raftmq node list; it starts again)",
        "kubectl logs POD -c node --previous    (the first word of the address of node {n} in raftmq node list)",
        "kubectl delete pod POD    (that of node {n}, with failpoints.enabled = false in its configuration)",
        _REPLACE,
    ),
}
"""The commands instead of them, by the place where a cluster runs."""


def command_of(code: Code, number: object, place: Place = "up") -> str:
    """Returns the command to type first, as it works where the cluster runs."""
    instead = dict(zip(_BESIDE_UP, _INSTEAD[place], strict=True))
    return instead.get(code.do_now, code.do_now).format(n=number)


def runbook_of(code: str) -> str:
    """Returns the address of the documentation about the code."""
    return f"{RUNBOOKS}#{code}"
