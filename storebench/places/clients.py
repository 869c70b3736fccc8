"""The client of a place, by its address."""

from storebench.places.base import Client, Folder
from storebench.places.nfs import NfsFolder
from storebench.places.objects import ObjectStore


def client_of(url: str) -> Client:
    """Return a client of ``http[s]://HOST[:PORT]/BUCKET[/PREFIX]``, ``nfs://HOST[:PORT]/PATH`` or ``file://FOLDER``."""
    if url.startswith("file://"):
        return Folder(url)
    if url.startswith("nfs://"):
        return NfsFolder(url)
    return ObjectStore(url)
