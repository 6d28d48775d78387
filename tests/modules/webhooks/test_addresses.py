"""Which addresses are on a list of prefixes, however they are written."""

from __future__ import annotations

import posixpath
import string
from urllib.parse import quote, unquote, urlsplit

from hypothesis import example, given
from hypothesis import strategies as st

from cstp_grpc.modules.webhooks.delivery import UrlAllowList, parse_webhook_url
from tests.named_case import named_case

PREFIX = "https://agents.example.com/cstp/"


def allowing(*prefixes: str) -> UrlAllowList:
    addresses = [parse_webhook_url(prefix) for prefix in prefixes]
    assert None not in addresses
    return UrlAllowList(address for address in addresses if address is not None)


def test_what_begins_with_the_prefix_is_on_the_list() -> None:
    for url in [
        PREFIX,
        "https://agents.example.com/cstp/hooks/7",
        "https://agents.example.com:443/cstp/hooks",
        "HTTPS://Agents.Example.COM/cstp/hooks",
        "https://agents.example.com/%63stp/hooks",
        "https://agents.example.com/cstp/hooks?key=a%2Fb",
        "https://agents.example.com/cstp/..hidden",
        "https://agents.example.com/cstp/a;b",
        "https://agents.example.com/cstp/%C3%A4",
    ]:
        with named_case(url):
            assert allowing(PREFIX).address(url) is not None


def test_what_only_looks_like_it_is_not() -> None:
    for url in [
        "http://agents.example.com/cstp/",
        "https://agents.example.com/cstp",
        "https://agents.example.com/cstpx/",
        "https://agents.example.com/",
        "https://agents.example.com",
        "https://agents.example.com:8443/cstp/",
        "https://agents.example.com.evil.example/cstp/",
        "https://agents.example.com./cstp/",
        "https://evil.example/cstp/",
        "https://evil.example/https://agents.example.com/cstp/",
        "https://agents.example.com@evil.example/cstp/",
        "https://user@agents.example.com/cstp/",
        "https://user:secret@agents.example.com/cstp/",
        "https://@agents.example.com/cstp/",
        "https://evil.example#@agents.example.com/cstp/",
        "https://evil.example?@agents.example.com/cstp/",
        "https://evil.example\\@agents.example.com/cstp/",
        "https://agents.example.com\\.evil.example/cstp/",
        "https://agents.example.com%2eevil.example/cstp/",
        "https://agents.example.com%00.evil.example/cstp/",
        "https:///agents.example.com/cstp/",
        "https:agents.example.com/cstp/",
        "https:\\\\agents.example.com/cstp/",
        "//agents.example.com/cstp/",
        "agents.example.com/cstp/",
        "ftp://agents.example.com/cstp/",
        "file:///cstp/",
        "https://agents.example.com:/cstp/",
        "https://agents.example.com:0/cstp/",
        "https://agents.example.com:00443x/cstp/",
        "https://agents.example.com:65979/cstp/",
        "https://agents.example.com:４４３/cstp/",
        "https://agents.example.com/cstp/#part",
        "https://agents.example.com/cstp/#",
        "https://agents.example.com/cstp/../admin",
        "https://agents.example.com/cstp/..",
        "https://agents.example.com/cstp/./../admin",
        "https://agents.example.com/cstp/%2e%2e/admin",
        "https://agents.example.com/cstp/.%2E/admin",
        "https://agents.example.com/cstp/%252e%252e/admin",
        "https://agents.example.com/cstp/..;/admin",
        "https://agents.example.com/cstp/..;a=b/admin",
        "https://agents.example.com/cstp/..%2fadmin",
        "https://agents.example.com/cstp/..%5cadmin",
        "https://agents.example.com/cstp/%c0%ae%c0%ae/admin",
        "https://agents.example.com/cstp/a%00b",
        "https://agents.example.com/cstp/a%0d%0ab",
        "https://agents.example.com/cstp/%zz",
        "https://agents.example.com/cstp/100%",
        "https://agents.example.com/cstp//admin",
        "https://agents.example.com//cstp/",
        "https://agents.example.com/cstp/a b",
        " https://agents.example.com/cstp/",
        "https://agents.example.com/cstp/\n",
        "https://agents.exa\nmple.com/cstp/",
        "https://agents.example.com/cstp/\tx",
        "https://аgents.example.com/cstp/",
        "https://agents。example.com/cstp/",
        "https://[agents.example.com]/cstp/",
        f"https://agents.example.com/cstp/{'a' * 2048}",
        "",
    ]:
        with named_case(url):
            assert allowing(PREFIX).address(url) is None


def test_a_host_that_is_an_ip_address_to_some_is_none() -> None:
    for host in [
        "2130706433",
        "127.1",
        "0",
        "0x7f.1",
        "0x7f000001",
        "0177.0.0.1",
        "127.0.0.01",
        "10.0.0.256",
        "a.example.7",
    ]:
        with named_case(host):
            assert parse_webhook_url(f"https://{host}/") is None
            assert parse_webhook_url("https://127.0.0.1/") is not None
            assert parse_webhook_url("https://7.example/") is not None


def test_a_prefix_without_a_slash_at_its_end_ends_with_a_segment() -> None:
    allowed = allowing("http://127.0.0.1:8080/cstp")
    assert allowed.address("http://127.0.0.1:8080/cstp")
    assert allowed.address("http://127.0.0.1:8080/cstp/")
    assert allowed.address("http://127.0.0.1:8080/cstp/x")
    assert allowed.address("http://127.0.0.1:8080/cstpx") is None
    assert allowed.address("http://127.0.0.1:80/cstp") is None


def test_a_prefix_may_be_a_whole_host() -> None:
    for prefix in ("https://agents.example.com", "https://agents.example.com/"):
        assert allowing(prefix).address("https://agents.example.com")
        assert allowing(prefix).address("https://agents.example.com/a/b?c")
        assert allowing(prefix).address("https://other.example.com/a") is None


def test_ipv6_addresses_are_the_same_however_they_are_written() -> None:
    allowed = allowing("https://[2001:DB8::1]/")
    assert allowed.address("https://[2001:db8:0:0:0:0:0:1]:443/x")
    assert allowed.address("https://[2001:db8::2]/x") is None
    for url in ("https://[2001:db8::1%25eth0]/x", "https://[2001:db8::1]evil.example/x", "https://[2001:db8::1/x"):
        assert allowed.address(url) is None


def test_any_of_several_prefixes_will_do_and_of_none_none() -> None:
    allowed = allowing(PREFIX, "http://localhost:9/")
    assert allowed.address("http://localhost:9/x")
    assert allowed.address(PREFIX)
    assert UrlAllowList([]).address(PREFIX) is None


def test_what_is_called_is_what_was_judged() -> None:
    address = allowing(PREFIX).address("HTTPS://Agents.example.com/%63stp/a-b?k=1")
    assert address is not None
    assert (address.scheme, address.netloc, address.target) == (
        "https",
        "agents.example.com:443",
        "/%63stp/a-b?k=1",
    )
    assert address.origin == "https://agents.example.com:443"


segments = st.text(string.ascii_letters + string.digits + "-_~äß", min_size=1, max_size=8)
TRICKS = st.sampled_from([*"/\\@#?:;% \t[]", "..", ".", "%2e", "%2E%2e", "//", "%00", "%2f", "%252f"])
PIECES = st.one_of(segments, TRICKS, st.sampled_from(["agents.example.com", "evil.example", "cstp", "https://", "443"]))


@given(st.lists(segments, max_size=4))
def test_every_path_below_the_prefix_is_on_the_list(path: list[str]) -> None:
    address = allowing(PREFIX).address(PREFIX + "/".join(quote(segment) for segment in path))
    assert address is not None
    assert address.segments[: len(path) + 1] == ("cstp", *path) or not path


@given(st.sampled_from([PREFIX, "https://agents.example.com"]), st.lists(PIECES, max_size=8).map("".join))
@example(PREFIX, "../admin")
@example("https://agents.example.com", "@evil.example/cstp/")
def test_others_read_what_is_on_the_list_likewise(beginning: str, rest: str) -> None:
    url = beginning + rest
    if allowing(PREFIX).address(url) is None:
        return
    parts = urlsplit(url)
    assert (parts.scheme, parts.hostname, parts.port or 443) == ("https", "agents.example.com", 443)
    assert parts.username is None
    path = parts.path
    for _ in range(3):
        assert f"{posixpath.normpath(path)}/".startswith("/cstp/")
        path = unquote(path)
