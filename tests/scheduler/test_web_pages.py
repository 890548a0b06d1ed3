# SPDX-License-Identifier: Apache-2.0
"""The scheduler's pages: sessions over HTTP, and the pages in headless Chromium."""

import os
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from web_site import Answer, Site

from ddl_scheduler.base.logs import log_folder

FORM = {"content-type": "application/x-www-form-urlencoded"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
LIMIT = 120  # seconds until a page shows a change, on a busy machine


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("web"))
    yield made
    made.close()


# ---- sessions ----


def log_in(site: Site, token: str, **headers: str) -> Answer:
    data = urlencode({"token": token}).encode()
    return site.ask("POST", "/login", data=data, role=None, headers={**FORM, **headers})


def session(site: Site, role: str) -> tuple[dict[str, str], str]:
    """Return the headers of a browser with a session, and the CSRF token of its pages."""
    cookie = log_in(site, site.tokens[role]).headers["set-cookie"].partition(";")[0]
    page = site.ask("GET", "/", role=None, headers={"cookie": cookie})
    found = re.search(r'<meta name="csrf" content="([^"]+)">', page.text)
    assert found, page.text
    return {"cookie": cookie}, found[1]


def test_a_session_is_a_cookie_without_the_token(site: Site) -> None:
    assert site.ask("GET", "/", role=None).headers["location"] == "/login"
    assert site.ask("GET", "/jobs/1", role=None).headers["location"] == "/login"
    wrong = log_in(site, "<script>alert(1)</script>")
    assert (
        wrong.status == 401 and "set-cookie" not in wrong.headers and "alert(1)" not in wrong.text
    )
    answer = log_in(site, site.tokens["user"])
    cookie = answer.headers["set-cookie"]
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert site.tokens["user"] not in cookie
    headers, _ = session(site, "viewer")
    page = site.ask("GET", "/", role=None, headers=headers).text
    assert site.tokens["viewer"] not in page and 'id="submit"' not in page
    assert site.ask("GET", "/v1/jobs", role=None, headers=headers).status == 200


def test_a_change_by_a_session_needs_its_pages_token(site: Site) -> None:
    headers, csrf = session(site, "user")
    job = {"command": ["train.py"]}

    def submit(**more: str) -> int:
        return site.ask("POST", "/v1/jobs", job, role=None, headers={**headers, **more}).status

    assert submit() == 403
    assert submit(**{"x-csrf-token": "wrong"}) == 403
    assert submit(**{"x-csrf-token": session(site, "user")[1]}) == 403  # of another session
    assert submit(**{"x-csrf-token": csrf}) == 201


def test_other_sites_cannot_log_anybody_in(site: Site) -> None:
    token = site.tokens["user"]
    assert log_in(site, token, origin="https://evil.example").status == 403
    assert log_in(site, token, **{"sec-fetch-site": "cross-site"}).status == 403
    assert log_in(site, token, origin=site.url).status == 303


def test_a_session_ends_with_its_token_or_by_logging_out(site: Site) -> None:
    headers, _ = session(site, "user")
    out = site.ask("POST", "/logout", role=None, headers=headers)
    assert out.headers["location"] == "/login"
    assert site.ask("GET", "/v1/jobs", role=None, headers=headers).status == 401
    site.tokens["short"] = site.store.token_create("a", "viewer")
    headers, _ = session(site, "short")
    site.store.token_revoke(site.tokens["short"])
    assert site.ask("GET", "/v1/jobs", role=None, headers=headers).status == 401
    assert site.ask("GET", "/", role=None, headers=headers).headers["location"] == "/login"


def test_a_jobs_page_is_its_tenants(site: Site) -> None:
    job = site.submit()
    own, other = session(site, "viewer")[0], session(site, "other")[0]
    assert site.ask("GET", f"/jobs/{job}", role=None, headers=own).status == 200
    assert site.ask("GET", f"/jobs/{job}", role=None, headers=other).status == 404
    assert site.ask("GET", "/jobs/" + "9" * 30, role=None, headers=own).status == 404
    assert site.ask("GET", "/static/../app.py", role=None).status == 404
    assert site.ask("GET", "/static/%2e%2e/app.py", role=None).status == 404
    script = site.ask(
        "GET",
        re.findall(
            r'src="(/static/plotly[^"]+)"',
            site.ask("GET", f"/jobs/{job}", role=None, headers=own).text,
        )[0],
        role=None,
    )
    assert "Plotly" in script.text


# ---- in a browser ----


class Browser:
    def __init__(self, site: Site) -> None:
        from selenium import webdriver

        self.site = site
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM or ""
        flags = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage"]
        for flag in [*flags, *(["--no-sandbox"] if os.getuid() == 0 else [])]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        self.driver.set_page_load_timeout(LIMIT)

    def be(self, width: int, dark: bool) -> None:
        self.driver.delete_all_cookies()
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, path: str, shown: str = "") -> None:
        self.driver.get(self.site.url + path)
        if shown:
            self.wait(f"document.body.dataset.shown === '{shown}'")

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def wait(self, condition: str) -> None:
        ends = time.monotonic() + LIMIT
        while not self.run(condition):
            assert time.monotonic() < ends, f"{condition}: {self.find('body').text}"
            time.sleep(0.05)

    def log_in(self, role: str) -> None:
        self.open("/login")
        self.find("input[name=token]").send_keys(self.site.tokens[role])
        self.find("button.main").click()
        self.wait("document.body.dataset.shown === 'overview'")

    def problems(self) -> list[str]:
        log = self.driver.get_log("browser")
        return [each["message"] for each in log if each["level"] in ("SEVERE", "WARNING")]


@pytest.fixture(scope="module")
def browser(site: Site) -> Iterator[Browser]:
    if not CHROMIUM or not DRIVER:
        pytest.skip("there is no Chromium with chromedriver (Debian: chromium chromium-driver)")
    pytest.importorskip("selenium")
    opened = Browser(site)
    yield opened
    opened.driver.quit()


def running_job(site: Site) -> int:
    """A job with a history of deaths, joins and a preemption, and one that waits."""
    job, waiting = site.submit(max=8, name="digits"), site.submit(min=9, name="large")
    for count in (4, 2):
        site.store.plan_write({job: tuple(f"h1.{n}" for n in range(count))}, time.time())
    site.cluster.places = [
        *(
            ("h1." + str(n), "h1", "used" if n < 2 else "free", job if n < 2 else None)
            for n in range(4)
        ),
        ("h2.0", "h2", "lost", None),
    ]
    now = time.time()
    events: list[dict[str, Any]] = [
        {"kind": "died", "member": 1, "cause": "<img src=x onerror=alert(1)>", "time": now},
        {"kind": "joined", "member": 2, "text": "worker 2 joined", "time": now},
        {"kind": "recovered", "died": [1], "adopted": 4, "seconds": 0.13, "step": 7, "time": now},
    ]
    site.cluster.reports[job] = {
        "steps": 10,
        "steps_total": 100,
        "loss": 1.5,
        "samples_per_second": 100.0,
        "seconds_per_step": 0.2,
        "workers": {n: {"state": "running", "pid": n, "shares": 1} for n in range(2)},
        "events": events,
    }
    site.cluster.reports[waiting] = {"waiting": "needs 9 slots; <b>tenant</b> a may have 8"}
    log_folder(site.path, job).mkdir(parents=True)
    (log_folder(site.path, job) / "worker0.log").write_text("loss <script>1.5</script>\x1b[2J\n")
    return job


def test_a_person_sees_and_steers_jobs(site: Site, browser: Browser) -> None:
    job = running_job(site)
    browser.be(width=1280, dark=False)
    browser.log_in("user")
    slots = browser.driver.find_elements("css selector", ".slot")
    assert [each.text for each in slots] == [str(job), str(job), "", "", ""]
    colors = [each.value_of_css_property("background-color") for each in slots]
    assert colors[0] == colors[1] != colors[2]
    text = browser.find("main").text
    assert "2 of 4" in text and "needs 9 slots; <b>tenant</b> a may have 8" in text
    # The map updates itself.
    site.cluster.places[2] = ("h1.2", "h1", "used", job)
    browser.wait("document.querySelectorAll('a.slot').length === 3")

    browser.find("details summary").click()
    browser.find("[name=command]").send_keys('python train.py "two words"')
    browser.find("[name=max]").send_keys("4")
    browser.find("#submit button").click()
    browser.wait("document.body.dataset.shown === 'job'")
    new = int(browser.driver.current_url.rpartition("/")[2])
    record = site.store.job_find(new)
    assert record and record.spec["command"] == ["python", "train.py", "two words"]
    assert (record.tenant, record.spec["max"]) == ("a", 4)

    least = browser.find("#scale [name=min]")
    least.clear()
    least.send_keys("5")
    browser.find("#scale button").click()
    browser.wait("!document.getElementById('problem').hidden")
    assert "min is 5; allowed: at most max=4" in browser.find("#problem").text
    least.clear()
    least.send_keys("3")
    browser.find("#scale button").click()
    browser.wait("document.getElementById('facts').textContent.includes('of 3\\u20134')")
    browser.find("#cancel").click()
    browser.driver.switch_to.alert.accept()
    browser.wait("document.getElementById('facts').textContent.includes('cancelled')")
    assert not browser.find("#pause").is_enabled()
    problems = [each for each in browser.problems() if "400 (Bad Request)" not in each]
    assert problems == []

    browser.open(f"/jobs/{job}", "job")
    browser.wait("document.querySelectorAll('.plot .main-svg').length >= 3")
    browser.wait("document.getElementById('logs').textContent !== ''")
    assert browser.find("#logs").text == "[0] loss <script>1.5</script>\\x1b[2J"
    traces = "document.getElementById('workers').data.map((trace) => trace.name)"
    assert browser.run(traces) == ["workers", "death", "join", "preemption"]
    ticks = browser.driver.find_elements("css selector", "#workers .ytick")
    assert [each.text for each in ticks] == ["0", "1", "2"]
    assert browser.find("#recoveries").text.endswith("worker 1 4 0.13")
    shown = "document.getElementById('loss').data[0].y.length"
    points = browser.run(shown)
    site.cluster.reports[job]["steps"] = 11
    browser.wait(f"{shown} > {points}")
    site.store.job_move(job, "cancelled", time.time())  # the change is not a preemption
    browser.wait("document.getElementById('events').textContent.includes('cancelled')")
    assert browser.run("document.getElementById('workers').data[3].x.length") == 1
    assert browser.problems() == []


def test_pages_fit_a_phone_and_darkness(site: Site, browser: Browser) -> None:
    job = site.submit(name="a-name-" + "x" * 50, command=["train.py", "y" * 300])
    browser.be(width=390, dark=True)
    browser.log_in("viewer")
    for path, shown in (("/", "overview"), (f"/jobs/{job}", "job")):
        browser.open(path, shown)
        assert browser.run("document.documentElement.scrollWidth") <= 390
        color = browser.find("body").value_of_css_property("background-color")
        assert max(map(int, re.findall(r"\d+", color)[:3])) < 60, color
        assert not browser.driver.find_elements("css selector", "#submit, #scale, #cancel")
    empty = browser.driver.find_elements("css selector", ".plot .annotation-text")
    assert [each.text for each in empty] == ["no data yet"] * 3
    assert browser.problems() == []
