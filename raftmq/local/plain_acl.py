"""Translates `plain_acl.yml`, RocketMQ's ACL 1.0, into users and rules, and names what has no counterpart.

RocketMQ accepts requests from addresses on its white lists without a signature. RaftMQ cannot: each rule belongs to a
user, and only a signature identifies a user. No text of the plan contains a secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from statemachine.access.user_rows import checked_user_name
from statemachine.commands import InvalidCommandError

SECRET_MIN, SECRET_MAX = 8, 256
GLOBAL = "globalWhiteRemoteAddresses"
_RETRY, _DLQ = "%RETRY%", "%DLQ%"
_WORDS = {"PUB": ["Pub"], "SUB": ["Sub"], "ANY": ["Pub", "Sub"]}
_TRUE = ("true", "yes", "on")
"""YAML's words for true, in lower case."""
_KNOWN = (
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)


class PlainAclError(ValueError):
    """The file is no plain_acl.yml. The text says where, and contains nothing of the file's secrets."""


class Unquoted(str):
    """An unquoted text that YAML would read as something else, for example 0123456701 as a number. RocketMQ reads it as
    text, because it expects a secret there."""

    __slots__ = ()


def document_of(text: str) -> Any:
    """Returns the content of a YAML file; numbers, dates and words like `on` remain the texts in the file. Raises
    yaml.YAMLError."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # the package yaml has no types
        """A YAML loader that reads unquoted numbers, booleans and dates as `Unquoted`."""

    for kind in ("int", "float", "bool", "timestamp", "value"):
        Loader.add_constructor(
            f"tag:yaml.org,2002:{kind}", lambda loader, node: Unquoted(loader.construct_scalar(node))
        )
    return yaml.load(text, Loader)


class PlannedUser(NamedTuple):
    """An account of the file, and the user that it becomes."""

    name: str
    secret: str
    is_super: bool
    rules: tuple[dict[str, Any], ...]
    """The rules, as `PUT /v1/acl/{user}` takes them."""

    def __repr__(self) -> str:
        return f"PlannedUser({self.name!r}, {len(self.rules)} rules)"


class AclPlan(NamedTuple):
    """The result of a translation: what an import would do, and what has no counterpart."""

    users: tuple[PlannedUser, ...]
    notes: tuple[str, ...]
    """A text for each line of the file whose meaning the import changes."""
    unsigned: tuple[str, ...]
    """Addresses that needed no signature and will need one, each with the account that had it."""
    left_out: tuple[str, ...]
    """Accounts and permissions that have no counterpart, each with the reason."""


def plan_of(document: Any) -> AclPlan:
    """Returns the plan for the content of a plain_acl.yml. Raises PlainAclError."""
    if not isinstance(document, dict) or not isinstance(document.get("accounts", []), list):
        raise PlainAclError("it has no list `accounts`")
    users: list[PlannedUser] = []
    notes: list[str] = []
    left_out = [f"{key}: this key is not known" for key in document if key not in ("accounts", GLOBAL)]
    unsigned = [f"{address} ({GLOBAL})" for address in _addresses(document, GLOBAL)]
    for number, account in enumerate(document.get("accounts") or [], 1):
        if not isinstance(account, dict):
            raise PlainAclError(f"account {number} is no table")
        name, why = _name_of(account)
        if why:
            left_out.append(f"account {name or number}: {why}")
            continue
        if any(user.name == name for user in users):
            left_out.append(f"account {name}: it is there twice, and the first one counts")
            continue
        left_out += [f"account {name}: {key} is not known" for key in account if key not in _KNOWN]
        unsigned += [f"{address} (account {name})" for address in _addresses(account, "whiteRemoteAddress")]
        notes += _taken_as_text(account, name)
        is_super = str(account.get("admin", False)).lower() in _TRUE
        rules = list(_rules(account, name, notes, left_out))
        if is_super:
            notes.append(f"{name} is a Super, who may do everything" + (": its rules do not bind it" if rules else ""))
        users.append(PlannedUser(name, str(account["secretKey"]), is_super, () if is_super else tuple(rules)))
    return AclPlan(tuple(users), tuple(notes), tuple(unsigned), tuple(left_out))


def _taken_as_text(account: dict[str, Any], name: str) -> Iterator[str]:
    """Yields a note for the name and the secret if another reader of YAML would take something else for it."""
    for key in ("accessKey", "secretKey"):
        if isinstance(account.get(key), Unquoted):
            yield f"{name}: its {key} has no quotes and is no text to YAML; what stands there counts, as in RocketMQ"


def _name_of(account: dict[str, Any]) -> tuple[str, str]:
    """Returns the account's name, and the reason why it can be no user; "" if it can."""
    name, secret = str(account.get("accessKey") or ""), str(account.get("secretKey") or "")
    try:
        checked_user_name(name)
    except InvalidCommandError as error:
        return ascii(name)[1:-1][:64], str(error)
    if not SECRET_MIN <= len(secret.encode()) <= SECRET_MAX:
        return name, f"its secret has {len(secret.encode())} bytes, and {SECRET_MIN} to {SECRET_MAX} are possible"
    return name, ""


def _addresses(table: dict[str, Any], key: str) -> list[str]:
    """Returns the addresses of a white list, which is a text or a list of texts."""
    found = table.get(key) or []
    return [str(each).strip() for each in (found if isinstance(found, list) else [found]) if str(each).strip()]


def _rules(account: dict[str, Any], name: str, notes: list[str], left_out: list[str]) -> Iterator[dict[str, Any]]:
    for kind, key, default in (
        ("Topic", "topicPerms", "defaultTopicPerm"),
        ("Group", "groupPerms", "defaultGroupPerm"),
    ):
        given = account.get(default)
        actions = _actions(str(given)) if given is not None else []
        if actions is None:
            left_out.append(f"account {name}: {default} {ascii(str(given))[1:-1][:64]} is no permission")
        elif actions:
            yield _rule(f"{kind}:*", actions, allow=True)
        named = account.get(key) or []
        if not isinstance(named, list):
            raise PlainAclError(f"account {name}: {key} is no list")
        for each in named:
            resource, _, words = str(each).rpartition("=")
            actions = _actions(words)
            if not resource.strip() or actions is None:
                left_out.append(f"account {name}: {key} {ascii(str(each))[1:-1][:100]} is no permission")
                continue
            of, what = _resource(kind, resource.strip())
            if of != kind:
                notes.append(f"{name}: {resource.strip()} belongs to its group: the rule is one of Group:{what}")
            if what.endswith("*"):
                left_out.append(f"account {name}: {resource.strip()} was one name, and here a star stands for any end")
                continue
            yield _rule(f"{of}:{what}", actions or ["All"], allow=bool(actions))


def _resource(kind: str, name: str) -> tuple[str, str]:
    """Returns (kind, name) of the resource that a name stands for: the topics of a group's retries and dead letters
    stand for the group."""
    for prefix in (_RETRY, _DLQ):
        if name.startswith(prefix):
            return "Group", name.removeprefix(prefix)
    return kind, name


def _actions(words: str) -> list[str] | None:
    """Returns the actions of a permission such as `PUB|SUB`; [] for DENY, None for anything else."""
    found: list[str] = []
    for word in words.strip().upper().split("|"):
        if word.strip() == "DENY":
            return []
        if word.strip() not in _WORDS:
            return None
        found += [action for action in _WORDS[word.strip()] if action not in found]
    return found


def _rule(resource: str, actions: list[str], *, allow: bool) -> dict[str, Any]:
    return {"resource": resource, "actions": actions, "decision": "Allow" if allow else "Deny", "sources": []}
