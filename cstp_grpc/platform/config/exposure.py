"""Find listeners that other machines could reach without TLS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, get_args

from cstp_grpc.contract.errors import ConfigError
from cstp_grpc.platform.config.environment import is_loopback

if TYPE_CHECKING:
    from cstp_grpc.platform.config.settings import Settings

Listener = Literal["grpc", "server", "a2a", "metrics", "bridge_metrics", "console"]
ALL_LISTENERS: Final[Sequence[Listener]] = get_args(Listener)
SERVER_LISTENERS: Final[Sequence[Listener]] = ("grpc", "metrics")
CONSOLE_LISTENERS: Final[Sequence[Listener]] = ("console",)
BRIDGE_LISTENERS: Final[Sequence[Listener]] = ("server", "a2a", "bridge_metrics")


def check_listeners(settings: Settings, listeners: Sequence[Listener]) -> None:
    """Raise ConfigError for listeners beyond loopback without TLS, unless the settings say that this is meant."""
    if problems := "\n".join(describe_plain_listeners(settings, listeners)):
        raise ConfigError(problems)


def allow_plain_listeners(settings: Settings) -> Settings:
    return settings.model_copy(update={"serve": settings.serve.model_copy(update={"insecure": True})})


def describe_plain_listeners(settings: Settings, listeners: Sequence[Listener]) -> Iterator[str]:
    """Yield a sentence for each listener beyond loopback without TLS, unless the settings say that this is meant."""
    if settings.serve.insecure:
        return
    bridge, console, grpc = settings.server, settings.console, settings.grpc
    proxies = "serve.behind_proxy with server.trusted_proxies"
    # The last two: whether a proxy in front of it is configured, and by which settings.
    described = {
        "grpc": ("grpc.host", grpc.host, "grpc.tls", grpc.tls, grpc.trusted_proxies, proxies.replace("server", "grpc")),
        "server": ("server.host", bridge.host, "server.tls", bridge.tls, bridge.trusted_proxies, proxies),
        "a2a": ("a2a.grpc_host", settings.a2a.grpc_host, "server.tls", bridge.tls, bridge.trusted_proxies, proxies),
        "console": (
            *("console.host", console.host, "console.tls", console.tls, console.is_secure),
            "serve.behind_proxy with an https console.public_url",
        ),
    }
    metrics = settings.metrics
    ports = {"metrics": metrics.port, "bridge_metrics": metrics.bridge_port}
    serves_metrics = any(ports.get(listener) is not None for listener in listeners)
    # Whoever fetches them sends a token, too; a proxy in front of them need not be known.
    if serves_metrics and metrics.tls is None and not is_loopback(metrics.host) and not settings.serve.behind_proxy:
        yield describe_exposure("metrics.host", metrics.host, "metrics.tls", "serve.behind_proxy")
    for listener in [each for each in listeners if each in described]:
        key, host, tls_key, tls, has_proxy, proxy_keys = described[listener]
        if tls is not None or is_loopback(host) or (listener == "a2a" and not settings.a2a.enabled):
            continue
        if not (settings.serve.behind_proxy and has_proxy):
            yield describe_exposure(key, host, tls_key, proxy_keys)


def describe_exposure(key: str, host: str, tls_key: str, proxy_keys: str) -> str:
    """Return the sentence for a listener without TLS, with the settings that would help."""
    return (
        f"{key}: others than this machine reach {host}, and their tokens would travel unencrypted; set {tls_key}, "
        f"or {proxy_keys} where a proxy terminates TLS, or start with --insecure"
    )
