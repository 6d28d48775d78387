"""Header blocks of HTTP/2 (HPACK, RFC 7541), written and read without a dynamic table.

A client that announces a table of 0 bytes gets blocks that depend on nothing before them, and may itself write such
blocks. So both directions are plain functions.
"""

from __future__ import annotations

from typing import Final

Header = tuple[str, str]
"""A name in lower case, and a value; both have one character for each byte."""

STATIC_NAMES: Final = """
    accept-charset accept-encoding accept-language accept-ranges accept access-control-allow-origin age allow
    authorization cache-control content-disposition content-encoding content-language content-length content-location
    content-range content-type cookie date etag expect expires from host if-match if-modified-since if-none-match
    if-range if-unmodified-since last-modified link location max-forwards proxy-authenticate proxy-authorization range
    referer refresh retry-after server set-cookie strict-transport-security transfer-encoding user-agent vary via
    www-authenticate
"""
STATIC_TABLE: Final[tuple[Header, ...]] = (
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    *((":status", code) for code in ("200", "204", "206", "304", "400", "404", "500")),
    *((name, "gzip, deflate" if name == "accept-encoding" else "") for name in STATIC_NAMES.split()),
)
"""The static table (RFC 7541, appendix A); its first entry has the index 1."""

HUFFMAN_LENGTHS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b08060606050505060606"
    "0606060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e060f0506050605060606050707"
    "0606060506070605050607070707070f0b0e0d1c14161414161616171617171717171817181816171817171717151617161717181615"
    "1416161717151716161815161717151516151716171714161616171616171a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b18"
    "15151a1a1c1b1b1b14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)
"""The length in bits of the Huffman code of each byte and of the end of a text (RFC 7541, appendix B).

The code is canonical: those of the same length are consecutive numbers in the order of the bytes.
"""

NEVER_INDEXED: Final = b"\x10"
"""The beginning of a literal that nobody between client and server may put into a table; it may be a secret."""
INDEXED, WITH_INDEXING, TABLE_SIZE, HUFFMAN = 0x80, 0x40, 0x20, 0x80
"""The bits that tell what follows (RFC 7541, section 6, and 5.2 for the last)."""
MAX_INTEGER: Final = 1 << 28
"""Numbers above it are refused. Chosen: no header block is as long."""


class HeaderBlockError(ValueError):
    """A header block is malformed, or refers to a dynamic table."""


def encode_header(name: str, value: str) -> bytes:
    """Return a header as a part of a block."""
    return NEVER_INDEXED + encode_text(name) + encode_text(value)


def encode_text(text: str) -> bytes:
    """Return a text as a block has it, without Huffman's code."""
    content = text.encode("latin-1")
    return encode_length(len(content)) + content


def encode_length(length: int) -> bytes:
    """Return the length of a text as a prefix of 7 bits and what does not fit in it (RFC 7541, section 5.1)."""
    if length < 0x7F:
        return bytes((length,))
    encoded = bytearray((0x7F,))
    length -= 0x7F
    while length >= 0x80:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def decode_header_block(block: bytes) -> list[Header]:
    """Return the headers of a block. Raises HeaderBlockError."""
    headers: list[Header] = []
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & INDEXED:
                index, at = decode_integer(block, at, 7)
                headers.append(static_header(index))
            elif first & WITH_INDEXING or not first & TABLE_SIZE:
                # Whether the server wants it in the table makes no difference: it fits into none of 0 bytes.
                index, at = decode_integer(block, at, 6 if first & WITH_INDEXING else 4)
                name, at = (static_header(index)[0], at) if index else decode_text(block, at)
                value, at = decode_text(block, at)
                headers.append((name, value))
            else:
                size, at = decode_integer(block, at, 5)
                if size:
                    raise HeaderBlockError("the table was announced to have 0 bytes")
    except IndexError:
        raise HeaderBlockError("the block ends within a header") from None
    return headers


def static_header(index: int) -> Header:
    """Return an entry of the static table. Raises HeaderBlockError for any other index."""
    if not 0 < index <= len(STATIC_TABLE):
        raise HeaderBlockError(f"the tables have no entry {index}")
    return STATIC_TABLE[index - 1]


def decode_integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return the number that begins in the last `bits` of a byte, and where it ends. Raises HeaderBlockError."""
    most = (1 << bits) - 1
    number = block[at] & most
    at += 1
    if number < most:
        return number, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if number > MAX_INTEGER:
            raise HeaderBlockError("a number is too large")
        if not byte & 0x80:
            return number, at
        shift += 7


def decode_text(block: bytes, at: int) -> tuple[str, int]:
    """Return the text at a position, and where it ends. Raises HeaderBlockError."""
    is_compressed = block[at] & HUFFMAN
    length, at = decode_integer(block, at, 7)
    end = at + length
    content = block[at:end]
    if end > len(block):
        raise HeaderBlockError("the block ends within a text")
    return decode_huffman(content) if is_compressed else content.decode("latin-1"), end


def build_huffman_codes() -> dict[str, str]:
    """Return the character of each Huffman code, which is written in the digits 0 and 1."""
    codes: dict[str, str] = {}
    code = 0
    length = min(HUFFMAN_LENGTHS)
    for symbol in sorted(range(len(HUFFMAN_LENGTHS)), key=HUFFMAN_LENGTHS.__getitem__):
        code <<= HUFFMAN_LENGTHS[symbol] - length
        length = HUFFMAN_LENGTHS[symbol]
        # The last symbol is the end of a text, of which a text only has the first bits.
        if symbol < 256:
            codes[f"{code:0{length}b}"] = chr(symbol)
        code += 1
    return codes


HUFFMAN_CODES: Final = build_huffman_codes()
CODE_LENGTHS: Final = sorted(set(HUFFMAN_LENGTHS))


def decode_huffman(content: bytes) -> str:
    """Decode a text in Huffman's code. Raises HeaderBlockError."""
    bits = f"{int.from_bytes(content):0{8 * len(content)}b}" if content else ""
    characters = []
    at = 0
    while True:
        for length in CODE_LENGTHS:
            character = HUFFMAN_CODES.get(bits[at : at + length])
            if character is not None:
                characters.append(character)
                at += length
                break
        else:
            break
    # What fills the last byte is the beginning of the code that ends a text, which has ones only.
    if len(bits) - at >= 8 or "0" in bits[at:]:
        raise HeaderBlockError("a text in Huffman's code does not end with a byte")
    return "".join(characters)
