"""Certificates for servers on this machine."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

EVERY_NAME = "DNS:localhost,IP:127.0.0.1"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, both PEM."""

    certificate: Path
    key: Path

    @property
    def authority(self) -> bytes:
        return self.certificate.read_bytes()

    @property
    def settings(self) -> dict[str, str]:
        """What `grpc.tls` and `server.tls` take."""
        return {"certificate": str(self.certificate), "key": str(self.key)}

    def copied(self, folder: Path) -> Certificate:
        """Return a copy in a folder, where it replaces the one that is there."""
        copy = Certificate(folder / "certificate.pem", folder / "key.pem")
        shutil.copy(self.certificate, copy.certificate)
        shutil.copy(self.key, copy.key)
        return copy


def make_certificate(folder: Path, names: str = "DNS:localhost") -> Certificate:
    """Return a new certificate in a folder, for localhost, that certifies itself; openssl is needed for it."""
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    # Some clients take no certificate of an authority for one of a server.
    command += ["-addext", f"subjectAltName={names}", "-addext", "basicConstraints=critical,CA:FALSE"]
    command += ["-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return made


class Authority:
    """Certifies servers; all that it makes is in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self.certificate = folder / "authority.pem"
        self._key = folder / "authority-key.pem"
        command = ["openssl", "req", "-x509", *KEY, "-days", "2", "-subj", "/CN=An authority of tests"]
        # Python 3.13 and later trust no authority without it.
        command += ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        self._run(*command, "-keyout", str(self._key), "-out", str(self.certificate))

    def certify(self, names: str = EVERY_NAME, common_name: str = "a server") -> Certificate:
        """Return a new certificate for a server or a client of some names."""
        self._made += 1
        stem = self._folder / f"server-{self._made}"
        made = Certificate(stem.with_suffix(".pem"), stem.with_suffix(".key.pem"))
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={names}\nbasicConstraints=critical,CA:FALSE\n")
        self._run("openssl", "req", *KEY, "-subj", f"/CN={common_name}", "-keyout", str(made.key), "-out", str(request))
        command = ["openssl", "x509", "-req", "-in", str(request), "-days", "2", "-extfile", str(extensions)]
        command += ["-CA", str(self.certificate), "-CAkey", str(self._key), "-set_serial", str(self._made)]
        self._run(*command, "-out", str(made.certificate))
        return made

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True)
