"""The readers: what they give for good files, and that no broken file crashes or misleads them."""

import gzip
import io
import resource
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from evclplus.data.archives import read_members
from evclplus.data.readers import (
    CIFAR_RECORD,
    PNG_SIGNATURE,
    decompressed,
    read_cifar,
    read_content,
    read_idx,
    read_letters,
    read_png,
    read_texts,
    write_idx,
)
from evclplus.errors import FileError

RANDOM = np.random.default_rng(20)


def idx_file() -> bytes:
    return write_idx(np.arange(3 * 5 * 4, dtype=np.uint8).reshape(3, 5, 4))


def cifar_file() -> bytes:
    records = RANDOM.integers(0, 256, size=(3, CIFAR_RECORD), dtype=np.uint8)
    records[:, 0] = [0, 9, 4]
    return records.tobytes()


def png_file(side: int = 12) -> bytes:
    pixels = np.arange(side * side, dtype=np.uint8).reshape(side, side)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()


def tar_file() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("a/one.bin", "a/two.bin"):
            member = tarfile.TarInfo(name)
            member.size = 700
            archive.addfile(member, io.BytesIO(bytes(700)))
    return stream.getvalue()


def mutated(content: bytes, generator: np.random.Generator) -> bytes:
    """The content after one to four random injuries."""
    data = bytearray(content)
    for _ in range(generator.integers(1, 5)):
        place = int(generator.integers(0, max(1, len(data))))
        injury = generator.integers(0, 7)
        if injury == 0 and data:
            data[place % len(data)] ^= 1 << int(generator.integers(0, 8))
        elif injury == 1:
            del data[place:]
        elif injury == 2:
            data += generator.bytes(int(generator.integers(1, 40)))
        elif injury == 3:
            data[place:place] = generator.bytes(int(generator.integers(1, 8)))
        elif injury == 4:
            del data[place : place + int(generator.integers(1, 8))]
        elif injury == 5:
            # Numbers near the edges of what a header field can say.
            value = int(generator.choice([0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1]))
            position = int(generator.integers(0, 24))
            data[position : position + 4] = struct.pack(">I", value)
        else:
            length = int(generator.integers(1, 16))
            data[place : place + length] = data[:length]
    return bytes(data)


def with_right_checksums(content: bytes) -> bytes:
    """A PNG whose chunk checksums are made to fit, so that injuries reach the decoder."""
    data, position = bytearray(content), 8
    while len(data) >= position + 12:
        (length,) = struct.unpack(">I", data[position : position + 4])
        end = position + 8 + length
        if len(data) < end + 4:
            break
        data[end : end + 4] = struct.pack(">I", zlib.crc32(data[position + 4 : end]))
        position = end + 4
    return bytes(data)


def check_idx(content: bytes) -> None:
    array = read_idx(content, "fuzzed")
    start = 4 + 4 * content[3]
    assert content[:3] == b"\0\0\x08"
    assert array.shape == tuple(np.frombuffer(content[4:start], dtype=">u4"))
    assert array.tobytes() == content[start:]


def check_cifar(content: bytes) -> None:
    pictures, labels = read_cifar(content, "fuzzed")
    assert len(pictures) == len(labels) == len(content) // CIFAR_RECORD
    for number, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        start = number * CIFAR_RECORD
        assert label == content[start] <= 9
        assert picture.tobytes() == content[start + 1 : start + CIFAR_RECORD]


def check_png(content: bytes) -> None:
    assert np.array_equal(
        read_png(content, "fuzzed"), np.arange(144, dtype=np.uint8).reshape(12, 12)
    )


def check_forged_png(content: bytes) -> None:
    # The header is kept whole: what breaks is the packed pixels.
    forged = with_right_checksums(png_file()[:33] + content[33:])
    picture = read_png(forged, "fuzzed")
    assert picture.shape == struct.unpack(">II", forged[16:24])[::-1]


def check_gzip(content: bytes) -> None:
    assert decompressed(content, "fuzzed.gz", 100) == gzip.decompress(content)


def check_tar(content: bytes) -> None:
    for path, member in read_members(io.BytesIO(content), "fuzzed", 20_480, packed=False):
        assert not path.is_absolute()
        assert len(member) <= 20_480


@pytest.mark.parametrize(
    ("make", "check", "count"),
    [
        (idx_file, check_idx, 20_000),
        (cifar_file, check_cifar, 10_000),
        (png_file, check_png, 10_000),
        (png_file, check_forged_png, 20_000),
        (lambda: gzip.compress(idx_file(), mtime=0), check_gzip, 10_000),
        (tar_file, check_tar, 5_000),
    ],
    ids=["idx", "cifar", "png", "forged png", "gzip", "tar"],
)
def test_mutated_files_give_a_clear_error_or_right_data(
    make: Callable[[], bytes], check: Callable[[bytes], None], count: int
) -> None:
    generator = np.random.default_rng(7)
    original = make()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    messages = []
    for _ in range(count):
        try:
            check(mutated(original, generator))
        except FileError as error:
            messages.append(str(error))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert len(messages) > count // 10
    assert all("fuzzed" in message and "\n" not in message for message in messages)
    assert grown < 200_000, f"memory grew by {grown} kB"


def test_good_files() -> None:
    check_idx(idx_file())
    check_cifar(cifar_file())
    check_png(png_file())
    assert dict(read_members(io.BytesIO(tar_file()), "good", 20_480, packed=False)).keys()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "bad is truncated: 0 bytes"),
        (idx_file()[:-1], "bad is truncated: its header says 76 bytes, it has 75"),
        (idx_file() + b"x", "bad is padded"),
        (b"\0\0\x0d\x03" + bytes(12), "not an IDX file of bytes"),
        (b"\0\0\x08\x03\0\0", "header is cut off"),
        (b"\0\0\x08\x02" + b"\xff" * 8, "truncated"),
    ],
)
def test_idx_problems_are_named(content: bytes, message: str) -> None:
    with pytest.raises(FileError, match=message):
        read_idx(content, "bad")


def test_cifar_problems_are_named() -> None:
    good = cifar_file()
    for content in (b"", good[:-1], good + b"x"):
        with pytest.raises(FileError, match="bad is truncated or padded"):
            read_cifar(content, "bad")
    with pytest.raises(FileError, match="mislabelled: record 0 has the label 200"):
        read_cifar(b"\xc8" + good[1:], "bad")


def png_declaring(width: int, height: int) -> bytes:
    return with_right_checksums(
        png_file()[:16] + struct.pack(">II", width, height) + png_file()[24:]
    )


LETTERS = b"2,4,4,3,2,7,8,2,9,11,7,7,1,8,5,6,Z\n0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,15,A\n"
TEXTS = b"Category\tText\nd\tstring\nclass\t\n\nrec.autos\tbig cars\nsci.med\ta\tpill\r\n"


def test_letters_and_texts() -> None:
    values, labels = read_letters(LETTERS, "letter.dat")
    assert values.tolist() == [[2, 4, 4, 3, 2, 7, 8, 2, 9, 11, 7, 7, 1, 8, 5, 6], [0] * 15 + [15]]
    assert labels.tolist() == [25, 0]
    texts, classes = read_texts(TEXTS, ("rec.autos", "sci.med"), "texts")
    assert texts == ["big cars", "a\tpill"]
    assert classes.tolist() == [0, 1]


@pytest.mark.parametrize(
    "content",
    [
        LETTERS.replace(b"11", b"16"),
        LETTERS.replace(b"11", b"-1"),
        LETTERS.replace(b"11", b"1e1"),
        LETTERS.replace(b"11,", b""),
        LETTERS.replace(b"Z", b"z"),
        LETTERS.replace(b"Z", b""),
        LETTERS.replace(b"Z", b"ZZ"),
        LETTERS + b"\n",
        b"",
    ],
)
def test_damaged_letters_are_one_line(content: bytes) -> None:
    with pytest.raises(FileError, match=r"letter\.dat is (damaged: line \d|empty)"):
        read_letters(content, "letter.dat")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (TEXTS.replace(b"rec.autos", b"rec.trains"), "line 5 begins with no known class"),
        (TEXTS.replace(b"autos\tbig", b"autos big"), "line 5 begins with no known class"),
        (TEXTS.replace(b"Category", b"Name"), "no table of classes and texts"),
        (TEXTS[:31], "no table of classes and texts"),
        (b"", "no table of classes and texts"),
        (TEXTS + b"\xff", "no text in UTF-8"),
    ],
)
def test_damaged_texts_are_one_line(content: bytes, reason: str) -> None:
    with pytest.raises(FileError, match=reason):
        read_texts(content, ("rec.autos", "sci.med"), "texts")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GIF89a", "not a PNG"),
        (png_file()[:40], "truncated PNG"),
        (png_file() + b"x", "padded PNG: 1 bytes follow"),
        (png_file()[:45] + b"\xff" + png_file()[46:], "checksum inside it is wrong"),
        (png_declaring(2**31 - 1, 2**31 - 1), "at most 4096 a side"),
        (PNG_SIGNATURE + png_file()[33:], "no header"),
    ],
)
def test_png_problems_are_named(content: bytes, message: str) -> None:
    with pytest.raises(FileError, match=message):
        read_png(content, "bad")


def test_coloured_pngs_are_not_letters() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (3, 3)).save(stream, format="PNG")
    with pytest.raises(FileError, match="mode RGB; expected 8-bit grey"):
        read_png(stream.getvalue(), "bad")


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(bytes(50_000_000)))
    with pytest.raises(FileError, match="more than the 1000 bytes"):
        read_content(bomb, 1000)
    with pytest.raises(FileError, match="cannot read"):
        read_content(tmp_path / "missing", 1000)


def members(*infos: tarfile.TarInfo) -> Iterator[object]:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for info in infos:
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    stream.seek(0)
    return read_members(stream, "hostile.tar", 2**20, packed=False)


def tar_info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 3 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "info",
    [
        tar_info("../outside"),
        tar_info("a/../../outside"),
        tar_info("/etc/outside"),
        tar_info("..\\outside"),
        tar_info("C:\\outside"),
        tar_info("link", tarfile.SYMTYPE, "/etc"),
        tar_info("link", tarfile.LNKTYPE, "../outside"),
        tar_info("device", tarfile.CHRTYPE),
        tar_info("device", tarfile.BLKTYPE),
        tar_info("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name} {info.type!r}",
)
def test_members_that_could_escape_are_refused(info: tarfile.TarInfo) -> None:
    with pytest.raises(FileError, match=r"hostile\.tar has a member .* it is not used"):
        list(members(tar_info("fine"), info))


def test_archive_bombs_are_refused() -> None:
    large = tar_info("large")
    large.size = 2**21
    with pytest.raises(FileError, match="unpacks to more than the 1048576 bytes"):
        list(members(large))


def test_bombs_in_the_headers_are_refused() -> None:
    """An extended header is read before any member is seen, so it must count as well."""
    stream = io.BytesIO()
    with tarfile.open(
        fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers={"c": "x" * 20_000_000}
    ):
        pass
    stream.seek(0)
    with pytest.raises(FileError, match="unpacks to more than"):
        list(read_members(stream, "hostile.tar.gz", 2**20, packed=True))
