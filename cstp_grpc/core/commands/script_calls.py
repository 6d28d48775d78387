"""Find the effects of one-line programs in Python, Node.js, Ruby, Perl and PHP: deleted files, commands and others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.core.commands.model import UNKNOWN, Unresolved

MAX_CODE_CHARACTERS: Final = 32 * 1024
"""Maximum length of parsed code. Chosen: `ast` parses it in about 30 ms."""


@dataclass(slots=True)
class ScriptEffects:
    """The effects of a program: paths by effect, commands that it runs, and its SQL."""

    deletes: list[str] = field(default_factory=list)
    trees: list[str] = field(default_factory=list)
    """Folders that it deletes with their content."""
    writes: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    shell_texts: list[str] = field(default_factory=list)
    argument_lists: list[list[str]] = field(default_factory=list)
    sql_texts: list[str] = field(default_factory=list)
    unresolved: set[str] = field(default_factory=set)
    sends_out: bool = False


TREE_DELETERS: Final = frozenset(
    {"shutil.rmtree", "send2trash.send2trash", "distutils.dir_util.remove_tree", "os.removedirs"}
)
FILE_DELETERS: Final = frozenset({"os.remove", "os.unlink", "os.rmdir", "os.truncate"})
SHELL_RUNNERS: Final = frozenset(
    {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "commands.getoutput", "pty.spawn"}
)
PROCESS_RUNNERS: Final = frozenset(
    {f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")}
    | {f"asyncio.create_subprocess_{name}" for name in ("shell", "exec")}
    | {f"os.{name}" for name in ("execv", "execvp", "execl", "execlp", "spawnv")}
)
SENDERS: Final = re.compile(
    r"(?:requests|httpx)\.(?:post|put|patch|request)|urllib\.request\.(?:urlopen|Request)|socket\.(?:create_connection|socket)"
    r"|smtplib\.\w+|paramiko\.\w+|ftplib\.\w+|http\.client\.\w+"
)
SQL_METHODS: Final = frozenset({"execute", "executescript", "executemany", "raw", "exec_driver_sql"})


def read_python(code: str) -> ScriptEffects:
    """Return the effects of Python code; code that cannot be parsed is searched for its calls."""
    effects = ScriptEffects()
    if len(code) > MAX_CODE_CHARACTERS:
        effects.unresolved.add(Unresolved.TOO_LARGE)
        return effects
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return read_calls(code)
    reader = PythonReader(effects)
    try:
        reader.visit(tree)
    except RecursionError:
        effects.unresolved.add(Unresolved.TOO_DEEP)
    return effects


class PythonReader(ast.NodeVisitor):
    """Collects the effects of Python code in the order of its statements."""

    def __init__(self, effects: ScriptEffects) -> None:
        self._effects = effects
        self._names: dict[str, str] = {}
        self._values: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            root = alias.name.partition(".")[0]
            self._names[alias.asname or root] = alias.name if alias.asname else root

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._names[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self._text(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._values[target.id] = value
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Collect the effects of a call."""
        name = self._dotted(node.func)
        arguments = [self._text(each) for each in node.args]
        first = arguments[0] if arguments else UNKNOWN
        effects = self._effects
        if name in TREE_DELETERS:
            effects.trees.append(first)
        elif name in FILE_DELETERS:
            effects.deletes.append(first)
        elif name in SHELL_RUNNERS:
            effects.shell_texts.append(first)
        elif name in ("os.kill", "os.killpg"):
            effects.argument_lists.append(["kill", f"-{arguments[-1] if arguments else UNKNOWN}", first])
        elif name in PROCESS_RUNNERS:
            self._run_process(node, first)
        elif name in ("eval", "exec", "compile") and node.args and UNKNOWN in first:
            effects.unresolved.add(Unresolved.EVALUATED)
        elif name in ("eval", "exec"):
            inner = read_python(first)
            for attribute in ("deletes", "trees", "writes", "reads", "shell_texts", "argument_lists", "sql_texts"):
                getattr(effects, attribute).extend(getattr(inner, attribute))
        elif name == "open":
            modes = arguments[1:2] + [self._text(each.value) for each in node.keywords if each.arg == "mode"] + ["r"]
            mode = modes[0]
            (effects.writes if set(mode) & set("wax+") else effects.reads).append(first)
        elif SENDERS.fullmatch(name):
            effects.sends_out |= not re.search(r"//(?:localhost|127\.)", first)
        elif isinstance(node.func, ast.Attribute):
            self._call_method(node.func, first)
        self.generic_visit(node)

    def _call_method(self, function: ast.Attribute, first: str) -> None:
        """Collect the effects of a method whose object is a path or a cursor."""
        path = self._path(function.value)
        if function.attr in ("unlink", "rmdir") and path is not None:
            self._effects.deletes.append(path)
        elif function.attr in ("write_text", "write_bytes") and path is not None:
            self._effects.writes.append(path)
        elif function.attr in ("read_text", "read_bytes") and path is not None:
            self._effects.reads.append(path)
        elif function.attr in SQL_METHODS:
            self._effects.sql_texts.append(first)
        elif function.attr == "delete" and is_all_rows(function.value):
            self._effects.sql_texts.append("DELETE FROM x")
        elif function.attr in ("drop_all", "dropDatabase", "drop_database", "flushall", "flushdb", "drop"):
            self._effects.sql_texts.append("DROP DATABASE x" if function.attr != "drop" else "")

    def _run_process(self, node: ast.Call, first: str) -> None:
        """Collect the command of a process: a list of words, or a text."""
        words = node.args[0] if node.args else None
        if isinstance(words, ast.List | ast.Tuple):
            self._effects.argument_lists.append([self._text(each) for each in words.elts])
        else:
            self._effects.shell_texts.append(first)

    def _dotted(self, node: ast.expr) -> str:
        """Return the full name of a function, as far as the imports show it."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            parts.append(self._names.get(node.id, node.id))
        elif (
            isinstance(node, ast.Call)
            and self._dotted(node.func) in ("__import__", "importlib.import_module")
            and node.args
        ):
            parts.append(self._text(node.args[0]))
        else:
            return ""
        return ".".join(reversed(parts)).removeprefix("builtins.")

    def _path(self, node: ast.expr) -> str | None:
        """Return the path that an expression is; UNKNOWN if it is one that is not literal."""
        if isinstance(node, ast.Call) and self._dotted(node.func).split(".")[-1] in ("Path", "PosixPath"):
            return self._text(node.args[0]) if node.args else "."
        return self._text(node)

    def _text(self, node: ast.expr) -> str:
        """Return the text of an expression, with UNKNOWN for each part that is not literal."""
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.Name):
            return self._values.get(node.id, UNKNOWN)
        if isinstance(node, ast.JoinedStr):
            return "".join(
                self._text(each.value if isinstance(each, ast.FormattedValue) else each) for each in node.values
            )
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Div):
            joint = "/" if isinstance(node.op, ast.Div) else ""
            return self._text(node.left) + joint + self._text(node.right)
        if isinstance(node, ast.Call):
            name = self._dotted(node.func)
            if (
                name in ("os.path.expanduser", "os.path.join", "os.path.abspath", "str")
                or name.split(".")[-1] == "Path"
            ):
                return "/".join(self._text(each) for each in node.args) or "."
            if name in ("pathlib.Path.home", "Path.home", "os.getenv", "os.path.expandvars"):
                return "~" if "home" in name or [self._text(each) for each in node.args[:1]] == ["HOME"] else UNKNOWN
            if name in ("os.getcwd", "pathlib.Path.cwd", "Path.cwd"):
                return "."
            if name.startswith("tempfile."):
                return "/tmp/x"
        if isinstance(node, ast.Subscript) and self._dotted(node.value) == "os.environ":
            return "~" if self._text(node.slice) == "HOME" else UNKNOWN + self._text(node.slice)
        return UNKNOWN


def is_all_rows(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="objects"), attr="all")):
            return True
    return False


LITERAL: Final = r"""\s*\(?\s*(?:f|r|b)?(?:'([^'\n]*)'|"([^"\n]*)"|`([^`\n]*)`)"""
CALLS: Final[Mapping[str, str]] = {
    "trees": (
        r"(?:\brmSync|\brm|rmdirSync|\brmdir|rimraf(?:\.sync)?|removeSync|emptyDirSync|rmtree|remove_tree"
        r"|FileUtils\.(?:rm_rf|rm_r|remove_dir|remove_entry\w*)|Deno\.remove(?:Sync)?)"
    ),
    "deletes": r"(?:\bunlinkSync|\bunlink|File\.(?:delete|unlink)|Dir\.(?:rmdir|delete))",
    "writes": (
        r"(?:writeFileSync|writeFile|appendFileSync|createWriteStream|File\.(?:write|open)|IO\.write"
        r"|file_put_contents|Deno\.writeTextFile(?:Sync)?)"
    ),
    "reads": (
        r"(?:readFileSync|readFile|createReadStream|File\.read(?:lines)?|IO\.read|file_get_contents"
        r"|Deno\.readTextFile(?:Sync)?)"
    ),
    "shell_texts": (
        r"(?:execSync|\bexec|spawnSync|\bspawn|\bsystem|shell_exec|passthru|popen|IO\.popen|%x|\bqx"
        r"|Kernel\.system|os\.execute|execFileSync)"
    ),
}
"""The calls of other languages by effect; a literal path or command follows."""
REMOTE_CALLS: Final = re.compile(
    r"\bfetch\s*\(|axios\.(?:post|put)|https?\.request|Net::HTTP\.post|LWP|HTTP::Tiny|curl_exec|IO::Socket|\bTCPSocket|net\.connect"
)
MONGO_CALLS: Final = re.compile(
    r"dropDatabase\s*\(|\.drop(?:Collection)?\s*\(|\.(?:deleteMany|remove)\s*\(\s*(?:\{\s*\})?\s*\)|\.shutdownServer\s*\(|\.dropUser\s*\("
    r"|\.(?:delete|destroy)_all\b|\.destroy!?(?:\s|$|;)"
)
UNKNOWN_CALL: Final = re.compile(r"\b(?:eval|instance_eval|Function)\s*\(\s*(?!['\"`])")


def read_calls(code: str) -> ScriptEffects:
    """Return the effects of code in Node.js, Ruby, Perl or PHP, by its file and process calls."""
    effects = ScriptEffects()
    for attribute, pattern in CALLS.items():
        found: list[str] = getattr(effects, attribute)
        found += literals_behind(code, pattern)
        if attribute in ("trees", "deletes") and re.search(pattern + r"\s*[(\s]\s*[A-Za-z_$@*<]", code) and not found:
            found.append(UNKNOWN)
    effects.shell_texts += [
        match[1] for match in re.finditer(r"`([^`$\n]+)`", code) if not re.search(r"[=(,]\s*$", code[: match.start()])
    ]
    effects.argument_lists += list(spawned_lists(code))
    if MONGO_CALLS.search(code):
        effects.sql_texts.append("DROP DATABASE x")
    effects.sends_out = bool(REMOTE_CALLS.search(code))
    if UNKNOWN_CALL.search(code):
        effects.unresolved.add(Unresolved.EVALUATED)
    return effects


def literals_behind(code: str, pattern: str) -> Iterator[str]:
    for match in re.finditer(pattern + LITERAL, code):
        yield next(group for group in match.groups() if group is not None)


def spawned_lists(code: str) -> Iterator[list[str]]:
    for match in re.finditer(r"""(?:spawn|execFile)(?:Sync)?\(\s*['"]([^'"]+)['"]\s*,\s*\[([^\]]*)\]""", code):
        yield [match[1], *re.findall(r"""['"]([^'"]*)['"]""", match[2])]
    for match in re.finditer(r"""\bsystem\s*\(?\s*((?:['"][^'"]*['"]\s*,\s*)+['"][^'"]*['"])""", code):
        yield re.findall(r"""['"]([^'"]*)['"]""", match[1])
