"""Which addresses may be notified of changes of tasks."""

from __future__ import annotations

import pytest

from cstp_grpc.client.http_client import is_public
from cstp_grpc.modules.tasks.push_notifications import PushUrlPolicy
from cstp_grpc.modules.webhooks.delivery import UrlAllowList
from tests.modules.tasks.pushing import allow
from tests.named_case import named_case

LISTED = "http://hooks.internal:8080/a2a/"


def addresses(allowed: UrlAllowList | None = None, *, loopback: bool = False) -> PushUrlPolicy:
    return PushUrlPolicy(allowed or UrlAllowList([]), is_public, loopback=loopback)


def test_an_address_is_judged_as_far_as_it_says_so_itself() -> None:
    for url, by_default, with_loopback in [
        ("https://agents.example.com/hook", True, True),
        ("https://93.184.216.34/hook", True, True),
        ("https://[2606:2800:220:1::1]/hook", True, True),
        ("http://agents.example.com/hook", False, True),
        ("http://93.184.216.34/hook", False, False),
        ("https://localhost/hook", False, True),
        ("https://a.localhost/hook", False, True),
        ("http://localhost:9000/hook", False, True),
        ("http://127.0.0.1:9000/hook", False, True),
        ("https://127.0.0.1/hook", False, True),
        ("http://[::1]:9000/hook", False, True),
        ("https://10.1.2.3/hook", False, False),
        ("https://192.168.0.1/hook", False, False),
        ("https://169.254.169.254/latest", False, False),
        ("https://[fd00::1]/hook", False, False),
        ("https://[::ffff:10.0.0.1]/hook", False, False),
        ("https://[64:ff9b::a00:1]/hook", False, False),
        ("https://0.0.0.0/hook", False, False),
        ("https://224.0.0.1/hook", False, False),
        ("https://user@agents.example.com/hook", False, False),
        ("https://agents.example.com/a/../b", False, False),
        ("https://agents.example.com/%2e%2e/b", False, False),
        ("https://agents.example.com/#f", False, False),
        ("ftp://agents.example.com/", False, False),
        ("agents.example.com", False, False),
        ("", False, False),
    ]:
        with named_case(url, by_default, with_loopback):
            assert (addresses().address(url) is not None) is by_default
            assert (addresses(loopback=True).address(url) is not None) is with_loopback


@pytest.mark.parametrize(
    ("url", "ip", "by_default", "with_loopback"),
    [
        ("https://agents.example.com/", "93.184.216.34", True, True),
        ("https://agents.example.com/", "10.0.0.1", False, False),
        ("https://agents.example.com/", "127.0.0.1", False, True),
        ("https://agents.example.com/", "::1", False, True),
        ("https://agents.example.com/", "169.254.169.254", False, False),
        ("http://agents.example.com/", "93.184.216.34", False, False),
        ("http://agents.example.com/", "127.0.0.1", False, True),
    ],
)
def test_where_a_name_leads_is_judged_when_it_is_called(
    url: str, ip: str, by_default: bool, with_loopback: bool
) -> None:
    address = allow(url).address(url)
    assert address is not None
    assert addresses().permits(address, ip) is by_default
    assert addresses(loopback=True).permits(address, ip) is with_loopback


def test_a_listed_address_may_be_anywhere_and_no_other_is_listed() -> None:
    judge = addresses(allow(LISTED, "https://10.0.0.1/hooks/"))
    for url in (f"{LISTED}1", "https://10.0.0.1/hooks/x"):
        address = judge.address(url)
        assert address is not None
        assert judge.permits(address, "10.0.0.1")
    for url in (
        "http://hooks.internal:8080/other",
        "http://hooks.internal/a2a/",
        "https://10.0.0.1/",
        "https://10.0.0.2/",
    ):
        assert judge.address(url) is None
