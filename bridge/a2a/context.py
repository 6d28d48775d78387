"""What a request says around its message: who calls, in which version of A2A, with which extensions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from a2a.extensions.common import get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.utils.errors import VersionNotSupportedError

from bridge.methods import Metadata
from bridge.status import REQUEST_ID

EXTENSION_URI: Final = "urn:cstp:extension:v1"
EXTENSIONS: Final = "A2A-Extensions"
OLD_EXTENSIONS: Final = "X-A2A-Extensions"
"""How A2A 0.3 calls it."""
VERSION: Final = "A2A-Version"

V1_0: Final = "1.0"
V0_3: Final = "0.3"
VERSION_FORM: Final = re.compile(r"(\d+\.\d+)(?:\.\d+)?")

METADATA: Final = "metadata"
ADDRESS: Final = "address"


def call_context(metadata: Metadata, address: str, extensions: Iterable[str], version: str) -> ServerCallContext:
    """Return what the operations are told of a request.

    `metadata` is what the gRPC server gets, `address` the public address of the bridge, `extensions` the values of the
    headers that activate extensions, `version` the one that the request asks for, as it stands there.
    """
    return ServerCallContext(
        state={METADATA: metadata, ADDRESS: address, VERSION: version},
        requested_extensions=get_requested_extensions(list(extensions)),
    )


def metadata_of(context: ServerCallContext) -> Metadata:
    """Return what the gRPC server gets besides the message: request id, authorization, trace."""
    metadata: Metadata = context.state[METADATA]
    return metadata


def address_of(context: ServerCallContext) -> str:
    """Return the public address of the bridge, as `https://agent.example.com`."""
    address: str = context.state[ADDRESS]
    return address


def version_in(context: ServerCallContext) -> str:
    """Return the version of A2A that a request is of, without its patch number. Raises VersionNotSupportedError."""
    version: str = context.state[VERSION]
    return version_of(version)


def request_id_in(metadata: Metadata) -> str:
    """Return the request id that metadata carries."""
    return dict(metadata)[REQUEST_ID]


def is_activated(context: ServerCallContext) -> bool:
    """Whether the caller activated our extension."""
    return EXTENSION_URI in context.requested_extensions


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
