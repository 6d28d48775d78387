"""Write `docs/rpcs.md`, which says where each rpc is implemented, or check with `--check` that it is fresh."""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from google.protobuf import descriptor_pool

from cstp_grpc.contract.methods import RpcMethod, contract_methods
from cstp_grpc.server.execution import POOL_OF_METHOD
from cstp_grpc.server.interceptors.load_shedding import DEFERRABLE_METHODS, URGENT_METHODS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "cstp_grpc"
PAGE = ROOT / "docs" / "rpcs.md"
HEAD = """# Where each rpc is implemented

For those who change the code; `make docs` writes this page. [The contract](api/README.md) describes the rpcs for those
who call them, and [a recipe](../CONTRIBUTING.md#how-to-add-an-rpc) says how to add one.

- **Servicer**: the files below `cstp_grpc/` that answer the rpc. If there are two, the second one wraps the first.
- **Threads**: the pool that runs it (`POOL_OF_METHOD`), unless it is the pool of all other rpcs.
- **Under load**: whether the server may refuse it (`DEFERRABLE_METHODS`), or refuses others for it (`URGENT_METHODS`).
"""


def implemented_rpcs(path: Path) -> Iterator[str]:
    """Yield the names of methods in a file that may be rpcs. A property only returns the method of another class."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and "Protocol" not in map(ast.unparse, node.bases):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            yield from (each.name for each in methods if not each.decorator_list)


def find_servicers() -> dict[str, list[str]]:
    """Return the files that implement each rpc, by its name; those of the core first."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*servicer.py")):
        for rpc in implemented_rpcs(path):
            found[rpc].append(str(path.relative_to(PACKAGE)))
    return found


def describe_load(name: str) -> str:
    """Return what becomes of a method while the server is overloaded."""
    if name in URGENT_METHODS:
        return "urgent"
    return "deferrable" if name in DEFERRABLE_METHODS else ""


def render_row(method: RpcMethod, servicers: Sequence[str]) -> str:
    files = ", ".join(f"`{path}`" for path in servicers)
    pool = POOL_OF_METHOD.get(method.name, "")
    return f"| `{method.name}` | {files} | {pool} | {describe_load(method.name)} |"


def render_page() -> str:
    """Return the page. Exits if an rpc has no servicer."""
    servicers, parts = find_servicers(), [HEAD]
    names = [method.rpc for method in contract_methods().values()]
    assert len(set(names)) == len(names), "two services have an rpc of the same name"
    for service, methods in groupby(contract_methods().values(), key=lambda method: method.service):
        file = descriptor_pool.Default().FindServiceByName(service).file.name
        parts += [
            f"## {service}\n",
            f"Defined in `proto/{file}`.\n",
            "| rpc | servicer | threads | under load |\n|---|---|---|---|",
        ]
        for method in methods:
            found = servicers.get(method.rpc)
            if not found:
                sys.exit(f"no servicer.py implements {service}.{method.rpc}: write the method, then run `make docs`")
            parts.append(render_row(method, found))
        parts[-1] += "\n"
    return "\n".join(parts)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    text = render_page()
    if not parser.parse_args().check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit("docs/rpcs.md is stale, run `make docs`")


if __name__ == "__main__":
    main()
