"""The page in a real browser, on a phone and on a desk: no script error, nothing wider than the screen, no lost image."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from storebench.report.build import write_report
from tests.support.planted import paper_records, write_run

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), "")
MISSING = "there is no Chromium here: install it (Debian: apt-get install chromium; others: Chromium or Chrome on PATH)"

pytestmark = [
    pytest.mark.skipif(not BROWSER, reason=MISSING),
    pytest.mark.timeout(120),
]

LISTEN = "<script>window.complaints = []; window.onerror = (text) => window.complaints.push(String(text));</script>"
CLICKS = """<script>
const form = document.getElementById("filters");
const cells = () => [...document.querySelectorAll("#matrix td button")].map((one) => one.className);
const before = cells();
form.elements.base.value = "lmdb";
form.dispatchEvent(new Event("change"));
const against = cells();
document.querySelector("#matrix th button").click();
const first = document.querySelector("#matrix tbody th").textContent;
form.elements.state.value = "from a cold start";
form.dispatchEvent(new Event("change"));
const columns = document.querySelectorAll("#matrix thead th").length;
document.querySelector("#matrix td button").click();
const opened = [...document.querySelectorAll("details")].filter((one) => one.open).length;
const told = document.createElement("pre");
told.id = "found";
told.textContent = JSON.stringify({
  before, against, first, columns, opened, hash: location.hash, complaints: window.complaints,
});
document.body.append(told);
</script>"""
LOOK = """<script>
document.querySelector("table.sortable th button, table.sortable th")?.click();
const wide = [...document.querySelectorAll("body *")].filter((one) => {
  const box = one.getBoundingClientRect();
  return box.width && box.right > document.documentElement.clientWidth + 1 && !one.closest(".scroll");
});
const found = {
  width: document.documentElement.clientWidth,
  page: document.documentElement.scrollWidth,
  wide: wide.slice(0, 5).map((one) => one.tagName + "." + one.className),
  lost: [...document.images].filter((one) => one.complete && !one.naturalWidth).length,
  images: document.images.length,
  complaints: window.complaints,
};
const told = document.createElement("pre");
told.id = "found";
told.textContent = JSON.stringify(found);
document.body.append(told);
</script>"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("browser")
    write_report(
        write_run(folder / "run", paper_records("cold") + paper_records("warm"), with_steps=True),
        folder / "report",
    )
    return (folder / "report" / "report.html").read_text(encoding="utf-8")


def looked_at(text: str, width: int, folder: Path, script: str = LOOK) -> dict[str, Any]:
    """Open the page in a window of `width` pixels and return what the browser found."""
    page = folder / "page.html"
    watched = text.replace("<head>", f"<head>{LISTEN}", 1).replace("</body>", f"{script}</body>", 1)
    # A window is never narrower than some 500 pixels; a frame is what a phone shows.
    page.write_text(watched, encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(
        f'<!doctype html><body style="margin:0"><iframe id="f" src="page.html" width="{width}" height="900" '
        'style="border:0"></iframe><script>document.getElementById("f").onload = () => { const told = '
        'document.createElement("pre"); told.id = "found"; told.textContent = document.getElementById("f")'
        '.contentDocument.getElementById("found").textContent; document.body.append(told); };</script></body>',
        encoding="utf-8",
    )
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [f"--user-data-dir={folder / 'profile'}", "--allow-file-access-from-files", "--dump-dom"]
    command += ["--virtual-time-budget=5000", "--window-size=1400,1000", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(unescape(found.group(1)))
    return told


@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desk"])
def test_the_page_fits_and_nothing_is_missing(width: int, text: str, tmp_path: Path) -> None:
    found = looked_at(text, width, tmp_path)
    assert found["width"] == pytest.approx(width, abs=20)  # a scroll bar
    assert found["complaints"] == []
    assert found["wide"] == []
    assert found["page"] <= found["width"]
    assert found["lost"] == 0
    assert found["images"] >= 3


def test_the_look_would_see_what_is_wrong(text: str, tmp_path: Path) -> None:
    broken = text.replace(
        "</main>",
        '<div style="width: 3000px">x</div><img src="gone.png" alt="gone"><script>nothing.at.all</script></main>',
        1,
    )
    assert broken != text
    found = looked_at(broken, 390, tmp_path)
    assert found["complaints"]
    assert found["wide"]
    assert found["lost"] == 1


def test_the_matrix_filters_compares_sorts_and_opens(text: str, tmp_path: Path) -> None:
    found = looked_at(text, 1280, tmp_path, CLICKS)
    assert found["complaints"] == []
    assert {"faster", "base"} <= set(found["before"])
    assert {"slower", "base"} <= set(found["against"])
    assert found["first"] == "memory (native)"
    assert found["columns"] == 2
    assert found["opened"] >= 1
    assert "base=lmdb" in found["hash"]
