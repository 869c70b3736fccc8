"""A reader of samples in shared memory: the common part of memory:shared and lmdb:shared."""

from storebench.arrays import Indices
from storebench.formats.arrays import Batch, check_range
from storebench.formats.base import Fetched, Reader
from storebench.formats.reads.direct_file import Offsets
from storebench.formats.reads.shared_pixels import FillPixels, SharedPixels, gather
from storebench.formats.windows import Windows


class SharedPixelsReader(Reader):
    """Gather from pixels in shared memory; a subclass calls `_share` or `_share_files` in its constructor."""

    _shared: SharedPixels

    def _share(self, identity: str, fill: FillPixels) -> None:
        """Attach to the array that `identity` names; in the first process that does so, `fill` writes all pixels."""
        self._shared = SharedPixels(identity, (self.manifest.count, *self.image_shape), fill)
        self.payload_codec = "raw"

    def _share_files(self, identity: str, offsets: Offsets, fill: FillPixels) -> None:
        """Attach to the bytes of image files as they are; in the first process that does so, `fill` writes them."""
        self._offsets: list[int] = offsets.tolist()
        self._shared = SharedPixels(identity, (self._offsets[-1],), fill)

    def _fetch(self, indices: Indices) -> list[bytes]:
        if self.payload_codec == "raw":
            return self._raw_payloads(indices)
        content, offsets = self._shared.array, self._offsets
        return [content[offsets[number] : offsets[number + 1]].tobytes() for number in self._checked(indices)]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        return Fetched(gather(self._shared.array, indices, out))

    def _fetch_windows(self, indices: Indices, windows: Windows, out: Batch) -> Fetched:
        pixels = self._shared.array
        check_range(indices, len(pixels))
        windows.cut(pixels, out, indices)
        return Fetched(len(indices) * self.manifest.dataset.image_bytes)

    def notes(self) -> dict[str, str]:
        """Return a note on which process filled the memory."""
        return {"shared memory": "filled by this reader" if self._shared.filled_here else "was there already"}

    def _close(self) -> None:
        self._shared.close()  # the last process to do so removes the memory
