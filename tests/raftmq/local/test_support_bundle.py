"""A support bundle holds no secret, whatever it is written in."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from raftmq.local import support_bundle
from raftmq.local.support_bundle import ENDPOINTS, HIDDEN, json_without_secrets, without_secrets, write_bundle
from tests.support.rows import each_row

PLANTED = [
    ('secret = "{}"', "toml"),
    ("secret_key = '{}'", "toml"),
    ('aws_secret_access_key = "{}"', "toml"),
    ('password="{}"', "toml"),
    ("passwd: {}", "yaml"),
    ("db.password={}", "properties"),
    ("AWS_ACCESS_KEY_ID={}", "environment"),
    ("RAFTMQ_TIER__SECRET_KEY={}", "environment"),
    ("api_key={}", "query"),
    ("apikey: {}", "yaml"),
    ("token={}", "log"),
    ("Authorization: Bearer {}", "header"),
    ("Authorization: Basic {}", "header"),
    ('"session_token": "{}"', "json"),
    ("https://user:{}@store.example/bucket", "url"),
    ("s3://{}@bucket/x", "url"),
    ("https://store/x?X-Amz-Signature={}&part=1", "signed url"),
    ("https://store/x?sig={}", "signed url"),
    ("credential = {}", "log"),
    ("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----", "pem"),
]


@each_row("text", [text for text, _ in PLANTED])
def test_no_planted_secret_is_left(text: str) -> None:
    secret = "s3cr3t-4711+/abc="
    line = f"2026-11-21 INFO before {text.format(secret)} after"
    cleaned = without_secrets(line)
    assert "4711" not in cleaned
    assert HIDDEN in cleaned
    assert "before" in cleaned


def test_there_are_twenty() -> None:
    assert len(PLANTED) == 20


@pytest.mark.parametrize(
    "line",
    [
        'raftmq_alarm{key="log_damage"} 1.0',
        "term 5: follower, leader 2: the connection of the leader, node 1, closed",
        "[peer]\nport = 10912",
        '{"applied_index": 7, "secret": {"state": "required", "waiting_for": [2]}}',
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    try:
        assert json_without_secrets(json.loads(line)) == json.loads(line)
    except json.JSONDecodeError:
        assert without_secrets(line) == line


def test_json_keeps_its_form() -> None:
    value = {"a": [{"secret_access_key": "abc", "n": 1}], "url": "https://u:abc@h/", "tokens": 5, "password": ""}
    assert json_without_secrets(value) == {
        "a": [{"secret_access_key": HIDDEN, "n": 1}],
        "url": f"https://{HIDDEN}@h/",
        "tokens": 5,
        "password": "",
    }


def test_no_endpoint_shows_bodies() -> None:
    assert not any("messages" in path or "topics" in path or "metadata" in path for path in ENDPOINTS)


def test_the_end_of_a_long_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("old line\n" * 50 + "token=abc the last line\n")
    text = support_bundle.text_of_file(tmp_path / "log", 40)
    assert text.endswith("the last line\n")
    assert len(text) < 60
    assert "abc" not in text


def test_the_file_is_new_and_for_its_owner(tmp_path: Path) -> None:
    to = tmp_path / "b.tar.gz"
    write_bundle(to, {"node-1/status.json": "{}", "about.txt": "x"})
    with tarfile.open(to) as archive:
        assert [(each.name, each.mode) for each in archive] == [("b/about.txt", 0o600), ("b/node-1/status.json", 0o600)]
    with pytest.raises(FileExistsError):
        write_bundle(to, {})
