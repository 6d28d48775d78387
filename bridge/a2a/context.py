"""What a request says around its message: who calls, in which version of A2A, with which extensions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from a2a.utils.errors import VersionNotSupportedError

from bridge.methods import Metadata
from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY

EXTENSION_URI: Final = "urn:cstp:extension:v1"
EXTENSIONS: Final = "A2A-Extensions"
OLD_EXTENSIONS: Final = "X-A2A-Extensions"
"""How A2A 0.3 calls it."""
VERSION: Final = "A2A-Version"

V1_0: Final = "1.0"
V0_3: Final = "0.3"
VERSION_FORM: Final = re.compile(r"(\d+\.\d+)(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class CallContext:
    """What the operations of A2A are told of a request."""

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


def call_context(metadata: Metadata, address: str, extensions: Iterable[str], version: str) -> CallContext:
    """Return what the operations are told; `extensions` are the values of the headers that activate extensions."""
    return CallContext(metadata, address, read_extensions(extensions), version)


def read_extensions(values: Iterable[str]) -> frozenset[str]:
    """Return the extensions that the values of headers name, each value perhaps several."""
    return frozenset(name for value in values for part in value.split(",") if (name := part.strip()))


def metadata_of(context: CallContext) -> Metadata:
    """Return what the gRPC server gets besides the message: request id, authorization, trace."""
    return context.metadata


def version_in(context: CallContext) -> str:
    """Return the version of A2A that a request is of, without its patch number. Raises VersionNotSupportedError."""
    return version_of(context.version)


def request_id_in(metadata: Metadata) -> str:
    """Return the request id that metadata carries."""
    return dict(metadata)[REQUEST_ID_KEY]


def is_activated(context: CallContext) -> bool:
    """Whether the caller activated our extension."""
    return EXTENSION_URI in context.extensions


def version_of(text: str) -> str:
    """Return the version that a header asks for, without its patch number; none given means 0.3.

    Raises VersionNotSupportedError for any but 1.0 and 0.3.
    """
    if not text:
        return V0_3
    match = VERSION_FORM.fullmatch(text.strip())
    if match is None or match[1] not in (V1_0, V0_3):
        raise VersionNotSupportedError(f"A2A {text[:20]} is not spoken here; send {VERSION}: {V1_0} or {V0_3}")
    return match[1]


def require_version(given: str, wanted: str, what: str) -> None:
    """Let a request of the wanted version pass. Raises VersionNotSupportedError, which names `what` was asked for."""
    if version_of(given) != wanted:
        hint = f"send {VERSION}: {wanted}" if given else f"without {VERSION} a request is one of {V0_3}; send {wanted}"
        raise VersionNotSupportedError(f"{what} belongs to A2A {wanted}; {hint}")
