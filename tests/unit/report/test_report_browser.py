"""The page in a real browser, narrow and wide: no script error, nothing wider than the screen, no lost image."""

import dataclasses
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from storebench.analysis.sharing import share
from storebench.record.schema import Environment, Status
from storebench.report.build import write_report
from tests.docs.machines import write_page
from tests.support.planted import make_record, paper_records, replicates, write_run

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), "")
MISSING = "there is no Chromium here: install it (Debian: apt-get install chromium; others: Chromium or Chrome on PATH)"

pytestmark = [
    pytest.mark.skipif(not BROWSER, reason=MISSING),
    pytest.mark.timeout(120),
]

LISTEN = "<script>window.complaints = []; window.onerror = (text) => window.complaints.push(String(text));</script>"
TOOLS = """<script>
const form = document.getElementById("filters");
const shown = (selector) => [...document.querySelectorAll(selector)].filter((one) => one.checkVisibility());
const texts = (selector) => shown(selector).map((one) => one.innerText.replace(/\\s+/g, " ").trim());
const choose = (name, value) => {
  form.elements[name].value = value;
  form.elements[name].dispatchEvent(new Event("change", { bubbles: true }));
};
const seen = () => ({
  columns: texts("#matrix thead th").slice(1),
  stores: texts("#matrix tbody th"),
  verdicts: shown("#matrix td a").map((one) => one.className),
  sorted: shown("#matrix th[aria-sort]").map((one) => one.getAttribute("aria-sort")),
  opened: texts("#opened caption"),
  chosen: texts("#opened tr.chosen th"),
  hash: location.hash,
});
const tell = (found) => {
  const told = document.createElement("pre");
  told.id = "found";
  told.textContent = JSON.stringify({ ...found, complaints: window.complaints });
  document.body.append(told);
};
</script>"""
LOOK = """<script>
document.querySelector("#matrix td a")?.click();
for (const one of document.querySelectorAll("details")) one.open = true;
document.querySelector("table.sortable th button")?.click();
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
    records = [
        *paper_records("cold"),
        *paper_records("warm"),
        *paper_records("warm", workers=2),
        make_record("hdf5", workers=4, status=Status.FAILED, failure="no space"),
        *replicates("png", [50.0, 51.0], workers=4),
    ]
    write_report(write_run(folder / "run", records, with_steps=True), folder / "report")
    return (folder / "report" / "report.html").read_text(encoding="utf-8")


def looked_at(text: str, width: int, folder: Path, script: str = LOOK, view: str = "") -> dict[str, Any]:
    """Open the page in a window of `width` pixels and return what the browser found."""
    page = folder / "page.html"
    watched = text.replace("<head>", f"<head>{LISTEN}", 1).replace("</body>", f"{script}</body>", 1)
    # A window is never narrower than some 500 pixels; a frame is what a phone shows.
    page.write_text(watched, encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(
        f'<!doctype html><body style="margin:0"><iframe id="f" src="page.html{view}" width="{width}" height="900" '
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


@pytest.mark.parametrize("width", [400, 1280], ids=["phone", "desk"])
def test_the_page_fits_and_nothing_is_missing(width: int, text: str, tmp_path: Path) -> None:
    found = looked_at(text, width, tmp_path)
    assert found["width"] == pytest.approx(width, abs=20)  # a scroll bar
    assert found["complaints"] == []
    assert found["wide"] == []
    assert found["page"] <= found["width"]
    assert found["lost"] == 0
    assert found["images"] >= 3


def clicked(text: str, folder: Path, steps: str, view: str = "", width: int = 1280) -> dict[str, Any]:
    """Open the page at a link, take steps in its matrix, and return what is seen."""
    found = looked_at(text, width, folder, f"{TOOLS}<script>{steps}; tell(seen());</script>", view)
    assert found["complaints"] == []
    return found


@pytest.mark.parametrize(
    ("name", "value", "columns"),
    [
        ("state", "in memory", 3),
        ("state", "from a cold start", 1),
        ("workers", "2", 1),
    ],
)
def test_a_filter_leaves_its_columns(name: str, value: str, columns: int, text: str, tmp_path: Path) -> None:
    before = clicked(text, tmp_path, "")
    found = clicked(text, tmp_path, f'choose("{name}", "{value}")')
    assert len(before["columns"]) == len(set(before["columns"])) == 4
    assert len(found["columns"]) == columns
    assert found["hash"] == f"#{urlencode({name: value})}"


def test_another_base_turns_the_verdicts(text: str, tmp_path: Path) -> None:
    usual = clicked(text, tmp_path, 'choose("state", "in memory")')
    against = clicked(text, tmp_path, 'choose("state", "in memory"); choose("base", "memory:native")')
    assert "faster" in usual["verdicts"]
    assert "slower" not in usual["verdicts"]
    assert "slower" in against["verdicts"]
    assert "faster" not in against["verdicts"]


def test_a_head_sorts_down_then_up_then_as_before(text: str, tmp_path: Path) -> None:
    press = 'document.querySelectorAll("#matrix th button")[1].click();'
    first, down, up, again = (clicked(text, tmp_path, press * times) for times in range(4))
    assert down["sorted"] == ["descending"]
    assert down["stores"][0] == "memory (native)"
    assert down["stores"] != first["stores"]
    rated = len(down["stores"])
    assert up["sorted"] == ["ascending"]
    assert up["stores"][:rated] == down["stores"][::-1]
    assert again["sorted"] == []
    assert again["stores"] == first["stores"]
    by_name = clicked(text, tmp_path, 'document.querySelector("#matrix th button").click()')
    assert by_name["stores"] == sorted(by_name["stores"], key=str.lower)


def test_a_cell_opens_its_tables_and_closes_again(text: str, tmp_path: Path) -> None:
    press = 'document.querySelector("#matrix tr[data-store=lmdb] td a").click();'
    opened = clicked(text, tmp_path, press)
    assert len(opened["opened"]) == 2
    assert set(opened["chosen"]) == {"LMDB"}
    assert clicked(text, tmp_path, press + press)["opened"] == []
    close = 'document.querySelector("#opened > button").click();'
    assert clicked(text, tmp_path, press + close)["opened"] == []


def test_a_cell_without_a_rate_says_why(text: str, tmp_path: Path) -> None:
    failed = """const cell = shown("#matrix tr[data-store=hdf5] a").find((one) => one.innerText.includes("failed"));
    cell.click(); tell({ told: shown("#opened")[0]?.innerText ?? "" });"""
    found = looked_at(text, 1280, tmp_path, f"{TOOLS}<script>{failed}</script>")
    assert "no space" in found["told"]


def test_a_link_gives_the_same_view(text: str, tmp_path: Path) -> None:
    steps = """choose("state", "in memory"); choose("base", "lmdb");
    document.querySelectorAll("#matrix th button")[1].click();
    shown("#matrix tr[data-store=png] td a")[0].click();"""
    made = clicked(text, tmp_path, steps)
    linked = clicked(text, tmp_path, "", made["hash"])
    assert made["opened"]
    assert linked == made
    phone = clicked(text, tmp_path, "", made["hash"], width=400)
    assert phone["stores"] == made["stores"]


@pytest.mark.parametrize("view", ["#state=nowhere&base=gone&sort=99&open=panel-99+x", "#%", "#panel-0"])
def test_a_link_to_nothing_shows_everything(view: str, text: str, tmp_path: Path) -> None:
    assert len(clicked(text, tmp_path, "", view)["columns"]) == 4


def test_every_table_can_be_read_without_a_script(text: str, tmp_path: Path) -> None:
    bare = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    found = looked_at(
        bare,
        1280,
        tmp_path,
        TOOLS
        + """<script>
    const links = [...document.querySelectorAll("#matrix td a")];
    tell({ ...seen(), lost: links.filter((one) => !document.querySelector(one.hash)).length, links: links.length });
    </script>""",
    )
    assert found["links"] >= 12
    assert found["lost"] == 0
    assert "faster" in found["verdicts"]


@pytest.fixture(scope="module")
def all_results(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of two shared runs, of different machines."""
    folder = tmp_path_factory.mktemp("machines")
    for machine, cores in (("small", 2), ("large", 64)):
        match = {"cpu": "Planted CPU", "cores": cores}
        records = [
            dataclasses.replace(record, environment=Environment(key=machine, match=match, notes={}))
            for record in [*paper_records("warm", run_id=machine), *paper_records("cold", run_id=machine)]
        ]
        run = write_run(folder / machine, records)
        (folder / f"{machine}.json.xz").write_bytes(share(run)[1])
    return write_page(folder, folder / "site").read_text(encoding="utf-8")


def test_the_page_of_all_results_shows_the_chosen_machines(all_results: str, tmp_path: Path) -> None:
    both = clicked(all_results, tmp_path, "")
    assert [column.split()[1] for column in both["columns"]] == ["2", "64"]
    assert "faster" in both["verdicts"]
    assert both["sorted"] == ["descending"]
    steps = """choose("machine", "Planted, 2 cores"); choose("store", "lmdb");"""
    one = clicked(all_results, tmp_path, steps)
    assert len(one["columns"]) == 1
    assert one["columns"][0].endswith("small")
    assert one["stores"] == ["LMDB"]
    phone = clicked(all_results, tmp_path, "", one["hash"], width=400)
    assert phone["stores"] == one["stores"]
    assert 'href="machines/small.json.xz"' in all_results
