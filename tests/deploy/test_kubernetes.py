"""deploy/kubernetes: the manifests agree with the commands, the configuration and the image. Where kustomize and
kubernetes-validate are installed, the rendered manifests pass the schemas of three minor versions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.config.loading import load
from cluster.node.orderly_stop import DRAIN_S, FAREWELL_S, HAND_OVER_S, SETTLE_S
from raftmq.commands.point_in_time import PointInTime
from raftmq.local.made_mark import check_allowed
from tests.support.pace import at_most
from tests.support.tools import needs

ROOT = Path(__file__).parents[2]
BASE = ROOT / "deploy/kubernetes"
SET = yaml.safe_load((BASE / "stateful-set.yaml").read_text())
POD: dict[str, Any] = SET["spec"]["template"]["spec"]
(NODE,), (MAKE,) = POD["containers"], POD["initContainers"]
SERVICES = list(yaml.safe_load_all((BASE / "services.yaml").read_text()))
SCRIPT = (BASE / "node.sh").read_text()
VERSIONS = ("1.35", "1.36", "1.37")
MEMBERS = (0, 1, 2)


@pytest.mark.parametrize("ordinal", MEMBERS)
def test_one_file_is_the_configuration_of_every_pod(ordinal: int) -> None:
    config = load(BASE / "raftmq.toml", {"RAFTMQ_NODE__ID": str(ordinal + 1)})
    pod = f"raftmq-{ordinal}"
    assert config.node.id == ordinal + 1
    assert config.peer_of(config.node_id).host == f"{pod}.raftmq"
    advertised = {listener.name: listener.advertised for listener in config.listeners}
    assert advertised["broker"] == f"{pod}.raftmq:10911"
    assert advertised["broker-outside"].partition(".")[0] == pod
    ports = {port["name"]: port["containerPort"] for port in NODE["ports"]}
    assert ports == {
        "admin": config.admin.port,
        "peer": config.peer.port,
        **{listener.name: listener.port for listener in config.listeners},
    }
    mounted = {mount["mountPath"] for mount in NODE["volumeMounts"]}
    assert str(Path(config.node.data_dir).parent) in mounted
    files = (config.peer.secret_file, config.auth.key_file, config.auth.first_user_file)
    assert {str(Path(file).parent) for file in files} == {"/run/raftmq"} <= mounted


def test_each_node_has_a_service_for_clients_outside() -> None:
    inside, *outside = SERVICES
    assert inside["spec"]["clusterIP"] == "None"
    assert inside["metadata"]["name"] == SET["spec"]["serviceName"]
    assert all(service["spec"]["publishNotReadyAddresses"] for service in SERVICES)
    assert [each["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] for each in outside] == [
        f"raftmq-{ordinal}" for ordinal in MEMBERS
    ]
    known = {port["name"] for port in NODE["ports"]}
    assert {port["targetPort"] for service in SERVICES for port in service["spec"]["ports"]} <= known
    assert {port["targetPort"] for port in outside[0]["spec"]["ports"]} == {"namesrv-outside", "broker-outside"}


def test_nobody_is_root_and_the_user_is_the_images() -> None:
    (user,) = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    security = POD["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (int(user[0]), int(user[1]), 10911)
    assert security["runAsNonRoot"]
    for container in (NODE, MAKE):
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"]


def test_no_probe_restarts_a_node_that_catches_up() -> None:
    """`/v1/health/live` asks for no leader, no majority and no end of the catch-up; only the readiness does."""
    for probe in ("startupProbe", "livenessProbe"):
        assert NODE[probe]["httpGet"]["path"] == "/v1/health/live"
    assert NODE["readinessProbe"]["httpGet"]["path"] == "/v1/health/ready"
    assert NODE["startupProbe"]["failureThreshold"] * NODE["startupProbe"]["periodSeconds"] >= 3600
    assert NODE["livenessProbe"]["failureThreshold"] * NODE["livenessProbe"]["periodSeconds"] >= 60


def test_a_pod_has_more_time_to_stop_than_it_takes() -> None:
    (drain_s,) = re.findall(r"DRAIN_S:-(\d+)", SCRIPT)
    stop_s = HAND_OVER_S + SETTLE_S + DRAIN_S + FAREWELL_S
    assert POD["terminationGracePeriodSeconds"] > int(drain_s) + 2 * stop_s
    assert NODE["lifecycle"]["preStop"]["exec"]["command"][-1] == "drain"
    assert yaml.safe_load((BASE / "disruption-budget.yaml").read_text())["spec"]["maxUnavailable"] == 1


@needs("kubectl")
def test_the_page_shows_how_a_new_cluster_is_allowed_once_more(tmp_path: Path) -> None:
    """The line of the page, on a secret in a file."""
    (line,) = re.findall("^kubectl patch .*", (ROOT / "docs/kubernetes.md").read_text(), re.MULTILINE)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "raftmq"}, "stringData": {"new-until": "old"}}
    (tmp_path / "secret.yaml").write_text(yaml.safe_dump(secret))
    assert line.count(" secret raftmq ") == 1
    typed = line.replace(" secret raftmq ", " --local --filename secret.yaml --output yaml ")
    done = subprocess.run(
        ["bash", "-c", typed], cwd=tmp_path, capture_output=True, text=True, timeout=at_most(60), check=False
    )
    assert done.returncode == 0, done.stderr
    check_allowed(PointInTime().convert(yaml.safe_load(done.stdout)["stringData"]["new-until"], None, None))


@pytest.mark.slow
@needs("kustomize", "kubernetes-validate")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_rendered_manifests_pass_the_schemas(version: str, tmp_path: Path) -> None:
    rendered = subprocess.run(
        ["kustomize", "build", str(BASE)], capture_output=True, text=True, timeout=at_most(60), check=True
    ).stdout
    kinds = [each["kind"] for each in yaml.safe_load_all(rendered)]
    assert sorted(set(kinds)) == ["ConfigMap", "PodDisruptionBudget", "Service", "StatefulSet"]
    (tmp_path / "all.yaml").write_text(rendered)
    command = ["kubernetes-validate", "-k", version, "--strict", str(tmp_path / "all.yaml")]
    judged = subprocess.run(command, capture_output=True, text=True, timeout=at_most(60), check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert (judged.stdout + judged.stderr).count("passed") == len(kinds)


@pytest.mark.slow
@needs("hadolint")
@pytest.mark.parametrize(
    "file", ["Dockerfile", *(str(each.relative_to(ROOT)) for each in (ROOT / "docker").rglob("*Dockerfile"))]
)
def test_hadolint_agrees(file: str) -> None:
    """DL3008 wants versions of Debian's packages, which Debian removes with the next fix."""
    command = ["hadolint", "--ignore", "DL3008", file]
    judged = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=at_most(60), check=False)
    assert (judged.returncode, judged.stdout) == (0, "")
