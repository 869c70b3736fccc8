"""Fixtures that every test may use: where the real data is, and the command line."""

import functools
import gc
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import typer.main
from hypothesis import HealthCheck, settings

from storebench.probes.machine import damon
from tests.support.installed import Built, Environment, build, environment_with
from tests.support.kept_data import keep_real_data
from tests.support.leftovers import MEMORY, left_in, name_in_memory, own_temporary_folder, remove
from tests.support.parallel import (  # noqa: F401 - hooks of pytest
    LOCKS,
    in_order_of_scopes,
    pytest_configure,
    pytest_configure_node,
    pytest_runtest_protocol,
    pytest_xdist_make_scheduler,
)
from tests.support.quick_cli import SERVER, CommandServer
from tests.support.thinning import leave_out, pytest_sessionstart  # noqa: F401 - a hook of pytest

# No deadline: a busy machine is no defect. In CI the same examples every time: a red run must mean a change.
settings.register_profile(
    "storebench", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("storebench")

# A shell's background jobs ignore interrupts and nohup's SIGHUP, and every process that a test starts would, too.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

if multiprocessing.get_start_method() == "forkserver":
    # The default from Python 3.14 on, with which a worker imports torch anew. Tests of ways to start workers name theirs.
    multiprocessing.set_start_method("fork", force=True)

gc.disable()  # until all tests are collected: the collector would go through all imported modules again and again

WRITES_NO_BYTECODE = sys.dont_write_bytecode
"""Whether this process was told to write none. It holds again after the collection: tests change modules in place."""
sys.dont_write_bytecode = False  # or pytest rewrites all assertions in every run

RERUNS = 2
"""How often a test that counts pages is run again, on a machine that takes pages away while they are counted."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make test-full`."""
    parser.addoption("--full", action="store_true", help="run all cases, and the tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests of `still_pages` again where DAMON pushes idle pages out; order those of `pytest -n`."""
    if LOCKS in config.stash:
        in_order_of_scopes(items)
    if not config.getoption("--full"):
        leave_out(config, items)
    if damon() == "off":
        return
    for item in items:
        if item.get_closest_marker("still_pages"):
            item.add_marker(pytest.mark.flaky(reruns=RERUNS))


def pytest_collection_finish() -> None:
    """Freeze the imported and collected objects: they live to the end, and cells collect before they time."""
    sys.dont_write_bytecode = WRITES_NO_BYTECODE
    gc.collect()
    gc.freeze()
    gc.enable()


CompletedText = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session", autouse=True)
def nothing_stays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let temporary files be in a folder of this process, and hold the suite to leaving none there."""
    tmp_path_factory.getbasetemp()  # pytest chooses its own folder before
    with own_temporary_folder() as folder, pytest.MonkeyPatch.context() as patch:
        # Forked workers put their sockets where this process does; otherwise each that is killed leaves a folder.
        sockets = folder / "sockets"
        sockets.mkdir(mode=0o700)
        patch.setitem(vars(multiprocessing.current_process())["_config"], "tempdir", str(sockets))
        yield
        left = left_in(folder)
    assert not left, f"left in the folder for temporary files: {left}"


@pytest.fixture(scope="session", autouse=True)
def one_tree_of_commands() -> Iterator[None]:
    """Let typer make its tree of commands once: this takes longer than most calls of the command line."""
    made = functools.cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_command", made)
        patch.setattr("typer.testing._get_command", made)
        yield


@pytest.fixture(scope="session", autouse=True)
def real_data_is_kept() -> Iterator[None]:
    """Read the real files of a dataset once, and not for each store that a test builds of them."""
    with pytest.MonkeyPatch.context() as patch:
        keep_real_data(patch.setattr)
        yield


@pytest.fixture(scope="session", autouse=True)
def stay_frozen() -> Iterator[None]:
    """Keep objects frozen for the garbage collector, or each later collection would take most of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def freeze() -> None:
    """Freeze the objects of earlier test files for the garbage collector, because cells collect before each epoch."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def commands() -> CommandServer:
    """Run commands in copies of one process that has imported everything (`tests.support.quick_cli`)."""
    return SERVER


def pytest_unconfigure() -> None:
    """End the process that ran the commands, in the process that started it; no other runs tests any more."""
    SERVER.close()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder with the real data; the test is skipped, saying so, where there is none."""
    root = os.environ.get("STOREBENCH_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("STOREBENCH_DATA names no folder: real images are needed")
    return Path(root).resolve()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the source archive and the wheel, once."""
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Install the wheel into a fresh environment, once; a plugin that a test adds to it changes nothing else in it."""
    return environment_with(built.wheel, tmp_path_factory.mktemp("installed in a folder"))


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install a third party's package with a format into a folder that can be put on the path."""
    folder = tmp_path_factory.mktemp("site-packages")
    shutil.copy(Path(__file__).parent / "support" / "planted_plugin.py", folder)
    info = folder / "storebench_planted-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: storebench-planted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[storebench.formats]\nplanted = planted_plugin:PlantedFormat\n")
    return folder


@pytest.fixture
def cli(commands: CommandServer, tmp_path: Path) -> Callable[..., CompletedText]:
    """Run the real command line in a folder of its own, without waiting for an interpreter to start."""

    def run(*arguments: str, env: dict[str, str] | None = None, timeout: float = 120) -> CompletedText:
        return commands.run(*arguments, cwd=tmp_path, env={**os.environ, **(env or {})}, timeout=timeout)

    return run


@pytest.fixture
def fresh_cli(tmp_path: Path) -> Callable[..., CompletedText]:
    """Run the command line in an interpreter of its own: where it matters what is imported, and when."""

    def run(*arguments: str, env: dict[str, str] | None = None, timeout: float = 120) -> CompletedText:
        return subprocess.run(
            [sys.executable, "-m", "storebench", *arguments],
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """Make a folder in memory, where that is possible, for tests that sync hundreds of times."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < 256 << 20:
        yield tmp_path
        return
    folder = name_in_memory()
    folder.mkdir(mode=0o700)
    yield folder
    remove(folder)


@pytest.fixture
def largest_file() -> Callable[[int], AbstractContextManager[None]]:
    """Let no file grow beyond some bytes for the time of a context: a full disk that needs no root."""

    @contextmanager
    def limited(nbytes: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited
