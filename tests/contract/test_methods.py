"""Every rpc of the contract has what belongs to it; what is missing is told with the file to edit."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import protovalidate
from google.protobuf.descriptor import Descriptor
from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.contract.json_codec import from_json
from cstp_grpc.contract.json_values import MAX_TIMESTAMP_SECONDS, MIN_TIMESTAMP_SECONDS
from cstp_grpc.contract.methods import RpcMethod, contract_methods
from cstp_grpc.gen.buf.validate import validate_pb2
from cstp_grpc.gen.places import SERVICE_MODULES
from tests.named_case import named_case

ROOT = Path(__file__).resolve().parents[2]
METHODS = list(contract_methods().values())
PUBLIC = [method for method in METHODS if method.public]


def proto_file(method: RpcMethod) -> str:
    """Return the file that declares an rpc."""
    return f"proto/{importlib.import_module(SERVICE_MODULES[method.service]).DESCRIPTOR.name}"


def servicer_classes(method: RpcMethod) -> list[type]:
    """Return the classes of the server that serve the service of an rpc."""
    for path in (ROOT / "cstp_grpc").rglob("*servicer.py"):
        importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    base = getattr(
        importlib.import_module(f"{SERVICE_MODULES[method.service]}_grpc"), f"{service_name(method)}Servicer"
    )
    return [found for found in base.__subclasses__() if found.__module__.endswith("servicer")]


def service_name(method: RpcMethod) -> str:
    """Return the name of the service without its package."""
    return method.service.rpartition(".")[2]


def test_every_rpc_is_served() -> None:
    for method in METHODS:
        with named_case(method.path):
            servicers = servicer_classes(method)
            assert servicers, f"cstp_grpc: no servicer.py has a class derived from {service_name(method)}Servicer"
            for servicer in servicers:
                path = f"{servicer.__module__.replace('.', '/')}.py"
                assert method.rpc in vars(servicer), f"{path}: add the method {method.rpc} to {servicer.__name__}"


def test_every_rpc_says_which_permission_it_needs() -> None:
    for method in METHODS:
        with named_case(method.path):
            assert method.permission, f"{proto_file(method)}: add the option permission to {method.rpc}"


def test_every_public_rpc_says_what_it_is_for_and_shows_it() -> None:
    for method in PUBLIC:
        with named_case(method.path):
            where = f"{proto_file(method)}: {method.rpc}"
            assert method.description.endswith("."), f"{where}: add a comment of whole sentences"
            assert method.examples, f"{where}: add the option example, the params of a call as JSON"
            validator = protovalidate.Validator()
            for example in method.examples:
                violations = validator.collect_violations(from_json(json.loads(example), method.request))
                assert not violations, (
                    f"{where}: {[(each.proto.field, each.proto.message) for each in violations]} in {example}"
                )


def unbounded_instants(kind: Descriptor, seen: set[str]) -> Iterator[str]:
    """Yield the timestamps of a message, directly or nested, whose years need not be those that a date has."""
    if kind.full_name in seen:
        return
    seen.add(kind.full_name)
    for field in kind.fields:
        if field.message_type is None:
            continue
        if field.message_type.full_name != Timestamp.DESCRIPTOR.full_name:
            yield from unbounded_instants(field.message_type, seen)
            continue
        rules = field.GetOptions().Extensions[validate_pb2.field].timestamp
        if (rules.gte.seconds, rules.lte.seconds) != (MIN_TIMESTAMP_SECONDS, MAX_TIMESTAMP_SECONDS):
            yield f"{kind.file.name}: {field.full_name}"


def test_every_instant_of_a_request_has_a_date() -> None:
    for method in PUBLIC:
        with named_case(method.path):
            assert list(unbounded_instants(cast(Descriptor, method.request.DESCRIPTOR), set())) == []


def test_the_go_client_has_every_service() -> None:
    for service in sorted({service_name(method) for method in METHODS}):
        with named_case(service):
            # The other languages find services in what is generated; in Go, each is a field of the client.
            path = "clients/go/client.go"
            source = (ROOT / path).read_text(encoding="utf-8")
            assert f".New{service}Client(connection)" in source, f"add a field for {service} to `Client` in {path}"
