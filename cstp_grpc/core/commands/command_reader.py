"""Read one simple command: look through its wrappers, and collect its effects and its output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cstp_grpc.core.commands import model, script_calls, sql_text
from cstp_grpc.core.commands.command_collector import SOURCE_REASONS, CommandCollector
from cstp_grpc.core.commands.effects import collect_file_effects
from cstp_grpc.core.commands.options import is_dry_run, program_name, split_arguments
from cstp_grpc.core.commands.places import resolve_path
from cstp_grpc.core.commands.shell_words import USUAL_PROGRAMS, Flow
from cstp_grpc.core.commands.special_programs import DOWNLOADERS, SPECIAL, find_output, list_downloads, list_found
from cstp_grpc.core.commands.wrappers import SHELLS, unwrap_once, value_of

MAX_RUNS: Final = 1000
"""Maximum number of commands that are looked at; loops and functions multiply them."""
MAX_LISTED_WORDS: Final = 60
"""Maximum number of operands that are kept for rules; effects are collected from all of them."""
SCRIPT_OPTIONS: Final = {
    "python": ("-c",), "pypy": ("-c",), "node": ("-e", "-p", "--eval", "--print", "-pe"), "nodejs": ("-e", "-p"),
    "deno": ("eval",), "bun": ("-e", "--eval"), "ruby": ("-e",), "perl": ("-e", "-E", "-ne", "-pe", "-i -e"),
    "php": ("-r",),
    "osascript": ("-e",), "mongosh": ("--eval",), "mongo": ("--eval",), "lua": ("-e",), "Rscript": ("-e",),
    "groovy": ("-e",),
    "rails": ("runner", "r"), "gitlab-rails": ("runner", "r"), "zx": ("-e", "--eval"), "tsx": ("-e",),
    "arangosh": ("--javascript.execute-string",), "ipython": ("-c",), "tclsh": ("-c",), "elixir": ("-e",),
}  # fmt: skip
"""Interpreters, and the options that a program text follows."""
UNKNOWN_WORD: Final = re.compile(rf"{model.UNKNOWN}\w*")
SECRET_WORDS: Final = re.compile(r"(?i)secret|token|passw|credential|api_?key|access_?key|private_key")
SECRET_PRINTED: Final = re.compile(
    rf"(?:environ|getenv|process\.env|\bENV)\W+\w*(?:{SECRET_WORDS.pattern[4:]})", re.IGNORECASE
)
SHELL_TEXTS: Final = {
    **dict.fromkeys(("awk", "gawk", "mawk"), r"""system\(\s*"((?:[^"\\]|\\.)*)"""),
    **dict.fromkeys(("vi", "vim", "nvim", "ex"), r"^:?!(.+)"),
    "gdb": r"^(?:shell |!)(.+)",
    "sed": r"^(?:\d+|\$)e (.+)",
    "tar": r"^--(?:checkpoint-action=exec|to-command|use-compress-program)=(.+)",
}
"""Programs that run a shell text in one of their arguments, and a pattern of that."""


class CommandReader(CommandCollector):
    """Reads commands through their wrappers."""

    def run(self, words: Sequence[str], assignments: Sequence[str], stdin: Flow | None, effects: model.Effects) -> Flow:
        """Read a command: look through its wrappers to the program, and collect the effects of that."""
        self._runs += 1
        if self._runs > MAX_RUNS:
            if self._runs == MAX_RUNS + 1:
                self.note(model.Unresolved.TOO_LARGE)
            return Flow()
        words = [word for word in words if word] if words and not words[0] else list(words)
        if not words:
            if effects != model.Effects():
                self.add(model.Command(""), effects)
            return Flow()
        if words[0].startswith(model.UNKNOWN) and (usual := USUAL_PROGRAMS.get(words[0][1:])):
            words[0] = usual
        if words[0] == "-":
            # As in `uv run -`.
            words[0] = "python"
        if re.match(r"https?://", words[0]):
            effects.unresolved.add(model.Unresolved.DOWNLOADED)
        if "/" in words[0] and (script := self._written.get(resolve_path(words[0], self.directory))) is not None:
            shebang = re.match(r"#!\S*/(?:env\s+)?(\w+)", script)
            words = [shebang[1] if shebang else "sh", *words]
        program = program_name(words[0])
        if not program or model.UNKNOWN in program:
            effects.unresolved.add(model.Unresolved.VARIABLE_PROGRAM)
            self.add(model.Command("", text=" ".join(words), arguments=tuple(words[1:])), effects)
            return Flow(source="piped")
        if (called := self.shell.call_function(words, stdin)) is not None:
            return called
        if (special := SPECIAL.get(program)) and (done := special(self, words, stdin, effects)) is not None:
            return done
        if program in SHELLS:
            return self._run_shell(words, stdin, effects)
        if (inner := self._unwrap(words, stdin, effects)) is not None:
            return inner
        return self._run_program(program, words, assignments, stdin, effects)

    def _unwrap(self, words: Sequence[str], stdin: Flow | None, effects: model.Effects) -> Flow | None:
        """Read the command inside a wrapper; None if the program is not a wrapper."""
        unwrapped = unwrap_once(words)
        if unwrapped is None:
            return None
        privileged, remote, directory = self.is_privileged, self.is_remote, self.directory
        self.is_privileged |= unwrapped.wrapper.is_privileged
        if unwrapped.wrapper.is_remote:
            self._add_wrapper(words, len(unwrapped.words), stdin)
            self.is_remote, self.directory = True, ""
        try:
            if unwrapped.text is not None:
                if effects != model.Effects():
                    self.add(model.Command(program_name(words[0]), text=" ".join(words)), effects)
                return self.shell.read(unwrapped.text, stdin)
            inner = list(unwrapped.words)
            if program_name(words[0]) == "xargs":
                inner = self._fill_xargs(words, inner, stdin)
                stdin = None
            return self.run(inner, unwrapped.assignments, stdin, effects)
        finally:
            self.is_privileged, self.is_remote, self.directory = privileged, remote, directory

    def _add_wrapper(self, words: Sequence[str], inner: int, stdin: Flow | None) -> None:
        """Add the program that runs a command elsewhere, whose own flags matter, such as `docker run --privileged`."""
        program = program_name(words[0])
        own = list(words[1 : len(words) - inner])
        split = split_arguments(program, own)
        self.add(
            model.Command(
                program,
                text=" ".join(words),
                arguments=cut_words(own),
                flags=cut_words(split.flags),
                operands=cut_words(split.operands),
                names=tuple((program, *found) for found in split.names),
            ),
            model.Effects(sends_out=program == "ssh" and stdin is not None and stdin.literal is None),
        )

    def _fill_xargs(self, words: Sequence[str], inner: list[str], stdin: Flow | None) -> list[str]:
        """Return the command of `xargs` with the words that it reads."""
        given = [model.UNKNOWN]
        if stdin is not None and stdin.paths:
            given = stdin.paths
        elif stdin is not None and stdin.literal is not None:
            given = stdin.literal.split() or [model.UNKNOWN]
        placeholder = value_of(words, "-I", "--replace") or next(
            (word[2:] for word in words if re.match(r"-I.", word)), None
        )
        if placeholder and any(placeholder in word for word in inner):
            return fill_words(inner, placeholder, given)
        return [*inner, *given]

    def _run_shell(self, words: Sequence[str], stdin: Flow | None, effects: model.Effects) -> Flow:
        """Read the text, the script or the input that a shell runs."""
        text = value_of(words, "-c")
        if text is not None:
            if model.UNKNOWN in text.strip()[:1] and (reason := self.substituted_reason()):
                effects.unresolved.add(reason)
                self.add(model.Command(program_name(words[0]), text=" ".join(words)), effects)
                return Flow(source="piped")
            if effects != model.Effects():
                self.add(model.Command(program_name(words[0]), text=" ".join(words)), effects)
            return self.shell.read(text, stdin)
        operands = [word for word in words[1:] if not word.startswith(("-", "+"))]
        if "-s" in words or not operands:
            if any(word in ("--version", "--help", "-n") for word in words):
                return Flow(literal="")
            return self._feed_interpreter(words, stdin, effects, self.shell.read)
        if UNKNOWN_WORD.fullmatch(operands[0]) and (reason := self.substituted_reason()):
            effects.unresolved.add(reason)
        if words[1] != "-n" and (text := self.read_written(operands[0])) is not None:
            self.shell.read(text)
        if resolve_path(operands[0], self.directory) in self._fetched:
            effects.unresolved.add(model.Unresolved.DOWNLOADED)
        return self._run_program(program_name(words[0]), words, (), stdin, effects)

    def _feed_interpreter(
        self,
        words: Sequence[str],
        stdin: Flow | None,
        effects: model.Effects,
        read: Callable[[str, Flow | None], Flow] | None,
    ) -> Flow:
        """Read the input of an interpreter, or note why that cannot be done."""
        if stdin is not None and stdin.literal is not None and read is not None:
            if effects != model.Effects():
                self.add(model.Command(program_name(words[0]), text=" ".join(words)), effects)
            return read(stdin.literal, None)
        if stdin is None:
            effects.unresolved.add(model.Unresolved.INTERACTIVE)
        elif stdin.source != "file" or self.is_remote:
            effects.unresolved.add(SOURCE_REASONS.get(stdin.source, model.Unresolved.PIPED))
        self.add(model.Command(program_name(words[0]), text=" ".join(words), arguments=tuple(words[1:])), effects)
        return Flow(source="piped")

    def _run_program(
        self, program: str, words: Sequence[str], assignments: Sequence[str], stdin: Flow | None, effects: model.Effects
    ) -> Flow:
        """Collect the effects of a program that is not a wrapper."""
        arguments = list(words[1:])
        split = split_arguments(program, arguments)
        flags = split.flags
        if stdin is not None and stdin.literal is not None and re.fullmatch(r"\s*y(?:es)?\s*", stdin.literal):
            flags += ("--yes",)
        directory = self.directory
        if program == "git" and (folder := value_of(words, "-C")):
            self.directory = resolve_path(folder, directory)
        collected = collect_file_effects(program, arguments, split, self.scene)
        effects.merge(collected)
        self._read_embedded(program, words, split.operands, stdin, effects)
        substituted = self.shell.words.flows
        if program in DOWNLOADERS:
            self._fetched |= {resolve_path(path, directory) for path in list_downloads(words)}
        scripts = [word for word in words[:1] if "/" in word] + list(
            split.operands[:1] if program in SCRIPT_OPTIONS else ()
        )
        if any(resolve_path(script, directory) in self._fetched for script in scripts):
            effects.unresolved.add(model.Unresolved.DOWNLOADED)
        if (
            stdin
            and stdin.is_secret
            and re.search(r"(?i)grep$|^rg$", program)
            and SECRET_WORDS.search(" ".join(split.operands))
        ):
            effects.reads.add(model.Place.SECRET)
        if effects.sends_out and ((stdin and stdin.is_secret) or any(flow.is_secret for flow in substituted)):
            effects.reads.add(model.Place.SECRET)
        self.add(
            model.Command(
                program,
                text=" ".join(words),
                arguments=cut_words(arguments),
                flags=cut_words(flags),
                operands=cut_words(split.operands),
                names=tuple((program, *found) for found in split.names),
                environment=cut_words(assignments),
                is_dry_run=not effects.is_code and is_dry_run(program, arguments, split.flags, split.operands),
            ),
            effects,
        )
        self.directory = directory
        return find_output(self, program, words, split.operands, stdin, effects)

    def _read_embedded(
        self, program: str, words: Sequence[str], operands: Sequence[str], stdin: Flow | None, effects: model.Effects
    ) -> None:
        """Collect the effects of SQL and of one-line programs that a command is given."""
        given = stdin.literal if stdin is not None else None
        if program == "tee" and given is not None:
            for path in operands:
                self.save_output(path, Flow(given), "-a" in words)
        elif program in ("cp", "mv", "install", "ln") and operands and not self.is_remote:
            self.copy_written(words, operands)
        if (dialect := sql_text.DIALECTS.get(program)) is not None:
            texts = sql_text.find_sql_texts(program, words[1:], operands, given)
            if shell_texts := sql_text.CLIENT_SHELL.findall("\n".join(texts)):
                self.shell.read("\n".join(shell_texts))
            if ":memory:" not in operands or re.search(r"(?i)\battach\b|\.open\b", " ".join(texts)):
                self._read_sql(texts, dialect, effects)
        elif (options := SCRIPT_OPTIONS.get(program)) is not None:
            self._read_scripts(program, words, operands, stdin, effects, options)
        elif (pattern := SHELL_TEXTS.get(program)) is not None:
            for text in [match[1] for word in words for match in re.finditer(pattern, word)]:
                self.shell.read(text)
        elif program in ("sftp", "ftp", "lftp"):
            text = " ".join([given or "", *words[1:]])
            if re.search(r"(?:^|[\s;])(?:m?delete|m?rm|rmdir|mrm|mirror\b[^;\n]{0,200}--delete)\b", text):
                effects.deletes.add(model.Place.OUTSIDE)
        elif program in ("at", "batch") and given:
            self.shell.read(given)
        elif program in ("find", "fd", "gfind"):
            self._run_found(words)
        elif program == "git":
            self._read_git(words)

    def _read_scripts(
        self,
        program: str,
        words: Sequence[str],
        operands: Sequence[str],
        stdin: Flow | None,
        effects: model.Effects,
        options: Sequence[str],
    ) -> None:
        code = value_of(words, *options)
        if code is None and operands:
            code = self.read_written(operands[0])
        if code is None and operands and operands[0] == model.UNKNOWN and self.shell.words.flows:
            effects.unresolved.add(self.substituted_reason() or model.Unresolved.EVALUATED)
        if code is None and program == "perl" and (found := [w for w in words[1:] if re.match(r"-\w*e$", w)]):
            code = words[words.index(found[0]) + 1] if words.index(found[0]) + 1 < len(words) else None
        if code is None and (not operands or operands[0] == "-") and "-m" not in words:
            if stdin is None or stdin.source == "file":
                return
            if stdin.literal is None:
                effects.unresolved.add(SOURCE_REASONS.get(stdin.source, model.Unresolved.PIPED))
                return
            code = stdin.literal
        if code is None:
            return
        effects.is_code = True
        if not self._may_parse(code, effects):
            return
        if SECRET_PRINTED.search(code) and ("-p" in words or re.search(r"print|console|puts|echo", code)):
            effects.reads.add(model.Place.SECRET)
        if UNKNOWN_WORD.fullmatch(code) and (reason := self.substituted_reason()):
            effects.unresolved.add(reason)
        read = script_calls.read_python if program in ("python", "pypy", "ipython") else script_calls.read_calls
        self._apply_script(read(code), effects)
        if program == "osascript":
            for text in re.findall(r"do shell script \"((?:[^\"\\]|\\.)*)", code):
                self.shell.read(text)

    def _read_sql(self, texts: Iterable[str], dialect: str, effects: model.Effects) -> None:
        for text in texts:
            if self._may_parse(text, effects):
                effects.sql |= sql_text.read_operations(text, dialect)

    def _may_parse(self, code: str, effects: model.Effects) -> bool:
        """Return whether code is parsed; not after MAX_READ_CHARACTERS, which functions and scripts can repeat."""
        self._parsed_characters += len(code)
        if self._parsed_characters <= model.MAX_READ_CHARACTERS:
            return True
        effects.unresolved.add(model.Unresolved.TOO_LARGE)
        return False

    def _apply_script(self, script: script_calls.ScriptEffects, effects: model.Effects) -> None:
        """Add the effects of a one-line program."""
        scene = self.scene
        effects.deletes |= scene.kinds_of(script.deletes) | scene.kinds_of(script.trees)
        effects.is_recursive |= bool(script.trees)
        effects.writes |= scene.kinds_of(script.writes)
        effects.reads |= scene.kinds_of(script.reads)
        effects.sends_out |= script.sends_out
        effects.unresolved |= script.unresolved
        self._read_sql(script.sql_texts, "", effects)
        for text in script.shell_texts:
            if text.strip(model.UNKNOWN):
                self.shell.read(text)
            else:
                effects.unresolved.add(model.Unresolved.EVALUATED)
        for words in script.argument_lists:
            self.run(words, (), None, model.Effects())

    def _run_found(self, words: Sequence[str]) -> None:
        for position, word in enumerate(words):
            if word not in ("-exec", "-execdir", "-ok", "-okdir", "-x", "--exec", "-X", "--exec-batch"):
                continue
            rest = list(words[position + 1 :])
            end = next((place for place, each in enumerate(rest) if each in (";", "+", "\\;")), len(rest))
            inner = rest[:end]
            # The paths that `find` finds stand in the place of `{}`, and those of `fd` also at the end.
            if any("{}" in word for word in inner):
                inner = fill_words(inner, "{}", list_found(words))
            elif program_name(words[0]) == "fd":
                inner += list_found(words)
            self.run(inner, (), None, model.Effects())

    def _read_git(self, words: Sequence[str]) -> None:
        for text in re.findall(r"\balias\.[\w-]+=!(.+)", "\n".join(words)):
            self.shell.read(text)
        for sub_command, option in (("foreach", ""), ("rebase", "-x"), ("rebase", "--exec"), ("bisect", "run")):
            if sub_command not in words:
                continue
            if option.startswith("-"):
                text = value_of(words, option)
            else:
                rest = [word for word in words[words.index(sub_command) + 1 :] if not word.startswith("--")]
                rest = rest[1:] if option and rest[:1] == [option] else rest if not option else []
                text = " ".join(rest)
            if text:
                self.shell.read(text)


def cut_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return words for rules, limited in number and length."""
    return tuple(word[: model.MAX_WORD_CHARACTERS] for word in words[:MAX_LISTED_WORDS])


def fill_words(words: Sequence[str], placeholder: str, values: Sequence[str]) -> list[str]:
    """Return words with values in the place of a placeholder; a word with it is repeated for each value."""
    filled: list[str] = []
    for word in words:
        filled += [word.replace(placeholder, value) for value in values] if placeholder in word else [word]
    return filled
