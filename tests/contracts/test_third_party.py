"""A format of somebody else's, found through a real entry point and held to the same contract."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.doc_files import PLUGIN_GUIDE, ROOT, fences
from tests.support.quick_cli import CommandServer

MODULE = "storebench_pack.py"
[PLUGIN] = [
    fence.text for fence in fences(ROOT / "docs" / PLUGIN_GUIDE) if fence.text.startswith(f"# file: {MODULE}")
]
"""The format of the guide."""


TESTS = """
from storebench.testing.contract import FormatContract


class TestPack(FormatContract):
    format_name = "pack"
"""


@pytest.fixture
def plugin(tmp_path: Path) -> dict[str, str]:
    """Install the plugin as pip would, into a folder of its own; return the environment that finds it."""
    site = tmp_path / "site"
    metadata = site / "storebench_pack-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / MODULE).write_text(PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: storebench-pack\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[storebench.formats]\npack = storebench_pack:PackFormat\n")
    return {**os.environ, "PYTHONPATH": str(site)}


def test_it_is_listed(plugin: dict[str, str], commands: CommandServer, tmp_path: Path) -> None:
    listed = commands.run("formats", "--json", cwd=tmp_path, env=plugin)
    found = {row["name"]: row for row in json.loads(listed.stdout)}
    assert found["pack"]["builtin"] is False
    table = commands.run("formats", cwd=tmp_path, env=plugin)
    assert "installed (storebench_pack)" in table.stdout


def test_an_entry_point_without_a_format_is_called_so(
    plugin: dict[str, str], commands: CommandServer, tmp_path: Path
) -> None:
    points = "[storebench.formats]\npack = storebench_pack:PackFromat\n"
    next(tmp_path.rglob("entry_points.txt")).write_text(points)
    listed = commands.run("formats", cwd=tmp_path, env=plugin)
    assert listed.returncode == 0
    assert "storebench_pack:PackFromat is no format" in listed.stdout
    refused = commands.run("run", "pack", "-d", "mnist", cwd=tmp_path, env=plugin)
    assert refused.returncode == 2
    assert "pack: storebench_pack:PackFromat is no format. The entry point of its package" in refused.stderr


def test_one_that_breaks_the_contract_is_found_out(plugin: dict[str, str], tmp_path: Path) -> None:
    broken = PLUGIN.replace("self._checked(indices)", "indices.tolist()")
    (tmp_path / "site" / MODULE).write_text(broken)
    (tmp_path / "test_pack.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "no_sample_has"],
        cwd=tmp_path,
        env=plugin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
