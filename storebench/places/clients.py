"""The client of a place, by its address."""

from storebench.places.base import Client, Folder, PlaceFailedError, Storage
from storebench.places.nfs import NfsFolder
from storebench.places.objects import ObjectStore


def client_of(url: str) -> Client:
    """Return a client of ``http[s]://HOST[:PORT]/BUCKET[/PREFIX]``, ``nfs://HOST[:PORT]/PATH`` or ``file://FOLDER``."""
    if url.startswith("file://"):
        return Folder(url)
    if url.startswith("nfs://"):
        return NfsFolder(url)
    return ObjectStore(url)


def storage_of(url: str) -> Storage:
    """Return a client that stores files, too; raise `PlaceFailedError` for an export without a mount."""
    client = client_of(url)
    if not isinstance(client, Storage):
        raise PlaceFailedError(
            "libnfs 4 cannot write files by NFS 4",
            where=url,
            hint="Copy the store there by a mount, below DATASET/STORE as it lies in the folder of the stores.",
        )
    return client
