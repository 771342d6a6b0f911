"""`.ci/staging.py FOLDER`: writes the source trees of the two distributions, FOLDER/raftmq and FOLDER/raftmq-server.

Each is complete: pip, uv and build make its wheel and its sdist without this repository. Every file of the product
packages is in exactly one of them. docs/adr/0092-two-distributions.md says why there are two.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomlkit

ROOT = Path(__file__).resolve().parents[1]
CLIENT, SERVER = "raftmq", "raftmq-server"
OF_THE_CLIENT = (
    "raftmq_wire",
    "raftmq/__init__.py",
    "raftmq/__main__.py",
    "raftmq/server_home.py",
    "raftmq/py.typed",
    "raftmq/arrow",
    "raftmq/client",
    "raftmq/testing",
    "pyspark_raftmq",
)
"""Files and folders of the distribution raftmq; all else of the product packages is the server's."""
CLIENT_NEEDS = ("fastcrc", "msgspec", "zlib-ng")
"""Packages that the client imports. Those of the server are all of pyproject.toml."""
CLIENT_EXTRAS = ("arrow", "spark", "jre")
SERVER_EXTRAS = ("tier", "groups")
UPLOT = "cluster/admin/static/uplot.LICENSE.txt"
"""The licence of the one library whose code is in this tree: the dashboard's plots."""
HELD_BY_NONE = ("__pycache__", "*.pyc", "*.so")
LIB = Path("raftmq_server", "lib")
INIT = '"""The server: its packages are in the folder lib, which only its own processes have on their path."""\n'


def product_files(root: Path = ROOT) -> Iterator[Path]:
    """Yields every file of the product packages, relative to `root`."""
    project = tomlkit.parse((root / "pyproject.toml").read_text()).unwrap()
    packages = {each.partition(".")[0] for each in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    for package in sorted(packages):
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and not any(path.match(each) or each in path.parts for each in HELD_BY_NONE):
                yield path.relative_to(root)


def is_of_the_client(file: Path) -> bool:
    """Returns True for a file of the distribution raftmq."""
    return any(file.is_relative_to(each) for each in OF_THE_CLIENT)


def stage(folder: Path, root: Path = ROOT, between: int | None = None) -> tuple[Path, Path]:
    """Writes both trees. Returns their folders: the client's, the server's. `between`: the time of a build between
    releases, in seconds since the epoch; None for the version as it stands."""
    client, server = folder / CLIENT, folder / SERVER
    for file in product_files(root):
        target = client / file if is_of_the_client(file) else server / LIB / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / file, target)
    for tree in (client, server):
        for name in ("LICENSE", "README.md"):
            shutil.copy(root / name, tree)
    shutil.copy(root / "setup.py", client)
    shutil.copy(root / "MANIFEST.in", client)
    (server / LIB.parent / "__init__.py").write_text(INIT)
    shutil.copy(root / UPLOT, server / "LICENSE.uPlot")
    whole = tomlkit.parse((root / "pyproject.toml").read_text()).unwrap()
    if between is not None:
        whole["project"]["version"] = version_between(whole["project"]["version"], between)
    (client / "pyproject.toml").write_text(tomlkit.dumps(_of_client(whole)))
    (server / "pyproject.toml").write_text(tomlkit.dumps(_of_server(whole)))
    return client, server


def version_between(following: str, at_s: int) -> str:
    """Returns the version of a build before the release `following`, made from a commit of that time. It is below the
    release and above each earlier build, so that pip replaces one by the other."""
    return f"{following}.dev{datetime.fromtimestamp(at_s, UTC):%Y%m%d%H%M%S}"


def _of_client(whole: dict[str, Any]) -> dict[str, Any]:
    project = _common(whole["project"], CLIENT)
    version, extras = project["version"], whole["project"]["optional-dependencies"]
    project["dependencies"] = [each for each in whole["project"]["dependencies"] if _name(each) in CLIENT_NEEDS]
    project["optional-dependencies"] = {
        "server": [f"{SERVER}=={version}"],
        **{extra: extras[extra] for extra in CLIENT_EXTRAS},
        **{extra: [f"{SERVER}[{extra}]=={version}"] for extra in SERVER_EXTRAS},
    }
    project["scripts"] = whole["project"]["scripts"]
    project["entry-points"] = _entry_points(whole, of_the_client=True)
    found = _pyproject(whole, project, ["raftmq_wire*", "raftmq*", "pyspark_raftmq*"])
    found["tool"]["setuptools"]["package-data"] = {"*": whole["tool"]["setuptools"]["package-data"]["*"]}
    return found


def _of_server(whole: dict[str, Any]) -> dict[str, Any]:
    project = _common(whole["project"], SERVER)
    project["dependencies"] = [f"{CLIENT}=={project['version']}", *whole["project"]["dependencies"]]
    project["optional-dependencies"] = {
        extra: whole["project"]["optional-dependencies"][extra] for extra in SERVER_EXTRAS
    }
    project["license"] = "Apache-2.0 AND MIT"
    project["license-files"] = ["LICENSE", "LICENSE.uPlot"]
    project["entry-points"] = _entry_points(whole, of_the_client=False)
    found = _pyproject(whole, project, ["raftmq_server*"])
    found["build-system"]["requires"] = [each for each in found["build-system"]["requires"] if "cython" not in each]
    data = whole["tool"]["setuptools"]["package-data"]
    prefix = ".".join(LIB.parts)
    found["tool"]["setuptools"]["package-data"] = {
        key if key == "*" else f"{prefix}.{key}": files for key, files in data.items()
    }
    return found


def _entry_points(whole: dict[str, Any], *, of_the_client: bool) -> dict[str, Any]:
    """Returns the entry points of one of the two distributions: the client has the plugin of pytest, the server all
    others."""
    groups: dict[str, Any] = whole["project"]["entry-points"]
    return {name: points for name, points in groups.items() if (name == "pytest11") == of_the_client}


def _common(project: dict[str, Any], name: str) -> dict[str, Any]:
    taken = {key: value for key, value in project.items() if key not in _CHANGED}
    return {"name": name, **taken}


_CHANGED = ("name", "dependencies", "optional-dependencies", "scripts", "entry-points")


def _pyproject(whole: dict[str, Any], project: dict[str, Any], include: list[str]) -> dict[str, Any]:
    setuptools = {
        "include-package-data": False,
        "packages": {"find": {"include": include}},
    }
    return {"build-system": dict(whole["build-system"]), "project": project, "tool": {"setuptools": setuptools}}


def _name(requirement: str) -> str:
    return requirement.partition(">")[0].partition("=")[0].partition("[")[0].strip()


if __name__ == "__main__":
    for made in stage(Path(sys.argv[1])):
        sys.stdout.write(f"{made}\n")
