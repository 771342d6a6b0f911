"""Every path of the HTTP API. The server and /openapi.json are both made from this table."""

from __future__ import annotations

from functools import cache

from cluster.admin import item_page, route
from cluster.admin.call import BELOW_THREE, DRY_RUN, Call, Raw
from cluster.admin.findings.finding import FindingsView
from cluster.admin.handlers import (
    backup,
    configuration,
    consistency,
    events,
    group_changes,
    groups,
    health,
    history,
    member_requests,
    messages,
    metadata,
    node,
    open_transactions,
    page,
    retention,
    staged,
    tier,
    topics,
)
from cluster.admin.openapi import document
from cluster.admin.port import NodeStatus
from cluster.admin.route import Route, Serves
from cluster.backup.metadata import Metadata
from cluster.config.reload import ReloadView
from cluster.members import views as membership
from cluster.members.checks import CanStopView
from cluster.repair import consistency_views as views
from cluster.retention.views import RetentionRun, RetentionView
from cluster.runtime import metered_json
from cluster.state.scrub import ScrubView
from cluster.tier.scrub.scrub_service import TierScrubView
from cluster.tier.tier_views import SealView, TierSegmentsView, TierView
from raftlog.work import charge

OPENAPI_UNITS = 50_000


async def get_openapi(call: Call) -> Raw:
    """This API, as OpenAPI 3.1."""
    return Raw("application/json", _openapi(call.port.config.limits.topic_length_max))


@cache
def _openapi(topic_length_max: int) -> bytes:
    """Made once: it takes about 50 ms."""
    charge(OPENAPI_UNITS)
    return metered_json.encode(document(ROUTES, topic_length_max))


ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/health", health.get_health, health.HealthView, route.page(), statuses=(200, 503)),
    Route("GET", "/v1/health/live", health.get_live, health.LiveView, route.CONSTANT),
    Route("GET", "/v1/health/ready", health.get_ready, health.ReadyView, route.CONSTANT, statuses=(200, 503)),
    Route("GET", "/v1/findings", health.get_findings, FindingsView, route.page()),
    Route("GET", "/v1/status", node.get_status, NodeStatus, route.CONSTANT),
    Route(
        "GET",
        "/v1/events",
        events.list_events,
        events.EventsView,
        route.page(events.LIMIT_MAX),
        asks=("since", "kind", "limit"),
    ),
    Route(
        "GET",
        "/v1/events/stream",
        events.stream_events,
        "text/event-stream",
        route.page(events.LIMIT_MAX),
        asks=("since", "kind"),
    ),
    Route("GET", "/v1/clients", node.list_clients, node.ClientsView, route.page()),
    Route("DELETE", "/v1/clients/{address}", node.disconnect_client, node.ClientGone, route.CONSTANT),
    Route("GET", "/v1/links", node.get_links, node.LinksView, route.CONSTANT),
    Route("GET", "/v1/config", configuration.get_config, configuration.ConfigView, route.CONSTANT, Serves.READ),
    Route(
        "PUT",
        "/v1/config",
        configuration.change_config,
        configuration.ConfigChanged,
        route.CONSTANT,
        Serves.LEADER,
        configuration.ConfigChange,
    ),
    Route(
        "GET",
        "/v1/config/history",
        configuration.list_config_changes,
        configuration.HistoryOfConfig,
        route.page(configuration.CHANGES_MAX),
        Serves.READ,
        asks=(configuration.BEFORE, configuration.LIMIT),
    ),
    Route("POST", "/v1/config/reload", configuration.reload_config, ReloadView, route.CONSTANT),
    Route("GET", "/v1/log-level", node.get_log_level, node.LogLevelView, route.CONSTANT),
    Route("PUT", "/v1/log-level", node.set_log_level, node.LogLevelView, route.CONSTANT, body=node.LogLevel),
    Route("GET", "/v1/recovery", node.get_recovery, node.RecoveryView, route.CONSTANT),
    Route(
        "GET", "/v1/topics", topics.list_topics, topics.TopicsView, route.page(), Serves.READ, asks=item_page.PAGE_QUERY
    ),
    Route(
        "POST",
        "/v1/topics",
        topics.create_topic,
        topics.TopicChanged,
        route.CONSTANT,
        Serves.LEADER,
        topics.TopicRequest,
        (200, 201),
    ),
    Route(
        "GET",
        "/v1/topics/{name}",
        topics.describe_topic,
        topics.TopicDetail,
        route.page(),
        Serves.READ,
        asks=item_page.PAGE_QUERY,
    ),
    Route(
        "DELETE",
        "/v1/topics/{name}",
        topics.delete_topic,
        topics.TopicChanged,
        route.CONSTANT,
        Serves.LEADER,
        asks=(DRY_RUN,),
    ),
    Route(
        "GET",
        "/v1/topics/{name}/messages/{key}",
        messages.find_messages,
        messages.MessagesView,
        messages.FOUND_COST,
        Serves.READ,
        asks=(messages.BODY_BYTES,),
    ),
    Route(
        "GET",
        "/v1/topics/{name}/queues/{queue}/messages",
        messages.list_messages,
        messages.QueuePage,
        route.messages(messages.MESSAGES_MAX),
        Serves.READ,
        asks=messages.PAGE_QUERY,
    ),
    Route(
        "GET",
        "/v1/messages/{position}",
        messages.get_message,
        messages.MessageDetail,
        route.WHOLE_MESSAGE,
        Serves.READ,
        asks=(messages.BODY_BYTES,),
    ),
    Route(
        "GET", "/v1/groups", groups.list_groups, groups.GroupsView, route.page(), Serves.READ, asks=item_page.PAGE_QUERY
    ),
    Route(
        "POST",
        "/v1/groups",
        group_changes.create_group,
        group_changes.GroupChanged,
        route.CONSTANT,
        Serves.LEADER,
        group_changes.GroupRequest,
        (200, 201),
    ),
    Route(
        "GET",
        "/v1/groups/{name}",
        groups.describe_group,
        groups.GroupDetail,
        route.page(),
        Serves.READ,
        asks=item_page.PAGE_QUERY,
    ),
    Route(
        "DELETE",
        "/v1/groups/{name}",
        group_changes.delete_group,
        group_changes.GroupChanged,
        route.CONSTANT,
        Serves.LEADER,
        asks=(DRY_RUN,),
    ),
    Route(
        "POST",
        "/v1/groups/{name}/clone",
        group_changes.clone_group,
        group_changes.GroupCloned,
        route.page(),
        Serves.LEADER,
        group_changes.CloneRequest,
    ),
    Route(
        "POST",
        "/v1/groups/{name}/reset",
        group_changes.reset_group,
        group_changes.GroupReset,
        route.page(),
        Serves.LEADER,
        group_changes.ResetRequest,
    ),
    Route(
        "GET",
        "/v1/transactions",
        open_transactions.list_transactions,
        open_transactions.TransactionsView,
        route.page(open_transactions.TRANSACTIONS_MAX),
        Serves.READ,
    ),
    Route(
        "GET",
        "/v1/writes",
        staged.list_writes,
        staged.WritesView,
        route.page(staged.ATTEMPTS_SHOWN + staged.NAMES_SHOWN),
        Serves.READ,
    ),
    Route(
        "POST",
        "/v1/writes/abort",
        staged.abort_write,
        staged.WriteAborted,
        route.CONSTANT,
        Serves.LEADER,
        staged.AbortRequest,
    ),
    Route(
        "POST",
        "/v1/writes/forget",
        staged.forget_write,
        staged.WriteForgotten,
        route.CONSTANT,
        Serves.LEADER,
        staged.ForgetRequest,
    ),
    Route("GET", "/v1/members", member_requests.list_members, membership.MembersView, route.CONSTANT, Serves.READ),
    Route(
        "GET", "/v1/members/join", member_requests.describe_joining, membership.JoinView, route.CONSTANT, Serves.READ
    ),
    Route(
        "POST",
        "/v1/members",
        member_requests.add_member,
        membership.MemberChanged,
        route.CONSTANT,
        Serves.LEADER,
        membership.AddRequest,
    ),
    Route(
        "POST",
        "/v1/members/{id}/promote",
        member_requests.promote_member,
        membership.MemberChanged,
        route.CONSTANT,
        Serves.LEADER,
    ),
    Route(
        "DELETE",
        "/v1/members/{id}",
        member_requests.remove_member,
        membership.MemberChanged,
        route.CONSTANT,
        Serves.LEADER,
        asks=(BELOW_THREE, DRY_RUN),
    ),
    Route(
        "GET", "/v1/members/{id}/can-stop", member_requests.can_stop_member, CanStopView, route.CONSTANT, Serves.LEADER
    ),
    Route(
        "GET",
        "/v1/members/{id}/events",
        events.list_member_events,
        events.EventsView,
        route.page(events.LIMIT_MAX),
        Serves.MEMBER,
        asks=("since", "kind", "limit"),
    ),
    Route("GET", "/v1/members/{id}/clients", node.list_member_clients, node.ClientsView, route.page(), Serves.MEMBER),
    Route(
        "DELETE",
        "/v1/members/{id}/clients/{address}",
        node.disconnect_member_client,
        node.ClientGone,
        route.CONSTANT,
        Serves.MEMBER,
    ),
    Route(
        "POST",
        "/v1/members/{id}/drain",
        member_requests.drain_member,
        membership.DrainView,
        route.CONSTANT,
        Serves.MEMBER,
        membership.DrainRequest,
    ),
    Route(
        "POST",
        "/v1/members/{id}/maintenance",
        member_requests.maintain_member,
        member_requests.MaintenanceView,
        route.CONSTANT,
        Serves.LEADER,
        member_requests.MaintenanceRequest,
    ),
    Route("GET", "/v1/members/{id}/status", node.get_member_status, NodeStatus, route.CONSTANT, Serves.MEMBER),
    Route(
        "GET",
        "/v1/members/{id}/consistency",
        consistency.get_member_consistency,
        views.ConsistencyView,
        route.CONSTANT,
        Serves.MEMBER,
    ),
    Route(
        "GET",
        "/v1/members/{id}/consistency/{index}",
        consistency.get_member_consistency_at,
        views.ConsistencyView,
        route.CONSTANT,
        Serves.MEMBER,
    ),
    Route(
        "GET",
        "/v1/members/{id}/history",
        history.get_history,
        history.HistoryView,
        route.CONSTANT,
        Serves.MEMBER,
        asks=(history.SINCE,),
    ),
    Route(
        "POST",
        "/v1/leader/transfer",
        member_requests.transfer_leader,
        membership.TransferView,
        route.CONSTANT,
        Serves.LEADER,
        membership.TransferRequest,
    ),
    Route("GET", "/v1/metadata", metadata.get_metadata, Metadata, metadata.COST, Serves.READ),
    Route(
        "POST",
        "/v1/metadata",
        metadata.change_metadata,
        metadata.MetadataChanged,
        route.CONSTANT,
        Serves.LEADER,
        metadata.MetadataChange,
    ),
    Route(
        "POST",
        "/v1/alarms/{key}/ack",
        metadata.acknowledge_alarm,
        metadata.AlarmAcknowledged,
        route.CONSTANT,
        Serves.LEADER,
    ),
    Route("GET", "/v1/consistency", consistency.get_consistency, views.ConsistencyView, route.CONSTANT),
    Route("POST", "/v1/consistency", consistency.mark_consistency, views.MarkView, route.CONSTANT, Serves.LEADER),
    Route("GET", "/v1/consistency/{index}", consistency.get_consistency_at, views.ConsistencyView, route.CONSTANT),
    Route("GET", "/v1/consistency/entries/{index}", consistency.get_entry, views.EntryView, route.WHOLE_MESSAGE),
    Route("POST", "/v1/consistency/log", consistency.sum_log, views.ChunksView, route.page(), body=views.ChunksRequest),
    Route("GET", "/v1/repair", consistency.get_repair, views.RepairView, route.CONSTANT),
    Route("POST", "/v1/repair", consistency.repair, views.RepairView, route.CONSTANT),
    Route("GET", "/v1/scrub", consistency.get_scrub, ScrubView, route.CONSTANT),
    Route("POST", "/v1/scrub", consistency.start_scrub, ScrubView, route.CONSTANT, statuses=(202,)),
    Route("GET", "/v1/backup", backup.get_backup, backup.BackupView, route.CONSTANT),
    Route(
        "POST",
        "/v1/backup",
        backup.start_backup,
        backup.BackupView,
        route.CONSTANT,
        body=backup.BackupRequest,
        statuses=(200, 202),
    ),
    Route("GET", "/v1/retention", retention.get_retention, RetentionView, route.CONSTANT),
    Route(
        "POST",
        "/v1/retention/run",
        retention.run_retention,
        RetentionRun,
        route.CONSTANT,
        Serves.LEADER,
        asks=(DRY_RUN,),
    ),
    Route("GET", "/v1/tier", tier.get_tier, TierView, route.CONSTANT),
    Route("POST", "/v1/tier/seal", tier.seal_segment, SealView, route.CONSTANT, Serves.LEADER),
    Route(
        "GET", "/v1/tier/segments", tier.list_segments, TierSegmentsView, route.page(tier.SEGMENTS_MAX), asks=("since",)
    ),
    Route("GET", "/v1/tier/scrub", tier.get_tier_scrub, TierScrubView, route.CONSTANT, Serves.LEADER),
    Route(
        "POST",
        "/v1/tier/scrub",
        tier.start_tier_scrub,
        TierScrubView,
        route.CONSTANT,
        Serves.LEADER,
        tier.TierScrubRequest,
        statuses=(202,),
    ),
    Route("GET", "/v1/failpoints", node.list_failpoints, node.FailpointsView, route.CONSTANT),
    Route(
        "PUT",
        "/v1/failpoints",
        node.set_failpoint,
        node.FailpointsView,
        route.CONSTANT,
        body=node.FailpointRequest,
    ),
    Route("GET", "/metrics", node.get_metrics, "text/plain", route.page(bytes_max=4 << 20)),
    Route("GET", "/openapi.json", get_openapi, "application/json", route.CONSTANT),
    Route("GET", "/", page.get_page, "text/html", route.CONSTANT),
    Route("GET", "/static/{file}", page.get_static, "application/octet-stream", route.CONSTANT),
)
