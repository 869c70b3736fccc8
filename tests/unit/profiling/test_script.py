"""``storebench profile SCRIPT`` runs the script as Python itself does, and adds a verdict."""

import json
from pathlib import Path

import pytest

from storebench.formats.registry import get_format
from storebench.testing.stores import build_small_store
from tests.support.profiled import profile, run

LOOP = """\
import os, signal, sys, threading
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.full((3, 4, 4), index), index

def train(context="fork"):
    total = 0
    for images, labels in DataLoader(Images(), batch_size=4, num_workers=1, multiprocessing_context=context):
        total += int(labels.sum())
    print(total, __name__, sys.argv[1:])
    sys.stdout.flush()

"""
WORDS = ("--help", "-m", "x")
TRAINED = "780 __main__ ['--help', '-m', 'x']\n"


def split(stderr: str) -> tuple[list[str], list[str]]:
    """Return the script's lines and ours, which begin with the name and go on indented."""
    own: list[str] = []
    rest: list[str] = []
    is_own = False
    for line in stderr.splitlines():
        is_own = line.startswith("storebench profile: ") or (
            is_own and line.startswith("  ") and "File " not in line[:8]
        )
        (own if is_own else rest).append(line)
    return rest, own


def test_a_script_runs_as_in_python(tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    facts = "print(sys.path, sys.argv[0], __file__, __spec__)\n"
    (folder / "train.py").write_text(
        f"{LOOP}{facts}def fail():\n    raise KeyError('key')\ntrain()\nfail()\n"
    )
    for other in ("json", "queue", "statistics"):  # neither Python nor the script imports them
        (tmp_path / f"{other}.py").write_text("raise SystemExit('imported')\n")
    words = ("sub/train.py", *WORDS)
    expected, done = run(*words, folder=tmp_path), profile("--out", "out/put", *words, folder=tmp_path)
    rest, own = split(done.stderr)
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    assert rest == expected.stderr.splitlines()
    assert own[0].startswith("storebench profile: limited by ")
    assert 2 < len(own) <= 12
    figures = json.loads((tmp_path / "out/put/profile.json").read_text())
    assert (figures["steps"], figures["batch_size"]) == (10, 4)
    assert figures["text"].splitlines() == own


@pytest.mark.parametrize("command", ["profile", "audit"])
def test_a_script_sets_what_libraries_read_when_they_are_imported(tmp_path: Path, command: str) -> None:
    (tmp_path / "train.py").write_text("import sys; print({'numpy', 'torch'} & {*sys.modules})")
    done = run("-m", "storebench", command, "train.py", folder=tmp_path)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.full
def test_a_module_runs_as_in_python(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    error = "for _ in DataLoader([0], collate_fn=lambda _: 1 / 0): pass\n"
    (package / "train.py").write_text(f"{LOOP}train()\n{error}")
    words = ("-m", "package.train", "--help")
    expected, done = run(*words, folder=tmp_path), profile(*words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    ours = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert [line for line in expected.stderr.splitlines() if "runpy" not in line][-9:] == ours[-9:]
    assert "storebench/profiling" not in done.stderr


# A script, its exit code, output and lines of error.
ENDS = {
    "exit at once, of a forked process, too": (
        "if os.fork() == 0:\n    train()\n    os._exit(0)\nos.wait()\ntrain()\nos._exit(7)\n",
        (7, 2 * TRAINED, []),
    ),
    "a loop in a thread that goes on": (
        "import concurrent.futures.process\nthreading.Thread(target=train).start()\nsys.exit(7)\n",
        (7, TRAINED, []),
    ),
    "an interrupt, and a hook of its own": (
        "sys.excepthook = lambda kind, *_: print('hook', kind, file=sys.stderr)\ntrain()\nraise KeyboardInterrupt\n",
        (-2, TRAINED, ["hook <class 'KeyboardInterrupt'>"]),
    ),
    "SIGTERM, after a handler of its own": (
        """
own = lambda *about: (callable(before) and before(*about), print("own handler", flush=True))
before = signal.signal(15, own)
train()
signal.raise_signal(15)
signal.signal(15, before)
signal.raise_signal(15)
""",
        (-15, TRAINED + "own handler\n", []),
    ),
    "workers that are spawned": ("if __name__ == '__main__':\n    train('spawn')\n", (0, TRAINED, [])),
}

QUICK = ("exit at once, of a forked process, too", "SIGTERM, after a handler of its own")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in ENDS]
)
def test_the_verdict_is_written_however_a_script_ends(name: str, tmp_path: Path) -> None:
    text, expected = ENDS[name]
    (tmp_path / "train.py").write_text(LOOP + text)
    done = profile("train.py", *WORDS, folder=tmp_path)
    rest, own = split(done.stderr)
    assert (done.returncode, done.stdout, rest) == expected
    verdicts = [line for line in own if line.startswith("storebench profile: ")]
    assert len(verdicts) == done.stdout.count(TRAINED)
    assert all("limited by" in line for line in verdicts)


@pytest.mark.full
def test_a_loop_that_is_not_seen_is_told(tmp_path: Path) -> None:
    spawned = (
        "import torch.multiprocessing\nif __name__ == '__main__':\n    torch.multiprocessing.spawn(train)\n"
    )
    (tmp_path / "train.py").write_text(LOOP.replace('context="fork"', 'rank=0, context="fork"') + spawned)
    done = profile("train.py", folder=tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "those that it started other than by fork were not seen" in done.stderr


def test_of_workers_that_die_the_records_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # Python leaves a folder there for each process that dies
    dies = "Images.__getitem__ = lambda self, index: os._exit(3) if index == 30 else (index, index)\n"
    (tmp_path / "train.py").write_text(LOOP + dies + "train()\n")
    done = profile("--out", "out", "train.py", folder=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "storebench-error" not in done.stderr
    assert (tmp_path / "out" / "profile.json").is_file()


STORED = """\
import sys, time
import storebench
for batch in storebench.Loader(storebench.StoreDataset(sys.argv[1]), 4, workers=1):
    time.sleep(0.01)
"""


def test_a_loader_of_stores_is_seen(tmp_path: Path) -> None:
    small = build_small_store(get_format("lmdb"), "raw", tmp_path / "store")
    (tmp_path / "train.py").write_text(STORED)
    profile("--out", "out", "train.py", str(small.path), folder=tmp_path)
    facts = json.loads((tmp_path / "out/profile.json").read_text())
    assert (facts["workers"], facts["epochs"]) == (1, 1)
    assert facts["steps"] > 4
    assert facts["loop_s"] > 0.01


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.py"], "nowhere.py: there is no such script"),
        (["--ot", __file__], "no such option: --ot"),
        (["--out", "/dev/null/x", __file__], "/dev/null/x"),
        (["-m", "nowhere_at_all"], "nowhere_at_all: there is no module of this name"),
    ],
)
def test_refusals(words: list[str], message: str, tmp_path: Path) -> None:
    done = profile(*words, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


RANKS = """\
import os, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        time.sleep(0.02 if os.environ["RANK"] == "1" else 0)
        return index

torch.distributed.init_process_group("gloo")
for batch in DataLoader(Slow(), batch_size=4):
    torch.distributed.all_reduce(torch.ones(1))
torch.distributed.destroy_process_group()
"""


@pytest.mark.full
def test_of_ranks_the_slow_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run(*launcher, "-m", "storebench", "profile", "--out", "out", "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    own = split(done.stderr)[1]
    for rank in (0, 1):
        assert sum(line.startswith(f"storebench profile: rank {rank}: ") for line in own) == 1
        assert (tmp_path / f"out/rank{rank}/profile.json").is_file()
    assert any("limited by a slow rank: rank 1 waits" in line for line in own)
