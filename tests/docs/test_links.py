"""Links between documents lead somewhere, and the modules that guides name exist."""

import re
import unicodedata
from pathlib import Path

import pytest

from tests.docs.doc_files import DOCUMENTS, ROOT, name_of, prose
from tests.docs.figures import DRAWN

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)[^)]*\)")


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE):
        text = unicodedata.normalize("NFC", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
        number = 0
        while f"{anchor}-{number}" in found or (not number and anchor in found):
            number += 1
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_resolve(document: Path) -> None:
    for target in _LINK.findall(prose(document)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), f"{document.name}: no {target}"
        assert path.is_relative_to(ROOT), f"{document.name}: {target} leaves the project"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{document.name}: no {target}; there are {sorted(anchors(path))}"


def test_the_index_names_every_document() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    missing = [path.name for path in (ROOT / "docs").glob("*.md") if f"({path.name})" not in index]
    assert missing == ["README.md"]


def test_every_figure_is_one_that_make_figures_draws() -> None:
    shown = {name for document in DOCUMENTS for name in re.findall(r"figures/([\w-]+)\.svg", prose(document))}
    assert shown <= set(DRAWN)


def test_no_document_names_a_path_of_one_machine() -> None:
    for document in DOCUMENTS:
        found = re.findall(
            r"(?<![\w.])/(?:home|root|work|Users|tmp)/\S*", document.read_text(encoding="utf-8")
        )
        assert not found, f"{document.name}: {found}"


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_module_and_folder_that_a_guide_names_is_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    folders = ("storebench", "tests", "benchmarks", "docs", "scenarios")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    known = {f"/{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}" for path in paths}
    known |= {f"/{folder}/" for folder in folders}
    named = set(re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", text))
    assert len(named) > 1
    assert [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in known)] == [
        "formats/NAME/"
    ] * (name == "docs/architecture.md")


def test_the_architecture_names_every_room_and_every_module_beside_them() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "storebench"
    rooms = {path.parent for path in package.rglob("__init__.py")} - {package}
    per_format = {path for path in rooms if path.parent == package / "formats" and path.name != "reads"}
    missing = [room.name for room in rooms - per_format if not re.search(rf"\b{room.name}(/|`)", text)]
    modules = [path.name for path in package.glob("*.py") if not path.name.startswith("_")]
    assert sorted(missing + [name for name in modules if name not in text]) == []
