"""The packages of the clients in another project, as a registry would give them to it: without the checkout.

`python -m tests.clients` runs it for the languages that there are tools for. That of Java is tried by its README, which
installs it into the local repository of Maven.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from cstp_grpc.common.version import VERSION
from tests.clients.documents import KEPT
from tests.snippets import ROOT, read_snippets

CLIENTS = ROOT / "clients"
GO_MODULE = (CLIENTS / "go" / "go.mod").read_text().split()[1]
GO_VERSION = f"v{VERSION}"


def run_command(*command: str, folder: Path, **environment: str) -> str:
    """Run a command in a folder and return what it prints; it must go well."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_project(language: str, folder: Path, *titles: str) -> None:
    """Write files of the project that the README of a client shows."""
    shown = {snippet.title: snippet.text for snippet in read_snippets(f"clients/{language}/README.md")}
    for title in titles:
        path = folder / title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shown[title], encoding="utf-8")


def test_typescript_package_brings_and_needs_no_framework(tmp_path: Path) -> None:
    run_command("npm", "pack", "--pack-destination", str(tmp_path), folder=CLIENTS / "typescript")
    (archive,) = tmp_path.glob("*.tgz")
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    assert "package/LICENSE" in names
    assert not [name for name in names if "/test/" in name or "/example/" in name]
    manifest = json.loads((CLIENTS / "typescript" / "package.json").read_text())
    name = manifest["name"]
    project = {"type": "module", "dependencies": {name: f"file:{archive.name}"}}
    (tmp_path / "package.json").write_text(json.dumps(project), encoding="utf-8")
    run_command("npm", "install", "--prefer-offline", "--no-audit", "--no-fund", folder=tmp_path)
    installed = {path.name for path in (tmp_path / "node_modules").iterdir() if not path.name.startswith(".")}
    assert installed == {"@bufbuild", "@connectrpc", name}
    exports = [export.replace("*", "cstp/v1/tasks_pb").removeprefix(".") for export in manifest["exports"]]
    assert "/ai-sdk" in exports
    program = "".join(f"await import('{name}{export}');" for export in exports) + "console.log('imported')"
    assert run_command("node", "--input-type=module", "-e", program, folder=tmp_path) == "imported\n"


def test_go_module_is_found_by_its_path(tmp_path: Path) -> None:
    versions = tmp_path / "proxy" / GO_MODULE / "@v"
    versions.mkdir(parents=True)
    (versions / "list").write_text(f"{GO_VERSION}\n")
    (versions / f"{GO_VERSION}.info").write_text(json.dumps({"Version": GO_VERSION}))
    shutil.copyfile(CLIENTS / "go" / "go.mod", versions / f"{GO_VERSION}.mod")
    with zipfile.ZipFile(versions / f"{GO_VERSION}.zip", "w") as module:
        for path in sorted((CLIENTS / "go").rglob("*")):
            if path.is_file():
                module.write(path, f"{GO_MODULE}@{GO_VERSION}/{path.relative_to(CLIENTS / 'go')}")
    project = tmp_path / "agent"
    write_project("go", project, "main.go", "watch.go")
    (project / "go.mod").write_text("module agent\n\ngo 1.24\n")
    # What the module needs is known by its sums, for those of a new cache would be asked of a server.
    shutil.copyfile(CLIENTS / "go" / "go.sum", project / "go.sum")
    fetched = run_command("go", "env", "GOMODCACHE", folder=project).strip()
    upstream = run_command("go", "env", "GOPROXY", folder=project).strip()
    environment = {
        "GOPROXY": f"file://{tmp_path}/proxy,file://{fetched}/cache/download,{upstream}",
        "GONOSUMDB": GO_MODULE,
        # A cache of its own: that of the machine would keep this version for ever.
        "GOMODCACHE": str(tmp_path / "modules"),
        # Without the paths of that cache, what is compiled once serves the next run.
        "GOFLAGS": "-modcacherw -trimpath",
    }
    run_command("go", "get", f"{GO_MODULE}@{GO_VERSION}", folder=project, **environment)
    assert "replace" not in (project / "go.mod").read_text()
    run_command("go", "build", folder=project, **environment)
    assert (tmp_path / "modules" / f"{GO_MODULE}@{GO_VERSION}" / "LICENSE").exists()


def test_rust_crate_is_whole(tmp_path: Path) -> None:
    run_command("make", "package", folder=CLIENTS / "rust")
    with tarfile.open(CLIENTS / "rust" / "target" / "package" / f"cstp-{VERSION}.crate") as crate:
        crate.extractall(tmp_path, filter="data")
    assert (tmp_path / f"cstp-{VERSION}" / "LICENSE").exists()
    project = tmp_path / "agent"
    write_project("rust", project, "Cargo.toml", "src/main.rs")
    manifest = project / "Cargo.toml"
    manifest.write_text(manifest.read_text().replace("../cstp/clients/rust", f"../cstp-{VERSION}"))
    run_command("cargo", "build", "--quiet", folder=project, **KEPT)
    metadata = json.loads(run_command("cargo", "metadata", "--format-version=1", folder=project, **KEPT))
    (used,) = [package for package in metadata["packages"] if package["name"] == "cstp"]
    assert Path(used["manifest_path"]).is_relative_to(tmp_path)
