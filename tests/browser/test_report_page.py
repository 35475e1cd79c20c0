"""The report in a real browser: what a person sees is there, nothing spills over, nothing is fetched."""
from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from plumbline.analysis.report import html, tabular, text
from selenium import webdriver
from selenium.webdriver.common.by import By

PAGE = Path(__file__).parents[2] / "docs" / "records.md"
SHOTS = Path(os.environ.get("PLUMBLINE_SCREENSHOTS", ""))
pytestmark = [pytest.mark.browser,
              pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium and its driver")]


def example(schema: str) -> dict:
    """The documented example of a record, which another test validates."""
    found = re.search(rf"<!-- schema: {schema} -->\n```json\n(.*?)\n```", PAGE.read_text(), re.S)
    assert found, f"no example of {schema}"
    return json.loads(found[1])


@pytest.fixture(scope="module")
def verdict() -> dict:
    document = example("verdict")
    first = document["comparisons"][0]
    # One of each verdict, so that every mark of the charts is drawn.
    document["comparisons"] = [
        {**first, "workload": w, "verdict": v, "ratio": r, "ci": ci, "accept_length": a, "break_even_accept_length": b}
        for w, v, r, ci, a, b in (
            ("one-stream", "faster", 1.86, [1.8, 1.93], 2.84, 1.53),
            ("sixteen-streams", "slower", 0.72, [0.69, 0.75], 2.8, 3.9),
            ("four-streams", "same", 1.004, [0.99, 1.015], 2.8, 2.79),
            ("long-prompt", "inconclusive", 1.05, [0.9, 1.2], 2.8, 2.66),
            ("other", "not_comparable", None, None, None, None))]
    return document


@pytest.fixture(scope="module")
def measurements() -> list[dict]:
    record = example("measurement")
    flagged = {**record, "flags": [{"name": "throttled", "detail": "GPU 3: 2.1 s in the window", "invalidates": True}]}
    failed = {**record, "status": "failed", "failure": {"class": "cuda_oom", "detail": "CUDA out of memory"},
              "metrics": dict.fromkeys(record["metrics"]), "flags": []}
    return [record, flagged, failed]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, verdict: dict,
            measurements: list[dict]) -> Iterator[webdriver.Chrome]:
    folder = tmp_path_factory.mktemp("report")
    page = folder / "report.html"
    page.write_text(html.render(verdict, measurements, compares=[], proofs={}))
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--window-size=1100,2400", "--disable-background-networking", "--disable-component-update",
                 "--disable-sync", f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.get(page.as_uri())
        yield driver
    finally:
        driver.quit()


def test_each_comparison_is_a_row_with_its_verdict(browser: webdriver.Chrome):
    rows = browser.find_elements(By.CSS_SELECTOR, "#comparisons + .scroll tbody tr")
    assert len(rows) == 5
    shown = [r.find_element(By.CSS_SELECTOR, ".verdict").text for r in rows]
    assert shown == ["faster", "slower", "same", "inconclusive", "not comparable"]
    assert "1.86x [1.80, 1.93]" in rows[0].text


def test_the_interval_plot_shows_each_interval_at_its_place(browser: webdriver.Chrome):
    whiskers = browser.find_elements(By.CSS_SELECTOR, "svg line.whisker")
    assert len(whiskers) == 4
    one = browser.find_element(By.CSS_SELECTOR, "svg line.one").location["x"]
    assert whiskers[0].location["x"] > one, "an interval above 1 lies right of the line"
    assert whiskers[1].location["x"] + whiskers[1].size["width"] < one


def test_the_breakeven_chart_puts_what_pays_above_the_line(browser: webdriver.Chrome):
    chart = browser.find_element(By.CSS_SELECTOR, "#breakeven ~ svg")
    assert chart.size["height"] > 200
    assert len(chart.find_elements(By.CSS_SELECTOR, ".dot")) == 4
    assert "break-even" in chart.text


def test_flags_and_failures_are_explained(browser: webdriver.Chrome):
    body = browser.find_element(By.TAG_NAME, "body").text
    assert "throttled" in body
    assert "held back by heat or power" in body
    assert "cuda_oom: CUDA out of memory" in body


def test_nothing_is_fetched_and_nothing_complains(browser: webdriver.Chrome):
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_nothing_spills_over_on_a_narrow_window(browser: webdriver.Chrome):
    browser.set_window_size(500, 1200)
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    browser.set_window_size(1100, 2400)


def test_a_screenshot_shows_colours_of_the_verdicts(browser: webdriver.Chrome, tmp_path: Path):
    folder = SHOTS if str(SHOTS) != "." else tmp_path
    path = folder / "report.png"
    assert browser.save_screenshot(str(path))
    assert path.stat().st_size > 30_000
    colours = {browser.execute_script("return getComputedStyle(arguments[0]).color", e)
               for e in browser.find_elements(By.CSS_SELECTOR, "td.verdict")}
    assert len(colours) >= 4


def test_markdown_and_csv_carry_the_same_figures(verdict: dict, measurements: list[dict]):
    page = text.markdown(verdict, measurements)
    assert "1.86x [1.80, 1.93]" in page
    rows = tabular.csv_text(measurements).splitlines()
    assert len(rows) == 4
    assert measurements[0]["id"] in rows[1]
