"""Image files that Pillow writes, and what torchvision decodes them to. Needs torchvision and Pillow."""
import io
import struct
import zlib

import numpy as np
import torch

MODES = {"unchanged": "UNCHANGED", "gray": "GRAY", "gray_alpha": "GRAY_ALPHA", "rgb": "RGB", "rgb_alpha": "RGB_ALPHA"}


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width, height, depth, color, data, interlace=0, extra=()):
    """A PNG file of filtered rows."""
    return (b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace))
            + b"".join(_chunk(*part) for part in extra) + _chunk(b"IDAT", zlib.compress(data, 9)) + _chunk(b"IEND", b""))


def _rows(values, height, row_bytes):
    data = bytes(int(v) & 255 for v in values[:height * row_bytes])
    return b"".join(b"\0" + data[y * row_bytes:(y + 1) * row_bytes] for y in range(height))


def _interlaced(pixels, width, height):
    """The rows of the seven passes. pixels[y][x]: bytes."""
    out = b""
    for x0, y0, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]:
        if x0 >= width:
            continue
        for y in range(y0, height, dy):
            out += b"\0" + b"".join(pixels[y][x] for x in range(x0, width, dx))
    return out


def _files():
    from PIL import Image
    noise = np.arange(4000) * 7919 % 251
    smooth = np.fromfunction(lambda y, x, c: (7 * x + 11 * y + 40 * c + x * y) % 256, (11, 13, 3)).astype(np.uint8)
    palette = bytes(int(v) for v in noise[100:112])
    files = {}
    for width, height in [(1, 1), (5, 3)]:
        for name, color, channels in [("gray", 0, 1), ("rgb", 2, 3), ("gray_alpha", 4, 2), ("rgba", 6, 4)]:
            rows = _rows(noise, height, width * channels)
            files[f"png_{name}_{width}x{height}"] = _png(width, height, 8, color, rows)
    for depth in [1, 2, 4]:
        rows = _rows(noise * 37, 5, (9 * depth + 7) // 8)
        files[f"png_gray{depth}"] = _png(9, 5, depth, 0, rows)
    files["png_palette"] = _png(9, 5, 2, 3, _rows(noise * 37, 5, 3), extra=[(b"PLTE", palette)])
    files["png_palette_transparent"] = _png(9, 5, 2, 3, _rows(noise * 37, 5, 3),
                                            extra=[(b"PLTE", palette), (b"tRNS", b"\x00\x80")])
    for width, height in [(1, 1), (2, 9), (3, 2), (9, 5), (17, 16)]:
        pixels = [[bytes(int(v) for v in noise[3 * (y * width + x):][:3]) for x in range(width)] for y in range(height)]
        files[f"png_interlaced_{width}x{height}"] = _png(width, height, 8, 2, _interlaced(pixels, width, height), 1)
    image = Image.fromarray(smooth)
    for name, options in {"jpeg_420": {"subsampling": 2}, "jpeg_422": {"subsampling": 1}, "jpeg_444": {"subsampling": 0},
                          "jpeg_progressive": {"progressive": True, "subsampling": 2},
                          "jpeg_restart": {"restart_marker_blocks": 1}, "jpeg_low": {"quality": 5}}.items():
        stream = io.BytesIO()
        image.save(stream, "JPEG", **options)
        files[name] = stream.getvalue()
    for name, mode in {"jpeg_gray": "L", "jpeg_cmyk": "CMYK"}.items():
        stream = io.BytesIO()
        image.convert(mode).save(stream, "JPEG")
        files[name] = stream.getvalue()
    return files


def image_files():
    from torchvision.io import ImageReadMode, decode_image
    out = {}
    for name, data in _files().items():
        file = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        out[f"{name}/file"] = file
        for mode, theirs in MODES.items():
            if mode == "unchanged" and ("palette" in name or "cmyk" in name):
                continue  # torchvision returns indices without their palette, and CMYK
            if "alpha" in mode and name.startswith("jpeg"):
                continue  # an error in torchvision
            if "alpha" in mode and name in ["png_gray1", "png_gray2", "png_gray4", "png_palette"]:
                continue  # torchvision 0.29 gives alpha 1, 3 and 15, and for palettes mixed channels
            out[f"{name}/{mode}"] = decode_image(file, ImageReadMode[theirs])
    return out, {}
