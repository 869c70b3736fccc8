"""Fetching from a real server on this machine: ranges, cut connections, wrong files, and no network at all."""

import dataclasses
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from storebench.cli.main import app
from storebench.datasets import download
from storebench.datasets.download import Fetcher, RemoteFile
from storebench.errors import CorruptDataError, DataNotFoundError, DiskFullError, OutputError
from tests.support.dataset_files import write_class_folders, write_mnist

CONTENT = bytes(range(256)) * 4000


@dataclass
class Behaviour:
    """What the server does with one path."""

    content: bytes = CONTENT
    ranges: bool = True
    cut_after: list[int] = field(default_factory=list)
    """Bytes after which the connection is cut, request by request; later requests are whole."""
    interrupts: bool = False
    """Whether this process is interrupted in the middle of the body."""
    status: int | None = None
    seen: list[str | None] = field(default_factory=list)
    """The Range header of every request."""


class Mirror(ThreadingHTTPServer):
    """Serves paths as they are told to behave."""

    paths: dict[str, Behaviour]


class Handler(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        how = self.server.paths[self.path]
        wanted = self.headers.get("Range")
        how.seen.append(wanted)
        if how.status is not None:
            self.send_error(how.status)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and how.ranges else 0
        body, total = how.content[start:], len(how.content)
        self.send_response(206 if wanted and how.ranges else 200)
        if wanted and how.ranges:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if how.interrupts:
            self.wfile.write(body[:1000])
            self.wfile.flush()
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
            return
        self.wfile.write(body[: how.cut_after.pop(0)] if how.cut_after else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Mirror]:
    with Mirror(("127.0.0.1", 0), Handler) as running:
        running.paths = {}
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def remote(server: Mirror, *behaviours: Behaviour) -> RemoteFile:
    """Return a file of CONTENT whose mirrors behave so."""
    server.paths = {f"/{number}/it.gz": how for number, how in enumerate(behaviours)}
    return RemoteFile(
        name="it.gz",
        urls=tuple(f"http://127.0.0.1:{server.server_port}{path}" for path in server.paths),
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def test_a_file_arrives_whole_with_progress_and_is_not_fetched_twice(server: Mirror, tmp_path: Path) -> None:
    mirror, seen = Behaviour(), []

    class Watching:
        def __enter__(self) -> Callable[[int, int], None]:
            return lambda done, total: seen.append((done, total))

        def __exit__(self, *_: object) -> None:
            pass

    file = remote(server, mirror)
    fetcher = Fetcher(progress=lambda _: Watching())
    path = fetcher.fetch_file(file, tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) > 1
    assert fetcher.fetch_file(file, path.parent) == path
    assert mirror.seen == [None]
    assert [one.name for one in path.parent.iterdir()] == ["it.gz"]


# What is in the folder before, how the mirrors behave, and the ranges that are asked of the last one.
PART = "it.gz.part"
FETCHES: dict[str, tuple[dict[str, bytes], list[Behaviour], list[str | None]]] = {
    "cut twice": ({}, [Behaviour(cut_after=[1000, 5000])], [None, "bytes=1000-", "bytes=6000-"]),
    "an earlier part": ({PART: CONTENT[:777]}, [Behaviour()], ["bytes=777-"]),
    "a part of another file": ({PART: b"x" * 777}, [Behaviour()], ["bytes=777-", None]),
    "a part of full size": ({PART: b"x" * len(CONTENT)}, [Behaviour()], [None]),
    "a part that is too long": ({PART: CONTENT + b"more"}, [Behaviour()], [None]),
    "no ranges": ({PART: CONTENT[:777]}, [Behaviour(ranges=False)], ["bytes=777-"]),
    "a second mirror": ({}, [Behaviour(cut_after=[100, 200, 300]), Behaviour()], ["bytes=600-"]),
    "404": ({}, [Behaviour(status=404), Behaviour()], [None]),
    "503": ({}, [Behaviour(status=503), Behaviour()], [None]),
    "another file": ({}, [Behaviour(content=b"y" * len(CONTENT)), Behaviour()], [None]),
    "a damaged file": ({"it.gz": b"damaged"}, [Behaviour()], [None]),
}


@pytest.mark.parametrize("name", FETCHES)
def test_a_file_arrives_whole_whatever_the_mirrors_do(server: Mirror, tmp_path: Path, name: str) -> None:
    before, behaviours, asked = FETCHES[name]
    for file, content in before.items():
        (tmp_path / file).write_bytes(content)
    mirrors = [dataclasses.replace(how, cut_after=[*how.cut_after], seen=[]) for how in behaviours]
    assert Fetcher().fetch_file(remote(server, *mirrors), tmp_path).read_bytes() == CONTENT
    assert mirrors[-1].seen == asked
    assert [path.name for path in tmp_path.iterdir()] == ["it.gz"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_corrupt_file_never_takes_the_name(server: Mirror, tmp_path: Path, ranges: bool) -> None:
    corrupt = CONTENT[:-1] + b"?"
    with pytest.raises(CorruptDataError, match=r"it\.gz: the mirrors serve another file.*SHA-256"):
        Fetcher().fetch_file(remote(server, Behaviour(content=corrupt, ranges=ranges)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_network_is_one_line_that_says_what_to_put_where(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    file = RemoteFile(name="it.gz", urls=(f"http://127.0.0.1:{port}/it.gz",), size=9, sha256="")
    with pytest.raises(DataNotFoundError) as caught:
        Fetcher().fetch_file(file, tmp_path)
    assert f"put it.gz into {tmp_path} by hand" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cifar10_is_taken_in_its_other_layout_where_the_first_is_nowhere(
    server: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = remote(server, Behaviour())
    nowhere = RemoteFile(name="no.gz", urls=("http://127.0.0.1:9/no.gz",), size=9, sha256="")
    monkeypatch.setitem(download.ALTERNATIVES, "cifar10", ((nowhere,), (good,)))
    assert Fetcher().fetch("cifar10", tmp_path) == [tmp_path / "it.gz"]


def test_a_folder_that_cannot_be_made_is_said(server: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="file"):
        Fetcher().fetch_file(remote(server, Behaviour()), tmp_path / "file")


# The command line. A proxy that nobody listens at stands for a machine without a network.
OFFLINE = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
Cli = Callable[..., subprocess.CompletedProcess[str]]


def test_list_says_what_is_real_what_is_synthetic_and_what_is_missing(cli: Cli, tmp_path: Path) -> None:
    write_mnist(tmp_path / "there" / "mnist")
    done = cli("data", "list", "--json", env={"STOREBENCH_DATA": str(tmp_path / "there")})
    assert done.returncode == 0, done.stderr
    rows = {(row["dataset"], row["split"]): row for row in json.loads(done.stdout)}
    assert rows["mnist", "train"]["origin"] == "real"
    assert rows["mnist", "train"]["count"] == 7
    assert rows["mnist", "train"]["path"] == str(tmp_path / "there" / "mnist")
    assert rows["cifar10", "test"]["origin"] == "synthetic"
    assert rows["imagenet", "test"]["origin"] is None
    table = cli("data", "list", env={"STOREBENCH_DATA": str(tmp_path / "there")}).stdout
    assert re.search(r"^mnist +train +7 +28x28x1 +real ", table, re.MULTILINE)
    assert re.search(r"^imagenet +test +0 +- +missing ", table, re.MULTILINE)


def test_fetch_leaves_alone_what_is_there(cli: Cli, tmp_path: Path) -> None:
    write_mnist(tmp_path / "there" / "mnist")
    write_class_folders(tmp_path / "there" / "imagenet" / "train", {"a": 1})
    for name in ("mnist", "imagenet"):
        done = cli("data", "fetch", name, env={**OFFLINE, "STOREBENCH_DATA": str(tmp_path / "there")})
        assert done.returncode == 0
        assert f"{name}: already in {tmp_path}/there" in done.stderr
        assert done.stdout == ""


@pytest.mark.parametrize(
    ("name", "says"),
    [("mnist", "train-images-idx3-ubyte.gz into data/mnist"), ("imagenet", "ILSVRC2012_img_train.tar")],
)
def test_fetch_that_fails_says_what_to_put_where(cli: Cli, tmp_path: Path, name: str, says: str) -> None:
    done = cli("data", "fetch", name, env={**OFFLINE, "STOREBENCH_DATA": str(tmp_path / "nothing")})
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_optional_fetching_never_fails_and_says_what_will_be_used(cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "data", "fetch", "all", "--optional", env={**OFFLINE, "STOREBENCH_DATA": str(tmp_path / "nothing")}
    )
    assert done.returncode == 0
    assert done.stderr.count("The synthetic stand-in will be used.") == 3


def test_an_unknown_name_is_refused_with_the_nearest(cli: Cli) -> None:
    done = cli("data", "fetch", "minst")
    assert done.returncode == 2
    assert "Did you mean 'mnist'" in done.stderr


def test_a_full_disk_leaves_no_part_of_a_file(
    server: Mirror, tmp_path: Path, largest_file: Callable[[int], AbstractContextManager[None]]
) -> None:
    for have in (0, 777):
        if have:
            (tmp_path / "it.gz.part").write_bytes(CONTENT[:have])
        with largest_file(300_000), pytest.raises(DiskFullError, match=r"it\.gz: .*nothing half-written"):
            Fetcher().fetch_file(remote(server, Behaviour()), tmp_path)
        assert not list(tmp_path.iterdir())


def test_an_interrupted_fetch_says_that_it_is_continued(
    server: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(download.ALTERNATIVES, "mnist", ((remote(server, Behaviour(interrupts=True)),),))
    done = CliRunner().invoke(app, ["data", "fetch", "mnist", "--to", str(tmp_path)])
    assert done.exit_code == 130
    [line] = [line for line in done.stderr.splitlines() if "interrupted" in line]
    assert line == "storebench: interrupted; the next fetch continues this download"
    assert [path.name for path in (tmp_path / "mnist").iterdir()] == ["it.gz.part"]
