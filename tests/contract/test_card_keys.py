"""Which keys sign agent cards, and which verify them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from jwt.algorithms import Algorithm, ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from cstp_grpc.contract.card_keys import SigningKey, UnusableKey, compute_thumbprint, read_public_keys
from tests.named_case import named_case
from tests.signing_keys import make_key, private_pem, public_pem

WRITERS: dict[str, type[Algorithm]] = {"ES256": ECAlgorithm, "RS256": RSAAlgorithm, "EdDSA": OKPAlgorithm}


def jwk_of(algorithm: str, key: Any) -> dict[str, Any]:
    found: dict[str, Any] = WRITERS[algorithm].to_jwk(key, as_dict=True)
    return found


@pytest.mark.parametrize("algorithm", WRITERS)
def test_public_keys_are_read_in_pem_and_as_json(algorithm: str) -> None:
    key = make_key(algorithm)
    jwk = jwk_of(algorithm, key.public_key())
    signature = SigningKey(private_pem(key).encode(), None).sign(b"payload")
    for content in (public_pem(key), json.dumps(jwk), json.dumps({"keys": [jwk]})):
        [found] = read_public_keys(content.encode())
        assert found.verifies(signature["protected"], b"payload", signature["signature"])
        assert not found.verifies(signature["protected"], b"another", signature["signature"])


def test_a_signature_must_have_the_algorithm_of_the_key() -> None:
    rsa_key, ec_key = make_key("RS256"), make_key("ES256")
    [public] = read_public_keys(public_pem(rsa_key).encode())
    signature = SigningKey(private_pem(ec_key).encode(), None).sign(b"payload")
    assert not public.verifies(signature["protected"], b"payload", signature["signature"])


def test_the_thumbprint_is_that_of_rfc_7638() -> None:
    # The example of its section 3.1.
    modulus = (
        "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMs"
        "tn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1"
        "n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"
    )
    jwk = {"kty": "RSA", "n": modulus, "e": "AQAB", "alg": "RS256", "kid": "2011-04-29"}
    assert compute_thumbprint(jwk) == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"


def test_a_file_may_hold_several_keys() -> None:
    keys = [make_key("ES256"), make_key("EdDSA")]
    assert len(read_public_keys("".join(map(public_pem, keys)).encode())) == 2
    jwks = {"keys": [jwk_of("ES256", keys[0].public_key()), jwk_of("EdDSA", keys[1].public_key())]}
    assert len(read_public_keys(json.dumps(jwks).encode())) == 2


UNUSABLE = {
    "nothing": b"",
    "text": b"a key",
    "no PEM": b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----",
    "private": private_pem(make_key()).encode(),
    "private JSON": json.dumps(jwk_of("ES256", make_key())).encode(),
    "symmetric": b'{"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"}',
    "no JSON": b"{",
    "no keys": b'{"keys": []}',
    "odd keys": b'{"keys": [7]}',
    "keys of an odd type": b'{"keys": 7}',
    "too many": "".join([public_pem(make_key())] * 17).encode(),
    "short RSA": public_pem(rsa.generate_private_key(65537, 1024)).encode(),
    "another curve": public_pem(ec.generate_private_key(ec.SECP256K1())).encode(),
}


def test_what_is_no_public_key_is_refused() -> None:
    for name, content in UNUSABLE.items():
        with named_case(name), pytest.raises(UnusableKey):
            read_public_keys(content)


def test_keys_that_cannot_sign_are_refused() -> None:
    locked = make_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    short, odd = rsa.generate_private_key(65537, 1024), dsa.generate_private_key(2048)
    for content in (b"", locked, public_pem(make_key()).encode(), *(private_pem(key).encode() for key in (short, odd))):  # type: ignore[arg-type]
        with pytest.raises(UnusableKey):
            SigningKey(content, None)
