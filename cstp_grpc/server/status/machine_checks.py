"""Findings about a server, and the checks of its disk and certificates, which a running server makes too."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from cryptography import x509

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.platform.config import Settings


class DiagnosisStatus(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check."""

    check: str
    """The subject: `disk`, `database`."""
    status: DiagnosisStatus
    message: str
    advice: str | None = None
    """The advice, or None."""


OK, WARNING, ERROR = DiagnosisStatus

FREE_BYTES: Final = 1 << 30
"""Free space below which a warning is given. Chosen: hours of a busy server."""
LEAST_FREE_BYTES: Final = 100 << 20
"""Free space below which writes may fail any moment; SQLite's log alone grows to 64 MB."""
EXPIRY_DAYS: Final = 21.0
"""Chosen: authorities with automatic renewal renew 30 days before the end."""
SECONDS_OF_DAY: Final = 86_400


def measure_free_space(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def judge_free_space(folder: Path, free: int) -> Diagnosis:
    amount = f"{free / (1 << 30):.1f} GB are free at {folder}"
    if free < LEAST_FREE_BYTES:
        return Diagnosis("disk", ERROR, amount, "Free some space: what cannot be written is not answered.")
    if free < FREE_BYTES:
        return Diagnosis("disk", WARNING, amount, "Free some space, or set retention, before writes fail.")
    return Diagnosis("disk", OK, amount)


def check_certificates(settings: Settings, now: datetime) -> Iterator[Diagnosis]:
    """Check the expiry of the configured certificates, and of the authorities."""
    found = False
    for setting, path, taken_over in certificate_files(settings):
        found = True
        try:
            certificates = x509.load_pem_x509_certificates(path.read_bytes())
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "holds no certificate in PEM"
            yield Diagnosis("certificates", ERROR, f"{setting}: {path}: {reason}", f"Correct {setting}.")
            continue
        yield judge_expiry(setting, path, certificates, now, taken_over=taken_over)
    if not found:
        yield Diagnosis("certificates", OK, "none is configured")


def certificate_files(settings: Settings) -> Iterator[tuple[str, Path, bool]]:
    """Yield the configured certificate files, each with its setting and whether servers reload it."""
    served = (
        ("grpc.tls", settings.grpc.tls),
        ("server.tls", settings.server.tls),
        ("metrics.tls", settings.metrics.tls),
    )
    for setting, files in served:
        if files is not None:
            yield f"{setting}.certificate", files.certificate, True
            if files.client_ca is not None:
                yield f"{setting}.client_ca", files.client_ca, True
    read_once = [
        ("server.grpc_ca_file", settings.server.grpc_ca_file),
        ("server.grpc_client_certificate", settings.server.grpc_client_certificate),
        ("otlp.ca_file", settings.otlp.ca_file),
        *((f"auth.jwt[{each.issuer}].ca_file", each.ca_file) for each in settings.auth.jwt),
        *((f"federation.peers[{each.name}].ca_file", each.ca_file) for each in settings.federation.peers),
        *((f"liaison.pillars.{name}.ca_file", each.ca_file) for name, each in settings.liaison.pillars.items()),
    ]
    for setting, path in read_once:
        if path is not None:
            yield setting, path, False


def judge_expiry(
    setting: str, path: Path, certificates: Sequence[x509.Certificate], now: datetime, *, taken_over: bool
) -> Diagnosis:
    """Check the earliest expiry among the certificates in a file; `taken_over` means that servers reload the file."""
    ends = min(each.not_valid_after_utc for each in certificates)
    days = (ends - now).total_seconds() / SECONDS_OF_DAY
    message = f"{setting}: {path} ends on {ends:%Y-%m-%d}"
    then = "a server takes it over without a restart" if taken_over else "then restart the server"
    advice = f"Put a new certificate into {path}; {then}."
    if any(each.not_valid_before_utc > now for each in certificates):
        return Diagnosis("certificates", ERROR, f"{setting}: {path} is not valid yet", "Check the clock, or wait.")
    if days < 0:
        return Diagnosis("certificates", ERROR, f"{message}, which is over", advice)
    if days < EXPIRY_DAYS:
        return Diagnosis("certificates", WARNING, f"{message}, in {days:.0f} days", advice)
    return Diagnosis("certificates", OK, message)
