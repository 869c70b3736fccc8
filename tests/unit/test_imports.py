"""Commands that do not train never load torch; a contract of import-linter holds the same for what they may import."""

import subprocess
import sys

PACKAGE = "storebench"

PARENTS = (
    "run.execute", "run.dry_run", "run.follower", "run.folder", "run.cell_process", "run.first_run", "stores.convert",
    "analysis.answer", "analysis.plan.plan", "report.build", "report.trace", "check.against", "cli.main", "worker.job",
)  # fmt: skip


def test_the_parent_process_does_not_load_torch() -> None:
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name\n"
    )
    modules = [f"{PACKAGE}.{name}" for name in PARENTS]
    done = subprocess.run([sys.executable, "-c", code, *modules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
