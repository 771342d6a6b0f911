"""Defines the verbs about users, their rules, and the mode in which requests are judged."""

from __future__ import annotations

from cluster.requests import answer_sizes
from cluster.requests.verb import Cost, Repeats, Serves, Verb

USERS = (
    Verb(
        3001,
        "AUTH_CREATE_USER",
        None,
        page=(
            '{fields}, body `{"username","password","userType","userStatus"}` → 0; 16 if no Super signed it, 604 if '
            "it would take the last Super away; 0 too for what exists with equal contents"
        ),
        fields="username!",
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
    ),
    Verb(
        3002,
        "AUTH_UPDATE_USER",
        None,
        page="as 3001; null leaves a part as it is",
        fields="username",
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
    ),
    Verb(
        3003,
        "AUTH_DELETE_USER",
        None,
        page="{fields} → 0, also if there is none",
        fields="username!",
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
    ),
    Verb(
        3004,
        "AUTH_GET_USER",
        None,
        page="{fields} → the user without the secret; an empty body if there is none",
        fields="username!",
        serves=Serves.CONFIRMED,
    ),
    Verb(
        3005,
        "AUTH_LIST_USER",
        None,
        page="{fields} → users without their secrets",
        fields="filter",
        serves=Serves.CONFIRMED,
        cost=Cost.READS_MUCH,
        answer_bytes=answer_sizes.users,
    ),
    Verb(
        3006,
        "AUTH_CREATE_ACL",
        None,
        page=(
            "{fields} (`User:name`), body "
            '`{"policies":[{"policyType","entries":[{"resource","actions","sourceIps","decision"}]}]}` → 0; each '
            "rule takes the place of the one with its policy and resource; 22 no user"
        ),
        fields="subject!",
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
    ),
    Verb(
        3007,
        "AUTH_UPDATE_ACL",
        None,
        page="as 3006",
        fields="subject",
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
    ),
    Verb(
        3008,
        "AUTH_DELETE_ACL",
        None,
        page="{fields} → 0, also if there is no such rule; without `resource` all rules; 22 no user",
        fields="subject! policyType resource",
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
    ),
    Verb(
        3009,
        "AUTH_GET_ACL",
        None,
        page="{fields} → the rules of the user",
        fields="subject!",
        serves=Serves.CONFIRMED,
        cost=Cost.READS_MUCH,
    ),
    Verb(
        3010,
        "AUTH_LIST_ACL",
        None,
        page="{fields} → the rules of users",
        fields="subjectFilter resourceFilter",
        serves=Serves.CONFIRMED,
        cost=Cost.READS_MUCH,
        answer_bytes=answer_sizes.rules,
    ),
    Verb(
        700_006,
        "SET_AUTH_MODE",
        None,
        page="{fields}: `off`, `observe` or `enforce` → 0; 16 if no Super signed it; see [security]",
        fields="mode!",
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.ONE_TRY,
        body_bytes_max=0,
    ),
)
