"""Bad pictures, made here: cut, flipped, bombs, other formats, odd metadata, odd files."""

from __future__ import annotations

import gzip
import io
import os
import socket
import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, features

RED, GREEN = (200, 30, 30), (30, 200, 30)


def halves(mode: str = "RGB") -> Image.Image:
    """Red on the left, green on the right."""
    image = Image.new("RGB", (48, 32), RED)
    image.paste(GREEN, (24, 0, 48, 32))
    return image.convert(mode)


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


FORMS: dict[str, dict[str, object]] = {
    "JPEG": {"quality": 95, "subsampling": 0},
    "PNG": {},
    "WEBP": {"lossless": True},
    "BMP": {},
    "GIF": {},
    "TIFF": {},
    "JPEG2000": {},
    "PPM": {},
} | ({"AVIF": {"quality": 100}} if features.check("avif") else {})


def whole() -> dict[str, bytes]:
    """The same picture in every format."""
    return {form: saved(halves(), form, **options) for form, options in FORMS.items()}


# Pieces of files ------------------------------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *extra: bytes, depth: int = 8, colour: int = 0, rows: bytes | None = None) -> bytes:
    """A PNG of zeros, with chunks before the data."""
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    data = zlib.compress(bytes(1 + width * channels * depth // 8) * height if rows is None else rows, 9)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [chunk(b"IHDR", header), *extra, chunk(b"IDAT", data), chunk(b"IEND")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@cache
def deep_bomb(side: int = 13_300) -> bytes:
    """A PNG of 16 bits that has 344 kB, and 177 million pixels."""
    row, packer = bytes(1 + 2 * side), zlib.compressobj(9)
    data = b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()])
    header = struct.pack(">IIBBBBB", side, side, 16, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND")


def tiff(width: int, height: int, data: bytes, **tags: int) -> bytes:
    """A grey TIFF, deflated; of one strip, or of one tile."""
    known = {"tile_width": 322, "tile_length": 323, "rows_per_strip": 278}
    fields = {256: width, 257: height, 258: 8, 259: 8, 262: 1, 277: 1} | {known[n]: v for n, v in tags.items()}
    place, length = (324, 325) if 322 in fields else (273, 279)
    start = 8 + 2 + 12 * (len(fields) + 2) + 4
    fields |= {place: start, length: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(fields.items()))
    return b"II*\0" + struct.pack("<IH", 8, len(fields)) + entries + bytes(4) + data


def jpeg_segments(segments: bytes) -> bytes:
    """The JPEG with segments right after its beginning."""
    plain = saved(halves(), "JPEG", quality=95, subsampling=0)
    return plain[:2] + segments + plain[2:]


def segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(data)) + data


def gif_extension(extension: bytes) -> bytes:
    """The GIF with an extension before its first picture."""
    plain = saved(halves().quantize(4), "GIF")
    start = 13 + (3 * 2 ** ((plain[10] & 7) + 1) if plain[10] & 128 else 0)
    return plain[:start] + extension + plain[start:]


def exif(orientation: int) -> bytes:
    found = Image.Exif()
    found[0x0112] = orientation
    return found.tobytes()


def resized_jpeg(width: int, height: int) -> bytes:
    """A JPEG whose header says another size than it has."""
    plain = saved(halves(), "JPEG")
    at = plain.index(b"\xff\xc0") + 5
    return plain[:at] + struct.pack(">HH", height, width) + plain[at + 4 :]


# Cases ----------------------------------------------------------------------------------------------------------------


def right() -> dict[str, bytes]:
    """Odd files that hold the picture all the same: name of the file -> content."""
    both = saved(halves(), "PNG")
    turned = halves().transpose(Image.Transpose.ROTATE_90)
    transparent = halves("RGBA").quantize(4)
    found = {f"plain.{form.lower()}": content for form, content in whole().items()} | {
        "png called.jpg": both,
        "no ending": both,
        "followed by garbage.png": both + b"<script>" * 1000,
        "exif garbage.jpg": jpeg_segments(segment(0xE1, b"Exif\0\0" + b"\xff" * 500)),
        "exif cut.jpg": jpeg_segments(segment(0xE1, b"Exif\0\0" + exif(6)[6:20])),
        "exif offset.jpg": jpeg_segments(segment(0xE1, b"Exif\0\0II*\0\xff\xff\xff\x7f")),
        "exif 77.jpg": saved(halves(), "JPEG", quality=95, subsampling=0, exif=exif(77)),
        "exif turned.jpg": saved(turned, "JPEG", quality=95, subsampling=0, exif=exif(6)),
        "icc garbage.jpg": saved(halves(), "JPEG", quality=95, subsampling=0, icc_profile=b"\xff" * 3000),
        "icc garbage.png": saved(halves(), "PNG", icc_profile=b"no profile"),
        "xmp garbage.jpg": jpeg_segments(segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:tiff:Orientation=")),
        "adobe garbage.jpg": jpeg_segments(segment(0xED, b"Photoshop 3.0\x008BIM\x04\x04\xff\xff\xff\xff")),
        "progressive.jpg": saved(halves(), "JPEG", quality=95, subsampling=0, progressive=True),
        "cmyk.jpg": saved(halves("CMYK"), "JPEG", quality=95, subsampling=0),
        "palette.png": saved(halves().quantize(4), "PNG"),
        "palette with transparency.png": saved(transparent, "PNG", transparency=b"\xff\xff\xff\xff"),
        "layers.png": saved(halves("RGBA"), "PNG"),
        "sixteen bits.png": png(
            48,
            32,
            depth=16,
            colour=2,
            rows=(b"\0" + b"\xc8\xc8\x1e\x1e\x1e\x1e" * 24 + b"\x1e\x1e\xc8\xc8\x1e\x1e" * 24) * 32,
        ),
        "animated.gif": saved(halves(), "GIF", save_all=True, append_images=[halves().rotate(180)]),
        "animated.png": saved(halves(), "PNG", save_all=True, append_images=[halves().rotate(180)]),
        "animated.webp": saved(halves(), "WEBP", lossless=True, save_all=True, append_images=[halves().rotate(180)]),
        "several.tif": saved(halves(), "TIFF", save_all=True, append_images=[halves().rotate(180)]),
        "comment after the picture.gif": saved(halves(), "GIF")[:-1] + b"!\xfe" + (b"\xff" + b"a" * 255) * 40_000,
    }
    return found


def refused() -> dict[str, tuple[bytes, str]]:
    """Files that are no pictures, or that are too large: name of the file -> content, and what is said of it."""
    unknown, many = "holds none of", "too large"
    found: dict[str, tuple[bytes, str]] = {}
    for form, content in whole().items():
        found[f"header of {form}.jpg"] = (content[:14], "not a readable image")
    script = (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\n(touched) (w) file closefile showpage\n"
    )
    windows = struct.pack("<4sIII", b"\xc5\xd0\xd3\xc6", 32, len(script), 0) + bytes(16) + script
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>'
    others = {
        "postscript.jpg": script,
        "postscript of windows.jpg": windows,
        "postscript.eps": script,
        "document.jpg": b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF",
        "drawing.jpg": svg,
        "page.jpg": b"<!DOCTYPE html><img src=x onerror=alert(1)>",
        "metafile.jpg": b"\xd7\xcd\xc6\x9a\0\0\0\0\0\0\x10\0\x10\0H\0\0\0\0\0\0\0" + bytes(40),
        "layers.jpg": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 9, 9, 8, 3) + bytes(60),
        "icon.jpg": saved(halves(), "ICO"),
        "program.jpg": b"\x7fELF\2\1\1" + bytes(200),
        "script.png": b"#!/bin/sh\ntouch touched\n",
        "archive.png": b"PK\3\4" + bytes(100),
        "compressed.png": gzip.compress(saved(halves(), "PNG")),
        "text.webp": b"RIFF, as it were",
        "targa.tga": saved(halves(), "TGA"),
        "scan.dcm": bytes(128) + b"DICM" + bytes(100),
    }
    found |= {name: (content, unknown) for name, content in others.items()}
    found |= {
        "bomb of 16 bits.png": (deep_bomb(), many),
        "bomb.png": (png(60_000, 60_000, rows=b""), "megapixels"),
        "wide bomb.png": (png(2**31 - 1, 1, rows=b""), "megapixels"),
        "bomb.bmp": (
            b"BM" + struct.pack("<IIIIiiHHIIIIII", 99, 0, 54, 40, 50_000, 50_000, 1, 24, *[0] * 6),
            "megapixels",
        ),
        "bomb.gif": (b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x08\0;", "megapixels"),
        "bomb.ppm": (b"P6 100000 100000 255\n" + bytes(100), "megapixels"),
        "bomb.jpg": (resized_jpeg(65_500, 65_500), "megapixels"),
        "bomb.webp": (b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\xff\xff\xff\x0f" + bytes(8), "image"),
        "bomb.tif": (tiff(60_000, 60_000, zlib.compress(bytes(10**6)), rows_per_strip=60_000), "megapixels"),
        "tile bomb.tif": (
            tiff(16, 16, zlib.compress(bytes(9000 * 9000), 1), tile_width=9000, tile_length=9000),
            many,
        ),
        "text bomb.png": (png(48, 32, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**7)))), "not a readable image"),
        "narrow.png": (png(100_000, 1), "too narrow"),
        "flat.png": (png(1, 100_000), "too narrow"),
        "flood of comments.gif": (gif_extension(b"!\xfe" + (b"\xff" + b"a" * 255) * 60_000 + b"\0"), "doesn't end"),
        "flood of chunks.png": (png(48, 32, *[chunk(b"aaAa")] * 300_000), "doesn't end"),
        "flood of segments.jpg": (jpeg_segments(segment(0xFE, b"") * 300_000), "doesn't end"),
        "flood of padding.jpg": (jpeg_segments(b"\xff" * 3_000_000), "doesn't end"),
        "no pixels.png": (png(0, 0), "not a readable image"),
        "no pixels.gif": (b"GIF89a\0\0\0\0\0\0\0,\0\0\0\0\0\0\0\0\0\x02\0;", "not a readable image"),
        "no pixels.bmp": (b"BM" + struct.pack("<IIIIiiHHIIIIII", 99, 0, 54, 40, 0, 0, 1, 24, *[0] * 6), "image"),
        "no pixels.ppm": (b"P6 0 0 255\n", "not a readable image"),
        "no pixels.tif": (tiff(0, 0, b""), "not a readable image"),
        "not a number.tif": (saved(Image.fromarray(np.full((9, 9), np.nan, np.float32)), "TIFF"), "not finite"),
        "empty.png": (b"", "empty"),
        "one byte.jpg": (b"\xff", unknown),
        "zeros.jpg": (bytes(10_000), unknown),
        "wrong checksum.png": (png(48, 32).replace(b"IHDR\0\0\0\x30", b"IHDR\0\0\0\x31"), "not a readable image"),
        "no data.png": (png(48, 32, rows=b""), "not a readable image"),
        "bytes of a bomb.png": (b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 2**31 - 1) + b"IHDR" + bytes(50), "readable"),
    }
    return found


def damaged() -> dict[str, bytes]:
    """Cut files, and files with some bits flipped: what can still be decoded of them is anybody's guess."""
    found = {}
    for form, content in whole().items():
        generator = np.random.default_rng(len(content))
        for part in (0.35, 0.9):
            found[f"cut at {part} of {form}"] = content[: int(part * len(content))]
        for count in (1, 4, 40):
            flipped = bytearray(content)
            for place in generator.integers(8, len(content), count):
                flipped[place] ^= 1 << int(generator.integers(8))
            found[f"{count} bits of {form}"] = bytes(flipped)
    return found


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _two_links(path: Path) -> None:
    path.symlink_to(path.with_name("other link"))
    path.with_name("other link").symlink_to(path)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(saved(halves(), "PNG"))
        file.truncate(10**11)


#: Paths that lead to no picture: how each is made, and what is said of it.
PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe.jpg": (_fifo, "pipe"),
    "socket.jpg": (_socket, "socket"),
    "folder.jpg": (Path.mkdir, "folder"),
    "link to a pipe.jpg": (lambda p: (_fifo(p.with_name("far")), p.symlink_to(p.with_name("far"))), "pipe"),
    "zero.jpg": (lambda p: p.symlink_to("/dev/zero"), "device"),
    "random.jpg": (lambda p: p.symlink_to("/dev/random"), "device"),
    "link to nothing.jpg": (lambda p: p.symlink_to("nowhere"), "No such file"),
    "link to itself.jpg": (lambda p: p.symlink_to(p), "symbolic links"),
    "links in a circle.jpg": (_two_links, "symbolic links"),
    "not there.jpg": (lambda p: None, "No such file"),
    "of the kernel.jpg": (lambda p: p.symlink_to("/proc/self/mem"), "empty"),
    "sparse.png": (_sparse, "100,000 MB"),
    "x" * 300 + ".jpg": (lambda p: None, "name too long"),
    "below a file.jpg/x.png": (lambda p: p.parent.write_bytes(b""), "Not a directory"),
}
