"""An object store by obstore, or by boto3: objects by key, ranges of them, and what it counts itself."""

import datetime as dt
import os
import re
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from storebench.errors import CellFailedError, MissingDependencyError, install_line
from storebench.record.schema import ServedFacts

if TYPE_CHECKING:
    from obstore.store import S3Store

_RETRIES = 3
_CONNECT_S, _GIVE_UP_S = 5, 30

# Requests that a server of the run has answered, and the bytes that it has sent.
_METRICS = ("SeaweedFS_s3_request_total", "SeaweedFS_s3_bucket_traffic_sent_bytes_total")

T = TypeVar("T")


class PlaceFailedError(CellFailedError):
    """A place does not answer, refuses, or serves something else than was stored."""


class MissingFileError(PlaceFailedError):
    """A place has no file of this name."""


class S3Address(NamedTuple):
    """An address of an object store in the parts that libraries want, with the environment's access."""

    endpoint: str
    bucket: str
    key: str  # or a prefix of keys
    region: str
    anonymous: bool

    @classmethod
    def of(cls, url: str) -> Self:
        parts = urlsplit(url)
        bucket, _, key = parts.path.strip("/").partition("/")
        region, anonymous = os.environ.get("AWS_REGION", "us-east-1"), "AWS_ACCESS_KEY_ID" not in os.environ
        return cls(f"{parts.scheme}://{parts.netloc}", bucket, key, region, anonymous)

    @property
    def plain(self) -> bool:
        """Whether nothing is encrypted on the way."""
        return self.endpoint.startswith("http:")


class ObjectStore:
    """A client of ``http[s]://HOST[:PORT]/BUCKET[/PREFIX]`` for all threads; every method may raise `PlaceFailedError`.

    Credentials come from the environment (AWS_ACCESS_KEY_ID and its companions); without any, requests are not signed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = obstore_of(url)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return a whole object, or `length` bytes of it from `start`; fewer only at its end."""
        if length is None:
            return self._asked(key, lambda: bytes(self._client.get(key).bytes()))
        return self._asked(key, lambda: bytes(self._client.get_range(key, start=start, length=length)))

    def put(self, key: str, content: bytes | Path) -> None:
        """Store an object, in place of another one of its name."""
        self._asked(key, lambda: self._client.put(key, content))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size of every object whose key begins with `prefix` and a slash."""

        def listed() -> dict[str, int]:
            return {item["path"]: item["size"] for batch in self._client.list(prefix) for item in batch}

        return self._asked(prefix, listed)

    def delete(self, key: str) -> None:
        """Delete an object, if there is one."""
        self._asked(key, lambda: self._client.delete(key))

    def _asked(self, key: str, request: Callable[[], T]) -> T:
        from obstore.exceptions import BaseError

        try:
            return request()
        except (BaseError, OSError) as error:
            if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error):
                raise MissingFileError("there is no such object", where=f"{self.url}/{key}") from error
            raise _failure(error, f"{self.url}/{key}") from error


class Boto3Store(ObjectStore):
    """The same store, read by boto3: one client for all threads, and a connection for each of them."""

    def __init__(self, url: str, connections: int) -> None:
        super().__init__(url)
        try:
            import boto3
            from botocore import UNSIGNED
            from botocore.config import Config
        except ModuleNotFoundError:
            raise MissingDependencyError(
                "this reader needs boto3", hint=f"Run: {install_line('boto3')}."
            ) from None
        self._there = S3Address.of(url)
        settings = Config(
            signature_version=UNSIGNED if self._there.anonymous else None,
            max_pool_connections=connections,  # more than those of its pool are opened for one request each
            connect_timeout=_CONNECT_S,
            read_timeout=_GIVE_UP_S,
            retries={"total_max_attempts": 1 + _RETRIES, "mode": "standard"},
            s3={"addressing_style": "path"},
        )
        self._boto3 = boto3.client(
            "s3", endpoint_url=self._there.endpoint, region_name=self._there.region, config=settings
        )

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        part = {} if length is None else {"Range": f"bytes={start}-{start + length - 1}"}
        return self._asked(key, lambda: self._body(key, part))

    def _body(self, key: str, part: dict[str, str]) -> bytes:
        from botocore.exceptions import BotoCoreError, ClientError

        at = self._there
        try:
            answer = self._boto3.get_object(Bucket=at.bucket, Key=f"{at.key}/{key}".lstrip("/"), **part)
            content: bytes = answer["Body"].read()
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            raise {403: PermissionError, 404: FileNotFoundError}.get(status, OSError)(str(error)) from error
        except BotoCoreError as error:
            raise OSError(str(error)) from error
        return content


def obstore_of(url: str) -> "S3Store":
    """Return obstore's own store of everything below an address."""
    try:
        from obstore.store import S3Store
    except ModuleNotFoundError:
        raise MissingDependencyError(
            "object stores need obstore", hint=f"Run: {install_line('obstore')}."
        ) from None
    there = S3Address.of(url)
    settings: dict[str, Any] = {
        "endpoint": there.endpoint,
        "virtual_hosted_style_request": False,
        "region": there.region,
        "skip_signature": there.anonymous,
        "client_options": {
            "allow_http": there.plain,
            "timeout": f"{_GIVE_UP_S}s",
            "connect_timeout": f"{_CONNECT_S}s",
        },
        "retry_config": {"max_retries": _RETRIES, "retry_timeout": dt.timedelta(seconds=_GIVE_UP_S)},
    }
    return S3Store(there.bucket, prefix=there.key or None, **settings)


# A part of a client's message -> the cause, and the next step.
_CAUSES = {
    "NoSuchBucket": ("there is no such bucket", "Make it, or name another one."),
    "dns error": ("no host has this name", "Check the address."),
    "ConnectionRefused": ("nothing listens at this port", "Start the server, or check host and port."),
    "InvalidContentType|WRONG_VERSION": ("this port does not speak TLS", "Try http:// in the address."),
    "InvalidCertificate|CERTIFICATE_VERIFY": (
        "its TLS certificate is not trusted",
        "Install its authority's.",
    ),
    "without LOCATION|AuthorizationHeaderMalformed": ("the region is another one", "Set AWS_REGION."),
    "TimedOut|[Tt]imeout|timed out": ("no answer in time", "Check that the server is up."),
    "sending request|not connect|was closed": ("the connection failed", "Check that the server is up."),
}

# The server's code and message, in the words of obstore, and in those of boto3.
_ANSWER = re.compile(
    r"<Code>(\w+)</Code>(?:.*?<Message>(.*?)</Message>)?|\((\w+)\) when .*? operation(?: \(.*?\))?: (.*)",
    re.DOTALL,
)


def _failure(error: Exception, where: str) -> PlaceFailedError:
    """Return the error for a client's message: the cause in our words, or the server's code and message."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text = re.sub(r"\w+_timeout", "", str(error))  # fields of the output for debugging
    told = _ANSWER.search(text)
    reason = ": ".join(word.strip()[:120] for word in told.groups() if word) if told else ""
    if isinstance(error, PermissionError | PermissionDeniedError | UnauthenticatedError):
        unset = "" if "AWS_ACCESS_KEY_ID" in os.environ else ", which is not set"
        keys = f"Keys come from AWS_SECRET_ACCESS_KEY and AWS_ACCESS_KEY_ID{unset}."
        return PlaceFailedError(
            f"the server refuses access ({reason or 'no reason'})", where=where, hint=keys
        )
    reason = reason or " ".join(text.partition("Debug source:")[0].split())[-120:]
    cause, hint = next((why for mark, why in _CAUSES.items() if re.search(mark, text)), (reason, None))
    return PlaceFailedError(f"the server did not deliver it ({cause})", where=where, hint=hint)


def counting(address: str) -> Callable[[], ServedFacts | None]:
    """Return a function that counts what a server has served since now; None without an address or answer."""
    before = _totals(address)

    def since() -> ServedFacts | None:
        after = _totals(address)
        if before is None or after is None:
            return None
        count, sent_bytes = (int(late - early) for early, late in zip(before, after, strict=True))
        return ServedFacts(count=count, sent_bytes=sent_bytes)

    return since


def _totals(address: str) -> list[float] | None:
    """Return the sum of each metric over its labels."""
    if address:
        with suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310
            text = answer.read().decode()
            by_metric = (re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE) for name in _METRICS)
            return [sum(map(float, values)) for values in by_metric]
    return None
