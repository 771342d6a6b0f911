"""Handles requests about users and rules, as mqadmin of RocketMQ 5 sends them (3001 to 3010), and the mode (700006).

Only the leader answers them, and only for a Super (an administrator). The first Super comes from a file
(`cluster.broker.access.user_admin`). The answer about a user does not contain its secret (RocketMQ sends it in plain
text).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cluster.broker.access.user_admin import Asker, Changed, UserAdmin
from cluster.broker.refusal import Reason, Refused
from cluster.remoting.answers import BodySteps, answer_in_steps, refuse, refusing, table_body
from cluster.remoting.request import Handlers, Request, text
from cluster.requests.judge import NO_SUPER
from cluster.runtime import metered_json
from cluster.runtime.request_limits import TEXT_MAX
from raftlog.work import charge
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.json_text import MALFORMED
from statemachine.access.rules import ACTION_NAMES, Policy, Rule, RuleRow

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.requests.judge import Judge
    from statemachine.access.user_rows import User

FIRST_SUPER: Final = f"{NO_SUPER}: the first one comes out of the file that auth.first_user_file names"
SUBJECT: Final = "User:"
RULE_UNITS: Final = 4
"""The cost of encoding one rule, in units of `raftlog.work`."""
_STATUSES: Final = {"enable": True, "disable": False}
_TYPES: Final = {"super": True, "normal": False}
_POLICIES: Final = {"custom": Policy.CUSTOM, "default": Policy.DEFAULT}
_DECISIONS: Final = {"allow": True, "deny": False}


class UserInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """A user in a request or an answer (RocketMQ's UserInfo). In a change, a field that is null stays unchanged."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class EntryInfo(msgspec.Struct, rename="camel"):
    """One rule (RocketMQ's PolicyEntryInfo): allows or denies the actions on the resource, for clients at
    `source_ips`."""

    resource: str
    actions: list[str]
    source_ips: list[str] | None = None
    decision: str = ""


class PolicyInfo(msgspec.Struct, rename="camel"):
    """The rules of one policy, Custom or Default (RocketMQ's PolicyInfo)."""

    policy_type: str | None = None
    entries: list[EntryInfo] = []


class AclInfo(msgspec.Struct, rename="camel"):
    """The rules of a user (RocketMQ's AclInfo). `subject` is `User:name`."""

    subject: str | None = None
    policies: list[PolicyInfo] = []


_decode_user = metered_json.decoder(UserInfo, strict=False)
_decode_acl = metered_json.decoder(AclInfo, strict=False)
_encode = metered_json.encode


class UserRequests:
    """Handles requests about users and rules."""

    def __init__(self, services: Services, users: UserAdmin, judge: Judge) -> None:
        self._services = services
        self._users = users
        self._access = services.state.access
        self._judge = judge

    def codes(self) -> Handlers:
        """Returns request code -> its handler; all are answered by the leader only."""
        return {
            RequestCode.AUTH_CREATE_USER: refusing(self._create_user),
            RequestCode.AUTH_UPDATE_USER: refusing(self._update_user),
            RequestCode.AUTH_DELETE_USER: refusing(self._delete_user),
            RequestCode.AUTH_GET_USER: refusing(self._get_user),
            RequestCode.AUTH_LIST_USER: refusing(self._list_users),
            RequestCode.AUTH_CREATE_ACL: refusing(self._set_rules),
            RequestCode.AUTH_UPDATE_ACL: refusing(self._set_rules),
            RequestCode.AUTH_DELETE_ACL: refusing(self._remove_rules),
            RequestCode.AUTH_GET_ACL: refusing(self._get_acl),
            RequestCode.AUTH_LIST_ACL: refusing(self._list_acls),
            RequestCode.SET_AUTH_MODE: refusing(self._set_mode),
        }

    def _asker(self, request: Request) -> Asker:
        """Returns the Super who sent the request. Raises Refused (NO_PERMISSION) in every mode if the sender is no
        Super."""
        user, address = self._access.by_id.get(request.user), request.connection.peer_address[0]
        if why := self._judge.why_no_super(user, address):
            raise Refused(Reason.NO_PERMISSION, FIRST_SUPER if why is NO_SUPER else why)
        assert user is not None, "no Super is nobody"
        return Asker(user.name, address)

    def _create_user(self, request: Request) -> None:
        asker, name = self._asker(request), text(request, "username")
        info = _decoded(request, _decode_user, "UserInfo")
        if not info.password:
            raise Refused(Reason.INVALID, "the user needs a password")
        self._users.create(
            asker,
            name,
            info.password,
            _answering(request),
            is_super=bool(_choice("userType", info.user_type, _TYPES)),
            enabled=_choice("userStatus", info.user_status, _STATUSES) is not False,
        )

    def _update_user(self, request: Request) -> None:
        asker, name = self._asker(request), text(request, "username")
        info = _decoded(request, _decode_user, "UserInfo")
        self._users.change(
            asker,
            name,
            _answering(request),
            secret=info.password or None,
            is_super=_choice("userType", info.user_type, _TYPES),
            enabled=_choice("userStatus", info.user_status, _STATUSES),
        )

    def _delete_user(self, request: Request) -> None:
        """Deletes a user. Deleting one that does not exist succeeds, because the result is the same."""
        asker, name = self._asker(request), text(request, "username")
        if name in self._access.users:
            self._users.remove(asker, name, _answering(request))
        else:
            request.reply(ResponseCode.SUCCESS)

    def _set_rules(self, request: Request) -> None:
        asker, name = self._asker(request), _subject(request)
        info = _decoded(request, _decode_acl, "AclInfo")
        rules = list(_rules_of(info))
        if not rules:
            raise Refused(Reason.INVALID, "the body names no rule")
        self._users.set_rules(asker, name, rules, _answering(request))

    def _remove_rules(self, request: Request) -> None:
        """Removes rules. Removing one that does not exist succeeds, because mqadmin sends the request to every node of
        a cluster, and the first one takes effect on all."""
        asker, name = self._asker(request), _subject(request)
        resource = request.ext.get("resource") or None
        policy = _choice("policyType", request.ext.get("policyType"), _POLICIES)
        if resource is not None and policy is None:
            policy = Policy.CUSTOM
        self._users.remove_rules(asker, name, policy, resource, _answering(request, absent_is_fine=True))

    def _set_mode(self, request: Request) -> None:
        self._users.set_mode(self._asker(request), text(request, "mode"), _answering(request))

    def _get_user(self, request: Request) -> None:
        self._asker(request)
        user = self._access.users.get(text(request, "username"))
        request.reply(ResponseCode.SUCCESS, body=b"" if user is None else _encode(_info_of(user)))

    def _list_users(self, request: Request) -> None:
        self._asker(request)
        wanted = request.ext.get("filter") or ""
        found = (user for name, user in self._access.users.items() if wanted in name)
        steps = table_body(b"[", found, lambda user: _encode(_info_of(user)), b"]")
        answer_in_steps(self._services, request, steps)

    def _get_acl(self, request: Request) -> None:
        self._asker(request)
        user = self._access.users.get(_subject(request))
        has = user is not None and user.rules
        request.reply(ResponseCode.SUCCESS, body=_encode(_acl_of(user, user.rules)) if user and has else b"")

    def _list_acls(self, request: Request) -> None:
        self._asker(request)
        subject, resource = request.ext.get("subjectFilter") or "", request.ext.get("resourceFilter") or ""
        answer_in_steps(self._services, request, self._acls(subject, resource))

    def _acls(self, subject: str, resource: str) -> BodySteps:
        """Makes, in steps, a JSON list of the users and their rules. `subject` and `resource` filter it by parts of the
        user's name and of the resource's. One step is one user, so that a long list does not block the event loop."""
        parts: list[bytes] = []
        for name, user in self._access.users.items():
            charge(1)
            if subject not in SUBJECT + name:
                continue
            charge(len(user.rules) * RULE_UNITS)
            if rules := tuple([rule for rule in user.rules if resource in str(rule.resource)]):
                parts.append(_encode(_acl_of(user, rules)))
            yield
        return b"[%b]" % b",".join(parts)


def _decoded(request: Request, decode: Callable[[bytes], Any], what: str) -> Any:
    try:
        return decode(request.body)
    except MALFORMED as error:
        raise Refused(Reason.INVALID, f"body is not {what} JSON: {error}") from None


def _answering(request: Request, *, absent_is_fine: bool = False) -> Changed:
    def told(refused: Refused | None) -> None:
        if refused is None or (absent_is_fine and refused.reason is Reason.NOT_FOUND):
            request.reply(ResponseCode.SUCCESS)
        else:
            refuse(request, refused)

    return told


def _choice(field: str, given: str | None, known: dict[str, Any]) -> Any:
    """Returns the value in `known` that `given` names; None if `given` is empty. Raises Refused (INVALID) if it names
    none."""
    if not given:
        return None
    if given.lower() not in known:
        words = ", ".join(word.capitalize() for word in known)
        raise Refused(Reason.INVALID, f"{field} is one of {words}, not {given!r:.80}")
    return known[given.lower()]


def _subject(request: Request) -> str:
    """Returns the name of the user, which RocketMQ writes as `User:name`. Raises Refused (INVALID) for another form."""
    subject = text(request, "subject")
    if not subject.startswith(SUBJECT):
        raise Refused(Reason.INVALID, f"the subject is {SUBJECT}name, not {subject[:TEXT_MAX]!r:.80}")
    return subject.removeprefix(SUBJECT)


def _rules_of(info: AclInfo) -> Iterator[RuleRow]:
    for policy in info.policies:
        kind = _choice("policyType", policy.policy_type, _POLICIES) or Policy.CUSTOM
        for entry in policy.entries:
            allow = _choice("decision", entry.decision, _DECISIONS)
            if allow is None:
                raise Refused(Reason.INVALID, f"the rule of {entry.resource!r:.80} has no decision: Allow or Deny")
            yield int(kind), entry.resource, entry.actions, entry.source_ips or [], allow


def _info_of(user: User) -> UserInfo:
    return UserInfo(
        username=user.name,
        user_type="Super" if user.is_super else "Normal",
        user_status="enable" if user.enabled else "disable",
    )


def _acl_of(user: User, rules: tuple[Rule, ...]) -> AclInfo:
    policies = []
    for policy in Policy:
        entries = [_entry_of(rule) for rule in rules if rule.policy is policy]
        if entries:
            policies.append(PolicyInfo(policy.name.capitalize(), entries))
    return AclInfo(SUBJECT + user.name, policies)


def _entry_of(rule: Rule) -> EntryInfo:
    actions = [ACTION_NAMES[action] for action in sorted(rule.actions)]
    return EntryInfo(str(rule.resource), actions, list(rule.sources) or None, "Allow" if rule.allow else "Deny")
