"""Links between documents lead somewhere, and the pages that are made from the code are what it makes now."""

import re
import unicodedata
from pathlib import Path

import pytest

from storebench import errors
from tests.docs.doc_files import DOCUMENTS, ROOT, name_of, prose
from tests.docs.generate import MADE_OF, page

_LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)")


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
        if re.match(r"[a-z]+:|\.\./\.\./(actions|releases)", target):  # GitHub's pages beside the files
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), f"{document.name}: no {target}"
        assert path.is_relative_to(ROOT), f"{document.name}: {target} leaves the project"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{document.name}: no {target}; there are {sorted(anchors(path))}"


@pytest.mark.parametrize("name", MADE_OF)
def test_a_generated_document_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == page(name), "run 'make docs'"


def test_every_exit_code_is_explained() -> None:
    codes = re.findall(r"^\| (\d+) \|", (ROOT / "docs/cli.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(map(int, codes)) == {code for name, code in vars(errors).items() if name.startswith("EXIT_")}
