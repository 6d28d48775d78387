"""Who is signed in, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from console.sessions import LINK_SECONDS, MAX_FAILURES, MAX_SESSIONS_OF_AGENT, ServerTarget, SessionStore
from cstp_grpc.contract.errors import AuthenticationRequired, CstpError, InvalidArgument, RateLimited
from cstp_grpc.server.app import App
from tests.certificates import Authority
from tests.harness import TOKENS, running, settings


@dataclass
class SetClock:
    """A clock that tests set."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with running(settings(tmp_path_factory.mktemp("sessions"))) as app:
        yield app


def build_store(app: App, clock: SetClock) -> SessionStore:
    return SessionStore(ServerTarget(f"grpc://{app.target}"), idle_seconds=60, total_seconds=300, clock=clock)


def test_a_session_knows_the_agent_and_its_permissions(app: App) -> None:
    async def sign_in() -> None:
        store = build_store(app, SetClock())
        session = store.find_session(await store.sign_in(TOKENS["reader"], None, "127.0.0.1"))
        assert session
        assert session.agent == "reader"
        assert "admin" not in session.permissions
        await store.close()

    asyncio.run(sign_in())


@pytest.mark.parametrize(("steps", "ends"), [((50, 50, 50), False), ((61,), True), ((50,) * 7, True)])
def test_a_session_ends_without_input_and_after_its_time(app: App, steps: tuple[int, ...], ends: bool) -> None:
    async def wait() -> None:
        clock = SetClock()
        store = build_store(app, clock)
        secret = await store.sign_in(TOKENS["alice"], None, "127.0.0.1")
        session = store.find_session(secret)
        assert session
        for seconds in steps:
            store.touch_session(session)
            clock.now += seconds
        assert (store.find_session(secret) is None) == ends
        assert session.ended.is_set() == ends
        await store.close()
        with pytest.raises(CstpError):
            await session.client.get_access()

    asyncio.run(wait())


def test_a_wrong_token_is_refused_and_then_the_address(app: App) -> None:
    async def guess() -> None:
        store = build_store(app, SetClock())
        for _ in range(MAX_FAILURES):
            with pytest.raises(AuthenticationRequired):
                await store.sign_in("wrong", None, "10.0.0.1")
        with pytest.raises(RateLimited):
            await store.sign_in(TOKENS["alice"], None, "10.0.0.1")
        assert await store.sign_in(TOKENS["alice"], None, "10.0.0.2")
        await store.close()

    asyncio.run(guess())


def test_the_oldest_session_of_an_agent_ends_when_it_has_too_many(app: App) -> None:
    async def sign_in() -> None:
        store = build_store(app, SetClock())
        other = await store.sign_in(TOKENS["bob"], None, "127.0.0.1")
        secrets = [await store.sign_in(TOKENS["alice"], None, "127.0.0.1") for _ in range(MAX_SESSIONS_OF_AGENT + 1)]
        assert [secret for secret in secrets if store.find_session(secret) is None] == secrets[:1]
        assert store.find_session(other)
        await store.close()

    asyncio.run(sign_in())


def test_a_link_signs_in_once_and_not_for_ever(app: App) -> None:
    async def follow() -> None:
        clock = SetClock()
        store = build_store(app, clock)
        link = store.create_link(TOKENS["alice"])
        assert await store.follow_link(link, "127.0.0.1")
        late = store.create_link(TOKENS["alice"])
        clock.now += LINK_SECONDS
        for spent in (link, late, "made up"):
            with pytest.raises(InvalidArgument):
                await store.follow_link(spent, "127.0.0.1")
        await store.close()

    asyncio.run(follow())


def test_a_certificate_signs_in_and_that_of_the_console_does_not(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> None:
    people = Authority(tmp_path_factory.mktemp("people"))
    tls = {**authority.certify().settings, "client_ca": str(people.certificate)}
    agents = [{"name": "deployer", "dns": "deployer.example.com"}, {"name": "console", "dns": "console.example.com"}]
    wanted = settings(tmp_path_factory.mktemp("mtls"), grpc={"tls": tls}, auth={"certificates": agents})
    person, own = (people.certify(f"DNS:{name}.example.com") for name in ("deployer", "console"))
    shown = tmp_path_factory.mktemp("own") / "own.pem"
    shown.write_bytes(own.certificate.read_bytes() + own.key.read_bytes())

    async def sign_in(target: str) -> None:
        store = SessionStore(ServerTarget(target, authority.certificate.read_bytes(), shown), 60, 300)
        pem = person.certificate.read_bytes() + person.key.read_bytes()
        for token, certificate, agent in ((None, pem, "deployer"), (TOKENS["alice"], None, "alice")):
            session = store.find_session(await store.sign_in(token, certificate, "127.0.0.1"))
            assert session
            assert session.agent == agent
        with pytest.raises(InvalidArgument):
            await store.sign_in(None, None, "127.0.0.1")
        await store.close()

    with running(wanted) as app:
        asyncio.run(sign_in(f"grpcs://localhost:{app.port}"))


def test_an_unusable_certificate_is_refused_before_a_connection(app: App, tmp_path: Path) -> None:
    async def sign_in() -> None:
        store = SessionStore(ServerTarget("grpcs://127.0.0.1:1"), 60, 300)
        with pytest.raises(InvalidArgument):
            await store.sign_in(None, b"no certificate", "127.0.0.1")

    asyncio.run(sign_in())
    assert list(tmp_path.iterdir()) == []
