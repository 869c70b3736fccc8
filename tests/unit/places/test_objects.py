"""What object stores answer when they do not deliver, and what is said of it."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storebench.places.objects import MissingFileError, PlaceFailedError

pytest.importorskip("obstore")
pytest.importorskip("boto3")
OKAY = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"


@contextlib.contextmanager
def answering(content: bytes, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Run a server that answers every request alike, and return its host and port."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), connection:
                asked = connection if context is None else context.wrap_socket(connection, server_side=True)
                asked.recv(1 << 16)
                asked.sendall(content)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield "{}:{}".format(*listening.getsockname())
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def refusal(status: int, code: str) -> bytes:
    body = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>told</Message><Key>{"k" * 99}</Key></Error>'
    return f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


def failure(url: str, client: str) -> PlaceFailedError:
    from storebench.places.objects import Boto3Store, ObjectStore

    store = ObjectStore(url) if client == "obstore" else Boto3Store(url, 2)
    with pytest.raises(PlaceFailedError) as raised:
        store.get("key")
    text = str(raised.value)
    assert text.startswith(f"{url}/key: ")
    assert "<?xml" not in text
    assert "Debug" not in text
    assert len(text) < 300
    return raised.value


@pytest.mark.parametrize("client", ["obstore", "boto3"])
@pytest.mark.parametrize(
    ("status", "code", "said", "hint"),
    [
        (404, "NoSuchBucket", "no such bucket", "Make it"),
        (403, "AccessDenied", "refuses access (AccessDenied: told)", "AWS_ACCESS_KEY_ID"),
        (400, "AuthorizationHeaderMalformed", "region", "AWS_REGION"),
        (500, "InternalError", "(InternalError: told)", None),
    ],
)
def test_an_answer_that_refuses_is_one_line(
    status: int, code: str, said: str, hint: str | None, client: str
) -> None:
    with answering(refusal(status, code)) as host:
        error = failure(f"http://{host}/bucket", client)
    assert said in error.what
    assert hint is None or hint in str(error.hint)


def test_a_missing_object_is_no_failure_of_the_place() -> None:
    with answering(refusal(404, "NoSuchKey")) as host:
        for client in ("obstore", "boto3"):
            assert type(failure(f"http://{host}/bucket", client)) is MissingFileError


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1/bucket", "nothing listens"),
        ("http://no-such-host.invalid/bucket", "no host has this name"),
    ],
)
def test_a_server_that_is_not_there_is_one_line(url: str, said: str) -> None:
    assert said in failure(url, "obstore").what
    assert "the connection failed" in failure(url, "boto3").what


@pytest.mark.parametrize("client", ["obstore", "boto3"])
def test_tls_that_is_missing_or_not_trusted_is_one_line(client: str, tmp_path: Path) -> None:
    with answering(OKAY) as host:
        assert "does not speak TLS" in failure(f"https://{host}/bucket", client).what
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with answering(OKAY, context) as host:
        assert "not trusted" in failure(f"https://{host}/bucket", client).what
