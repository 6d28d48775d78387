"""The fenced blocks of the documents, and a reader who tries those of one document from top to bottom."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import yaml
from a2a.types import SendMessageRequest
from click.testing import CliRunner
from google.protobuf import json_format
from markdown_it import MarkdownIt

from cstp_grpc.cli.main import main
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.platform import config
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = tuple(
    path.relative_to(ROOT).as_posix()
    for pattern in ("README.md", "docs/**/*.md", "clients/*/README.md", "examples/*/README.md")
    for path in sorted(ROOT.glob(pattern))
)
PROGRAMS = {"python", "sh"}
COMMANDS = {*PROGRAMS, "console", "json"}
"""The languages of what a reader does, with a server at hand."""
OUTPUT = "text"
"""The language of a block that shows what the block before it prints."""
READY = "Ctrl-C stops everything."
SERVING = re.compile(r"^(make run|(\.venv/bin/)?cstp serve)\b")
BOUND = 600.0
"""Seconds after which something that should have happened has not."""
SMALL = {
    **{"CSTP_EXAMPLES": "decisions", "CSTP_CONSOLE__ENABLED": "false"},
    **{"CSTP_EMBEDDING__PROVIDER": "lexical"},
}
"""Settings that keep a server of a test small."""
PORTS = {
    "50051": "CSTP_GRPC__PORT",
    "8100": "CSTP_SERVER__PORT",
    "50052": "CSTP_A2A__GRPC_PORT",
    "8200": "CSTP_CONSOLE__PORT",
    "50061": "",
    "8110": "",
}
"""The ports that documents name, each with the setting of which it is the default; free ones stand in for them."""
EDITS = {"role: required}": "role: required, timeout_seconds: 30}"}
"""What is tried otherwise than it is written: a peer may take longer than usual, on a busy machine."""
MADE_HERE = {"build", "dist", "var"}
"""What a checkout has only after something was made or run."""
MADE_UP = {
    "learning": r"PITFALL-\d{4}-\d\d-\d\d-[0-9a-f]{16}-\d+",
    "uuid": r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
    "digest": r"\b[0-9a-f]{64}\b",
    "request": r"\b[0-9a-f]{32}\b",
    "approval": r"\bapr-[0-9a-f]{20}\b",
    "token": r"\btok-[0-9a-f]{20}\b",
}
"""The identifiers that a server or a command makes up; a document may name one again after it was printed."""
VARYING = {
    "rest": "…",
    "instant": r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?Z",
    "duration": r"\b\d+(?:\.\d+)? ms\b",
    "latency": r'"latencyMs": [\d.]+',
    "version": r"(?<![\d.])\d+\.\d+\.\d+(?![.\d:])",
    "similarity": r"\b[01]\.\d\d\b",
}
"""What differs from day to day; the rest of a line may be anything."""
PIECE = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in {**MADE_UP, **VARYING}.items()))


DIAGRAM = re.compile(r"(flowchart (LR|RL|TB)|sequenceDiagram|stateDiagram-v2)\n")
"""The kinds of diagrams that the pages have; only a browser draws them."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Snippet:
    """A fenced block; `title` is the name of the file that it shows, if any."""

    document: str
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line} ({self.language or 'no language'})"

    @property
    def first_line(self) -> str:
        """The line by which a list names the block."""
        return self.text.partition("\n")[0].strip()


def read_snippets(document: str) -> list[Snippet]:
    """Return the fenced blocks of a document, in the order of reading."""
    found = []
    # Blocks alone: most of the time would go into their text.
    for token in MarkdownIt().disable("inline").parse((ROOT / document).read_text(encoding="utf-8")):
        if token.type == "fence" and token.map:
            language, _, rest = token.info.partition(" ")
            title = re.search(r'title="([^"]+)"', rest)
            found.append(
                Snippet(
                    document, token.map[0] + 1, language.partition(",")[0], title[1] if title else "", token.content
                )
            )
    return found


def starts_server(snippet: Snippet) -> bool:
    """Return whether one of the commands of a block starts a server."""
    return snippet.language == "console" and any(SERVING.match(command) for command, _ in split_session(snippet.text))


def split_session(session: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a console session, which may have several lines, and what it prints."""
    for exchange in re.split(r"(?m)^\$ ", session)[1:]:
        lines = exchange.split("\n")
        complete = (number for number in range(len(lines)) if is_complete("\n".join(lines[: number + 1])))
        last = next(complete, len(lines) - 1)
        yield "\n".join(lines[: last + 1]), "\n".join(lines[last + 1 :])


def is_complete(command: str) -> bool:
    """Return whether a shell would run a command: no quotation is open, and no line goes on."""
    if command.endswith("\\"):
        return False
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Printed:
    """What a command printed and its exit status."""

    text: str
    status: int


class Shell:
    """One POSIX shell to which commands are typed one after the other."""

    MARK = "\036"

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["sh"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )

    def run(self, command: str) -> Printed:
        """Run a command. What it sets, and where it goes, holds for the next one."""
        assert self._process.stdin
        assert self._process.stdout
        # The command reads nothing of what is typed, and the next one finds its status in `$?`.
        self._process.stdin.write(f"{{ {command}\n}} </dev/null\n(s=$?; printf '\\n\\036%s\\n' $s; exit $s)\n")
        self._process.stdin.flush()
        printed = ""
        # A command that never ends, or a quotation mark that nobody closes, would be waited for without end.
        timer = threading.Timer(BOUND, self._kill)
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith(self.MARK):
                    return Printed(printed.removesuffix("\n"), int(line[1:]))
                printed += line
        finally:
            timer.cancel()
        raise AssertionError(f"the shell ended, or the command took longer than {BOUND:g} s: {command}\n{printed}")

    def close(self) -> None:
        """End the shell and all that it started."""
        assert self._process.stdin
        assert self._process.stdout
        # What is typed to a shell that was killed cannot be flushed.
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(BOUND)
        finally:
            self._kill()
            self._process.stdout.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


class Reader:
    """Tries snippets in a folder like a checkout, with servers on free ports; what one leaves, the next finds."""

    def __init__(self, folder: Path, ports: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._replacements = {**ports, **EDITS, "/home/ada": str(folder)}
        self._servers: list[int] = []
        self._shell = Shell(folder, {**make_environment(folder, ports), **environment})

    def close(self) -> None:
        """Stop the servers and the shell."""
        try:
            for process in reversed(self._servers):
                self._shell.run(f"kill {process}; wait {process}")
        finally:
            self._shell.close()

    def run(self, command: str) -> Printed:
        """Run a command as a document writes it; one that serves goes on until the end."""
        command = self._replace(command)
        return self._serve(command) if SERVING.match(command) else self._shell.run(command)

    def _serve(self, command: str) -> Printed:
        log = self._folder / f"server-{len(self._servers)}.log"
        options = self._shell.run(f"cat {named[1]}").text if (named := re.search(r"--config (\S+)", command)) else ""
        # A port that the configuration names is that of this server; the environment has that of the first one.
        alone = "env -u CSTP_GRPC__PORT" if (yaml.safe_load(options) or {}).get("grpc", {}).get("port") else ""
        log.touch()
        process = int(self._shell.run(f"{alone} {command} >{log} 2>&1 & echo $!").text)
        self._servers.append(process)
        wait_until(lambda: READY in log.read_text() or not is_running(process), f"{command}: {READY}", BOUND)
        text = log.read_text()
        assert READY in text, f"{command} ended:\n{text}"
        return Printed(text, 0)

    def try_document(self, snippets: Sequence[Snippet]) -> None:
        """Try the blocks of a document one after the other, beside a server unless they start one."""
        if any(snippet.language in COMMANDS for snippet in snippets) and not any(map(starts_server, snippets)):
            self.run("make run")
        for number, snippet in enumerate(snippets):
            before, following = snippets[max(number - 1, 0)], snippets[min(number + 1, len(snippets) - 1)]
            if snippet.language != OUTPUT or snippet.title or before.language not in PROGRAMS:
                self.try_snippet(snippet, following.text if following.language == OUTPUT else "")

    def try_snippet(self, snippet: Snippet, expected: str = "") -> None:
        """Try a block; `expected` is what it should print, where another block says so."""
        match snippet.language:
            case "mermaid":
                assert DIAGRAM.match(snippet.text), f"{snippet} is no diagram"
            case "console":
                self.try_session(snippet)
            case "yaml":
                self.try_yaml(snippet)
            case _ if snippet.title:
                self.write_file(snippet)
            case "sh" | "python":
                self.try_program(snippet, expected)
            case "json":
                self.try_request(snippet)
            case _:
                raise AssertionError(f"{snippet} is neither tried nor listed with a reason")

    def try_session(self, snippet: Snippet) -> None:
        """Run the commands of a console session and compare what they print."""
        for command, expected in split_session(snippet.text):
            self._compare(f"{snippet}: {command}", self.run(command), expected)

    def try_program(self, snippet: Snippet, expected: str) -> None:
        """Run a block of shell or Python."""
        command = snippet.text
        if snippet.language == "python":
            name = f"snippet-{snippet.line}.py"
            (self._folder / name).write_text(self._replace(snippet.text), encoding="utf-8")
            command = f"python {self._folder / name}"
        printed = self.run(command)
        assert printed.status == 0, f"{snippet} ends with {printed.status}:\n{printed.text}"
        self._compare(str(snippet), printed, expected)

    def write_file(self, snippet: Snippet) -> None:
        """Write the file that a block shows to where the reader is; a later command makes use of it."""
        path = Path(self._shell.run("pwd").text.strip()) / snippet.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._replace(snippet.text), encoding="utf-8")

    def try_yaml(self, snippet: Snippet) -> None:
        """Load a configuration, or run the tests of a rulebook; other files are for commands to try."""
        text = self._replace(snippet.text)
        path = self._folder / (snippet.title or f"snippet-{snippet.line}.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        content = yaml.safe_load(text)
        if "apiVersion" in content:
            done = CliRunner().invoke(main, ["guardrails", "test", str(path)])
            assert done.exit_code == 0, f"{snippet}:\n{done.output}"
            return
        if snippet.title and not set(content) <= set(config.Settings.model_fields):
            return
        with variables_set(re.findall(r"\$\{(\w+)\}", text)):
            loaded = config.load_settings(path)
        assert set(content) <= loaded.model_fields_set, snippet

    def try_request(self, snippet: Snippet) -> None:
        """Send a JSON-RPC request to the bridge of the reader's server; an A2A message must be one by its protocol."""
        request = json.loads(snippet.text)
        if "message" in request:
            json_format.ParseDict(request, SendMessageRequest())
            return
        path = self._folder / f"snippet-{snippet.line}.json"
        path.write_text(self._replace(snippet.text), encoding="utf-8")
        assert request.get("method") in contract_methods(), f"{snippet} is no request to a server"
        self._compare(
            str(snippet),
            self.run(
                "curl -s http://127.0.0.1:8100/cstp -H 'Content-Type: application/json'"
                f' -H "Authorization: Bearer $(cat {self._folder}/var/dev-token)" -d @{path}'
            ),
            "",
        )

    def _replace(self, text: str) -> str:
        return re.sub("|".join(map(re.escape, self._replacements)), lambda found: self._replacements[found[0]], text)

    def _compare(self, name: str, printed: Printed, expected: str) -> None:
        """Compare what is printed to what a document shows, and learn the identifiers that were made up.

        Where it shows nothing the command must have gone well.
        """
        shown = join_words(self._replace(printed.text))
        if not expected.strip():
            assert printed.status == 0, f"{name} ends with {printed.status}:\n{printed.text}"
            assert '"error"' not in printed.text, f"{name} is answered with an error:\n{printed.text}"
            return
        names: dict[str, str] = {}
        pattern = self._pattern(join_words(self._replace(expected)), names)
        found = re.fullmatch(pattern, shown)
        assert found, f"{name} prints\n{printed.text}\nand the document says\n{expected}"
        self._replacements.update({written: found[group] for written, group in names.items()})

    def _pattern(self, expected: str, names: dict[str, str]) -> str:
        """Return the pattern of a printed text; `names` gets a group for each identifier that is new."""
        lines = []
        for line in expected.splitlines():
            if line == "…":
                lines.append(r"(?:.*\n)*?")
                continue
            pattern, end = "", 0
            for piece in PIECE.finditer(line):
                pattern += re.escape(line[end : piece.start()]) + self._pattern_of_piece(piece, names)
                end = piece.end()
            lines.append(pattern + re.escape(line[end:]) + r"\n")
        return "".join(lines)

    def _pattern_of_piece(self, piece: re.Match[str], names: dict[str, str]) -> str:
        kind = piece.lastgroup or ""
        if kind in VARYING:
            return ".*" if kind == "rest" else VARYING[kind]
        if piece[0] in self._replacements.values():
            return re.escape(piece[0])
        if piece[0] in names:
            return f"(?P={names[piece[0]]})"
        names[piece[0]] = f"made_up_{len(names)}"
        return f"(?P<{names[piece[0]]}>{MADE_UP[kind]})"


def join_words(text: str) -> str:
    """Return the words of each line that has any; how far they are apart depends on the width of what varies."""
    lines = (" ".join(line.split()) for line in COLOUR.sub("", text).splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def is_running(process: int) -> bool:
    """Return whether a process that the shell started has not ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # What has ended keeps its number until the shell runs something else; where there is no /proc, that is not seen.
    stat = Path(f"/proc/{process}/stat")
    return not stat.exists() or ") Z " not in stat.read_text()


@contextmanager
def variables_set(names: list[str]) -> Iterator[None]:
    """Set environment variables, each to a value of its own, for the length of a block."""
    before = dict(os.environ)
    os.environ.update({name: f"{name}-value" for name in names})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def make_environment(folder: Path, ports: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a developer who has configured nothing else than free ports and small servers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CSTP_", "MAKE", "MFLAGS"))}
    chosen = {setting: ports[port] for port, setting in PORTS.items() if setting}
    search = f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    return {**kept, **SMALL, **chosen, "HOME": str(folder), "PATH": search, "PYTHONUTF8": "1"}


def make_checkout(folder: Path) -> None:
    """Make a folder that looks like this repository, with an environment that is installed and without any data."""
    folder.mkdir()
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name not in MADE_HERE:
            (folder / path.name).symlink_to(path)
    environment = folder / ".venv"
    environment.mkdir()
    for path in Path(sys.prefix).iterdir():
        if not path.name.startswith("."):
            (environment / path.name).symlink_to(path)
    for name in (".created", ".installed", ".installed-dev"):
        (environment / name).touch()


@contextmanager
def reading(folder: Path, **environment: str) -> Iterator[Reader]:
    """Yield a reader in a folder `cstp` like a checkout; what they started has ended after the block.

    `environment` is set besides, for instance with the caches of other languages' tools.
    """
    checkout = folder / "cstp"
    make_checkout(checkout)
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        ports = {port: str(each.getsockname()[1]) for port, each in zip(PORTS, sockets, strict=True)}
    reader = Reader(checkout, ports, environment)
    try:
        yield reader
    finally:
        reader.close()
