"""``storebench formats``: what it lists, and what it says where a library is missing."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from storebench.errors import PLYVEL, install_line
from storebench.formats.registry import BUILTIN

CompletedText = subprocess.CompletedProcess[str]


def test_every_format_is_listed_with_its_traits(cli: Callable[..., CompletedText]) -> None:
    rows = {row["name"]: row for row in json.loads(cli("formats", "--json").stdout)}
    assert set(BUILTIN) <= set(rows)
    assert rows["memory"]["readers"]["native"]["traits"]["holds_pixels"]
    assert not rows["lmdb"]["readers"]["get"]["traits"]["holds_pixels"]
    assert rows["lmdb"]["readers"]["get"]["options"]["readahead"] == {
        "type": "flag",
        "default": "on",
        "values": "on or off",
        "meaning": "let the kernel read ahead of page faults",
    }
    assert rows["files"]["default_codec"] == "png"
    lines = cli("formats").stdout.splitlines()
    hdf5 = next(line for line in lines if line.startswith("hdf5 "))
    assert "raw*" in hdf5
    assert "get*" in hdf5


def test_a_missing_library_is_no_error(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules[{PLYVEL!r}] = None; sys.argv[1:] = ['formats']; "
        "from storebench.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("leveldb "))
    assert install_line(PLYVEL) in row
    assert f"the library {PLYVEL!r}, which is not installed" in done.stdout
