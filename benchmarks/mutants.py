"""Plant each fault of mutants.toml into a copy of the sources, and see whether its tests fail.

    python -m benchmarks.mutants [WORD...]     only the faults whose text contains all of these words

Exit code 0 if the tests find every fault, 1 if one survives, 2 if a fault's text is no longer in its file.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
COPIED = ("storebench", "tests", "pyproject.toml")
"""Everything else is linked: no test writes there."""


def main(words: Sequence[str] = ()) -> int:
    mutants = tomllib.loads((HERE / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    chosen = [mutant for mutant in mutants if all(word in str(mutant) for word in words)]
    if stale := [
        mutant for mutant in chosen if (ROOT / mutant["file"]).read_text().count(mutant["old"]) != 1
    ]:
        for mutant in stale:
            print(f"{mutant['file']}: not exactly once in this file: {mutant['old']!r}")
        return 2
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        _copy(copy)
        for mutant in chosen:
            is_killed = _is_killed(copy, mutant)
            survivors += not is_killed
            print(
                f"{'killed' if is_killed else 'SURVIVES'}: {mutant['fault']} ({mutant['file']})", flush=True
            )
    print(f"{len(chosen) - survivors} of {len(chosen)} faults are found by their tests")
    return int(survivors > 0)


def _copy(target: Path) -> None:
    target.mkdir()
    for source in ROOT.iterdir():
        if source.name in COPIED and source.is_dir():
            shutil.copytree(source, target / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.name in COPIED:
            shutil.copy(source, target)
        elif source.name not in {".git", ".pytest_cache"}:
            (target / source.name).symlink_to(source)


def _is_killed(copy: Path, mutant: dict[str, str]) -> bool:
    path = copy / mutant["file"]
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(mutant["old"], mutant["new"]), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant["tests"].split()]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    finally:
        path.write_text(original, encoding="utf-8")
    if ran.returncode not in (0, 1):  # a usage error, or an interrupt, is no failed test
        sys.exit(
            f"{mutant['file']}: pytest ended with {ran.returncode}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}"
        )
    return ran.returncode == 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
