"""Generate from the contract `cstp_grpc/gen` and the error reasons of the clients, or check with `--check`."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from importlib import resources
from pathlib import Path

import generate_client
import generate_client_errors
import generate_errors
from generate_errors import Reason
from google.protobuf.descriptor_pb2 import FileDescriptorSet, MethodDescriptorProto, MethodOptions
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "cstp_grpc" / "gen"
SOURCES = (ROOT / "proto", ROOT / "third_party")

# protoc names Python modules after the proto path; ours live below cstp_grpc.gen.
IMPORT = re.compile(r"^(from |import )(cstp|intent_layer|liaison|buf)([ .])", re.MULTILINE)

KINDS = {".py", ".pyi", ".json"}
"""The suffixes of what is kept."""

HEALTHY_SERVICE = "cstp.v1.CstpService"
"""The service by whose health a server is chosen."""

TIMEOUT = "30s"
"""How long a call may take, repetitions included, unless the caller says otherwise."""

RETRY_POLICY = {
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "5s",
    "backoffMultiplier": 2,
}


def generate(target: Path) -> dict[str, str]:
    """Write the generated package into the empty folder `target` and return the files of the clients by their paths."""
    protos = sorted(str(p.relative_to(base)) for base in SOURCES for p in base.rglob("*.proto"))
    outputs = [f"--{kind}={target}" for kind in ("python_out", "grpc_python_out")]
    outputs += [f"--{kind}=quiet:{target}" for kind in ("mypy_out", "mypy_grpc_out")]
    described = target / "contract.binpb"
    outputs += [f"--descriptor_set_out={described}", "--include_source_info", "--include_imports"]
    well_known = resources.files("grpc_tools") / "_proto"
    includes = [f"-I{base}" for base in SOURCES] + [f"-I{well_known}"]
    if protoc.main(["protoc", *includes, *outputs, *protos]) != 0:
        sys.exit("protoc failed")
    for path in [*target.rglob("*.py"), *target.rglob("*.pyi")]:
        path.write_text(relocate(path.read_text()))
    prune_empty_stubs(target)
    files = FileDescriptorSet.FromString(described.read_bytes())
    reasons = generate_errors.read_reasons(files)
    (target / "comments.py").write_text(comments_module(files))
    (target / "field_comments.py").write_text(field_comments_module(files))
    (target / "places.py").write_text(places_module(files))
    for name, text in generate_client.render_modules(files).items():
        (target / name).write_text(text)
    (target / "error_reasons.py").write_text(generate_errors.python_module(reasons))
    (target / "retries.py").write_text(retries_module())
    (target / "service_config.json").write_text(json.dumps(service_config(files, reasons), indent=2) + "\n")
    for folder in [target, *(p for p in target.rglob("*") if p.is_dir())]:
        (folder / "__init__.py").touch()
    return generate_client_errors.client_files(reasons)


def comments_module(files: FileDescriptorSet) -> str:
    """Return a module with the comments before the rpcs, which protoc leaves out of the code it generates."""
    found = {}
    for file in files.file:
        comments = {tuple(at.path): " ".join(at.leading_comments.split()) for at in file.source_code_info.location}
        for place, service in enumerate(file.service):
            for number, rpc in enumerate(service.method):
                # The path to a method: field 6 of a file holds services, field 2 of a service methods.
                found[f"/{file.package}.{service.name}/{rpc.name}"] = comments.get((6, place, 2, number), "")
    lines = "".join(f"    {path!r}: {comment!r},\n" for path, comment in sorted(found.items()))
    head = '"""The comments before the rpcs of the contract, by gRPC path."""'
    return f"{head}\n\nRPC_COMMENTS: dict[str, str] = {{\n{lines}}}\n"


def field_comments_module(files: FileDescriptorSet) -> str:
    """Return a module with the comments before messages, fields and values of enums."""
    found: dict[str, str] = {}
    for file in files.file:
        # Only what is ours: the annotations of others are no part of what callers send.
        if not any((source / file.name).is_file() for source in SOURCES[:1]):
            continue
        comments = {tuple(at.path): " ".join(at.leading_comments.split()) for at in file.source_code_info.location}
        for place, message in enumerate(file.message_type):
            # The paths: field 4 of a file holds messages, field 2 of a message fields; nested messages are maps alone.
            name = f"{file.package}.{message.name}"
            found[name] = comments.get((4, place), "")
            for number, field in enumerate(message.field):
                found[f"{name}.{field.name}"] = comments.get((4, place, 2, number), "")
        for place, enum in enumerate(file.enum_type):
            # Field 5 of a file holds enums, field 2 of an enum values.
            for number, value in enumerate(enum.value):
                found[f"{file.package}.{enum.name}.{value.name}"] = comments.get((5, place, 2, number), "")
    lines = "".join(f"    {path!r}: {comment!r},\n" for path, comment in sorted(found.items()))
    head = '"""The comments before the messages, fields and values of enums of the contract, by their full names."""'
    return f"{head}\n\nFIELD_COMMENTS: dict[str, str] = {{\n{lines}}}\n"


def places_module(files: FileDescriptorSet) -> str:
    """Return a module that says where each method is, so that calling one needs no other's messages."""
    found = {}
    services = {}
    for file in files.file:
        module = f"cstp_grpc.gen.{file.name.removesuffix('.proto').replace('/', '.')}_pb2"
        package = generate_client.to_camel_case(file.package.split(".")[0])
        for service in file.service:
            services[f"{file.package}.{service.name}"] = module
            for rpc in service.method:
                found[f"{package}.{rpc.name[:1].lower()}{rpc.name[1:]}"] = module
    lines = "".join(f"    {name!r}: {module!r},\n" for name, module in sorted(found.items()))
    by_service = "".join(f"    {name!r}: {module!r},\n" for name, module in sorted(services.items()))
    head = '"""The module of each service by its full name, and of each method by its JSON-RPC name."""'
    return (
        f"{head}\n\nSERVICE_MODULES: dict[str, str] = {{\n{by_service}}}\n"
        f"\nMETHOD_MODULES: dict[str, str] = {{\n{lines}}}\n"
    )


def retries_module() -> str:
    """Return a module with the policy of the service config, which is read sooner than the whole config."""
    values = {"ATTEMPTS": RETRY_POLICY["maxAttempts"], "MULTIPLIER": RETRY_POLICY["backoffMultiplier"]}
    for name, key in (("INITIAL_BACKOFF", "initialBackoff"), ("MAX_BACKOFF", "maxBackoff")):
        values[name] = float(str(RETRY_POLICY[key]).removesuffix("s"))
    lines = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return f'"""The retries of idempotent methods; delays are in seconds."""\n\n{lines}'


def service_config(files: FileDescriptorSet, reasons: list[Reason]) -> dict[str, object]:
    """Return how every client calls the contract: the gRPC service config.

    What the contract declares idempotent is repeated. A server that knows how long to wait, or that waiting is of no
    use, says so with `grpc-retry-pushback-ms`. Streams of answers need not have an end, so nothing bounds them.
    """
    rpcs = [
        ({"service": f"{file.package}.{service.name}", "method": rpc.name}, rpc)
        for file in files.file
        for service in file.service
        for rpc in service.method
    ]
    retried = sorted({reason.grpc_code for reason in reasons if reason.retriable}, reverse=True)
    bounded = [(name, rpc) for name, rpc in rpcs if not rpc.server_streaming]
    return {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": HEALTHY_SERVICE},
        "methodConfig": [
            {
                "name": [name for name, rpc in bounded if repeatable(rpc)],
                "timeout": TIMEOUT,
                "retryPolicy": {**RETRY_POLICY, "retryableStatusCodes": retried},
            },
            {"name": [name for name, rpc in bounded if not repeatable(rpc)], "timeout": TIMEOUT},
        ],
    }


def repeatable(rpc: MethodDescriptorProto) -> bool:
    """Whether the contract declares an rpc idempotent."""
    return rpc.options.idempotency_level != MethodOptions.IDEMPOTENCY_UNKNOWN


def relocate(text: str) -> str:
    """Make the imports of a generated module point below `cstp_grpc.gen`."""

    def moved(match: re.Match[str]) -> str:
        keyword, package, rest = match.groups()
        return f"{keyword}cstp_grpc.gen.{package}{rest}"

    text = IMPORT.sub(moved, text)
    # In .pyi files `import a.b_pb2` is followed by uses of the full name without our prefix.
    for full in set(re.findall(r"^import (cstp_grpc\.gen\.[\w.]+)$", text, re.MULTILINE)):
        short = full.removeprefix("cstp_grpc.gen.")
        text = re.sub(rf"(?<![\w.]){re.escape(short)}\.", f"{full}.", text)
    return text


def prune_empty_stubs(target: Path) -> None:
    """Drop the gRPC modules of protos that define no service."""
    for path in target.rglob("*_pb2_grpc.py"):
        if "class " not in path.read_text():
            path.unlink()
            path.with_suffix(".pyi").unlink(missing_ok=True)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the generated files below `folder` by their relative paths."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.suffix in KINDS}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "gen"
        fresh.mkdir()
        for_clients = generate(fresh)
        wanted = {str(OUT.relative_to(ROOT) / name): data for name, data in contents(fresh).items()}
    wanted |= {path: text.encode() for path, text in for_clients.items()}
    present = {str(OUT.relative_to(ROOT) / name): data for name, data in contents(OUT).items()} if OUT.exists() else {}
    present |= {path: (ROOT / path).read_bytes() for path in for_clients if (ROOT / path).exists()}
    if check:
        stale = sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))
        sys.exit(f"generated code is stale, run `make generate`: {', '.join(stale)}" if stale else 0)
    for name in present.keys() - wanted.keys():
        (ROOT / name).unlink()
    for name, data in wanted.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_bytes(data)


if __name__ == "__main__":
    main()
