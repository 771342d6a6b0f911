"""A person logs in to the dashboard; pages of other origins and rebound names get nothing of it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import addresses_of
from raftmq.local.process import free_base_port
from tests.support.chromium import Page, browser
from tests.support.small_segments import small_segments
from tests.support.tools import needs

pytestmark = [pytest.mark.browser, pytest.mark.live, needs("chromium")]
SECRET = "the-secret-of-root"
NAME = "rebound.example"
FORM = "document.querySelector('form.login')"
SHOWN = "document.querySelector('#main .stamp[data-applied]') !== null"
ATTACK = """(async () => {
  const node = %s, told = [];
  for (const path of ["/v1/status", "/v1/topics", "/v1/session", "/v1/users"]) {
    try { told.push(await (await fetch(node + path, { credentials: "include" })).text()); } catch (error) {}
  }
  for (const [method, path, body] of [
      ["POST", "/v1/topics", '{"name": "stolen"}'], ["PUT", "/v1/auth", '{"mode": "off"}'],
      ["DELETE", "/v1/session", undefined], ["POST", "/v1/leader/transfer", '{"to": 2}']]) {
    for (const headers of [{}, { "Content-Type": "application/json" }, { "Content-Type": "text/plain" }]) {
      for (const mode of ["cors", "no-cors"]) {
        try {
          const answer = await fetch(node + path, { method, body, headers, mode, credentials: "include" });
          told.push(await answer.text());
        } catch (error) {}
      }
    }
  }
  await new Promise((done) => { const stream = new EventSource(node + "/v1/events/stream", { withCredentials: true });
    stream.onmessage = (event) => told.push(event.data); stream.onerror = () => { stream.close(); done(); }; });
  return told.filter(Boolean);
})()"""


OPENED = """new Promise((done) => {
  const stream = new EventSource("v1/events/stream");
  stream.onopen = () => { stream.close(); done(true); };
  stream.onerror = () => { stream.close(); done(false); };
})"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes that enforce, with one Super."""
    folder = tmp_path_factory.mktemp("login")
    (folder / "key").write_bytes(base64.b64encode(os.urandom(32)))
    (folder / "key").chmod(0o600)
    made = LocalCluster(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAFTMQ_AUTH__KEY_FILE", str(folder / "key"))
        try:
            with small_segments():
                made.up(3, free_base_port(12))
            api = AdminApi(addresses_of(made.nodes))
            api.post("/v1/users", {"name": "root", "secret": SECRET, "type": "Super"})
            api.put("/v1/auth", {"mode": "enforce"})
            yield made
        finally:
            made.down()


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """A tab of a new browser, for which a foreign name leads to this machine."""
    async with browser(tmp_path / "profile", f"--host-resolver-rules=MAP {NAME} 127.0.0.1") as tab:
        await tab.size(1024)
        yield tab


@pytest.fixture
async def foreign() -> AsyncIterator[int]:
    """The port of a server with an empty page."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="<title>another page</title>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", answer)
    server = TestServer(app)
    await server.start_server()
    assert server.port is not None
    yield server.port
    await server.close()


def admin(cluster: LocalCluster, node: int = 0) -> str:
    return f"http://127.0.0.1:{cluster.nodes[node].admin_port}"


async def log_in(page: Page, address: str, secret: str = SECRET) -> None:
    await page.open(f"{address}/")
    await page.until(FORM)
    for name, text in (("user", "root"), ("secret", secret)):
        await page.run(f"{FORM}.elements.{name}.focus()")
        await page.send("Input.insertText", text=text)
    await page.enter()


async def test_who_is_not_logged_in_is_not_denied_again_and_again(cluster: LocalCluster, page: Page) -> None:
    await page.open(f"{admin(cluster)}/")
    await page.until(FORM)
    await page.until(
        "performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/v1/session')).length > 2"
    )
    asked = await page.run("performance.getEntriesByType('resource').map(({ name }) => new URL(name).pathname)")
    assert {path for path in asked if path.startswith("/v1/")} == {"/v1/session"}
    denials = AdminApi(addresses_of(cluster.nodes)).local("/v1/auth")["denials"]
    assert [row for row in denials if row["last"].startswith("GET ")] == []


async def test_a_person_logs_in_looks_around_and_logs_out(cluster: LocalCluster, page: Page) -> None:
    await log_in(page, admin(cluster), "a wrong secret")
    assert "is wrong" in await page.until("document.querySelector('.problem')?.textContent")
    assert await page.run(f"{FORM}.elements.secret.value") == ""
    await log_in(page, admin(cluster))
    await page.until(SHOWN)
    assert await page.run("document.querySelector('[data-field=user]').textContent") == "root"
    assert await page.run("document.cookie") == "", "no script can read the login"
    await page.open(f"{admin(cluster)}/#/audit")
    assert "created, Super" in await page.until(f"{SHOWN} && document.querySelector('#main').innerText")
    if shot := os.environ.get("RAFTMQ_SCREENSHOTS"):
        (Path(shot) / "audit.png").write_bytes(await page.picture())
    assert await page.run(OPENED) is True
    cluster.kill(cluster.wait_leader())
    left = next(at for at, view in enumerate(cluster.view().nodes) if view.running)
    cluster.wait_leader()
    await page.open(f"{admin(cluster, left)}/")
    await page.until(SHOWN)  # another node, another leader, the same login
    await page.run("[...document.querySelectorAll('button')].find((each) => each.textContent === 'Log out').click()")
    await page.until(FORM)
    if shot:
        (Path(shot) / "login.png").write_bytes(await page.picture())
    assert await page.run("document.querySelector('[data-field=user]')") is None
    cluster.up()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_page_of_another_origin_gets_nothing(
    cluster: LocalCluster, page: Page, foreign: int, host: str
) -> None:
    """localhost is another site, 127.0.0.1 the same with another port: to that one the browser sends the cookie."""
    await log_in(page, admin(cluster))
    await page.until(SHOWN)
    await page.open(f"http://{host}:{foreign}/")
    page.cookies.clear()
    assert await page.run(ATTACK % json.dumps(admin(cluster))) == []
    if host == "localhost":
        assert page.cookies == []
    api = AdminApi(addresses_of(cluster.nodes))
    assert api.whole("/v1/topics", "topics")["topics"] == []
    assert api.local("/v1/auth")["mode"] == "enforce"
    page.cookies.clear()
    await page.open(f"{admin(cluster)}/")
    await page.until(SHOWN)  # still logged in
    assert page.cookies, "the search for cookies can find one"


async def test_a_rebound_name_gets_nothing(cluster: LocalCluster, page: Page) -> None:
    await log_in(page, admin(cluster))
    await page.until(SHOWN)
    port = cluster.nodes[0].admin_port
    page.cookies.clear()
    await page.open(f"http://{NAME}:{port}/")
    assert "foreign_host" in await page.run("document.body.innerText")
    for path in ("/v1/session", "/v1/status", "/v1/topics"):
        told = await page.run(f"fetch({json.dumps(path)}).then((answer) => answer.json())")
        assert told["error"]["code"] == "foreign_host"
    assert page.cookies == []
