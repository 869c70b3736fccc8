"""The documents that are made from the code are what the code makes now."""

import re

import pytest

from storebench import errors
from tests.docs.doc_files import ROOT
from tests.docs.generate import ENVIRONMENT, EXIT_CODES, GENERATED, verbs


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_document_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == GENERATED[name](), "run 'make docs'"


def test_every_verb_has_a_section_with_all_its_options() -> None:
    text = GENERATED["docs/cli.md"]()
    assert len(dict(verbs())) > 8
    for name, verb in verbs():
        section = text.split(f"\n## storebench {name}\n")[1].split("\n## ")[0]
        options = {
            name for param in verb.params for name in (*param.opts, *param.secondary_opts) if name[0] == "-"
        }
        found = set(re.findall(r"(?<=[`, ])--?[a-z][a-z-]*(?=[`, ])", section))
        assert options - {"--help"} <= found, name


def test_every_exit_code_is_explained() -> None:
    assert set(EXIT_CODES) == {value for name, value in vars(errors).items() if name.startswith("EXIT_")}


def test_every_environment_variable_is_explained() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "storebench").rglob("*.py")]
    assert set(ENVIRONMENT) == set(re.findall(r"\"(STOREBENCH_[A-Z_]+)\"", "\n".join(sources)))
