"""The table of request codes: who answers what, and which codes are the leader's alone."""

from __future__ import annotations

from cluster.remoting import heartbeat, offsets, pull, route, topics_admin
from cluster.remoting.codes import RequestCode
from cluster.remoting.members import Members
from cluster.services import Handler, Services

LEADER_CODES = frozenset(
    {
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
    }
)
"""Forwarded to the leader by a node that does not lead. All others are answered where they arrive."""


def handlers(services: Services, members: Members) -> dict[int, Handler]:
    """Request code -> handler, of all codes but sends."""
    return {
        **route.handlers(services),
        **topics_admin.handlers(services),
        **heartbeat.handlers(services, members),
        **offsets.handlers(services),
        **pull.handlers(services, members),
    }
