"""The package's own imports: no module reaches itself again, and the parent process never loads torch."""

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import grimp

PACKAGE = "storebench"


def modules_and_imports() -> dict[str, set[str]]:
    """Return each module with the modules that it imports, whether at its top or inside a function."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    return {
        # The package's own face names what it exports for type checkers only.
        module: set() if module == PACKAGE else graph.find_modules_directly_imported_by(module)
        for module in graph.modules
    }


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Return the modules of one circle, first and last the same; none where there is no circle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circle(modules_and_imports()) == []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) != []


def test_readers_do_not_import_formats_and_formats_not_each_other() -> None:
    rooms = ("files", "hdf5", "memory", "leveldb", "lmdb")
    for module, imported in modules_and_imports().items():
        room = module.removeprefix(f"{PACKAGE}.formats.").partition(".")[0]
        if room not in rooms or not module.startswith(f"{PACKAGE}.formats."):
            continue
        others = [f"{PACKAGE}.formats.{other}." for other in rooms if other != room]
        assert not [name for name in imported if name.startswith(tuple(others))], module
        if not module.endswith(".format"):
            assert f"{PACKAGE}.formats.{room}.format" not in imported, module


PARENTS = (
    "runner", "stores.convert", "report.build", "check.confirm", "cli.main", "runs.folder", "worker.job", "worker.launch",
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
