"""The idempotency keys that clients make up, so that what they repeat is done once."""

from __future__ import annotations

import yaml

from cstp_grpc.client.call_steps import IDEMPOTENCY_FIELDS
from cstp_grpc.contract.methods import contract_methods
from tests.clients.serving import CASES


def test_clients_of_all_languages_are_tried_on_each_key_that_a_repetition_needs() -> None:
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))["cases"]
    repeated = {case["call"] for case in cases if case["name"].startswith("repeats") and case.get("server") == "faults"}
    # Methods that are not idempotent are repeated by the Python clients alone.
    needed = {
        name.partition(".")[2]
        for name, method in contract_methods().items()
        if method.idempotent and method.request.DESCRIPTOR.full_name in IDEMPOTENCY_FIELDS
    }
    assert len(needed) >= 3
    assert needed <= repeated
