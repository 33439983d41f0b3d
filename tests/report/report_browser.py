"""A headless Chromium that opens reports from the disk, and says what went wrong in it."""

import json
import shutil
import time
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

CURE = "the report is tested in a real browser: apt-get install chromium chromium-driver"

ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


class Browser:
    """One page at a time; `open` forgets what the last one did."""

    def __init__(self) -> None:
        chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
        if chromium is None or driver is None:
            pytest.fail(CURE, pytrace=False)
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for argument in ARGUMENTS:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(driver))

    def open(self, file: Path, *, width: int = 1280, height: int = 900, dark: bool = False, at: str = "") -> "Browser":
        """Open a report and wait until it is all there."""
        self._tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._tell("Emulation.setEmulatedMedia", features=[scheme])
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(f"{file.as_uri()}{at}")
        return self.until("return document.documentElement.dataset.ready === 'true'")

    def until(self, script: str) -> "Browser":
        """Wait until a script says true."""
        deadline = time.monotonic() + 20
        while not self.run(script):
            assert time.monotonic() < deadline, f"never true: {script}; {self.errors()}"
            time.sleep(0.02)
        return self

    def run(self, script: str, *arguments):
        """Run a script in the page; returns what it does."""
        return self.driver.execute_script(script, *arguments)

    def texts(self, selector: str) -> list[str]:
        """The text of every element that fits."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent.toWellFormed())", selector
        )

    def find(self, selector: str):
        """The first element that fits."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def errors(self) -> list[str]:
        """What the console said: errors, warnings and blocked content."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Every address that was asked for since the page was opened, its own and data in addresses left out."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [
            event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not url.startswith(("data:", "about:")) and ".html" not in url]

    def too_wide(self) -> list[str]:
        """What stands out of the window on its right."""
        return self.run(
            "return [...document.querySelectorAll('main *, header *')].filter((e) => !e.closest('.scrolls, .tabulator')"
            " && !e.matches('.hidden') && e.getBoundingClientRect().right > innerWidth + 1)"
            ".map((e) => e.outerHTML.slice(0, 80))"
            ".concat(document.documentElement.scrollWidth > innerWidth ? ['the page scrolls'] : [])"
        )

    def quit(self) -> None:
        """End the browser."""
        self.driver.quit()

    def _tell(self, command: str, **values) -> None:
        self.driver.execute_cdp_cmd(command, values)
