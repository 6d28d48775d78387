"""The effects of programs on files and other machines, by their arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from cstp_grpc.core.commands.model import UNKNOWN, Effects, Place
from cstp_grpc.core.commands.options import SplitArguments
from cstp_grpc.core.commands.places import classify_path, is_build_output
from cstp_grpc.core.commands.wrappers import value_of


class Scene(NamedTuple):
    """Where a command runs: its folder, and the root folder of the project; empty if unknown."""

    directory: str
    project: str

    def kinds(self, path: str) -> frozenset[str]:
        return classify_path(path, self.directory, self.project)

    def kinds_of(self, paths: Sequence[str]) -> set[str]:
        return {kind for path in paths for kind in self.kinds(path)}


RECURSIVE: Final = frozenset({"-r", "-R", "--recursive"})
TREE_DELETERS: Final = frozenset({"rimraf", "del-cli"})
"""Programs that delete folders without a flag."""
DELETERS: Final = TREE_DELETERS | {"rm", "unlink", "shred", "srm", "wipe"}
MAILERS: Final = frozenset({"mail", "mutt", "sendmail", "msmtp", "swaks"})
SCRIPTED_READERS: Final = frozenset("grep egrep fgrep rg ag ack sed gsed awk gawk mawk jq yq perl".split())
"""Programs whose first operand is a pattern or script, unless an option gives it."""
READERS: Final = SCRIPTED_READERS | frozenset(
    "cat less more head tail bat batcat strings xxd od hexdump base64 base32 sort uniq cut paste diff cmp comm nl tac"
    " rev tr fold column vim vi nvim nano emacs code view openssl gpg age tee zcat bzcat xzcat gzip zip tar cp scp"
    " rsync mv curl wget http nc ncat socat mail mutt sendmail rclone ssh-keygen hexyl glow fx plutil defaults security"
    " pbcopy xclip wl-copy type get-content gc select-string sqlite3 duckdb".split()
)
"""Programs that print, copy or send the contents of their operands."""
WRITERS: Final = frozenset(
    "tee touch install ln truncate sponge mkfs wipefs chmod chown chgrp chattr setfacl icacls takeown set-acl".split()
)
UPLOAD_FLAGS: Final = re.compile(
    r"(?:-d|--data(?:-raw|-binary|-urlencode|-ascii)?|--json|-F|--form(?:-string)?|-T|--upload-file|--post-data"
    r"|--post-file|--body-data|--body-file|-body|-form|-infile)(?:=|$)"
)
SENT_FILE: Final = re.compile(r"@(.+)|[\w.-]+=[@<](.+)")
LOCAL_HOSTS: Final = re.compile(
    r"(?i)(?:^|//|@)(?:localhost|127\.\d+\.\d+\.\d+|\[?::1\]?|0\.0\.0\.0|host\.docker\.internal|[\w-]+\.local(?:host)?)(?:[:/]|$)"
)
REMOTE_PATH: Final = re.compile(r"(?!/|\.|[A-Za-z]:\\)(?:[\w.-]+@)?[\w.-]+:(?!//)|\w+://(?!localhost|127\.)")
BUCKET: Final = re.compile(r"(?:s3|gs|az|b2|r2|oss|cos|https?|remote|sftp)://|[\w-]+:")
SECRET_VARIABLE: Final = re.compile(
    rf"{UNKNOWN}\{{?\w*(?:SECRET|TOKEN|PASSW|PRIVATE_KEY|API_?KEY|ACCESS_KEY|CREDENTIAL)\w*\}}?", re.IGNORECASE
)


def collect_file_effects(program: str, arguments: Sequence[str], split: SplitArguments, scene: Scene) -> Effects:
    """Return the effects of a program on files and other machines."""
    effects = Effects(is_recursive=program in TREE_DELETERS or not RECURSIVE.isdisjoint(split.flags))
    if collect := COLLECTORS.get(program):
        collect(arguments, split, scene, effects)
    if program in DELETERS:
        effects.deletes |= scene.kinds_of(split.operands)
    if program in MAILERS:
        effects.sends_out |= bool(split.operands)
    if program in WRITERS or program.startswith("mkfs"):
        effects.writes |= scene.kinds_of(split.operands)
    if program in READERS:
        effects.reads |= scene.kinds_of(read_operands(program, split))
    shown = [UNKNOWN + word for word in split.operands] if program == "printenv" else split.operands
    if program in ("echo", "printf", "print", "printenv", "write-output", "write-host") and any(
        map(SECRET_VARIABLE.fullmatch, shown)
    ):
        effects.reads.add(Place.SECRET)
    return effects


def read_operands(program: str, split: SplitArguments) -> Sequence[str]:
    if program in SCRIPTED_READERS and not {"-e", "-f", "--regexp", "--file", "--expression"} & set(split.flags):
        return split.operands[1:]
    if program in ("cp", "mv", "scp", "rsync") and len(split.operands) > 1:
        return split.operands[:-1]
    if program in ("tee", "curl", "wget"):
        return ()
    return split.operands


def collect_windows_removal(arguments: Sequence[str], split: SplitArguments, scene: Scene, effects: Effects) -> None:
    flags = {flag.lower() for flag in split.flags} | {
        word.lower() for word in arguments if re.fullmatch(r"/[a-zA-Z]", word)
    }
    effects.is_recursive |= bool({"/s", "-recurse", "-r", "-rec"} & flags)
    effects.deletes |= scene.kinds_of([word for word in split.operands if not re.fullmatch(r"/[a-zA-Z]", word)])


def collect_find(arguments: Sequence[str], _split: SplitArguments, scene: Scene, effects: Effects) -> None:
    if "-delete" in arguments and "-empty" not in arguments:
        effects.deletes |= found_kinds(arguments, scene)
        patterns = find_patterns(arguments)
        # Files of an exact name are no tree.
        effects.is_recursive = not patterns or any("*" in pattern for pattern in patterns)


def find_roots(arguments: Sequence[str]) -> list[str]:
    roots: list[str] = []
    for word in arguments:
        if word.startswith(("-", "(", "!")):
            if word in ("-H", "-L", "-P") and not roots:
                continue
            break
        roots.append(word)
    return roots or ["."]


def found_kinds(arguments: Sequence[str], scene: Scene) -> set[str]:
    roots, patterns = find_roots(arguments), find_patterns(arguments)
    if patterns and all(is_build_output(pattern.strip("*/")) or is_build_output(pattern) for pattern in patterns):
        return {Place.BUILD} | (scene.kinds_of(roots) - {Place.PROJECT_ROOT, Place.PROJECT})
    if patterns:
        named = [f"{root.rstrip('/')}/{pattern}" for root in roots for pattern in patterns]
        return scene.kinds_of(named) | (scene.kinds_of(roots) - {Place.PROJECT_ROOT})
    return scene.kinds_of(roots)


def find_patterns(arguments: Sequence[str]) -> list[str]:
    names = ("-name", "-iname", "-path", "-ipath", "-wholename")
    return [
        arguments[position + 1]
        for position, word in enumerate(arguments[:-1])
        if word in names and (position == 0 or arguments[position - 1] not in ("!", "-not"))
    ]


def collect_move(_: Sequence[str], split: SplitArguments, scene: Scene, effects: Effects) -> None:
    """Collect the deletions and writes of `mv`."""
    if len(split.operands) > 1:
        effects.deletes |= scene.kinds_of(split.operands[:-1])
        effects.writes |= scene.kinds(split.operands[-1])
        effects.is_recursive = split.operands[-1] == "/dev/null"


def collect_copy(arguments: Sequence[str], split: SplitArguments, scene: Scene, effects: Effects) -> None:
    """Collect the writes of `cp`, `install` and `ln`."""
    target = value_of(["", *arguments], "-t", "--target-directory")
    if target is None and len(split.operands) > 1:
        target = split.operands[-1]
    if target is not None:
        effects.writes |= scene.kinds(target)
        if split.operands[0] == "/dev/null":
            effects.deletes |= scene.kinds(target)


def collect_transfer(_: Sequence[str], split: SplitArguments, scene: Scene, effects: Effects) -> None:
    """Collect the copies of `scp` and `rsync`, and their deletions at the target."""
    if len(split.operands) < 2:
        return
    target = split.operands[-1]
    if REMOTE_PATH.match(target) and not LOCAL_HOSTS.search(target):
        effects.sends_out = True
    else:
        effects.writes |= scene.kinds(target)
    if any(flag.startswith(("--delete", "--remove-source")) for flag in split.flags):
        remote = bool(REMOTE_PATH.match(target))
        effects.deletes |= {Place.OUTSIDE} if remote else scene.kinds(target)
        effects.is_recursive = True


def collect_dd(arguments: Sequence[str], _split: SplitArguments, scene: Scene, effects: Effects) -> None:
    for word in arguments:
        name, _, path = word.partition("=")
        if name == "of":
            effects.writes |= scene.kinds(path)
        elif name == "if":
            effects.reads |= scene.kinds(path)


def collect_in_place(arguments: Sequence[str], split: SplitArguments, scene: Scene, effects: Effects) -> None:
    """Collect the files that `sed -i` and `perl -i` change."""
    if any(re.match(r"-\w*i|--in-place", word) for word in arguments):
        effects.writes |= scene.kinds_of(split.operands)


def collect_truncate(arguments: Sequence[str], split: SplitArguments, scene: Scene, effects: Effects) -> None:
    if value_of(["", *arguments], "-s", "--size") in ("0", None) or "-s0" in arguments:
        effects.deletes |= scene.kinds_of([word for word in split.operands if word != "0"])


def collect_http(arguments: Sequence[str], split: SplitArguments, scene: Scene, effects: Effects) -> None:
    """Collect the uploads and writes of `curl` and `wget`."""
    has_target = [word for word in split.operands if not LOCAL_HOSTS.search(word)]
    for position, word in enumerate(arguments):
        following = arguments[position + 1] if position + 1 < len(arguments) else ""
        is_joined = bool(re.match(r"-[dFT]\S", word))
        if UPLOAD_FLAGS.match(word) or is_joined:
            value = word[2:] if is_joined else following
            if word.startswith("--") and "=" in word:
                value = word.partition("=")[2]
            effects.sends_out |= bool(has_target)
            if word.startswith(("-T", "--upload-file", "--post-file", "--body-file", "-infile")):
                effects.reads |= scene.kinds(value)
            elif sent := SENT_FILE.match(value):
                effects.reads |= scene.kinds((sent[1] or sent[2]).split(";")[0])
        elif word in ("-o", "--output", "-O", "--output-document", "-K", "--config") and following:
            (effects.reads if word in ("-K", "--config") else effects.writes).update(
                scene.kinds(following) if word != "-O" or "://" not in following else ()
            )
        elif re.search(SECRET_VARIABLE, word) and re.search(r"[?&]\w+=", word):
            effects.reads.add(Place.SECRET)
            effects.sends_out |= bool(has_target)


def collect_socket(_: Sequence[str], split: SplitArguments, _scene: Scene, effects: Effects) -> None:
    """Collect whether `nc`, `socat`, `telnet` or `openssl s_client` connects to another machine."""
    hosts = [word for word in split.operands if not word.isdecimal() and word != "s_client"]
    if "-l" not in split.flags and "-z" not in split.flags and any(not LOCAL_HOSTS.search(word) for word in hosts):
        effects.sends_out = True


def collect_tls(arguments: Sequence[str], split: SplitArguments, scene: Scene, effects: Effects) -> None:
    if "s_client" in split.operands:
        collect_socket(arguments, split, scene, effects)


def collect_snippet(_: Sequence[str], split: SplitArguments, scene: Scene, effects: Effects) -> None:
    """Collect the files that `gh gist create`, `gh release upload` and `glab snippet create` send."""
    if split.operands[:2] in (("gist", "create"), ("gist", "edit"), ("release", "upload"), ("snippet", "create")):
        effects.reads |= scene.kinds_of(split.operands[2:])
        effects.sends_out = True


def collect_cloud_copy(_: Sequence[str], split: SplitArguments, scene: Scene, effects: Effects) -> None:
    words = [
        word for word in split.operands if not re.fullmatch(r"s3|cp|mv|sync|copy|copyto|rsync|storage|blob|move", word)
    ]
    if len(words) > 1:
        effects.sends_out |= bool(BUCKET.match(words[-1])) and not BUCKET.match(words[0])
        effects.reads |= scene.kinds(words[0]) if not BUCKET.match(words[0]) else set()


def collect_archive(_: Sequence[str], split: SplitArguments, scene: Scene, effects: Effects) -> None:
    """Collect the deletions of `tar --remove-files`."""
    if "--remove-files" in split.flags:
        effects.deletes |= scene.kinds_of(split.operands[1:])
        effects.is_recursive = True


Collect = Callable[[Sequence[str], SplitArguments, Scene, Effects], None]
COLLECTORS: Final[Mapping[str, Collect]] = {
    **dict.fromkeys(("del", "erase", "rd", "rmdir"), collect_windows_removal),
    "find": collect_find,
    "gfind": collect_find,
    "mv": collect_move,
    **dict.fromkeys(("cp", "install", "ln", "gcp"), collect_copy),
    **dict.fromkeys(("scp", "rsync", "sftp"), collect_transfer),
    "dd": collect_dd,
    **dict.fromkeys(("sed", "gsed", "perl"), collect_in_place),
    "truncate": collect_truncate,
    **dict.fromkeys(("curl", "wget"), collect_http),
    **dict.fromkeys(("nc", "ncat", "netcat", "socat", "telnet"), collect_socket),
    "openssl": collect_tls,
    **dict.fromkeys(("gh", "glab"), collect_snippet),
    **dict.fromkeys(("aws", "gsutil", "rclone", "gcloud", "azcopy", "s3cmd", "mc"), collect_cloud_copy),
    **dict.fromkeys(("tar", "zip", "7z"), collect_archive),
}
