"""Certificates for servers on this machine."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """A certificate for localhost that certifies itself, and its key, both PEM."""

    certificate: Path
    key: Path

    @property
    def authority(self) -> bytes:
        return self.certificate.read_bytes()


def make_certificate(folder: Path) -> Certificate:
    """Return a new certificate in a folder; openssl is needed for it."""
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return made
