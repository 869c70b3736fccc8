"""Fetching from a real server on this machine: cut connections, wrong files, and no network at all."""

import hashlib
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from storebench.datasets.download import RemoteFile, fetch_file
from storebench.errors import DiskFullError
from tests.support.dataset_files import write_mnist

CONTENT = bytes(range(256)) * 4000


@dataclass
class Behaviour:
    """What the server does with one path."""

    content: bytes = CONTENT
    cut_after: int | None = None
    """Bytes after which the connection is cut."""
    status: int | None = None
    requests: int = 0


class Mirror(ThreadingHTTPServer):
    """Serves paths as they are told to behave."""

    paths: dict[str, Behaviour]


class Handler(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        how = self.server.paths[self.path]
        how.requests += 1
        if how.status is not None:
            self.send_error(how.status)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(how.content)))
        self.end_headers()
        self.wfile.write(how.content[: how.cut_after])

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
    path = fetch_file(file, tmp_path / "new" / "folder", lambda _: Watching())
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) > 1
    assert fetch_file(file, path.parent) == path
    assert mirror.requests == 1
    assert [one.name for one in path.parent.iterdir()] == ["it.gz"]


FIRST = {
    "cut": Behaviour(cut_after=1000),
    "404": Behaviour(status=404),
    "503": Behaviour(status=503),
    "another file": Behaviour(content=b"y" * len(CONTENT)),
}


@pytest.mark.parametrize("name", FIRST)
def test_the_next_mirror_serves_what_the_first_does_not(server: Mirror, tmp_path: Path, name: str) -> None:
    (tmp_path / "it.gz").write_bytes(b"damaged")
    second = Behaviour()
    assert fetch_file(remote(server, FIRST[name], second), tmp_path).read_bytes() == CONTENT
    assert second.requests == 1
    assert [path.name for path in tmp_path.iterdir()] == ["it.gz"]


# The command line. A proxy that nobody listens at stands for a machine without a network.
OFFLINE = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
Cli = Callable[..., subprocess.CompletedProcess[str]]


def test_list_says_what_is_real_what_is_synthetic_and_what_is_missing(cli: Cli, tmp_path: Path) -> None:
    write_mnist(tmp_path / "there" / "mnist")
    table = cli("data", "list", env={"STOREBENCH_DATA": str(tmp_path / "there")}).stdout
    assert re.search(r"^mnist +train +7 +28x28x1 +real ", table, re.MULTILINE)
    assert re.search(r"^cifar10 +test .* synthetic ", table, re.MULTILINE)
    assert re.search(r"^imagenet +test +0 +- +missing ", table, re.MULTILINE)


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


def test_a_full_disk_leaves_no_part_of_a_file(
    server: Mirror, tmp_path: Path, largest_file: Callable[[int], AbstractContextManager[None]]
) -> None:
    with largest_file(300_000), pytest.raises(DiskFullError, match=r"it\.gz: .*nothing half-written"):
        fetch_file(remote(server, Behaviour()), tmp_path)
    assert not list(tmp_path.iterdir())
