"""docker-compose.yml and the Dockerfile agree with the commands, the configuration and each other.

No container is started here: what is checked is everything that would stop one.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from cluster.config.config import Config
from cluster.config.loading import load
from cluster.node.orderly_stop import DRAIN_S, FAREWELL_S, HAND_OVER_S, SETTLE_S
from raftmq.cli import cli
from raftmq.client.consuming.pull import TOOLS_GROUP
from tests.support.rows import each_row

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]

NODES = ("n1", "n2", "n3")
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def mounts(service: str) -> dict[str, str]:
    """Mount point -> volume or folder of this tree."""
    parts = [volume.split(":") for volume in SERVICES[service]["volumes"]]
    return {target: source for source, target, *_ in parts}


def config_paths(service: str) -> list[Path]:
    """The files behind --config, as they lie in this tree."""
    command = SERVICES[service]["command"]
    given = [Path(path) for option, path in pairwise(command) if option == "--config"]
    return [ROOT / mounts(service)[str(path.parent)] / path.name for path in given]


def config_of(node: str, url: str = "") -> Config:
    (path,) = config_paths(node)
    environment = {**SERVICES[node]["environment"], "RAFTMQ_TIER__URL": url}
    return load(path, env=environment)


def published(node: str) -> dict[int, str]:
    """Port in the container -> "address:port" on the host."""
    return {int(inner): f"{address}:{outer}" for address, outer, inner in map(parts_of, SERVICES[node]["ports"])}


def parts_of(port: str) -> list[str]:
    return port.split(":")


@each_row("name", SERVICES)
def test_the_log_of_every_container_is_bounded(name: str) -> None:
    logging = SERVICES[name]["logging"]
    assert logging["driver"] == "json-file"
    assert {"max-size", "max-file"} <= logging["options"].keys()


def test_the_unit_bounds_what_it_writes_into_the_journal() -> None:
    unit = (ROOT / "deploy" / "systemd" / "raftmq.service").read_text().splitlines()
    assert [line.partition("=")[0] for line in unit if line.startswith("LogRateLimit")] == [
        "LogRateLimitIntervalSec",
        "LogRateLimitBurst",
    ]


def test_three_nodes_wait_for_one_init() -> None:
    assert {name for name, service in SERVICES.items() if "profiles" not in service} == {
        "init",
        "keys",
        "access",
        *NODES,
    }
    done = {"condition": "service_completed_successfully"}
    for node in NODES:
        assert SERVICES[node]["depends_on"] == {"init": done, "keys": done}


def test_up_and_wait_is_no_failure() -> None:
    """It is one if a container ends that no other waits for."""
    awaited = {
        name
        for service in SERVICES.values()
        for name, how in service.get("depends_on", {}).items()
        if how["condition"] == "service_completed_successfully"
    }
    stay = {name for name, service in SERVICES.items() if service.get("restart") == "unless-stopped"}
    assert awaited | stay == {*SERVICES}
    assert not awaited & stay
    script = (ROOT / "docker" / "access.sh").read_text()
    assert script.endswith("trap 'exit 0' TERM INT\nsleep infinity &\nwait\n")
    assert SERVICES["access"]["healthcheck"]["test"][-1] in script
    spark = (ROOT / "docker/spark/Dockerfile").read_text()
    (made,) = re.findall(r'^HEALTHCHECK .*"test", "-e", "(.+)"\]$', spark, re.MULTILINE)
    assert f'Path("{made}")' in (ROOT / "docker/spark/count.py").read_text()


@each_row("service", ["init", *NODES])
def test_the_command_and_its_options_exist(service: str) -> None:
    name, *arguments = SERVICES[service]["command"]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, list(arguments))  # parses; raises UsageError for an unknown or missing option


@pytest.mark.parametrize("node", NODES)
def test_each_node_has_a_valid_configuration_of_its_own(node: str) -> None:
    config = config_of(node)
    assert f"n{config.node.id}" == node
    assert config.voter_ids == (1, 2, 3)
    assert config.log_output.format == "json", "an environment variable overrides the file"


@pytest.mark.parametrize("node", NODES)
def test_peers_find_each_other_by_service_name(node: str) -> None:
    for peer in config_of(node).peers:
        other = config_of(peer.host)
        assert (peer.id, peer.port) == (other.node.id, other.peer.port)
        assert peer.admin == f"{peer.host}:{other.admin.port}"
        assert peer.listeners == {listener.name: listener.advertised for listener in other.listeners}


@pytest.mark.parametrize("node", NODES)
def test_listeners_are_reachable_where_they_say(node: str) -> None:
    config = config_of(node)
    listeners = {listener.name: listener for listener in config.listeners}
    assert listeners["broker"].advertised == f"{node}:{listeners['broker'].port}"
    outside = listeners["broker-host"]
    assert outside.advertised == published(node)[outside.port]
    assert {outside.port, listeners["namesrv-host"].port, config.admin.port} == set(published(node))
    assert {each.name: each.routes for each in config.listeners if each.routes} == {
        "namesrv": "broker",
        "namesrv-host": "broker-host",
    }
    binds = {listener.bind for listener in config.listeners} | {config.peer.bind, config.admin.bind}
    assert binds == {"0.0.0.0"}, "other containers cannot reach 127.0.0.1 of this one"


def test_nothing_is_published_beyond_this_machine() -> None:
    addresses = [
        address for name, service in SERVICES.items() if "ports" in service for address in published(name).values()
    ]
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    assert len(set(addresses)) == len(addresses)


@pytest.mark.parametrize("node", NODES)
def test_data_lies_on_a_volume_that_init_sees_at_the_same_place(node: str) -> None:
    home = str(Path(config_of(node).node.data_dir).parent)
    assert mounts(node)[home] == mounts("init")[home] == node
    assert node in COMPOSE["volumes"]
    assert home in re.findall(r"/data/n\d", DOCKERFILE), "the image makes the folder, so that its user owns the volume"


def test_init_names_every_member() -> None:
    assert config_paths("init") == [path for node in NODES for path in config_paths(node)]


def test_the_health_check_asks_an_existing_path_at_the_admin_port() -> None:
    (url,) = re.findall(r"http://127\.0\.0\.1:(\d+)(/[\w/]+)", SERVICES["n1"]["healthcheck"]["test"][-1])
    assert {int(url[0])} == {config_of(node).admin.port for node in NODES}
    assert url[1] == "/v1/health/live"
    assert "/v1/health/live" in DOCKERFILE
    assert f"RAFTMQ_ADMIN=127.0.0.1:{url[0]}" in DOCKERFILE, "commands in the container find the node"


def test_old_engines_know_every_key() -> None:
    """Engine 20.10 and podman 4.3 refuse `start_interval`."""
    for node in NODES:
        assert set(SERVICES[node]["healthcheck"]) == {"test", "interval", "timeout", "start_period"}


def test_a_node_has_more_time_to_stop_than_it_takes() -> None:
    for node in NODES:
        grace = re.fullmatch(r"(\d+)s", SERVICES[node]["stop_grace_period"])
        assert grace is not None
        assert int(grace[1]) > 2 * (HAND_OVER_S + SETTLE_S + DRAIN_S + FAREWELL_S)


def test_logs_are_rotated_and_a_lower_limit_of_files_can_be_given() -> None:
    for node in NODES:
        assert set(SERVICES[node]["logging"]["options"]) == {"max-size", "max-file"}
        assert SERVICES[node]["ulimits"]["nofile"] == "${RAFTMQ_NOFILE:-65536}"


def test_the_user_of_the_image_is_a_number() -> None:
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE) == ["10911:10911"]


def test_the_image_copies_what_exists_and_every_product_package() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert [name for name in copied if f"!{name}" not in ignored] == []
    links = {
        path.resolve().relative_to(ROOT) for name in copied for path in (ROOT / name).rglob("*") if path.is_symlink()
    }
    assert {str(link) for link in links} <= set(copied), "what the packages link to"
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"bench", "tests"}
    assert packages <= set(copied)


@pytest.mark.parametrize("node", NODES)
def test_secrets_are_in_a_volume_of_their_own_that_nodes_only_read(node: str) -> None:
    config = config_of(node)
    files = (config.peer.secret_file, config.auth.key_file, config.auth.first_user_file)
    assert {str(Path(file).parent) for file in files} == {"/secrets"}
    assert "secrets:/secrets:ro" in SERVICES[node]["volumes"]
    assert "secrets:/secrets" in SERVICES["init"]["volumes"]
    assert SERVICES[node]["environment"]["RAFTMQ_SECRET_FILE"] == config.peer.secret_file
    assert "secrets" in COMPOSE["volumes"]


def test_requests_are_judged() -> None:
    script = (ROOT / "docker" / "access.sh").read_text()
    assert "raftmq auth mode enforce --yes" in script
    assert "insecure" not in (ROOT / "docker-compose.yml").read_text() + script
    assert (ROOT / mounts("access")["/etc/raftmq"] / "access.sh").exists()


PROFILES = {
    "prometheus": "metrics",
    "grafana": "metrics",
    "store": "tier",
    "spark-user": "spark",
    "spark": "spark",
}


def test_spark_may_read_without_a_group() -> None:
    assert f" Group:{TOOLS_GROUP} Sub " in (ROOT / "docker/spark-user.sh").read_text()


def test_profiles() -> None:
    assert {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service} == {
        name: [profile] for name, profile in PROFILES.items()
    }
    for name in PROFILES:
        for needed in SERVICES[name]["depends_on"]:
            assert PROFILES.get(needed, PROFILES[name]) == PROFILES[name], (
                "compose refuses a service that is not enabled"
            )
        images = SERVICES[name]["image"].split(":")
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", images[1]), "a version, not latest"


@each_row("service", [*SERVICES])
def test_what_is_mounted_exists(service: str) -> None:
    for target, source in mounts(service).items():
        if source.startswith("./"):
            assert (ROOT / source).exists()
        else:
            assert source in COMPOSE["volumes"], target
    for script in SERVICES[service].get("entrypoint", [])[1:]:
        assert [
            each
            for target, source in mounts(service).items()
            for each in (ROOT / source, ROOT / source / Path(script).name)
            if script.startswith(target) and each.is_file()
        ]


def test_the_environment_switches_the_tier_on_at_the_store_of_the_file() -> None:
    assert SERVICES["n1"]["environment"]["RAFTMQ_TIER__URL"] == "${RAFTMQ_TIER_URL:-}"
    script = (ROOT / "docker/store.sh").read_text()
    for node in NODES:
        assert config_of(node).tier.url == "", "off unless asked for"
        tier = config_of(node, "s3://raftmq/tier").tier
        assert tier.endpoint == f"http://store:{re.findall(r'--port 0.0.0.0:([0-9]+)', script)[0]}"
        assert mounts(node)[str(Path(tier.credentials_file).parent)] == mounts("store")["/handed/store"] == "store-keys"
        assert tier.credentials_file in script
    assert "/store/raftmq" in script, "the bucket"


def test_prometheus_scrapes_every_node_with_the_token_and_has_our_rules() -> None:
    given = yaml.safe_load((ROOT / "docker/prometheus.yml").read_text())
    (job,) = given["scrape_configs"]
    assert job["job_name"] == "raftmq"
    assert job["static_configs"] == [{"targets": [f"{node}:{config_of(node).admin.port}" for node in NODES]}]
    token = job["authorization"]["credentials_file"]
    assert f"{token}.new {token}" in (ROOT / "docker/access.sh").read_text()
    assert {mounts("prometheus")[each] for each in given["rule_files"]} == {"./deploy/alerts.yml"}


DATASOURCE = {
    "access", "basicAuth", "basicAuthUser", "correlations", "database", "editable", "isDefault", "jsonData", "name",
    "orgId", "secureJsonData", "type", "uid", "url", "user", "version", "withCredentials",
}  # fmt: skip
PROVIDER = {
    "allowUiUpdates", "disableDeletion", "editable", "folder", "folderUid", "name", "options", "orgId", "type",
    "updateIntervalSeconds",
}  # fmt: skip


def test_grafana_is_provisioned_with_keys_that_it_knows() -> None:
    """Grafana ignores a key that it does not know; these are those of its `apiVersion` 1."""
    folder = ROOT / mounts("grafana")["/etc/grafana/provisioning"]
    sources = yaml.safe_load((folder / "datasources/raftmq.yml").read_text())
    boards = yaml.safe_load((folder / "dashboards/raftmq.yml").read_text())
    assert sources.keys() == {"apiVersion", "datasources"}
    assert boards.keys() == {"apiVersion", "providers"}
    assert sources["apiVersion"] == boards["apiVersion"] == 1
    (source,), (board,) = sources["datasources"], boards["providers"]
    assert set(source) <= DATASOURCE
    assert set(board) <= PROVIDER
    assert source["type"] == "prometheus"
    assert source["isDefault"], "the variable of the dashboard takes the default"
    assert source["url"] == f"http://prometheus:{next(iter(published('prometheus')))}"
    assert board["type"] == "file"
    assert (ROOT / mounts("grafana")[board["options"]["path"]] / "raftmq.json").exists()


def test_each_public_image_but_grafanas_has_a_stand_in() -> None:
    script = (ROOT / "docker/stand-ins/make.sh").read_text()
    public = {SERVICES[name]["image"].split(":")[0] for name in PROFILES if "/" in SERVICES[name]["image"]}
    assert public == {"prom/prometheus", "versity/versitygw", "grafana/grafana"}
    assert [name for name in public if f"named {name})" not in script] == ["grafana/grafana"]
    for base in re.findall(r"^FROM (\S+:\S+)", DOCKERFILE, re.MULTILINE):
        name, _, kind = base.partition("-")
        assert f"/library/{name}" in script
        assert kind in ("", "slim")


def test_the_image_makes_the_folder_of_each_volume_that_its_user_writes() -> None:
    ours = [name for name in SERVICES if SERVICES[name]["image"].startswith("raftmq")]
    written = {
        target
        for name in ours
        for volume in SERVICES[name]["volumes"]
        for source, target, *mode in [volume.split(":")]
        if source in COMPOSE["volumes"] and mode != ["ro"]
    }
    assert {"/handed/spark", "/checkpoints"} <= written
    made = re.findall(r"/[\w/]+", re.findall(r"mkdir -p (.+) \\", DOCKERFILE)[0])
    assert written <= set(made)
