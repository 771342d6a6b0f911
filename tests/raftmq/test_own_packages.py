"""`import raftmq` beside foreign packages that carry the names of ours."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raftmq._origin import MARK, OWN_PACKAGES, check_own_packages

ROOT = Path(__file__).parents[2]
CHECK = "from raftmq._origin import check_own_packages; check_own_packages()"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages with our top packages as a wheel would lay them out (their __init__ files are enough)."""
    site = tmp_path / "site-packages"
    for name in OWN_PACKAGES:
        (site / name).mkdir(parents=True)
        shutil.copy(ROOT / name / "__init__.py", site / name)
    (site / "raftmq").mkdir()
    shutil.copy(ROOT / "raftmq" / "_origin.py", site / "raftmq")
    (site / "raftmq" / "__init__.py").write_text(CHECK + "\n")
    return site


def install_foreign(folder: Path, package: str, distribution: str) -> None:
    """Lay out in `folder` what pip leaves of a foreign distribution that has `package`."""
    (folder / package).mkdir(parents=True, exist_ok=True)
    (folder / package / "__init__.py").write_text("class StateMachine: ...\n")
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "top_level.txt").write_text(f"{package}\n")
    (info / "RECORD").write_text(f"{package}/__init__.py,,\n{info.name}/METADATA,,\n")


def import_raftmq(*path: Path, cwd: Path, code: str = "import raftmq") -> subprocess.CompletedProcess[str]:
    """Run `code` in a bare interpreter whose sys.path is cwd, then `path`, then the standard library."""
    start = f"import sys; sys.path[1:1] = {[str(p) for p in path]!r}; {code}"
    # -S: without the site-packages of the interpreter that runs the tests.
    return subprocess.run([sys.executable, "-S", "-c", start], cwd=cwd, capture_output=True, text=True, timeout=60)


def test_the_packages_of_this_tree_are_its_own() -> None:
    check_own_packages()


@pytest.mark.parametrize("name", OWN_PACKAGES)
def test_every_package_carries_the_mark(name: str) -> None:
    assert MARK in (ROOT / name / "__init__.py").read_bytes()


def test_a_clean_installation_imports(site: Path, tmp_path: Path) -> None:
    result = import_raftmq(site, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(("package", "distribution"), [("statemachine", "python-statemachine"), ("cluster", "cluster")])
def test_a_foreign_distribution_ahead_on_the_path_is_named(
    site: Path, tmp_path: Path, package: str, distribution: str
) -> None:
    ahead = tmp_path / "ahead"
    install_foreign(ahead, package, distribution)
    result = import_raftmq(ahead, site, cwd=tmp_path)
    assert result.returncode == 1
    assert f"ImportError: raftmq found a foreign '{package}'" in result.stderr
    assert str(ahead / package / "__init__.py") in result.stderr
    assert f"type: pip uninstall {distribution} " in result.stderr


def test_both_installed_over_ours_are_named_as_overwritten(site: Path, tmp_path: Path) -> None:
    install_foreign(site, "statemachine", "python-statemachine")
    install_foreign(site, "cluster", "cluster")
    result = import_raftmq(site, cwd=tmp_path)
    assert result.returncode == 1
    assert "raftmq's own 'statemachine' was overwritten" in result.stderr
    assert "pip uninstall python-statemachine && pip install --force-reinstall --no-deps raftmq" in result.stderr


def test_both_installed_before_ours_do_no_harm(tmp_path: Path, site: Path) -> None:
    """Installed later, our files lie on top; the foreign distributions are broken then, raftmq is not."""
    for package, distribution in (("statemachine", "python-statemachine"), ("cluster", "cluster")):
        own = (site / package / "__init__.py").read_bytes()
        install_foreign(site, package, distribution)
        (site / package / "__init__.py").write_bytes(own)
    assert import_raftmq(site, cwd=tmp_path).returncode == 0


def test_a_package_that_an_uninstall_took_away_is_named(site: Path, tmp_path: Path) -> None:
    (site / "cluster" / "__init__.py").unlink()
    result = import_raftmq(site, cwd=tmp_path)
    assert "raftmq needs its own package 'cluster'" in result.stderr


def test_a_users_own_cluster_py_in_the_working_directory_is_named(site: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster.py").write_text("NODES = 3\n")
    result = import_raftmq(site, cwd=tmp_path)
    assert result.returncode == 1
    assert f"raftmq found a foreign 'cluster': {tmp_path / 'cluster.py'}" in result.stderr
    assert re.search(r"type: mv .*cluster\.py elsewhere or rename it", result.stderr)


def test_the_foreign_module_is_not_run(site: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster.py").write_text("print('ran')\n")
    assert "ran" not in import_raftmq(site, cwd=tmp_path).stdout


def test_a_foreign_module_that_is_already_imported_is_named(site: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster.py").write_text("NODES = 3\n")
    result = import_raftmq(site, cwd=tmp_path, code="import cluster, raftmq")
    assert "raftmq found a foreign 'cluster'" in result.stderr


@pytest.mark.slow
def test_the_real_python_statemachine_is_named(site: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(real)]
    subprocess.run([*pip, "python-statemachine", "cluster"], check=True, timeout=110)
    result = import_raftmq(real, site, cwd=tmp_path)
    assert "raftmq found a foreign 'statemachine'" in result.stderr
    assert "type: pip uninstall python-statemachine " in result.stderr
