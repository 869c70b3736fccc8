"""The image files of a dataset as they are: what the codec ``original`` stores."""

from storebench.datasets.base import Dataset, DatasetInfo, Image
from storebench.errors import UsageError


class Originals(Dataset):
    """The samples of a dataset as the bytes of their image files."""

    def __init__(self, source: Dataset, *, decode: bool = True) -> None:
        info = source.original_info
        if info is None:
            raise UsageError(
                "the codec 'original' stores image files as they are, and these samples "
                f"({source.info.provenance.source}) are no image files",
                where=source.info.name,
                hint="Use it with folder:PATH or with ImageNet's own files, or choose png or jpeg.",
            )
        self._source = source
        self._decode = decode
        self._info = info

    @property
    def info(self) -> DatasetInfo:
        """The geometry and identity of the image files."""
        return self._info

    @property
    def layout_note(self) -> str:
        """Clauses on the folders of the image files."""
        return self._source.layout_note

    @property
    def skip_note(self) -> str:
        """One clause that counts the unreadable image files that were left out, and names some."""
        return self._source.skip_note

    def sample(self, index: int) -> tuple[Image, int]:
        """Refuse: the files are copied, not decoded."""
        raise NotImplementedError("image files are copied as they are")

    @property
    def decoded_before(self) -> bool:
        """Whether each file was decoded when it was stored."""
        return self._source.decoded_before

    @property
    def thread_safe(self) -> bool:
        """Whether several threads may call `original` at the same time."""
        return self._source.thread_safe

    def original(self, index: int, *, decode: bool = True) -> tuple[bytes, int]:
        """Return the bytes of the image file of sample `index`, and its label."""
        return self._source.original(index, decode=decode and self._decode)

    def locate(self, index: int) -> str:
        """Return the file of sample `index`."""
        return self._source.locate(index)
