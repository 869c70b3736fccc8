"""What validation finds in a run's folder."""

from pathlib import Path

from storebench.analysis.checks.findings import Finding
from storebench.analysis.checks.records import examine


def validate(run: Path | list[Path]) -> list[Finding]:
    return list(examine(run).findings)
