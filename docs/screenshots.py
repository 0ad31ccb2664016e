"""Take the pictures of pages that the docs show, from simulated runs. Needs a browser (make screenshots)."""

import tempfile
import threading
from pathlib import Path

import msgspec
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from openloop.frontier.folder import SweepAsked
from openloop.load.scenario import read_scenario
from openloop.records import Prices
from openloop.report.files import find_browser
from openloop.report.html import page
from openloop.report.read import read_report
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.view import ViewServer

FIGURES = Path(__file__).parent / "figures"
SLO = "ttft<=1s, tpot<=30ms"
RATES = (4.0, 8.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0, 25.0, 28.0)
FLEET = "model: 8b\ngpu: h100\nbatching: chunked\n"
ASK = {
    "prompt": "lognormal(median=900,sigma=0.7)",
    "output": "lognormal(median=200,sigma=0.5)",
    "slo": SLO,
    "for": "10m",
}


def make_data(folder: Path) -> None:
    (folder / "fleet.yaml").write_text(FLEET)
    fleet = read_fleet(folder / "fleet.yaml")
    for number, rate in enumerate(RATES):
        asked = read_scenario(None, {**ASK, "rate": rate, "seed": number}, live=False)
        run = simulate_fleet(
            fleet,
            asked.read_workload(),
            asked.read_arrivals(),
            asked.horizon_s,
            asked.seed,
            asked.objectives(),
            slo=SLO,
            prices=Prices(per_hour=2.5),
        )
        run.save(folder / "h100" / "points" / f"{rate:g}-1")
        if rate in (16.0, 22.0):
            run.save(folder / f"{rate:g} per second")
    asked_for = SweepAsked(
        source="sim",
        slo=SLO,
        target=0.99,
        rates=list(RATES),
        seconds=600.0,
        repeat=1,
        precision=0.05,
        scenario={"fleet": FLEET},
        current=12.0,
        stopped="all rates were measured",
    )
    (folder / "h100" / "frontier.json").write_bytes(msgspec.json.encode(asked_for))


def shoot(
    browser: Browser, url: str, name: str, *, dark: bool = False, at: str | None = None, height: int = 900
) -> None:
    """The page from its top, or one part of it."""
    context = browser.new_context(viewport={"width": 980, "height": height}, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.goto(url)
    page.wait_for_timeout(1500)
    if at:
        page.locator(at).screenshot(path=FIGURES / name)
    else:
        page.screenshot(path=FIGURES / name)
    context.close()
    taken = Image.open(FIGURES / name).convert("RGB")
    taken.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE).save(
        FIGURES / name, optimize=True
    )
    print(f"{name}: {(FIGURES / name).stat().st_size / 1000:.0f} kB")


def main() -> None:
    with tempfile.TemporaryDirectory() as work, sync_playwright() as driver:
        folder = Path(work) / "runs"
        folder.mkdir()
        make_data(folder)
        browser = driver.chromium.launch(executable_path=find_browser(), args=["--no-sandbox", "--disable-gpu"])
        (folder / "report.html").write_text(page(read_report(folder / "h100")))
        (folder / "run.html").write_text(page(read_report(folder / "22 per second")))
        shoot(browser, (folder / "report.html").as_uri(), "report.png", height=1290)
        shoot(browser, (folder / "run.html").as_uri(), "tokens.png", dark=True, at="#tokens")
        with ViewServer(folder) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            shown = f"{server.url}show?what=16%20per%20second&slo=ttft<=300ms,%20tpot<=22ms"
            shoot(browser, shown, "view.png", height=1120)
            server.shutdown()
        browser.close()


if __name__ == "__main__":
    main()
