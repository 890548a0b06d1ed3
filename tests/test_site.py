# SPDX-License-Identifier: Apache-2.0
"""The site in headless Chromium: every page loads, fits a phone, and the search finds things.

Not in `make test`: `make test-docs` builds the site and runs this.
"""

from __future__ import annotations

import functools
import html
import http.server
import os
import re
import shutil
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).resolve().parent.parent / "build" / "docs"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
LIMIT = 120  # seconds, on a busy machine
PHONE = (390, 844)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="there is no Chromium here"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    assert (SITE / "index.html").exists(), "make docs builds it"
    handler = functools.partial(Quiet, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    made.set_page_load_timeout(LIMIT)
    yield made
    made.quit()


def set_width(browser: Any, width: int, height: int) -> None:
    """Set the width of the page, because a headless window may be wider."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )


def take_picture(browser: Any, element: Any) -> str:
    """Return a picture of the element. Its own screenshot may be taken while the page scrolls."""
    scroll = "arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})"
    browser.execute_script(scroll, element)
    shown = "requestAnimationFrame(() => requestAnimationFrame(arguments[1]))"
    browser.execute_async_script(f"arguments[0].decode().then(() => {shown})", element)
    clip = {**element.rect, "scale": 1}
    return str(browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip})["data"])


def pages() -> list[str]:
    """Return all pages of documents."""
    found = (path.relative_to(SITE) for path in SITE.rglob("*.html"))
    return sorted(str(page) for page in found if page.parts[0] != "_static")


# Finds the blocks of code that are wider than the page shows, and cannot be scrolled.
CLIPPED = """
return [...document.querySelectorAll('pre')].filter(block =>
    block.scrollWidth > block.clientWidth + 1
    && !['auto', 'scroll'].includes(getComputedStyle(block).overflowX)
).map(block => block.textContent.slice(0, 60))
"""


def test_every_page_loads_and_fits_a_phone(browser: Any, address: str) -> None:
    set_width(browser, *PHONE)
    wide, clipped = {}, {}
    assert len(pages()) > 25
    for page in pages():
        browser.get(f"{address}/{page}")
        assert browser.execute_script("return document.querySelector('h1, #search-results')"), page
        width = browser.execute_script("return document.documentElement.scrollWidth")
        if width > PHONE[0]:
            wide[page] = width
        if found := browser.execute_script(CLIPPED):
            clipped[page] = found
    severe = [e["message"] for e in browser.get_log("browser") if e["level"] == "SEVERE"]
    assert severe == []
    assert wide == {}
    assert clipped == {}


def test_every_link_within_the_site_leads_to_an_anchor() -> None:
    """Also to each entry of the C page, whose enums all have a name."""
    anchors = {
        page: {html.unescape(i) for i in re.findall(r'\bid="([^"]+)"', (SITE / page).read_text())}
        for page in pages()
    }
    broken = []
    for page in pages():
        for link in re.findall(r'<a [^>]*href="([^"]+)"', (SITE / page).read_text()):
            target, _, anchor = urllib.parse.unquote(html.unescape(link)).partition("#")
            if ":" in target:
                continue
            file = (SITE / page).parent / target if target else SITE / page
            found = anchors.get(os.path.relpath(file, SITE))
            if not file.exists() or (anchor and found is not None and anchor not in found):
                broken.append((page, link))
    assert broken == []


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("allreduce", "api/python.html"),
        ("DDL_SECRET_FILE", "api/generated/environment.html"),
        ("two hosts", "tutorial.html"),
        ("Horovod", "horovod.html"),
        ("kubernetes", "launching.html"),
        ("heartbeat", "reliability.html"),
        ("checkpoint", "elastic/guide.html"),
    ],
)
def test_search(browser: Any, address: str, words: str, page: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(f"{address}/search.html?q={words}")
    links = f"#search-results a[href*='{page}']"
    WebDriverWait(browser, LIMIT).until(lambda b: b.find_elements(By.CSS_SELECTOR, links))


# Questions of new users, and the page with the answer.
QUESTIONS = [
    ("install", "installing.html"),
    ("PyTorch DistributedDataParallel", "pytorch.html"),
    ("connection refused", "troubleshooting.html"),
    ("mpirun", "launching.html"),
    ("OMP_NUM_THREADS", "launching.html"),
    ("GPU NCCL", "gpu.html"),
    ("encrypt", "security.html"),
    ("SIGKILL", "troubleshooting.html"),
    ("firewall ports", "troubleshooting.html"),
    ("deterministic bits", "how-it-works.html"),
]


def search(browser: Any, address: str, words: str) -> list[str]:
    """Return the pages that a search finds, the best first."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(f"{address}/search.html?q={urllib.parse.quote(words)}")
    finished = "return document.querySelector('.search-summary')?.textContent.includes('found')"
    WebDriverWait(browser, LIMIT).until(lambda b: b.execute_script(finished))
    links = browser.find_elements(By.CSS_SELECTOR, "#search-results li > a")
    found = [link.get_attribute("href").removeprefix(f"{address}/") for link in links]
    return list(dict.fromkeys(re.split("[?#]", each)[0] for each in found))


@pytest.mark.parametrize(("words", "page"), QUESTIONS)
def test_ten_questions(browser: Any, address: str, words: str, page: str) -> None:
    """How do I install it? Does my DDP program run? Why is the connection refused? How do I start
    it under mpirun? How many threads do my ranks have? Can I use GPUs? Is my data encrypted? Why
    did my rank get SIGKILL? Which ports must the firewall open? Are results the same from run to
    run? The answer is among the first five pages found."""
    assert page in search(browser, address, words)[:5]


sys.path.insert(0, str(SITE.parents[1] / "docs" / "site"))
from search_terms import TERMS  # noqa: E402


@pytest.mark.parametrize("page", TERMS)
def test_page_of_each_term_is_first(browser: Any, address: str, page: str) -> None:
    for term in TERMS[page]:
        assert search(browser, address, term)[0] == f"{page}.html", term


def test_code_can_be_copied(browser: Any, address: str) -> None:
    browser.get(f"{address}/tutorial.html")
    count = "return document.querySelectorAll(arguments[0]).length"
    blocks = ".highlight-bash, .highlight-python"
    assert browser.execute_script(count, "button.copy") == browser.execute_script(count, blocks)


def test_dark_and_light(browser: Any, address: str) -> None:
    set_width(browser, 1200, 900)
    colors = []
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        browser.get(f"{address}/how-it-works.html")
        colors.append(
            browser.execute_script(
                "const body = getComputedStyle(document.body);"
                "const words = getComputedStyle(document.querySelector('svg[role=img] text'));"
                "return [body.backgroundColor, body.color, words.color]"
            )
        )
    light, dark = colors
    assert all(a != b for a, b in zip(light, dark, strict=True)), colors


def test_plots_have_the_colors_of_the_chosen_theme(browser: Any, address: str) -> None:
    """A reader may choose another theme than that of the system."""
    set_width(browser, *PHONE)
    shown = {}
    for system in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": system}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        for theme in ("light", "dark"):
            browser.get(f"{address}/index.html")
            browser.execute_script("localStorage.setItem('theme', arguments[0])", theme)
            browser.refresh()
            plot = browser.find_element("css selector", "img[src*=bandwidth]")
            shown[system, theme] = take_picture(browser, plot)
    browser.execute_script("localStorage.clear()")
    assert shown["light", "light"] == shown["dark", "light"]
    assert shown["light", "dark"] == shown["dark", "dark"]
    assert shown["light", "light"] != shown["light", "dark"]
