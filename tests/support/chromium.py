"""Headless Chromium over its debugging protocol: pages that are opened, read and pressed as a person would.

Only what the tests of the dashboard need, on aiohttp's web socket. Protocol: https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp

from tests.support.pace import at_most
from tests.support.tools import CHROMIUM, how_to_get

ANSWER_WAIT_S = at_most(30)
START_WAIT_S = at_most(30)


def find_chromium() -> str:
    """Its path. Raises RuntimeError with what to type."""
    for name in CHROMIUM:
        if path := shutil.which(name):
            return path
    raise RuntimeError(f"these tests need a browser: {how_to_get('chromium')}")


class Page:
    """One tab. `errors`: what its console was told as an error, exceptions, and refused or failed requests."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._requests: dict[str, str] = {}
        self.errors: list[str] = []
        self.addresses: list[str] = []
        """The addresses of every request that it made."""
        self.cookies: list[tuple[str, str]] = []
        """(address, cookies) of every request with a cookie, as the browser sent them."""
        self.answers: list[tuple[str, str]] = []
        """(address, id) of every answer that is complete; `body_of` has its text."""
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        """The tab goes with the browser."""
        self._reader.cancel()
        await self._socket.close()

    async def begin(self) -> Self:
        """Turns the domains on that it listens to."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.send(f"{domain}.enable")
        return self

    async def send(self, method: str, **params: Any) -> Any:
        """One command of the protocol. Raises AssertionError with the browser's error."""
        self._number += 1
        number, answer = self._number, asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self._socket.send_json({"id": number, "method": method, "params": params})
        told = await asyncio.wait_for(answer, ANSWER_WAIT_S)
        assert "error" not in told, f"{method}: {told['error']}"
        return told["result"]

    async def run(self, script: str) -> Any:
        """Returns the value of an expression. Raises AssertionError if it throws."""
        told = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, script: str, wait_s: float = at_most(20)) -> Any:
        """The expression's value as soon as it is true. Raises AssertionError with what the page shows instead."""
        try:
            async with asyncio.timeout(wait_s):
                while not (value := await self.run(script)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            shown = await self.run("document.body.innerText.slice(0, 2000)")
            raise AssertionError(f"never: {script}\nerrors: {self.errors}\nthe page shows:\n{shown}") from None
        return value

    async def open(self, address: str) -> None:
        """Goes there, and waits until the document is there."""
        await self.send("Page.navigate", url=address)
        await self.until("document.readyState === 'complete'")

    async def size(self, width: int, height: int = 900, *, scheme: str = "light") -> None:
        """The view's size in CSS pixels, and the colours that the reader prefers."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def press(self, key: str, code: int, modifiers: int = 0, text: str = "") -> None:
        """A key goes down and up."""
        params = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        await self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **params)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **params)

    async def tab(self) -> None:
        """The next control."""
        await self.press("Tab", 9)

    async def enter(self) -> None:
        """Presses what has the focus."""
        await self.press("Enter", 13, text="\r")

    async def body_of(self, request: str) -> Any:
        """The JSON of an answer in `answers`."""
        return json.loads((await self.send("Network.getResponseBody", requestId=request))["body"])

    async def picture(self) -> bytes:
        """Returns the picture of the view, as a PNG."""
        return base64.b64decode((await self.send("Page.captureScreenshot", format="png"))["data"])

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            else:
                self._heard(told["method"], told["params"])

    def _heard(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(" ".join(str(each.get("value")) for each in params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self._requests[params["requestId"]] = params["request"]["url"]
                self.addresses.append(params["request"]["url"])
            case "Network.requestWillBeSentExtraInfo" if cookie := params["headers"].get("Cookie"):
                host = params["headers"].get("Host", "")
                self.cookies.append((self._requests.get(params["requestId"], host), cookie))
            case "Network.loadingFinished" if params["requestId"] in self._requests:
                self.answers.append((self._requests[params["requestId"]], params["requestId"]))
            case _:
                pass


@asynccontextmanager
async def browser(profile: Path, *options: str) -> AsyncIterator[Page]:
    """A tab of a browser of its own, which ends with the block; `profile` is its directory."""
    process = await asyncio.create_subprocess_exec(
        find_chromium(),
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
        *options,
        *("--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port = await _debugging_port(profile, process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                tab = next(each for each in await answer.json() if each["type"] == "page")
            socket = await session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0)
            page = await Page(socket).begin()
            try:
                yield page
            finally:
                await page.close()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _debugging_port(profile: Path, process: asyncio.subprocess.Process) -> int:
    """The browser writes the port that it chose into its directory."""
    told = profile / "DevToolsActivePort"
    async with asyncio.timeout(START_WAIT_S):
        while not told.exists() or not (lines := told.read_text().splitlines()):
            assert process.returncode is None, f"the browser ended with {process.returncode}"
            await asyncio.sleep(0.05)
    return int(lines[0])
