"""The `cstp health` command: whether a server serves, for health checks of containers and scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import grpc

from cstp_grpc.cli.command_decorators import ca_option, config_option, current_state, seconds_option
from cstp_grpc.cli.server_choice import read_ca_file
from cstp_grpc.client.targets import grpc_address, target_scheme
from cstp_grpc.client.tls import channel_credentials
from cstp_grpc.common.extras import require_extra
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import ConfigError, InvalidArgument
from cstp_grpc.contract.rpc_errors import connection_failure
from cstp_grpc.platform.config import Settings, command_environment, dial_host, join_host_port

EXIT_NOT_SERVING: Final = 3
"""The exit code if the server does not serve, or does not answer."""
DEFAULT_SECONDS: Final = 5.0


@click.command()
@click.option(
    "--target", metavar="URL", help="The server, such as grpcs://cstp.example.com:50051. [default: the configured one]"
)
@click.option("--service", default="", help="Health service to ask for. [default: the whole server]")
@seconds_option(DEFAULT_SECONDS, "How long to wait for the answer.")
@ca_option
@config_option
def health_command(target: str | None, service: str, seconds: float, ca_file: Path | None) -> None:
    """Ask a server for its health. Uses the gRPC health checking protocol and needs no token.

    CSTP_CLIENT_CERTIFICATE names the certificate for a server that requires one. For the configured server the default
    is `server.grpc_client_certificate`.

    Exit code 0 means that it serves, 3 that it does not, for example because it is stopping or unreachable.

    \b
    Examples:
      cstp health
      cstp health --target grpcs://cstp.example.com:50051 --timeout 2
    """
    require_extra("server")
    environment = command_environment()
    roots, shown = ca_file or environment.ca_file, environment.client_certificate
    server = (
        configured_server(current_state().settings(), roots, shown)
        if target is None
        else named_server(target, roots, shown)
    )
    answer = ask_for_health(server, service, seconds)
    click.echo(answer)
    if answer != "SERVING":
        raise click.exceptions.Exit(EXIT_NOT_SERVING)


@dataclass(frozen=True, slots=True)
class HealthTarget:
    """A server to ask for its health."""

    address: str
    has_tls: bool
    ca_file: Path | None = None
    """Who certifies it, if it has TLS; the system's authorities when None."""
    certified_name: str | None = None
    """The name that its certificate must have; that of the address when None."""
    client_certificate: Path | None = None
    """A PEM file with the certificate that it is shown, and its key."""

    def open_channel(self) -> grpc.Channel:
        """Return a channel to the server. Raises ConfigError and InvalidArgument."""
        if not self.has_tls:
            return grpc.insecure_channel(self.address)
        roots = None if self.ca_file is None else read_ca_file(self.ca_file)
        credentials = channel_credentials(roots, self.client_certificate)
        name = self.certified_name
        options = [("grpc.ssl_target_name_override", name)] if name else None
        return grpc.secure_channel(self.address, credentials, options)


def named_server(target: str, ca_file: Path | None, client_certificate: Path | None) -> HealthTarget:
    """Return the server of a URL, or of a bare `host:port`. Raises InvalidArgument."""
    scheme = target_scheme(target)
    if scheme not in {"grpc", "grpcs"}:
        raise InvalidArgument.field("target", "must be a gRPC server's: a bridge reports its health at /health")
    return HealthTarget(grpc_address(target), scheme == "grpcs", ca_file=ca_file, client_certificate=client_certificate)


def configured_server(settings: Settings, ca_file: Path | None, client_certificate: Path | None) -> HealthTarget:
    """Return the server of the settings, which is on this machine. Raises ConfigError."""
    address = join_host_port(dial_host(settings.grpc.host), settings.grpc.port)
    if settings.grpc.tls is None:
        return HealthTarget(address, has_tls=False)
    # Its own certificate is trusted as it is, and by whatever name: others know the server by another one than this
    # machine does.
    certificate = settings.grpc.tls.certificate
    return HealthTarget(
        address,
        has_tls=True,
        ca_file=ca_file or certificate,
        certified_name=find_certified_name(certificate),
        client_certificate=client_certificate or settings.server.grpc_client_certificate,
    )


def find_certified_name(certificate: Path) -> str | None:
    """Return a name or address for which a server's certificate is valid, or None. Raises ConfigError."""
    # Imported here: only servers with TLS need it.
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    except OSError as error:
        raise ConfigError(f"grpc.tls.certificate: {certificate} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"grpc.tls.certificate: {certificate} is not a certificate in PEM") from error
    if hosts := names.get_values_for_type(x509.DNSName):
        return hosts[0].replace("*", "any")
    addresses = names.get_values_for_type(x509.IPAddress)
    return str(addresses[0]) if addresses else None


def ask_for_health(server: HealthTarget, service: str, seconds: float) -> str:
    # Imported here: it takes long, which `--help` does without.
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with server.open_channel() as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=seconds)
        except grpc.RpcError as error:
            reason = connection_failure(error.details() or "")
            return f"{server.address} does not answer: {error.code().name}, {reason}"
    name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return name
