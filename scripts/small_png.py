"""Write pictures of pages as PNG files with at most 256 colours: about a third of the size of a browser's own."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser

QUANTIZE: Final = """async encoded => {
  const image = new Image();
  image.src = 'data:image/png;base64,' + encoded;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) || 0) + 1);
  const palette = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 256).map(each => each[0]);
  const bytes = colour => [colour & 255, colour >> 8 & 255, colour >> 16 & 255];
  const known = palette.map(bytes), index = new Map();
  for (const colour of counts.keys()) {
    const [r, g, b] = bytes(colour);
    const distances = known.map(each => (each[0] - r) ** 2 + (each[1] - g) ** 2 + (each[2] - b) ** 2);
    index.set(colour, distances.indexOf(Math.min(...distances)));
  }
  const parts = [];
  for (const pixel of pixels) parts.push(String.fromCharCode(index.get(pixel)));
  return [image.width, image.height, known.flat(), btoa(parts.join(''))];
}"""
"""Returns the width, the height, the colours, most frequent first, and the number of the nearest one for each pixel."""


def save_small_png(browser: Browser, picture: bytes, path: Path) -> None:
    """Write a PNG with its most frequent colours."""
    page = browser.new_page()
    width, height, colours, encoded = page.evaluate(QUANTIZE, base64.b64encode(picture).decode())
    page.close()
    pixels = base64.b64decode(encoded)
    # Each row begins with its filter, here none.
    rows = b"".join(b"\0" + pixels[start : start + width] for start in range(0, width * height, width))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", bytes(colours)), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    with path.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, content in chunks:
            file.write(struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content)))
