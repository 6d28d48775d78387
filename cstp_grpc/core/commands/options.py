"""Split the arguments of a program into flags and operands, and find its sub-commands."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

MAX_NAME_WORDS: Final = 6
"""Length of a sub-command path. Chosen: `az network vnet subnet delete` has five."""

VALUE_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    program: frozenset(options.split())
    for programs, options in {
        "cstp": "--agent --agents-file --ca-file --as --comment --config --timeout --token --until",
        "git": "-C -c --git-dir --work-tree --namespace --exec-path --super-prefix --config-env -o --push-option",
        "kubectl oc k": (
            "-n --namespace --context --kubeconfig --cluster --user -s --server --token -l --selector -o --output -f"
            " --filename --field-selector --grace-period --timeout --as --as-group -c --container -p --patch --type"
        ),
        "helm": "-n --namespace --kube-context --kubeconfig -f --values --set --version --timeout",
        "docker podman docker-compose podman-compose": (
            "-H --host -c --context --config -l --log-level -f --file -p --project-name --profile --env-file --filter"
            " --project-directory -t --tag --name --network --format"
        ),
        "aws": "--profile --region --output --query --endpoint-url --color --ca-bundle --cli-input-json",
        "gcloud gsutil bq": "--project --account --configuration --format --region --zone --location -o -h",
        "az": "-g --resource-group -n --name --subscription -o --output --query -s",
        "terraform tofu terragrunt": "-target -var -var-file -state -backend-config",
        "pulumi": "-s --stack -C --cwd",
        "npm pnpm yarn bun": "-C --prefix --dir --cwd -w --workspace --filter -F --registry --tag --otp",
        "cargo": "-p --package --manifest-path --target-dir --target --features --color -j --registry --token",
        "gh glab": "-R --repo -X --method -f -F --field --raw-field -H --header --jq -q --hostname --title --body",
        "systemctl journalctl": "-H --host -M --machine -t -p -n --lines -u --unit",
        "make gmake ninja": "-C --directory -f --file -j -o -W -I",
        "ansible ansible-playbook ansible-galaxy": "-i --inventory -l --limit -u -e --extra-vars -t --tags -m -a",
        "redis-cli valkey-cli": "-h -p -a -n -u -s --user --pass -i -r --tls --cacert --sni",
        "vercel netlify wrangler firebase heroku fly flyctl railway doctl supabase": (
            "-a --app --project -P --token -t --cwd --config -c --env -e --scope -s --site --context"
        ),
        "psql pg_dump pg_restore dropdb createdb dropuser vacuumdb": (
            "-h --host -p --port -U --username -d --dbname -c --command -f --file -v --set -o -L -F -P -T -n -t -j"
        ),
        "mysql mariadb mysqldump mysqladmin": "-h --host -P --port -u --user -D --database -e --execute -S --socket",
        "rclone": "--config --transfers --exclude --include --filter",
        "rabbitmqctl rabbitmqadmin": "-n -p -H -P -u -V --vhost --node --host --port --username --password",
        "curl": (
            "-X --request -H --header -d --data --data-binary --data-raw --data-urlencode --json -u --user -o"
            " --output -A -e -b -c -m -w --max-time -T -F --form --cacert --retry"
        ),
        "del": "-erroraction -ea -warningaction -filter -include -exclude -credential -stream",
    }.items()
    for program in programs.split()
}
"""The options of programs whose value is the next word, as far as they can stand before a sub-command."""

SINGLE_DASH_WORDS: Final = frozenset(
    "terraform tofu terragrunt find java go openssl packer consul vault nomad convert magick ffmpeg xcodebuild"
    " powershell pwsh gcc cc clang javac mvn adb ant tcpdump dotnet".split()
)
"""Programs whose options of several letters begin with one dash, so that `-force` is not `-f -o -r -c -e`."""

LONG_FLAGS: Final[Mapping[tuple[str, ...], Mapping[str, tuple[str, ...]]]] = {
    tuple(command.split()): {
        short: tuple(long.split("+")) for short, _, long in (flag.partition("=") for flag in flags.split())
    }
    for commands, flags in {
        "rm": "-r=--recursive -R=--recursive -f=--force -i=--interactive",
        "chmod, chown, chgrp": "-R=--recursive",
        "cp": "-r=--recursive -R=--recursive -f=--force -a=--recursive",
        "git push": "-f=--force -d=--delete -n=--dry-run",
        "git branch": "-d=--delete -D=--delete+--force -M=--move+--force -f=--force",
        "git clean, git rm": "-f=--force -n=--dry-run",
        "git tag": "-d=--delete -f=--force",
        "git checkout": "-f=--force -B=--force-create",
        "git switch": "-f=--force -C=--force-create",
        "git commit": "-n=--no-verify",
        "git worktree": "-f=--force",
        "docker, podman": "-f=--force -v=--volumes -a=--all",
        "kubectl": "-A=--all-namespaces",
        "rsync, gsutil rsync, make, gmake, zfs, rclone, restic, borg, stow, rename": "-n=--dry-run",
        "apt, apt-get": "-s=--dry-run -y=--yes",
        "ansible-playbook": "-C=--check",
        "crontab": "-r=--remove",
    }.items()
    for command in commands.split(",")
}
"""The long names of short flags, by program and sub-command; `+` joins several of one flag."""
ABBREVIATED: Final[Mapping[str, tuple[str, ...]]] = {
    "rm": ("--recursive", "--force", "--no-preserve-root", "--interactive", "--one-file-system"),
    "chmod": ("--recursive",),
    "chown": ("--recursive",),
    "git": ("--force", "--hard", "--delete", "--mirror", "--no-verify", "--all"),
}
"""Long flags that these programs accept abbreviated."""

CMDLET: Final = re.compile(r"(?:get|set|remove|stop|start|restart|new|clear|add|disable|enable|format|invoke)-[a-z]+$")
"""The names of cmdlets of PowerShell, whose parameters are words."""
DRY_FLAGS: Final = frozenset(
    "--help --version --dry-run --dryrun --dry_run --noop --no-act --simulate --what-if --whatif --just-print"
    " --recon -whatif --help-all -help --preview-only --assumeno".split()
)
NOT_DRY: Final = frozenset({"none", "false", "no", "0"})
HOST_FLAGS: Final = frozenset(
    "psql mysql mariadb mysqladmin mysqldump redis-cli valkey-cli mongo mongosh dropdb createdb pg_dump pg_restore"
    " ls du df chown chgrp free sort head grep ssh curl gsutil shutdown halt poweroff".split()
)
"""Programs for which `-h` is not help."""
HELP_PROGRAMS: Final = frozenset("git kubectl docker helm gcloud terraform npm cargo go gh systemctl".split())
"""Programs whose sub-command `help` prints help."""
CHECK_PROGRAMS: Final = frozenset({"ansible-playbook", "ansible"})
CUSTOMARY_ALIASES: Final = {
    "k": "kubectl",
    "tf": "terraform",
    "tg": "terragrunt",
    "nerdctl": "docker",
    "cstp_grpc": "cstp",
}


class SplitArguments(NamedTuple):
    """The arguments of a program: flags and operands in order, and the candidate sub-command paths."""

    flags: tuple[str, ...]
    operands: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]


def program_name(word: str) -> str:
    """Return the name of a program without its folder and without `.exe`."""
    name = posixpath.basename(word.replace("\\", "/") if re.match(r"[A-Za-z]:|.*\\\w", word) else word)
    name = re.sub(r"(?i)\.(?:exe|cmd|bat|com)$", "", name.lstrip("\\"))
    return CUSTOMARY_ALIASES.get(name) or re.sub(r"^(python|pip|ruby|perl|php|node|lua)\d[\d.]*$", r"\1", name)


def split_arguments(program: str, arguments: Sequence[str]) -> SplitArguments:
    """Split the arguments of a program."""
    takes_value = VALUE_OPTIONS.get(program, frozenset())
    flags: list[str] = []
    operands: list[str] = []
    certain: list[str] = []
    after_flag, is_value = False, False
    for position, word in enumerate(arguments):
        if word == "--":
            operands += arguments[position + 1 :]
            certain += arguments[position + 1 :]
            break
        if is_value:
            is_value, after_flag = False, False
            continue
        if len(word) > 1 and word[0] == "-":
            flags += spell_flags(program, word)
            is_value, after_flag = word in takes_value, "=" not in word
            continue
        operands.append(word)
        if not after_flag:
            certain.append(word)
        after_flag = False
    names = tuple(dict.fromkeys(tuple(found[:MAX_NAME_WORDS]) for found in (operands, certain)))
    return SplitArguments(lengthen_flags(program, operands, flags), tuple(operands), names)


def spell_flags(program: str, word: str) -> list[str]:
    """Return a flag in the spellings by which rules may name it."""
    name, equals, _ = word.partition("=")
    found = [name, word] if equals else [word]
    if word.startswith("--"):
        found += [
            known
            for known in ABBREVIATED.get(program, ())
            if len(name) > 4 and name != known and known.startswith(name)
        ]
    elif program not in SINGLE_DASH_WORDS and not CMDLET.match(program):
        letters = re.match(r"-([A-Za-z]{1,6})(?=\d|$)", name)
        if letters and len(name) > 2:
            found += [f"-{letter}" for letter in letters[1]]
    return found


def lengthen_flags(program: str, operands: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
    """Return the flags with the long names of short ones."""
    longer: list[str] = []
    for key in ((program,), (program, operands[0] if operands else "")):
        table = LONG_FLAGS.get(key, {})
        longer += [name for flag in flags for name in table.get(flag, ())]
    return tuple(dict.fromkeys([*flags, *longer]))


def is_dry_run(program: str, arguments: Sequence[str], flags: Sequence[str], operands: Sequence[str]) -> bool:
    """Return whether a program only prints help, its version, or what it would do."""
    for flag in flags:
        name, _, value = flag.lower().partition("=")
        # `--version 1.2` chooses a version.
        if name in DRY_FLAGS and value not in NOT_DRY and (name != "--version" or len(operands) < 2):
            # `--dry-run=none` is spelled as both.
            return not any(
                each.lower().partition("=")[2] in NOT_DRY for each in flags if each.lower().startswith(name + "=")
            )
    if program in CHECK_PROGRAMS and "--check" in flags:
        return True
    if arguments and arguments[-1] == "-h" and "--" not in arguments and program not in HOST_FLAGS:
        return True
    return bool(operands) and (
        (operands[0] == "help" and program in HELP_PROGRAMS) or (operands[-1] == "help" and program == "aws")
    )
