"""The pages in a real browser: Chromium, headless, as `make test` sets it up."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

from openloop.decide import decide
from openloop.plan import Needs, make_plan, typed_system
from openloop.records import Manifest, Now, RunWriter, write_now
from openloop.report.curve import frontier_report, read_frontier_subject
from openloop.report.decision import decision_report
from openloop.report.files import find_browser, print_pdf
from openloop.report.html import page as write_page
from openloop.report.marks import Axis, Unit, interval_lines, names_figure
from openloop.report.page import Report, Section, show
from openloop.report.plan import plan_report
from openloop.report.run import read_run_subject, run_report
from openloop.score import score
from openloop.view import ViewServer
from tests.reports import SLO, fleet_run, hostile_run, look_up, write_frontier
from tests.runs import batch, row, steady_run, write_run

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 30_000

Open = Callable[..., Page]


def until(page: Page, condition: str) -> None:
    """Wait for it from outside: the page's policy lets nobody evaluate text inside, and that is well so."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < deadline:
        with suppress(Error):  # it may be going elsewhere just now
            if page.evaluate(condition):
                return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        which = find_browser() or driver.chromium.executable_path
        found = driver.chromium.launch(executable_path=which, args=FLAGS, timeout=PATIENCE_MS)
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens an address; anything that the console complains of, or that is asked of another machine, fails the test."""
    complaints: list[str] = []
    contexts = []

    def open_it(url: str, *, width: int = 1000, height: int = 800, scheme: Any = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on(
            "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on(
            "request",
            lambda each: None if each.url.startswith(url[:21]) or each.url == "data:," else complaints.append(each.url),
        )
        page.goto(url)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Report]]:
    folder = tmp_path_factory.mktemp("pages")
    found = {
        "run": run_report(read_run_subject(fleet_run())),
        "frontier": frontier_report(read_frontier_subject(write_frontier(folder / "front", (3, 6, 8, 11), 100.0))),
        "hostile": run_report(read_run_subject(hostile_run())),
        "invalid": run_report(read_run_subject(fleet_run(60))),
    }
    for name, report in found.items():
        (folder / f"{name}.html").write_text(write_page(report))
    return {name: ((folder / f"{name}.html").as_uri(), report) for name, report in found.items()}


@pytest.mark.parametrize("name", ["run", "frontier", "hostile", "invalid"])
def test_a_report_opens_and_shows_the_scorers_numbers(
    name: str, reports: dict[str, tuple[str, Report]], open_page: Open
) -> None:
    url, report = reports[name]
    page = open_page(url)
    told = page.evaluate(
        "[...document.querySelectorAll('[data-key]')].map(e => [e.dataset.key, e.value ?? e.dataset.value])"
    )
    assert len(told) > 100
    for key, value in told:
        wanted = look_up(report.data, key)
        assert (value == "" and wanted is None) or float(value) == pytest.approx(wanted, rel=1e-9), key
    marks = page.evaluate(
        """[...document.querySelectorAll('figure')].map(
            f => [f.id, f.querySelectorAll('svg.wide .mark :is(path, circle, rect)').length])"""
    )
    assert [figure for figure, _ in marks] == [f"figure-{figure.key}" for figure in report.figures]
    assert all(count > 0 for _, count in marks), marks
    off = page.evaluate(
        """[...document.querySelectorAll('svg.wide')].flatMap(svg => [...svg.querySelectorAll('circle')].filter(dot => {
            const box = svg.viewBox.baseVal, x = +dot.getAttribute('cx'), y = +dot.getAttribute('cy');
            return !(x >= 0 && x <= box.width && y >= 0 && y <= box.height); }))"""
    )
    assert off == []


def test_hostile_text_is_not_run(reports: dict[str, tuple[str, Report]], open_page: Open) -> None:
    page = open_page(reports["hostile"][0])
    assert page.title() != "owned"
    assert page.evaluate("document.querySelectorAll('img, iframe, [onload], [onerror]').length") == 0
    assert "onerror" in page.inner_text("main")  # there to be read
    page.locator("figure").first.hover()
    assert page.evaluate("document.querySelectorAll('img').length") == 0


def test_the_policy_stops_what_escaping_might_let_through(tmp_path: Path, browser: Browser) -> None:
    text = write_page(run_report(read_run_subject(fleet_run())))
    bad = text.replace(
        "</main>", "<script>document.title = 'owned'</script><img src=x onerror='document.title=1'></main>"
    )
    (tmp_path / "bad.html").write_text(bad)
    page = browser.new_page()
    page.goto((tmp_path / "bad.html").as_uri())
    page.wait_for_timeout(200)
    assert page.title() not in ("owned", "1")
    page.close()


def test_a_click_hides_a_curve_and_shows_it_again(reports: dict[str, tuple[str, Report]], open_page: Open) -> None:
    page = open_page(reports["run"][0])
    button = page.locator("#figure-distribution .legend button").first
    curve = page.locator("#figure-distribution svg.wide .mark[data-mark='0']")
    assert curve.is_visible()
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not curve.is_visible()
    button.press("Enter")
    assert curve.is_visible()


def test_the_pointer_and_the_arrow_keys_show_values(reports: dict[str, tuple[str, Report]], open_page: Open) -> None:
    page = open_page(reports["frontier"][0])
    figure = page.locator("#figure-frontier")
    figure.scroll_into_view_if_needed()
    box = figure.locator("svg.wide").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 150)
    tip = page.locator("#tip")
    assert "goodput" in tip.inner_text()
    assert "/s" in tip.inner_text()
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    figure.focus()
    for _ in range(15):
        page.keyboard.press("ArrowRight")
    assert "completed in the window" in tip.inner_text()
    page.keyboard.press("ArrowDown")
    assert "attainment" in tip.inner_text()


def aim(page: Page, figure: str, x: float, y: float) -> str:
    """What the page says at a place of a figure's first panel, both from 0 to 1."""
    page.locator(figure).scroll_into_view_if_needed()
    left, top = page.evaluate(
        """([figure, x, y]) => {
            const svg = document.querySelector(figure + ' svg.wide');
            const [l, t, w, h] = svg.querySelector('.panel').dataset.box.split(' ').map(Number);
            const spot = new DOMPoint(l + x * w, t + y * h).matrixTransform(svg.getScreenCTM());
            return [spot.x, spot.y]; }""",
        [figure, x, y],
    )
    page.mouse.move(left, top)
    return page.locator("#tip").inner_text()


def test_values_at_the_pointer_have_both_ends_of_their_intervals(
    reports: dict[str, tuple[str, Report]], open_page: Open, tmp_path: Path
) -> None:
    url, report = reports["run"]
    page = open_page(url)
    units: dict[Unit, tuple[float, ...]] = {
        "rate": (0.0, 0.004, 0.0512, 0.5, 5.0, 12.5, 250.0, 12345.6),
        "seconds": (0.0, 2e-6, 0.0123, 0.9997, 1.0, 119.97, 300.0, 7199.0, 9000.0),
        "share": (0.0, 1e-5, 0.0042, 0.5234, 0.95, 0.9912, 0.99997, 0.9999999999, 1.0),
        "money": (0.0, 4.44e-5, 0.002, 1.5, 12.0, 13821162.4),
    }
    for unit, values in units.items():
        for value in values:
            assert page.evaluate("([value, unit]) => window.openloop.show(value, unit)", [value, unit]) == show(
                value, unit
            )
    figure = names_figure("spans", "Spans", Axis("rate", "rate", low=0.0), ["one"], interval_lines([(2.0, 4.0)]))
    spans = replace(report, sections=[Section("spans", "Spans", "", [figure])])
    (tmp_path / "spans.html").write_text(write_page(spans))
    told = aim(open_page((tmp_path / "spans.html").as_uri()), "#figure-spans", 0.5, 0.5)
    assert f"95% interval: {show(2.0, 'rate')} to {show(4.0, 'rate')}" in told
    n = report.data["ttft_s"]["n"]
    told = aim(page, "#figure-distribution", math.log10(1 / 0.05) / math.log10(2 * n) + 0.004, 0.5)
    assert told.startswith("95.0%\n")
    low, high = (show(each, "seconds") for each in report.data["ttft_s"]["intervals"]["p95"])
    assert f"TTFT (n = {n:,}): {show(report.data['ttft_s']['p95'], 'seconds')} ({low} to {high})" in told
    url, report = reports["frontier"]
    point = report.data["points"][1]
    low, high = (show(each, "rate") for each in point["goodput_rps_interval"])
    told = aim(open_page(url), "#figure-frontier", point["rate"] / (1.02 * report.data["points"][-1]["rate"]), 0.5)
    assert f"goodput, 95% interval: {show(point['goodput_rps'], 'rate')} ({low} to {high})" in told


def test_the_keyboard_reaches_every_control(reports: dict[str, tuple[str, Report]], open_page: Open) -> None:
    page = open_page(reports["run"][0])
    wanted = page.evaluate("document.querySelectorAll('button, a[href], summary, figure, .table').length")
    reached = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    assert len(reached) >= wanted


CONTRAST = """() => {
    const parse = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
    const linear = (v) => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const ground = (e) => {
        for (; e; e = e.parentElement) {
            const c = parse(getComputedStyle(e).backgroundColor);
            if (c.length < 4 || c[3] > 0.5) return c;
        }
        return parse(getComputedStyle(document.documentElement).backgroundColor);
    };
    const words = (e) => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    return [...document.querySelectorAll('body *')].flatMap((e) => {
        if (!words(e) || !e.getClientRects().length || e.closest('script, style, .hide, :disabled')) return [];
        const style = getComputedStyle(e), ink = parse(e.closest('svg') ? style.fill : style.color);
        const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
        return ratio < 4.5 ? [[e.tagName, e.getAttribute('class'), e.textContent.slice(0, 40), ratio]] : [];
    });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["run", "frontier", "invalid"])
def test_text_stands_out_in_light_and_dark(
    name: str, scheme: str, reports: dict[str, tuple[str, Report]], open_page: Open
) -> None:
    page = open_page(reports[name][0], scheme=scheme)
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    assert page.evaluate(CONTRAST) == []


def test_the_button_changes_light_to_dark(reports: dict[str, tuple[str, Report]], open_page: Open) -> None:
    page = open_page(reports["run"][0])
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(CONTRAST) == []
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("name", ["run", "frontier", "hostile"])
@pytest.mark.parametrize("width", [360, 600, 1400])
def test_nothing_scrolls_sideways(
    name: str, width: int, reports: dict[str, tuple[str, Report]], open_page: Open
) -> None:
    page = open_page(reports[name][0], width=width)
    wide, shown = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= shown
    which = "narrow" if width <= 640 else "wide"
    assert page.locator(f"#figure-distribution svg.{which}").is_visible()


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("plan", 1000, "light"), ("plan", 360, "dark"), ("decision", 360, "light")]
)
def test_a_plan_and_a_decision_are_pages_like_the_others(
    name: str, width: int, scheme: str, tmp_path: Path, open_page: Open
) -> None:
    report = plan_page() if name == "plan" else decision_report(decide(QUESTION))
    (tmp_path / "page.html").write_text(write_page(report))
    page = open_page((tmp_path / "page.html").as_uri(), width=width, scheme=scheme)
    assert page.inner_text("h1") == report.headline
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.evaluate(CONTRAST) == []
    drawn = page.evaluate(
        """[...document.querySelectorAll('figure')].map(
            f => f.querySelectorAll('svg .mark :is(path, circle, rect)').length)"""
    )
    assert len(drawn) == len(report.figures)
    assert all(drawn)


QUESTION = {
    "decision": "migration",
    "demand": "10/s",
    "options": {
        "<b>A</b>": {"attainment": "58% of 9000", "cost_per_request": 0.011},
        "B": {"attainment": "85% of 9000", "cost_per_request": 0.0145},
    },
}


def plan_page() -> Report:
    """With every section there is."""
    system = typed_system([430.0, 450.0, 470.0], 64, 0.12, capacity=500.0, tokens=200.0)
    cache = "cache:hit=85%,replicas=4,saves=30%"
    needs = Needs(1.0, headroom=0.2, availability=0.9995, price=3.0, cache=cache, day="sine:rate=6000,swing=50%")
    return plan_report(make_plan(system, needs))


def test_paper_gets_every_section(
    reports: dict[str, tuple[str, Report]], browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLOOP_BROWSER", find_browser() or browser.browser_type.executable_path)
    print_pdf(write_page(reports["run"][1]), tmp_path / "r.pdf")
    made = (tmp_path / "r.pdf").read_bytes()
    assert made.startswith(b"%PDF")
    assert len(made) > 20_000


def test_paper_gets_what_is_folded(reports: dict[str, tuple[str, Report]], open_page: Open) -> None:
    page = open_page(reports["run"][0])
    page.evaluate(
        "document.querySelector('details').addEventListener('toggle', (e) => { e.target.dataset.was = '1'; })"
    )
    with_it = page.pdf()
    until(page, "document.querySelector('details').dataset.was === '1' && !document.querySelector('details').open")
    page.evaluate("document.querySelectorAll('details').forEach((each) => each.remove())")
    assert len(with_it) > len(page.pdf()) + 1_000


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewServer]:
    root = tmp_path_factory.mktemp("view")
    steady_run(slo="ttft<=300ms, tpot<=40ms").save(root / "steady")
    fleet_run().save(root / "fleet")
    hostile_run().save(root / "<img src=x onerror=alert(1)>\u202e")
    write_frontier(root / "front", (3, 9), 60.0)
    with ViewServer(root) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


def names(page: Page) -> list[str]:
    return [text.split("\n")[0] for text in page.locator("#list tbody td:nth-child(2)").all_inner_texts()]


def test_the_list_can_be_filtered_and_sorted(view: ViewServer, open_page: Open) -> None:
    page = open_page(view.url)
    until(page, "document.querySelectorAll('#list tbody .state.good').length >= 3")
    assert len(names(page)) == 4
    assert page.evaluate("document.querySelectorAll('#list img').length") == 0
    assert "<img src=x onerror=alert(1)>\ufffd" in names(page)
    page.fill("#words", "steady")
    assert names(page) == ["steady"]
    page.fill("#words", "")
    for up in (True, False):
        page.click("[data-sort=goodput]")
        shown = [text for text in page.locator("#list tbody td:nth-child(5)").all_inner_texts() if text != "-"]
        values = [float(text.removesuffix("/s")) for text in shown]
        assert values == sorted(values, reverse=not up)
        assert len(set(values)) > 1
    assert page.evaluate(CONTRAST) == []
    boxes = page.locator("#list input[type=checkbox]")
    boxes.nth(0).check()
    assert page.locator("#compare").is_disabled()
    boxes.nth(2).check()
    assert page.locator("#compare").is_enabled()
    page.click("#compare")
    until(page, "!!document.querySelector('#numbers table')")
    assert page.evaluate(CONTRAST) == []
    page.fill("#gates", "ttft<=150ms")
    until(page, "document.querySelector('.verdict').textContent.includes('ttft<=150ms')")
    page.go_back()
    until(page, "document.querySelectorAll('#list input:checked').length === 2")
    assert page.locator("#compare").is_enabled()


def test_valid_ones_are_not_those_that_are_not(tmp_path: Path, open_page: Open) -> None:
    steady_run(slo=SLO).save(tmp_path / "good")
    steady_run(50, slo=SLO).save(tmp_path / "short")
    with ViewServer(tmp_path) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        page = open_page(server.url)
        until(page, "document.querySelectorAll('#list tbody .state:not(:empty)').length === 2")
        for words, wanted in (
            ("valid", ["good"]),
            ("not valid", ["short"]),
            ("goo", ["good"]),
            ("", ["good", "short"]),
        ):
            page.fill("#words", words)
            assert names(page) == wanted
        server.shutdown()


def test_the_list_goes_on_while_a_box_has_the_focus(tmp_path: Path, open_page: Open) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="test", slo=SLO))
    writer.append(batch([row(i, i / 50, (0.1, 0.12)) for i in range(600)]))
    write_now(tmp_path / "run", Now(12.0, 605, 5))
    with ViewServer(tmp_path) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        page = open_page(server.url)
        until(page, "document.querySelectorAll('#list tbody .state.live').length === 1")
        page.locator("#list input").check()
        writer.finish()
        steady_run(slo=SLO).save(tmp_path / "another")
        until(page, "document.querySelectorAll('#list tbody .state.good').length === 2")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Choose run"
        assert page.evaluate("document.activeElement.checked")
        page.locator("#list a").last.focus()
        fleet_run().save(tmp_path / "third")
        until(page, "document.querySelectorAll('#list tbody tr').length === 3")
        assert page.evaluate("document.activeElement.textContent") == "run"
        server.shutdown()


def test_a_slider_scores_again(view: ViewServer, open_page: Open) -> None:
    page = open_page(f"{view.url}show?what=steady")
    slider = page.locator("[data-gate=ttft]")
    slider.focus()
    for _ in range(45):
        page.keyboard.press("ArrowLeft")
    until(page, "document.getElementById('state').textContent.startsWith('scored in')")
    page.wait_for_timeout(600)
    slo = page.input_value("#gates")
    assert slo != "ttft<=300ms, tpot<=40ms"
    wanted = score(view.shelf.root / "steady", slo)
    assert wanted.attainment < 1
    assert float(page.locator(".numbers [data-key=attainment]").get_attribute("value") or "") == wanted.attainment
    assert slo.replace("<=", "<=") in page.inner_text(".verdict")


def test_sliders_follow_the_text(view: ViewServer, open_page: Open) -> None:
    page = open_page(f"{view.url}show?what=steady")

    def write(slo: str, shown: str) -> list[str]:
        page.fill("#gates", slo)
        until(
            page, f"document.querySelector('.verdict').textContent.includes('{shown}') && location.search.match('slo=')"
        )
        return [" ".join(text.split()) for text in page.locator("label.slider").all_inner_texts()]

    assert write("ttft <= 100ms, tpot<=20ms", "met ttft<=100ms, tpot<=20ms") == ["ttft 100 ms", "tpot 20.0 ms"]
    page.locator("[data-gate=ttft]").press("ArrowRight")
    assert page.input_value("#gates") == "ttft<=102ms, tpot<=20ms"
    assert write("e2e<=5s", "met e2e<=5s") == ["e2e 5.00 s"]
    assert write("rag, ttft<=1s", "met ttft<=1s, tpot<=") == ["ttft 1.00 s", "tpot 60.0 ms"]
    page.locator("[data-gate=tpot]").press("ArrowLeft")
    assert page.input_value("#gates") == "rag, ttft<=1s, tpot<=58.6ms"
    page.fill("#gates", "")
    until(page, "document.querySelector('.verdict').textContent.includes('met ttft<=300ms, tpot<=40ms')")
    assert "slo=" not in page.url
    page.locator("[data-gate=ttft]").press("ArrowRight")
    assert page.input_value("#gates") == "ttft<=307ms, tpot<=40ms"


def test_an_slo_that_cannot_be_read_is_explained_in_the_page(view: ViewServer, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{view.url}show?what=steady")
    page.fill("#gates", "nonsense<=3")
    until(page, "document.getElementById('state').textContent.includes('unknown gate')")
    assert page.locator(".badge").inner_text() == "Valid"
    page.close()


def test_a_run_without_an_slo_is_scored_once_it_is_given_one(tmp_path: Path, open_page: Open) -> None:
    steady_run().save(tmp_path / "imported")
    with ViewServer(tmp_path) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        rows = [row(i, i / 20, (0.9 if i == 7 else 0.1, 0.95)) for i in range(3000)]
        write_run(tmp_path / "nines", rows, slo="ttft<=500ms")
        page = open_page(server.url)
        until(page, "document.querySelectorAll('#list tbody .state:not(:empty)').length === 2")
        assert page.locator("#list tbody .state").all_inner_texts() == ["no SLO", "valid"]
        assert page.locator("#list tbody td:nth-child(6)").all_inner_texts() == ["-", "99.97%"]
        page.click("#list tbody a")
        page.fill("#gates", "ttft<=150ms")
        until(page, "document.querySelector('.badge')?.textContent === 'Valid'")
        wanted = score(tmp_path / "imported", "ttft<=150ms")
        assert float(page.locator(".numbers [data-key=attainment]").get_attribute("value") or "") == wanted.attainment
        page.reload()
        assert page.locator("[data-gate=ttft]").count() == 1
        server.shutdown()


def test_a_run_in_progress_updates_itself_and_becomes_a_report(tmp_path: Path, open_page: Open) -> None:
    rows = [row(i, i / 50, (0.1, 0.12)) for i in range(600)]
    writer = RunWriter(tmp_path / "run", Manifest(source="test", slo=SLO))
    writer.append(batch(rows[:100]))
    write_now(tmp_path / "run", Now(2.0, 105, 5))
    with ViewServer(tmp_path) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        page = open_page(f"{server.url}show?what=run")
        assert page.inner_text(".badge") == "In progress"
        for part in range(1, 6):
            writer.append(batch(rows[100 * part : 100 * part + 100]))
            write_now(tmp_path / "run", Now(2.0 * part + 2.0, 100 * part + 105, 7))
        until(page, "document.querySelector('h1').textContent.includes('600 attempts')")
        assert page.locator(".numbers [data-key=in_flight]").inner_text() == "7"
        writer.finish()
        until(page, "document.querySelector('.badge').textContent === 'Valid'")
        server.shutdown()


def test_a_page_that_goes_on_keeps_what_its_reader_did(tmp_path: Path, open_page: Open) -> None:
    rows = [row(i, i / 50, (0.1, 0.12)) for i in range(600)]
    writer = RunWriter(tmp_path / "run", Manifest(source="test", slo=SLO))
    writer.append(batch(rows[:300]))
    write_now(tmp_path / "run", Now(6.0, 305, 5))
    with ViewServer(tmp_path) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        page = open_page(f"{server.url}show?what=run")
        button = page.locator("#figure-live .legend button").first
        button.click()
        page.locator("#figure-live").focus()
        for _ in range(20):
            page.keyboard.press("ArrowRight")
        assert page.locator("#tip").inner_text().startswith("4.00 s")
        writer.append(batch(rows[300:]))
        write_now(tmp_path / "run", Now(12.0, 605, 5))
        until(page, "document.querySelector('h1').textContent.includes('600 attempts')")
        assert button.get_attribute("aria-pressed") == "false"
        assert not page.locator("#figure-live svg.wide .mark[data-mark='0']").is_visible()
        assert page.evaluate("document.activeElement.id") == "figure-live"
        assert page.locator("#tip").is_visible()
        assert page.locator("#tip").inner_text().startswith("5.00 s")  # at the same place of the axis as it is now
        button.focus()
        write_now(tmp_path / "run", Now(13.0, 605, 4))
        until(page, "document.querySelector('h1').textContent.startsWith('13.0 s')")
        assert page.evaluate("document.activeElement.tagName") == "BUTTON"
        writer.finish()
        server.shutdown()


def test_a_run_without_an_slo_that_ends_asks_for_one(tmp_path: Path, open_page: Open) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="test"))
    writer.append(batch([row(i, i / 50, (0.1, 0.12)) for i in range(600)]))
    write_now(tmp_path / "run", Now(12.0, 605, 5))
    with ViewServer(tmp_path) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        page = open_page(f"{server.url}show?what=run")
        assert page.inner_text(".badge") == "In progress"
        writer.finish()
        until(page, "document.querySelector('.verdict').textContent.includes('has no SLO of its own')")
        until(page, "!document.querySelector('#slo').dataset.live")
        page.fill("#gates", "ttft<=300ms")
        until(page, "document.querySelector('.badge')?.textContent === 'Valid'")
        server.shutdown()


@pytest.mark.parametrize(("width", "seen"), [(1300, 10), (1000, 10), (360, 5)])
def test_every_row_of_the_list_shows_its_verdict_however_long_its_name(
    width: int, seen: int, tmp_path: Path, open_page: Open
) -> None:
    steady_run(slo=SLO, model="llama-3.1-8b", started_at="2026-11-16T16:12:00Z").save(tmp_path / ("long-name_" * 14))
    with ViewServer(tmp_path) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        page = open_page(server.url, width=width)
        until(page, "document.querySelectorAll('#list tbody .state.good').length === 1")
        shown = page.evaluate(
            """(() => { const edge = document.querySelector('.table').getBoundingClientRect().right + 1;
                return [...document.querySelectorAll('#list tbody td')].filter(
                    td => td.offsetWidth && td.getBoundingClientRect().right <= edge).length; })()"""
        )
        assert shown == seen
        server.shutdown()


def test_the_view_fits_a_phone(view: ViewServer, open_page: Open) -> None:
    for path in ("", "show?what=fleet"):
        page = open_page(view.url + path, width=360)
        page.wait_for_timeout(300)
        wide, shown = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide <= shown, path
