"""Libraries that decode JPEG, PNG and WebP: Pillow, libjpeg-turbo through simplejpeg, and OpenCV."""

import contextlib
import importlib
import importlib.util
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage

from storebench.arrays import ImageSize
from storebench.codecs.base import Payload
from storebench.datasets.images import (
    DOES_NOT_DECODE,
    JPEG,
    PILLOW_FORMATS,
    PNG,
    WEBP,
    Header,
    be_strict,
    is_deep,
    load_rgb,
    open_image,
    read_header,
    reason_of,
)
from storebench.errors import CorruptDataError, MissingDependencyError, install_line

DecodedImage = npt.NDArray[np.uint8]  # uint8 [H, W] of a grey image, [H, W, 3] of an RGB one

# Errors of libraries for an image that they do not decode. Pillow then decides, as where image files are converted:
# simplejpeg refuses JPEGs with a damaged part that Pillow and OpenCV fill with grey.
REFUSED = (CorruptDataError, *DOES_NOT_DECODE)


@dataclass(frozen=True)
class OpenedImage:
    """An image file whose header was read, and nothing else."""

    size: ImageSize  # width and height of the image
    load: Callable[[str, ImageSize | None], PilImage.Image]
    """Decode it to a mode, perhaps at a reduced scale of at least some size."""


class Decoder(ABC):
    """A library that decodes images."""

    name: ClassVar[str]  # the name in backends and results
    kinds: ClassVar[frozenset[str]]  # formats that it decodes; Pillow decodes all others in its place
    library: ClassVar[str] = ""

    @abstractmethod
    def pixels(self, payload: Payload, kind: str, mode: str) -> DecodedImage:
        """Decode an image of a known kind to grey ("L") or colour ("RGB")."""

    @abstractmethod
    def open(self, payload: Payload) -> OpenedImage:
        """Read the header of an image file of any kind."""


class PillowDecoder(Decoder):
    """Pillow, which decodes every kind."""

    name = "pillow"
    kinds = frozenset(PILLOW_FORMATS)

    def pixels(self, payload: Payload, kind: str, mode: str) -> DecodedImage:
        """Decode an image of one kind; a file of another kind is refused."""
        be_strict()
        with open_image(bytes(payload), formats=(kind,)) as image:
            return np.asarray(image if image.mode == mode else image.convert(mode))

    def open(self, payload: Payload) -> OpenedImage:
        image = open_image(bytes(payload))
        return OpenedImage(image.size, partial(_load, image))


def _load(image: PilImage.Image, mode: str, least: ImageSize | None) -> PilImage.Image:
    """Decode by Pillow; its draft mode is the DCT scaling of libjpeg."""
    be_strict()
    if least is not None:
        image.draft(None, least)
    if mode == "RGB" or is_deep(image):  # Pillow's own conversion to 8-bit grey clips 16 bits
        return load_rgb(image).convert(mode)
    image.load()
    return image.convert(mode)


class _ArrayDecoder(Decoder):
    """Base of the libraries that decode to an array."""

    def __init__(self) -> None:
        require(self.library, f"the decoder {self.name!r}")
        # Decode once: a library of many MiB may come from the disk, which is no read of the store.
        small = io.BytesIO()
        PilImage.new("RGB", (16, 16)).save(small, JPEG)
        self.array(small.getvalue(), "RGB", (16, 16), None)

    def pixels(self, payload: Payload, kind: str, mode: str) -> DecodedImage:
        """Decode an image of one kind; a file of another kind is refused."""
        header = read_header(payload)
        if header.kind != kind:
            raise CorruptDataError(f"a {header.kind}, not a {kind}")
        with contextlib.suppress(*REFUSED):
            if self._takes(header):
                return self.array(payload, mode, (header.width, header.height), None)
        return PillowDecoder().pixels(payload, kind, mode)

    def open(self, payload: Payload) -> OpenedImage:
        """Read the header; Pillow opens what this library does not decode, and decodes what it refuses."""
        header = read_header(payload)
        if not self._takes(header):
            return PillowDecoder().open(payload)
        size = (header.width, header.height)

        def load(mode: str, least: ImageSize | None) -> PilImage.Image:
            try:
                return PilImage.fromarray(self.array(payload, mode, size, least))
            except REFUSED:
                return PillowDecoder().open(payload).load(mode, least)

        return OpenedImage(size, load)

    def _takes(self, header: Header) -> bool:
        # CMYK is left to Pillow: these libraries do not convert Adobe's inverted values.
        return header.kind in self.kinds and header.components in (0, 1, 3)

    @abstractmethod
    def array(self, payload: Payload, mode: str, size: ImageSize, least: ImageSize | None) -> DecodedImage:
        """Decode to an array; see `OpenedImage.load`."""


class SimpleJpegDecoder(_ArrayDecoder):
    """libjpeg-turbo through simplejpeg: JPEG only."""

    name = "simplejpeg"
    kinds = frozenset({JPEG})
    library = "simplejpeg"

    def array(
        self,
        payload: Payload,
        mode: str,
        size: ImageSize,  # noqa: ARG002
        least: ImageSize | None,
    ) -> DecodedImage:
        """Decode by TurboJPEG with accurate DCT and smooth upsampling, as Pillow does."""
        import simplejpeg

        width, height = least or (0, 0)
        pixels: DecodedImage = simplejpeg.decode_jpeg(
            payload,
            "GRAY" if mode == "L" else "RGB",
            min_height=height,
            min_width=width,
            min_factor=1 if least is None else 2,
        )
        return pixels[:, :, 0] if mode == "L" else pixels


class OpenCvDecoder(_ArrayDecoder):
    """OpenCV's imdecode, for JPEG, PNG and WebP."""

    name = "opencv"
    kinds = frozenset({JPEG, PNG, WEBP})
    library = "cv2"

    def __init__(self) -> None:
        super().__init__()
        import cv2

        # Its pool has a thread per core, whatever number a cell gives, and converts the colours of large images.
        cv2.setNumThreads(1)

    def array(self, payload: Payload, mode: str, size: ImageSize, least: ImageSize | None) -> DecodedImage:
        """Decode by OpenCV; EXIF orientation is ignored, as by every other decoder here."""
        import cv2

        grey, by = mode == "L", 1
        if least is not None:
            most = min(size[0] // least[0], size[1] // least[1])
            by = next((by for by in (8, 4, 2) if by <= most), 1)
        plain = cv2.IMREAD_GRAYSCALE if grey else cv2.IMREAD_COLOR
        reduced = getattr(cv2, f"IMREAD_REDUCED_{'GRAYSCALE' if grey else 'COLOR'}_{by}", plain)
        decoded = cv2.imdecode(np.frombuffer(payload, np.uint8), reduced | cv2.IMREAD_IGNORE_ORIENTATION)
        if decoded is None:
            raise CorruptDataError("OpenCV does not decode it")
        pixels: DecodedImage = decoded if grey else cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)
        return pixels


DECODERS: dict[str, type[Decoder]] = {
    decoder.name: decoder for decoder in (PillowDecoder, SimpleJpegDecoder, OpenCvDecoder)
}
DEFAULT_DECODER = PillowDecoder.name


def is_installed(decoder: type[Decoder]) -> bool:
    """Whether the library of a decoder can be imported."""
    return not decoder.library or has_library(decoder.library)


def has_library(name: str) -> bool:
    """Whether a library is installed; a folder of that name from which Python could import is none."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


@contextlib.contextmanager
def undecodable(codec: str, payload: Payload) -> Iterator[None]:
    """Turn what libraries raise for a damaged image into a `CorruptDataError`."""
    problem = f"{codec}: a payload of {len(payload)} bytes does not decode"
    try:
        yield
    except CorruptDataError as error:
        raise CorruptDataError(f"{problem} ({error.what})") from error
    except DOES_NOT_DECODE as error:
        raise CorruptDataError(f"{problem} ({reason_of(error)})") from error


def require(library: str, user: str) -> None:
    """Import the optional library that a decoder or codec needs; its error says how to install it."""
    try:
        importlib.import_module(library)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{user} needs the library {library!r}, which is not installed",
            hint=f"Run: {install_line(library)}.",
        ) from error
