"""Write what ``storebench validate`` says of each reference run, beside its records: ``make validations``."""

import hashlib
import subprocess
import sys
from pathlib import Path

from storebench.runs.records import RECORDS_NAME

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = Path("results") / "reference"
NAME = "validation.txt"


def runs() -> list[Path]:
    """Return the folders of all reference runs, relative to the root; ``nodes`` has the results of checks and is no run."""
    return [path.parent.relative_to(ROOT) for path in sorted((ROOT / REFERENCE).glob("*/run.json"))]


def validation(run: Path, printed: str, code: int) -> str:
    """Return the text of a run's file.

    Parameters
    ----------
    run
        Its folder, relative to the root.
    printed, code
        Output and exit code of ``storebench validate`` on it.
    """
    files = [path for path in sorted((ROOT / run).iterdir()) if path.is_file() and path.name != NAME]
    records = len((ROOT / run / RECORDS_NAME).read_text(encoding="utf-8").splitlines())
    lines = [f"$ storebench validate {run}", printed.strip(), f"exit code {code}; {records} records", ""]
    lines += [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Validate every reference run, and write its file."""
    for run in runs():
        command = [sys.executable, "-m", "storebench", "validate", str(run)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        text = validation(run, done.stdout + done.stderr, done.returncode)
        (ROOT / run / NAME).write_text(text, encoding="utf-8")
        print(run, "-", text.splitlines()[2])


if __name__ == "__main__":
    main()
