"""Look through programs that run another one: sudo, env, xargs, timeout, docker exec, ssh and the like."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cstp_grpc.core.commands.model import UNKNOWN
from cstp_grpc.core.commands.options import program_name

SHELLS: Final = frozenset("sh bash zsh dash ash ksh fish rbash busybox-sh".split())
"""Programs that run shell text."""


class Wrapper(NamedTuple):
    """How a program runs another: the options that have a value, and the operands before the command."""

    values: str = ""
    """The options whose value is the next word, separated by spaces."""
    skip: int = 0
    is_text: bool = False
    """Whether the rest is one text that a shell reads."""
    is_remote: bool = False
    is_privileged: bool = False
    assigns: bool = False
    """Whether assignments may stand before the command."""
    after: str = ""
    """The command begins behind this word, such as `--`, if it is there."""


PLAIN: Final = Wrapper()
WRAPPERS: Final[Mapping[str, Wrapper]] = {
    **dict.fromkeys("command builtin nohup setsid unbuffer fakeroot unshare entr torsocks".split(), PLAIN),
    **dict.fromkeys("busybox toybox uv bunx pnpx".split(), PLAIN),
    "sudo": Wrapper(
        "-u -g -p -C -h -r -t -T -U -D -R --user --group --prompt --host --chdir", is_privileged=True, assigns=True
    ),
    "doas": Wrapper("-u -C", is_privileged=True),
    "pkexec": Wrapper("--user", is_privileged=True),
    "nsenter": Wrapper("-t -S -G", is_privileged=True),
    **dict.fromkeys(("gosu", "su-exec", "chrt", "taskset", "chroot"), Wrapper(skip=1)),
    "env": Wrapper("-u -C -P --unset --chdir", assigns=True),
    "exec": Wrapper("-a"),
    "time": Wrapper("-f -o --format --output"),
    "gtime": Wrapper("-f -o"),
    "timeout": Wrapper("-k -s --kill-after --signal", skip=1),
    "gtimeout": Wrapper("-k -s", skip=1),
    "nice": Wrapper("-n --adjustment"),
    "ionice": Wrapper("-c -n -p"),
    "stdbuf": Wrapper("-i -o -e"),
    "caffeinate": Wrapper("-t -w"),
    "strace": Wrapper("-e -o -p -s -u -E"),
    "ltrace": Wrapper("-e -o"),
    "systemd-run": Wrapper("-p --unit --property -M"),
    "flock": Wrapper("-w -E", skip=1),
    "watch": Wrapper("-n --interval -d", is_text=True),
    "xargs": Wrapper("-I -n -P -L -d -E -s -a --max-args --max-procs --replace --delimiter --arg-file"),
    "parallel": Wrapper("-j --jobs -a --arg-file -S --colsep --delay", is_text=True),
    **dict.fromkeys(("proxychains", "proxychains4"), Wrapper("-f")),
    "script": Wrapper("-c --command"),
    "ssh": Wrapper("-b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w", skip=1, is_text=True, is_remote=True),
    "mosh": Wrapper("--ssh -p", skip=1, is_text=True, is_remote=True),
    "sshpass": Wrapper("-p -f -d"),
    **dict.fromkeys(("aws-vault", "op", "doppler", "chamber"), Wrapper(after="--")),
    "dotenv": Wrapper("-e -f", after="--"),
    "direnv": Wrapper(skip=2),
    "npx": Wrapper("-p --package -c"),
    "uvx": Wrapper("--from"),
}
"""Programs that run the rest of their words. Those with sub-commands are in RUNNERS."""

CONTAINER: Final = Wrapper(
    "-e --env -u --user -w --workdir --env-file --detach-keys -v --volume -p --publish --name --network --entrypoint"
    " --mount -m --memory --cpus -h --hostname -l --label --platform --restart --add-host --cap-add --device --gpus"
    " --index -c --container -n --namespace --context -f --file --project-name --profile --pull --user --shm-size",
    skip=1,
    is_remote=True,
)
RUNNERS: Final[Mapping[tuple[str, ...], Wrapper]] = {
    tuple(command.split()): wrapper
    for commands, wrapper in (
        (
            "docker exec, docker container exec, docker run, docker compose exec, docker compose run,"
            " docker-compose exec, docker-compose run, podman exec, podman run",
            CONTAINER,
        ),
        ("kubectl exec, oc exec, lxc exec, incus exec, multipass exec, crictl exec", CONTAINER._replace(after="--")),
        ("poetry run, pipenv run, pdm run, hatch run, bundle exec, npm exec, pnpm exec, pnpm dlx", PLAIN),
        ("yarn dlx, yarn exec, python -m", PLAIN),
        ("heroku run", Wrapper("-a --app -s --size", is_remote=True)),
        ("uv run", Wrapper("--with --python -p --project --directory --extra --group --env-file")),
        ("conda run", Wrapper("-n --name -p --prefix")),
        ("mise exec", Wrapper(after="--")),
        ("nix-shell --run", Wrapper(is_text=True)),
        ("tmux new-session, tmux new", Wrapper("-s -n -c -x -y", is_text=True)),
        ("tmux send-keys", Wrapper("-t", is_text=True)),
        ("screen -dm", Wrapper("-S")),
        ("screen -dmS", Wrapper(skip=1)),
    )
    for command in commands.split(",")
}
"""Sub-commands that run the rest of their words."""

REMOTE_TEXTS: Final = {
    "gcloud": ("--command",),
    "vagrant": ("-c", "--command"),
    "fly": ("-C", "--command"),
    "flyctl": ("-C", "--command"),
    "eb": ("-c", "--command"),
}
"""Programs whose sub-command `ssh` runs the text of an option elsewhere."""

TEXT_OPTIONS: Final = {"env": ("-S", "--split-string"), "npx": ("-c", "--call"), "script": ("-c", "--command")}
"""The options whose value is the text that a wrapper runs, instead of words."""

ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


class Unwrapped(NamedTuple):
    """A command without one wrapper: its words, or a text for a shell."""

    words: Sequence[str]
    text: str | None = None
    wrapper: Wrapper = PLAIN
    assignments: tuple[str, ...] = ()


def unwrap_once(words: Sequence[str]) -> Unwrapped | None:
    """Return the command that the outermost program runs; None if it runs no other, or is not known to."""
    program = program_name(words[0])
    if program in ("su", "runuser"):
        text = value_of(words, "-c", "--command")
        return None if text is None else Unwrapped((), text, Wrapper(is_privileged=True))
    if "ssh" in words[1:4] and (text := value_of(words, *REMOTE_TEXTS.get(program, ()))) is not None:
        return Unwrapped((), text, Wrapper(is_remote=True))
    found, start = find_wrapper(program, words)
    if found is None:
        return None
    position, assignments = skip_options(words, start, found)
    if (text := value_of(words, *TEXT_OPTIONS.get(program, ()))) is not None:
        return Unwrapped((), text, found)
    if found.after and found.after in words:
        position = words.index(found.after) + 1
    elif found.after and not found.skip:
        return None
    else:
        position += found.skip
    rest = list(words[position:])
    if rest[:1] == ["--"]:
        rest = rest[1:]
    if not rest:
        return None
    if found.is_text:
        separator = rest.index(":::") if ":::" in rest else len(rest)
        given = rest[separator + 1 :] or [UNKNOWN] if program == "parallel" else []
        text = " ".join(rest[:separator])
        text = text.replace("{}", " ".join(given)) if "{}" in text else " ".join([text, *given])
        return Unwrapped((), text, found, assignments)
    return Unwrapped(rest, None, found, assignments)


def find_wrapper(program: str, words: Sequence[str]) -> tuple[Wrapper | None, int]:
    """Return how a program runs another, and the position of its first option; None if it runs no other."""
    for length in (3, 2):
        key = (program, *words[1:length])
        if len(key) == length and key in RUNNERS:
            return RUNNERS[key], length
    # `docker -H host exec`: the sub-command behind options.
    if (operands := [word for word in words[1:6] if not word.startswith("-")]) and (
        key := (program, operands[0])
    ) in RUNNERS:
        return RUNNERS[key], words.index(operands[0]) + 1
    if any(key[0] == program for key in RUNNERS):
        return None, 0
    if program == "command" and any(flag in words[1:2] for flag in ("-v", "-V")):
        return None, 0
    return WRAPPERS.get(program), 1


def skip_options(words: Sequence[str], position: int, wrapper: Wrapper) -> tuple[int, tuple[str, ...]]:
    """Return the position behind the options of a wrapper, and the assignments among them."""
    takes_value = wrapper.values.split()
    assignments: list[str] = []
    while position < len(words):
        word = words[position]
        if wrapper.assigns and ASSIGNMENT.match(word):
            assignments.append(word)
            position += 1
        elif word == "--":
            return position + 1, tuple(assignments)
        elif word.startswith("-") and len(word) > 1:
            position += 2 if word in takes_value else 1
        else:
            break
    return position, tuple(assignments)


def value_of(words: Sequence[str], *names: str) -> str | None:
    """Return the value of an option, which is the next word or behind `=`; also at the end of letters, as in `-lc`."""
    for position, word in enumerate(words[1:], 1):
        name, equals, value = word.partition("=")
        if equals and name in names:
            return value
        is_bundle = re.fullmatch(r"-[A-Za-z]{2,5}", word) and f"-{word[-1]}" in names
        if (word in names or is_bundle) and position + 1 < len(words):
            return words[position + 1]
    return None
