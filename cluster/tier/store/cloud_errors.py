"""What a cloud store's library raises, as errors of this package. Bodies of answers are read only for code and message:
they may repeat headers, and headers carry keys."""

from __future__ import annotations

import re

from cluster.tier.store.errors import (
    AlreadyExists,
    BadAnswer,
    Conflict,
    Denied,
    NotFound,
    StoreError,
    Throttled,
    Unreachable,
    Unsupported,
)

TEXT_MAX = 300
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,200})</Message>")
_BAD = ("NotPartial", "InvalidDeleteObjectsResponse", "Metadata", "InvalidListResponse", "ill-formed", "MissingEtag")
_REQUEST = re.compile(r"Error performing ([A-Z]+ \S+)")
_CAUSE = re.compile(r'\b(?:message|error): "([^"\n]{1,200})"')
_TLS = re.compile(r"Invalid(?:Message|Certificate)\(\s*(\w+)")
_REDIRECT = "BareRedirect"
_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_FIXES = {
    "RequestTimeTooSkewed": "set this machine's clock: chronyc tracking, timedatectl",
    "InvalidAccessKeyId": "check AWS_ACCESS_KEY_ID or tier.credentials_file",
    "XAdminUserNotFound": "check AWS_ACCESS_KEY_ID or tier.credentials_file",  # of versitygw, with 404
    "SignatureDoesNotMatch": "check the secret key; keys come from the environment or tier.credentials_file",
    "ExpiredToken": "renew the session token; tier.credentials_file is read again every minute",
    "AuthorizationHeaderMalformed": "set tier.region to the bucket's region",
    "PermanentRedirect": "set tier.region to the bucket's region, or tier.endpoint",
    "AccessDenied": "grant the key GetObject, PutObject, DeleteObject and ListBucket on the bucket",
}
_KEYS = "check the keys in the environment or tier.credentials_file, and that the policy covers the bucket"
_ENDPOINT = "check tier.endpoint, the network, and that the store runs"


def store_error(error: Exception, name: str) -> StoreError:
    """What the call on `name` is to raise instead."""
    text = str(error)
    status = _number(text)
    said = _said(text)
    kind = type(error).__name__
    if kind in ("AlreadyExistsError", "PreconditionError") and status == 409:
        # S3 answers ConditionalRequestConflict while another conditional write of the name is under way.
        return Throttled(f"another write of {name} is under way: {said}")
    if kind == "AlreadyExistsError":
        return AlreadyExists(f"{name} exists")
    if kind == "PreconditionError":
        return NotFound(f"there is no {name}") if status == 404 else Conflict(f"{name} was replaced meanwhile")
    if isinstance(error, FileNotFoundError):
        return _absent(text, name, said)
    if kind in ("NotSupportedError", "NotImplementedError"):
        return Unsupported(f"{name}: {said}", "use a store with conditional writes, or a directory: file:///path")
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return _denied(text, name, said)
    return _by_status(status, text, name, said)


def _by_status(status: int, text: str, name: str, said: str) -> StoreError:
    if status in (429, 503):
        return Throttled(f"{name}: the store asks for fewer requests ({said})")
    if status == 416 or any(each in text for each in _BAD):
        return BadAnswer(f"{name}: {said}")
    if status in (400, 401, 403) or _REDIRECT in text:
        return _denied(text, name, said)
    if 400 <= status < 500 and status != 408:
        return Unsupported(f"{name}: {said}", "the store does not know this request; check tier.endpoint")
    return Unreachable(f"{name}: {said}", _ENDPOINT)


def _absent(text: str, name: str, said: str) -> StoreError:
    code = _CODE.search(text)
    if code is not None and code[1] in _FIXES:
        return _denied(text, name, said)  # some servers answer 404 to keys that they do not know
    if any(code in text for code in _BUCKET):
        return NotFound("there is no such bucket", "create it, or correct tier.url")
    return NotFound(f"there is no {name}")


def _denied(text: str, name: str, said: str) -> Denied:
    code = _CODE.search(text)
    found = "PermanentRedirect" if _REDIRECT in text else code[1] if code else ""
    return Denied(f"{name}: {said}", _FIXES.get(found, _KEYS))


def _number(text: str) -> int:
    found = _STATUS.search(text)
    return int(found[1]) if found else 0


def _said(text: str) -> str:
    """Status, code and message of an answer; without one, why there was none, else the library's first line."""
    code, message, status = _CODE.search(text), _MESSAGE.search(text), _number(text)
    if status:
        parts = [str(status), code[1] if code else "", message[1] if message else ""]
        return " ".join(part for part in parts if part)[:TEXT_MAX]
    if "Timeout" in text:
        return "no answer in time"
    first = text.split("\n", 1)[0]
    if cause := _cause(text):
        request = _REQUEST.search(first)
        return f"{cause} ({request[1]})"[:TEXT_MAX] if request else cause
    return first[:TEXT_MAX]


def _cause(text: str) -> str:
    """Why there was no answer, as the operating system or TLS says it: the innermost error that the library prints
    below its first line; "" if there is none."""
    below = text.partition("\n")[2]
    if causes := _CAUSE.findall(below):
        return str(causes[-1]).removeprefix("failed to lookup address information: ")
    if tls := _TLS.search(below):
        return f"no TLS connection: {tls[1]}"
    return ""
