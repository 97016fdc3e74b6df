"""The formats the datasets come in, decoded to arrays and texts, every declared size checked first.

Each reader takes a file's whole content and its name for the error. Nothing is allocated before
the size that the file declares is known to fit the bytes that are there.
"""

import gzip
import io
import struct
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evclplus.errors import FileError
from evclplus.files import read_file

Bytes = NDArray[np.uint8]

IDX_OF_BYTES = 0x08
CIFAR_RECORD = 1 + 3 * 32 * 32
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
LARGEST_PNG_SIDE = 4096


def read_content(path: Path, limit: int) -> bytes:
    """The content of a file, decompressed if it ends in .gz; more than `limit` is refused."""
    return decompressed(read_file(path), str(path), limit)


def decompressed(content: bytes, name: str, limit: int) -> bytes:
    """`content` itself, or what it holds if `name` ends in .gz."""
    if name.endswith(".gz"):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
                content = stream.read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise FileError(f"{name} is damaged: {error}; get it again") from None
    if len(content) > limit:
        raise FileError(f"{name} holds more than the {limit} bytes it should; get it again")
    return content


def read_idx(content: bytes, name: str) -> Bytes:
    """An IDX file of bytes: two zeros, the type, the number of dimensions, their sizes, data."""
    if len(content) < 4:
        raise FileError(f"{name} is truncated: {len(content)} bytes are too few for an IDX header")
    zeros, kind, dimensions = struct.unpack(">HBB", content[:4])
    if zeros != 0 or kind != IDX_OF_BYTES or not 1 <= dimensions <= 4:
        raise FileError(f"{name} is not an IDX file of bytes: it starts with {content[:4].hex()}")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise FileError(f"{name} is truncated: its IDX header is cut off")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = start + prod(shape)
    if len(content) != expected:
        problem = "truncated" if len(content) < expected else "padded"
        raise FileError(
            f"{name} is {problem}: its header says {expected} bytes, it has {len(content)}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def write_idx(array: Bytes) -> bytes:
    """The IDX file of an array of bytes."""
    header = struct.pack(">HBB", 0, IDX_OF_BYTES, array.ndim)
    return header + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def read_cifar(content: bytes, name: str) -> tuple[Bytes, Bytes]:
    """A CIFAR-10 batch: per image a label, then 32x32 red, green and blue. Images, labels."""
    if not content or len(content) % CIFAR_RECORD:
        raise FileError(
            f"{name} is truncated or padded: {len(content)} bytes are not whole records of"
            f" {CIFAR_RECORD}"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, CIFAR_RECORD)
    labels = records[:, 0]
    if labels.max() > 9:
        first = int(np.flatnonzero(labels > 9)[0])
        raise FileError(f"{name} is mislabelled: record {first} has the label {labels[first]}")
    return records[:, 1:].reshape(-1, 3, 32, 32), labels


def read_letters(content: bytes, name: str) -> tuple[Bytes, Bytes]:
    """KEEL's letters: a line each, sixteen measurements from 0 to 15 and the letter. Rows, labels
    from 0 to 25."""
    rows = [line.split(b",") for line in content.splitlines()]
    for number, row in enumerate(rows, 1):
        measured = len(row) == 17 and all(one.isdigit() and len(one) < 3 for one in row[:16])
        letter = len(row[-1]) == 1 and b"A" <= row[-1] <= b"Z"
        if not measured or not letter or max(map(int, row[:16])) > 15:
            raise FileError(f"{name} is damaged: line {number} has not 16 numbers and a letter")
    if not rows:
        raise FileError(f"{name} is empty; get it again")
    values = np.array([[int(one) for one in row[:16]] for row in rows], dtype=np.uint8)
    return values, np.array([row[16][0] - ord("A") for row in rows], dtype=np.uint8)


def read_texts(
    content: bytes, class_names: Sequence[str], name: str
) -> tuple[list[str], NDArray[np.int64]]:
    """Orange's table of texts: three lines of header, then a class and a text in each. Texts, and
    the position of each one's class among the names."""
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        raise FileError(f"{name} is no text in UTF-8; get it again") from None
    position = {class_: index for index, class_ in enumerate(class_names)}
    texts, labels = [], []
    for number, line in enumerate(lines[3:], 4):
        if not line.strip():
            continue
        class_, tab, text = line.rstrip("\r").partition("\t")
        if not tab or class_ not in position:
            raise FileError(f"{name} is damaged: line {number} begins with no known class")
        texts.append(text)
        labels.append(position[class_])
    if lines[0].split() != ["Category", "Text"] or not texts:
        raise FileError(f"{name} is no table of classes and texts; get it again")
    return texts, np.array(labels, dtype=np.int64)


def read_png(content: bytes, name: str) -> Bytes:
    """A grey 8-bit PNG as (height, width), its chunks' checksums verified."""
    # Imported here: it is slow to import and most runs read no image.
    from PIL import Image, UnidentifiedImageError

    _check_png(content, name)
    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            if image.mode != "L":
                raise FileError(f"{name} is a PNG of mode {image.mode}; expected 8-bit grey")
            return np.array(image, dtype=np.uint8)
    except UnidentifiedImageError:
        raise FileError(f"{name} is a damaged PNG: its parts do not fit together") from None
    except (OSError, SyntaxError, ValueError, EOFError, zlib.error, struct.error) as error:
        raise FileError(f"{name} is a damaged PNG: {error}") from None


def _check_png(content: bytes, name: str) -> None:
    """Pillow neither checks the pixels' checksums nor objects to bytes after the end."""
    if content[:8] != PNG_SIGNATURE:
        raise FileError(
            f"{name} is not a PNG file: it starts with {content[:8].hex() or 'nothing'}"
        )
    position, kind = 8, b""
    while kind != b"IEND":
        if len(content) < position + 12:
            raise FileError(f"{name} is a truncated PNG")
        length, kind = struct.unpack(">I4s", content[position : position + 8])
        end = position + 8 + length
        if len(content) < end + 4:
            raise FileError(f"{name} is a truncated PNG")
        (checksum,) = struct.unpack(">I", content[end : end + 4])
        if zlib.crc32(content[position + 4 : end]) != checksum:
            raise FileError(f"{name} is a damaged PNG: a checksum inside it is wrong")
        if position == 8:
            _check_png_size(kind, content[position + 8 : end], name)
        position = end + 4
    if position != len(content):
        raise FileError(f"{name} is a padded PNG: {len(content) - position} bytes follow its end")


def _check_png_size(kind: bytes, header: bytes, name: str) -> None:
    if kind != b"IHDR" or len(header) != 13:
        raise FileError(f"{name} is a damaged PNG: it has no header")
    width, height = struct.unpack(">II", header[:8])
    if not (0 < width <= LARGEST_PNG_SIDE and 0 < height <= LARGEST_PNG_SIDE):
        raise FileError(
            f"{name} declares {width}x{height} pixels; at most {LARGEST_PNG_SIDE} a side are read"
        )
