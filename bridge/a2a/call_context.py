"""The context of an A2A call: its version, extensions, tenant and metadata, and the lazy imports of A2A 0.3."""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from a2a.utils.errors import VersionNotSupportedError

from bridge.upstream import Metadata
from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY

EXTENSION_URI: Final = "urn:cstp:extension:v1"
EXTENSIONS_HEADER: Final = "A2A-Extensions"
EXTENSIONS_HEADER_V0_3: Final = "X-A2A-Extensions"
"""How A2A 0.3 calls it."""
VERSION_HEADER: Final = "A2A-Version"

V1_0: Final = "1.0"
V0_3: Final = "0.3"
VERSION_FORM: Final = re.compile(r"(\d+\.\d+)(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class A2aCallContext:
    """The metadata, public URL, extensions, version and tenant of an A2A call."""

    metadata: Metadata
    """What the gRPC server gets besides the message: request id, authorization, trace."""
    address: str
    """The public address of the bridge, as `https://agent.example.com`."""
    extensions: frozenset[str]
    """The extensions that the request activates."""
    version: str
    """The version that the request asks for, as it stands there."""
    tenant: str = ""
    """The tenant that the path or the envelope of the request names; empty if none is."""


def build_call_context(metadata: Metadata, address: str, extensions: Iterable[str], version: str) -> A2aCallContext:
    """Build the context of a call; `extensions` are the values of the headers that activate extensions."""
    return A2aCallContext(metadata, address, parse_extensions(extensions), version)


def parse_extensions(values: Iterable[str]) -> frozenset[str]:
    """Parse the extension URIs in header values, each of which may hold several."""
    return frozenset(name for value in values for part in value.split(",") if (name := part.strip()))


def call_metadata(context: A2aCallContext) -> Metadata:
    """Return the gRPC metadata of a call: request id, authorization and trace."""
    return context.metadata


def call_version(context: A2aCallContext) -> str:
    """Return the A2A version of a call, without its patch number. Raises VersionNotSupportedError."""
    return parse_version(context.version)


def metadata_request_id(metadata: Metadata) -> str:
    """Return the request id in gRPC metadata."""
    return dict(metadata)[REQUEST_ID_KEY]


def is_extension_activated(context: A2aCallContext) -> bool:
    """Return whether the caller activated the CSTP extension."""
    return EXTENSION_URI in context.extensions


def parse_version(text: str) -> str:
    """Parse the version of a header, without its patch number; an empty one means 0.3.

    Raises VersionNotSupportedError for any version but 1.0 and 0.3.
    """
    if not text:
        return V0_3
    match = VERSION_FORM.fullmatch(text.strip())
    if match is None or match[1] not in (V1_0, V0_3):
        raise VersionNotSupportedError(f"A2A {text[:20]} is not spoken here; send {VERSION_HEADER}: {V1_0} or {V0_3}")
    return match[1]


def require_version(given: str, wanted: str, what: str) -> None:
    """Raise VersionNotSupportedError, which names `what` was requested, unless the version is the wanted one."""
    if parse_version(given) != wanted:
        hint = (
            f"send {VERSION_HEADER}: {wanted}"
            if given
            else f"without {VERSION_HEADER} a request is one of {V0_3}; send {wanted}"
        )
        raise VersionNotSupportedError(f"{what} belongs to A2A {wanted}; {hint}")


SDK_MODULES_V0_3: Final = ("a2a.compat.v0_3.conversions", "a2a.compat.v0_3.proto_utils")

_imported: set[str] = set()


async def load_sdk_v0_3() -> None:
    """Import the SDK modules for A2A 0.3 in a thread, so that other requests are not blocked."""
    for name in SDK_MODULES_V0_3:
        if name not in _imported:
            await asyncio.to_thread(importlib.import_module, name)
            _imported.add(name)
