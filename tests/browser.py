"""Debian's Chromium, headless, for tests that look at pages as a person does."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.remote.webdriver import WebDriver

LOCAL = ("localhost", "127.0.0.1")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


@contextmanager
def chromium(profile: Path, width: int = 1280, height: int = 900) -> Iterator[WebDriver]:
    """A browser window; without the browser or its driver the test is skipped."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium and chromedriver are needed: Debian's chromium, chromium-driver")
    options = ChromeOptions()
    options.binary_location = browser
    for flag in (*QUIET, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    window = Chrome(options=options, service=ChromeService(driver))
    try:
        yield window
    finally:
        window.quit()


def resize(window: WebDriver, width: int, height: int) -> None:
    """Also below the least width that a window can have, as a phone's screen is."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer_dark(window: WebDriver, dark: bool) -> None:
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def console_errors(window: WebDriver) -> list[str]:
    """Since it was last asked."""
    return [entry["message"] for entry in window.get_log("browser") if entry["level"] == "SEVERE"]


def requests_elsewhere(window: WebDriver) -> list[str]:
    """Addresses outside this machine that the page asked for since this was last asked."""
    messages = [json.loads(entry["message"])["message"] for entry in window.get_log("performance")]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    return [
        url
        for url in asked
        if urlsplit(url).scheme in ("http", "https", "ws", "wss")
        and urlsplit(url).hostname not in LOCAL
    ]
