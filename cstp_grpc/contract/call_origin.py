"""The metadata with which bridges and proxies report the origin of a call to a server."""

from __future__ import annotations

from typing import Final

BRIDGE_KEY_METADATA_KEY: Final = "x-cstp-bridge-key"
"""The key that a bridge shares with its server; without it the next two are not trusted."""
FORWARDED_FOR_METADATA_KEY: Final = "x-forwarded-for"
"""The address of the caller. From proxies in trusted networks it is trusted without a key."""
CERTIFICATE_METADATA_KEY: Final = "x-cstp-client-certificate"
"""The verified certificate that the caller showed the bridge, in DER as base64url."""
MIN_BRIDGE_KEY_CHARACTERS: Final = 24
