"""`raftmq init` for one node at a time: `--first` on one machine, `--join` on each of the others.

The first node decides the uuids of all initial voters. It gives each uuid to one machine, once
(`cluster.members.voter_claims`), so a machine that lost its disk cannot make its node again. The data directory of a
node is never left half-made unnoticed: the token of the claim is next to it until it is complete.
"""

from __future__ import annotations

import base64
import fcntl
import http.client
import os
import secrets
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from cluster.config.config import Config, ConfigError
from cluster.config.loading import load
from cluster.config.local_layout import sync_folder
from cluster.members.joining import directory_error
from cluster.members.voter_claims import CLAIMS, TOKEN_DIGITS, open_claims, proof_of, replacing
from cluster.peer.secret import path_of
from cluster.peer.secret_files import give, keys_of_new, read_keys
from raftlog.errors import StorageError
from raftlog.frame import genesis_entry
from raftlog.storage.files import genesis as geneses
from raftlog.storage.files import layout
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.identity import Identity
from raftlog.storage.node_dir import create_node_dir
from raftmq.local.access_files import make_access_files
from raftmq.local.http.admin_http import HTTPS_ALONE, AdminApi, GivenAddresses, host_of, parse_addresses
from raftmq.local.http.answers import loaded
from raftmq.local.http.http_exchange import exchange
from raftmq.local.http.https import chosen_tls, speak_tls
from raftmq.local.init import Created, is_empty, known_cluster
from raftmq.local.made_mark import check_allowed, check_nameless, check_unmade, keep_mark, mark_of_node, write_mark
from raftmq.local.tls.certificates import CA, certificate_path, key_path
from raftmq.local.tls.node_certificates import stem_of, steps_before_start
from raftmq_wire.errors import ExitCode, LocalError

ASK_AGAIN_S = 1.0
ASK_S = 2.0
JOINING = ".joining"
"""Suffix of the file, beside the data directory, with the token of a claim that is in progress."""


def create_first(config_path: Path, env: Mapping[str, str] | None = None, until_ms: int | None = None) -> Created:
    """Makes the first node of a new cluster; does nothing if it exists.

    `until_ms`: the time, in milliseconds since the epoch, until which a cluster may be made; None to keep a mark
    outside the data directory instead. Raises ConfigError; LocalError if the cluster was made before, as the mark, the
    configuration or another member says, or if the directory cannot be used.
    """
    config = load(config_path, env)
    directory = Path(config.node.data_dir)
    begun = directory.with_name(directory.name + JOINING)
    others = [int(node) for node in config.voter_ids if node != config.node_id]
    mark = mark_of_node(config, config_path)
    with _locked(directory):
        if (directory / layout.IDENTITY).exists():
            known = known_cluster(config)
            if begun.exists():
                _finish(config, keys_of_new([config]), str(known), others)
                _remove(begun)
            if until_ms is None:
                keep_mark(mark, str(known))
            return Created(False, known)
        if not is_empty(directory):
            _clear(config, directory, begun)
        _check_nobody_runs(config)  # checked first, because its hint is the command that replaces this node
        check_nameless(config)
        if until_ms is not None:
            check_allowed(until_ms)
        if is_fresh := not begun.exists():
            check_unmade(mark, config.node.data_dir)
        cluster_uuid = UUID(config.cluster.id) if config.cluster.id else uuid.uuid4()
        now_ms = time.time_ns() // 1_000_000
        voters = tuple(Voter(node, uuid.uuid4()) for node in config.voter_ids)
        genesis = Genesis(cluster_uuid, config.cluster.group, config.log.segment_size_bytes, now_ms, voters)
        _token(begun)
        if until_ms is None:
            try:
                write_mark(mark, str(cluster_uuid))
            except LocalError:
                if is_fresh and not mark.exists():
                    _remove(begun)  # nothing was made yet
                raise
        _make(config, genesis, now_ms, keys_of_new([config]), others)
        _remove(begun)
    return Created(True, cluster_uuid)


def join(
    config_path: Path, via: str, secret: Path | None, wait_s: float = 0.0, env: Mapping[str, str] | None = None
) -> Created:
    """Makes another initial node of the cluster; does nothing if it exists. `via`: "host:port" of the HTTP API of the
    node that made the cluster. `secret`: a copy of the cluster's secret; None if it lies where the configuration says.
    `wait_s`: seconds for which a node that does not answer is asked again.

    Raises ConfigError; LocalError if refused, unreachable, with another secret, or if the directory cannot be used.
    """
    config = load(config_path, env)
    directory = Path(config.node.data_dir)
    with _locked(directory):
        token_file = directory.with_name(directory.name + JOINING)
        if (directory / layout.IDENTITY).exists():
            known = known_cluster(config)
            if token_file.exists():
                _finish(config, _keys(config, config_path, via, secret), str(known), None)
                _remove(token_file)
            return Created(False, known)
        keys = _keys(config, config_path, via, secret)
        if not is_empty(directory):
            _clear(config, directory, token_file)
        token = _token(token_file)
        try:
            answer = _claim(parse_addresses(via), config.node.id, token, keys[0], wait_s)
        except LocalError as error:
            if error.exit_code is ExitCode.REFUSED:
                _remove(token_file)
            raise
        genesis = geneses.decode(
            genesis_entry(base64.b64decode(answer["genesis"]), timestamp_ms=0, group_id=answer["group"])
        )
        _check_voters(config, config_path, genesis)
        _make(config, genesis, genesis.created_ms, keys, None)
        _remove(token_file)
    return Created(True, genesis.cluster_uuid)


def _make(config: Config, genesis: Genesis, now_ms: int, keys: tuple[bytes, ...], claims: list[int] | None) -> None:
    directory = Path(config.node.data_dir)
    identity = Identity(
        genesis.cluster_uuid, genesis.group_id, config.node_id, dict(genesis.voters)[config.node_id], now_ms
    )
    try:
        create_node_dir(OsFileSystem(), directory, identity, genesis)
        _finish(config, keys, str(genesis.cluster_uuid), claims)
    except (OSError, StorageError, LocalError) as error:
        shutil.rmtree(directory, ignore_errors=True)  # it was empty before, and nothing in it was promised to anybody
        if isinstance(error, LocalError):
            raise
        raise directory_error(error, directory) from error


def _finish(config: Config, keys: tuple[bytes, ...], cluster: str, claims: list[int] | None) -> None:
    """Adds the files that IDENTITY does not cover, unless they exist: the secret and, on the first node, the claims and
    access files."""
    give(config, keys, cluster)
    if claims is not None:
        make_access_files([config])
    if claims is not None and not (Path(config.node.data_dir) / CLAIMS).exists():
        open_claims(Path(config.node.data_dir), claims)


def _clear(config: Config, directory: Path, begun: Path) -> None:
    """Removes a directory without IDENTITY that an attempt of this command left. Raises LocalError if another program
    made it."""
    if not begun.exists():
        known_cluster(config)
    shutil.rmtree(directory)


def _remove(begun: Path) -> None:
    begun.unlink(missing_ok=True)
    sync_folder(begun.parent)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Locks the directory, so that one such command runs at a time."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise directory_error(error, directory.parent) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _token(file: Path) -> str:
    """Returns the token of this machine's claim: the one that an interrupted attempt drew, else a new one. The token is
    on disk when this returns."""
    try:
        if file.exists() and len(known := file.read_text(encoding="ascii").strip()) == TOKEN_DIGITS:
            return known
        token = secrets.token_hex(TOKEN_DIGITS // 2)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            opened.write(token + "\n")
            opened.flush()
            os.fsync(opened.fileno())
        sync_folder(file.parent)
    except OSError as error:
        raise directory_error(error, file) from error
    return token


def _keys(config: Config, config_path: Path, via: str, secret: Path | None) -> tuple[bytes, ...]:
    file = secret or path_of(config)
    keys = read_keys(file)
    if not keys:
        raise LocalError(
            f"there is no secret in {file}",
            "the nodes of a cluster prove it to each other, and it is never sent",
            f"scp {host_of(via)}:{path_of(config)} ./SECRET && raftmq init --join {via} --secret ./SECRET --config "
            f"{config_path}    (the secret of the first node is beside its node.data_dir, or in it)",
            ExitCode.USAGE,
        )
    return keys


def _claim(addresses: list[str], node: int, token: str, key: bytes, wait_s: float) -> dict[str, Any]:
    api = AdminApi(GivenAddresses(addresses), f"raftmq status --admin {addresses[0]}")
    body = {"id": node, "token": token, "proof": proof_of(key, node, token)}
    until = time.monotonic() + wait_s
    while True:
        try:
            return api.post("/v1/members/claims", body)  # the same token makes the same claim
        except LocalError as error:
            if error.what == HTTPS_ALONE:
                fix = "the same with --tls DIR    (a copy of the first node's, with ca.crt and ca.key)"
                raise LocalError(error.what, error.why, fix, error.exit_code) from None
            passing = error.exit_code in (ExitCode.UNREACHABLE, ExitCode.UNKNOWN)
            if not passing or time.monotonic() >= until:
                if passing:
                    raise LocalError(
                        error.what,
                        f"{error.why}; the node that made the cluster gives each of the others its identity",
                        "start it first: raftmq serve --config FILE    (or --wait 60; then repeat the command)",
                        ExitCode.UNREACHABLE,
                    ) from None
                raise
        time.sleep(ASK_AGAIN_S)


def _check_voters(config: Config, path: Path, genesis: Genesis) -> None:
    voters = [int(voter.id) for voter in genesis.voters]
    if voters != sorted(map(int, config.voter_ids)):
        raise LocalError(
            f"{path} lists the nodes {', '.join(map(str, config.voter_ids))}",
            f"cluster {genesis.cluster_uuid} began with {', '.join(map(str, voters))}",
            f"make the [[peers]] of {path} those of the other nodes",
            ExitCode.REFUSED,
        )
    if config.cluster.id and config.cluster.id != str(genesis.cluster_uuid):
        raise LocalError(
            f"{path} is of cluster {config.cluster.id}",
            f"the node that answers belongs to cluster {genesis.cluster_uuid}",
            "name a node of the right cluster with --join, or correct cluster.id",
            ExitCode.REFUSED,
        )
    if config.cluster.group != genesis.group_id:
        raise LocalError(
            f"{path} is of group {config.cluster.group}",
            f"the node that answers belongs to group {genesis.group_id}",
            "name a node of the right group with --join, or correct cluster.group",
            ExitCode.REFUSED,
        )


def _check_nobody_runs(config: Config) -> None:
    """Raises LocalError if a member of the cluster runs: then the cluster was made before, and this node's disk was
    lost."""
    for peer in config.peers:
        if peer.id != config.node.id and peer.admin and _answers(peer.admin):
            raise LocalError(
                f"node {peer.id} runs already, so the cluster of node {config.node.id} was made before",
                f"{config.node.data_dir} is empty: it was lost, or node {peer.id} is the first one",
                f"lost: {replacing(config.node.id)}; otherwise: raftmq init --join {peer.admin}",
                ExitCode.REFUSED,
            )


def _answers(address: str) -> bool:
    """Returns True if a node answers at the address, with success or with an error."""
    try:
        loaded(exchange(address, "GET", "/v1/health/live", timeout_s=ASK_S).body)
    except (OSError, http.client.HTTPException, ValueError):
        return False
    return True


def check_made(config_path: Path, env: Mapping[str, str]) -> None:
    """Raises LocalError, with the commands that make or replace a node, if the node's directory is empty. Other faults
    of the configuration or a directory are left for the node itself to report."""
    try:
        config = load(config_path, env)
        if not is_empty(directory := Path(config.node.data_dir)):
            return
    except (ConfigError, OSError):
        return
    raise LocalError(
        f"{directory} holds no node",
        f"node {config.node.id} was never made here, or its disk was lost; an empty node would vote again without "
        "remembering its votes",
        f"never made: raftmq init --first, or --join HOST:PORT --secret SECRET, --config {config_path}; "
        f"lost: {replacing(config.node.id)}",
        ExitCode.REFUSED,
    )


def next_steps(config: Config, file: Path, tls_dir: Path | None = None) -> list[str]:
    """Returns the commands to type after the first node was made. `file`: its configuration; `tls_dir`: the folder of
    the CA if this call gave the node TLS."""
    others = [peer for peer in config.peers if peer.id != config.node.id]
    own = [*_certify_first(config, file, tls_dir, None), f"raftmq serve --config {file}"]
    enforce = _enforce(config, tls_dir)
    if not others:
        return [f"start it: {' && '.join(own)}", *enforce]
    via = config.peer_of(config.node.id).admin or "HOST:PORT"
    names = ", ".join(f"node {peer.id} ({peer.host})" for peer in others)
    secret = path_of(config)
    copied = [str(secret), *([config.auth.key_file] if config.auth.key_file else [])]
    tls, gone = "", secret.name
    if tls_dir is not None:
        copied += [str(certificate_path(tls_dir, CA)), str(key_path(tls_dir, CA))]
        tls, gone = f" --tls {tls_dir}", f"{secret.name} {key_path(tls_dir, CA)}"
    join = f"raftmq init --join {via} --secret {secret.name}{tls} --config {file}"
    steps = [
        f"start this node: {' && '.join(own)}",
        f"copy {' and '.join((', '.join(copied[:-1]), copied[-1]) if copied[1:] else copied)} to the machines of "
        f"{names}; nodes never send {'it' if len(copied) == 1 else 'them'}",
        f"on each of them: {join} && rm {gone} && raftmq serve --config {file}",
        *([f"keep {key_path(tls_dir, CA)} away from this machine as well"] if tls_dir is not None else []),
        *enforce,
    ]
    return [f"{number}. {step}" for number, step in enumerate(steps, 1)]


def _enforce(config: Config, tls_dir: Path | None) -> list[str]:
    """Returns the commands that switch enforcement on, if the new cluster has a first user; until then no request is
    checked."""
    if not (config.auth.key_file and config.auth.first_user_file):
        return []
    own = next((peer.admin for peer in config.peers if peer.id == config.node.id), "")
    admin = own or f"HOST:{config.admin.port}"
    over_tls = config.tls_mode(config.admin.tls) != "disabled"
    authority = certificate_path(tls_dir, CA) if tls_dir is not None else config.tls.ca_file
    tls = f" --tls-ca {authority}" if over_tls and authority else ""
    told = f"raftmq auth mode enforce --admin {admin}{tls} --data-dir {config.node.data_dir}"
    majority = len(config.voter_ids) // 2 + 1
    when = "it runs" if majority == 1 else f"{majority} nodes run"
    return [f"as soon as {when}, here: {told}    (until then nobody's requests are judged)"]


def steps_after_join(config: Config, file: Path, via: str, tls_dir: Path | None) -> list[str]:
    """Returns the commands to type after another node was made. Arguments as for `next_steps`; `via`: the first
    node's HTTP API."""
    return [*_certify_first(config, file, tls_dir, via), f"raftmq serve --config {file}"]


def _certify_first(config: Config, file: Path, tls_dir: Path | None, via: str | None) -> list[str]:
    """Returns the commands that give the node a certificate before its start, if it needs one and has none: issued by
    the cluster's CA, for the uuid that the node has now. A node that was made over TLS, but whose configuration has no
    TLS, could not reach the others: its command adds that, too."""
    over_tls = via is not None and chosen_tls() is not None
    if tls_dir is not None or not (config.speaks_tls or over_tls):
        return []
    if config.speaks_tls:
        return steps_before_start(config, file, over_tls=over_tls)
    return [f"raftmq init --join {via} --tls DIR --config {file}    (DIR: a copy of the first node's, with the CA)"]


def use_ca(config_path: Path, tls_dir: Path, via: str, env: Mapping[str, str]) -> None:
    """Prepares `join` with TLS: asks the first node over TLS, by the CA in the folder, unless the caller chose
    otherwise or the HTTP API of this cluster's nodes speaks plain text.

    Raises LocalError if the node has no certificate yet and the folder lacks the CA or its key: a CA that is made here
    would be another one than that of the other nodes.
    """
    config = load(config_path, env)
    authority, key = certificate_path(tls_dir, CA), key_path(tls_dir, CA)
    certified = certificate_path(tls_dir, stem_of(config)).is_file()
    lacking = next((path for path in (authority, key) if not path.is_file()), None)
    if lacking is not None and not certified:
        raise LocalError(
            f"there is no {lacking}",
            "this node's certificate must come from the CA that issued those of the other nodes",
            f"scp -r {host_of(via)}:{tls_dir} {tls_dir}    (the folder that --tls named on the first node)",
            ExitCode.USAGE,
        )
    if config.admin.tls != "disabled" and chosen_tls() is None and not env.get("RAFTMQ_TLS") and authority.is_file():
        speak_tls(str(authority))
