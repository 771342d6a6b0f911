"""Opens the store that a URL names. Keys come from the environment or from files, never from the URL."""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from cluster.config.storage_sections import TierSection
from cluster.tier.store.cloud_stores import OF_TIER, CloudStore, of_environment
from cluster.tier.store.directory_store import DirectoryStore
from cluster.tier.store.memory_store import MemoryStore
from cluster.tier.store.object_store import ObjectStore
from raftmq_wire.errors import LocalError

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

CLOUD = ("s3", "s3a", "gs", "az", "abfs", "abfss")
SCHEMES = ("file", *CLOUD)
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
CONNECT_S, REQUEST_S = 5, 120
DELTA_REQUEST_S, DELTA_RETRIES = 30, 3
"""Seconds for one request of deltalake, and how often it repeats one. Its requests carry the small files of a Delta log
and pieces of data files."""
KEYS_MAX_AGE_S = 60
RENEWED_BEFORE = timedelta(minutes=5)
"""The time before keys expire at which the library asks for new ones."""
_FIX = 'tier.url = "s3://bucket/prefix" or "gs://bucket/prefix" or "az://container/prefix" or "file:///path"'


class CloudLimits(NamedTuple):
    """Limits how long a request to a cloud store takes, and how long its keys are used before they are read again."""

    connect_s: float = CONNECT_S
    request_s: float = REQUEST_S
    keys_max_age_s: float = KEYS_MAX_AGE_S
    renewed_before: timedelta = RENEWED_BEFORE


CLOUD_LIMITS = CloudLimits()


def open_store(url: str, options: TierSection | None = None, limits: CloudLimits = CLOUD_LIMITS) -> ObjectStore:
    """Returns the store that the URL names, without connecting to it. `options` has the settings that the URL lacks;
    None: they come from the environment. Raises LocalError if the store cannot be used."""
    settings = of_environment(url) if options is None else OF_TIER
    options = options or TierSection()
    parts = _parts(url)
    if parts.scheme == "file":
        return DirectoryStore(Path(unquote(parts.path)))
    if parts.scheme == "memory":
        return MemoryStore()
    try:
        return CloudStore(cloud_client(url, options, limits=limits), url, settings)
    except ImportError as error:
        raise LocalError(f"{url} needs obstore", str(error), "pip install 'raftmq[tier]'") from error
    except (ValueError, OSError) as error:
        raise LocalError(f"{url} cannot be used as a tier", str(error).split("\n", 1)[0], _FIX) from error


def check_url(url: str) -> None:
    """Raises LocalError unless the URL names a store."""
    _parts(url)


def directory_of(url: str) -> str:
    """Returns the directory that the URL of a directory store names; "" if the URL names another kind of store."""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else ""


def _parts(url: str) -> Any:
    try:
        parts = urlsplit(url)
    except ValueError:  # neither its text nor the URL is shown, because both may hold keys
        raise LocalError("the tier's URL is not a URL", f"schemes: {', '.join(SCHEMES)}", _FIX) from None
    if parts.username or parts.password:  # the message does not repeat the URL
        raise LocalError(
            "the tier's URL holds credentials", "it is shown in logs and status", "export AWS_ACCESS_KEY_ID=..."
        )
    if parts.scheme == "file":
        ok = not parts.netloc and parts.path.startswith("/") and len(parts.path) > 1
    elif parts.scheme == "memory":
        ok = url == "memory:"
    else:
        ok = parts.scheme in CLOUD and bool(parts.netloc)
    if not ok or parts.query or parts.fragment:
        shown = url.partition("?")[0].partition("#")[0]  # a signature may be in the rest
        more = ": it has more than a path" if shown != url else ""
        raise LocalError(f"{shown!r} is not the URL of an object store{more}", f"schemes: {', '.join(SCHEMES)}", _FIX)
    return parts


def cloud_client(url: str, options: TierSection, retries: int = 0, limits: CloudLimits = CLOUD_LIMITS) -> Client:
    """Returns a client that sends a failed request again at most `retries` times. That must be 0 for conditional
    writes, because a second one hides whether the first was carried out. Raises ImportError, ValueError or OSError."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    http: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=limits.connect_s),
        "timeout": timedelta(seconds=limits.request_s),
    }
    if _endpoint(options).startswith("http://"):
        http["allow_http"] = True
    if options.ca_file:
        http["root_certificate"] = Path(options.ca_file).read_bytes()
    more: dict[str, Any] = {}
    if url.startswith("s3"):
        more["config"] = _s3_config(options)
        if options.credentials_file:
            more["credential_provider"] = keys_of(Path(options.credentials_file), options.credentials_profile, limits)
    make: Callable[..., Client] = from_url  # the overloads differ by scheme, which is known only here
    try:
        return make(url, client_options=http, retry_config={"max_retries": retries}, **more)
    except BaseError as error:
        raise ValueError(str(error)) from None


def delta_options(url: str) -> dict[str, str]:
    """Returns the options, as text, with which deltalake reaches a store whose settings come from the environment. In
    S3, each commit is a conditional write, even if the environment asks for locks."""
    found = {
        "connect_timeout": f"{CONNECT_S} s",
        "timeout": f"{DELTA_REQUEST_S} s",
        "max_retries": str(DELTA_RETRIES),
        "retry_timeout": f"{DELTA_REQUEST_S} s",
    }
    if url.startswith("s3"):
        endpoint, region = _endpoint(TierSection()), _region()
        found |= {"aws_conditional_put": "etag", "aws_region": region, "aws_virtual_hosted_style_request": "false"}
        if endpoint:
            found |= {"aws_endpoint": endpoint, "allow_http": str(endpoint.startswith("http://")).lower()}
    return found


def iceberg_options() -> dict[str, str]:
    """Returns the properties with which pyiceberg reaches S3 if all but its keys come from the environment. It finds
    the keys itself, where AWS's own tools find them."""
    endpoint = _endpoint(TierSection())
    return {"s3.region": _region(), **({"s3.endpoint": endpoint} if endpoint else {})}


def _region() -> str:
    return next((os.environ[name] for name in REGIONS if os.environ.get(name)), "us-east-1")


def _endpoint(options: TierSection) -> str:
    """Returns the endpoint from the options or the environment; "" if neither names one. The library would read the
    environment too, but the caller must know the endpoint, to allow one without TLS."""
    return options.endpoint or next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")


def _s3_config(options: TierSection) -> dict[str, Any]:
    given = {
        "endpoint": options.endpoint,
        "region": options.region,
        "server_side_encryption": options.encryption,
        "sse_kms_key_id": options.encryption_key_id,
    }
    set_here = {key: value for key, value in given.items() if value}
    return {**set_here, "virtual_hosted_style_request": not options.path_style}


def keys_of(path: Path, profile: str, limits: CloudLimits = CLOUD_LIMITS) -> Callable[[], dict[str, Any]]:
    """Returns a credential provider for S3. The library calls it again, and it reads the file again, when the last keys
    are older than `limits.keys_max_age_s`. Raises ValueError now if the file is unusable; no message repeats a line of
    it."""

    def read() -> dict[str, Any]:
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read_string(path.read_text())
            section = parser[profile]
            return {
                "access_key_id": section["aws_access_key_id"],
                "secret_access_key": section["aws_secret_access_key"],
                "token": section.get("aws_session_token"),
                "expires_at": datetime.now(UTC) + timedelta(seconds=limits.keys_max_age_s) + limits.renewed_before,
            }
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        except (configparser.Error, KeyError, UnicodeDecodeError) as error:
            why = f"{path} has no keys for the profile {profile} ({type(error).__name__})"
            raise ValueError(why) from None

    read()
    return read
