"""Classify paths: system, home, project, build output, secret, settings of agents."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from cstp_grpc.core.commands.model import UNKNOWN, Place

HOME: Final = "~"
"""The home folder in resolved paths."""
TEMPORARY_FOLDERS: Final = ("/tmp", "/var/tmp", "/private/tmp", "/private/var/tmp", "/dev/shm", "/var/folders")
SYSTEM_FOLDERS: Final = frozenset(
    "/bin /boot /dev /etc /lib /lib32 /lib64 /opt /proc /root /run /sbin /srv /sys /usr /var /home /mnt /media"
    " /Applications /Library /System /Users /Volumes /private /cores /nix /snap /efi /data".split()
)
DEVICES: Final = re.compile(
    r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk|rdisk|loop|md|dm-|mapper/|mem$|kmem$|port$|sr\d|nbd|zd|block/)"
)
HARMLESS_DEVICES: Final = re.compile(r"/dev/(?:null|zero|full|tty|u?random|std(?:in|out|err)|fd/\d+)")
HOME_FOLDERS: Final = re.compile(r"/(?:home|Users)/[^/]+|/root")
HOME_CACHES: Final = re.compile(
    r"~\w*/(?:\.cache|\.npm|\.gradle/caches|\.m2/repository|\.cargo/registry|go/pkg/mod|Library/Caches)(?:/|$)"
)
"""Caches below a home folder."""
BUILD_NAMES: Final = frozenset(
    "node_modules dist build target out bin obj .next .nuxt .output .svelte-kit .turbo .parcel-cache .vite .cache"
    " __pycache__ .pytest_cache .mypy_cache .ruff_cache .tox .nox .venv venv .eggs htmlcov coverage .coverage"
    " .nyc_output .gradle .dart_tool .angular .terraform .serverless _build site-packages tmp temp .tmp logs"
    " cmake-build-debug cmake-build-release DerivedData Pods storybook-static test-results playwright-report"
    " .hypothesis .ipynb_checkpoints vendor/bundle .bundle bower_components .docusaurus .expo public/build"
    " generated __generated__ .vercel .netlify .wrangler .astro .sass-cache .stack-work dist-newstyle zig-cache zig-out"
    " bazel-out".split()
)
BUILD_FILES: Final = re.compile(
    r"(?i)\.(?:pyc|pyo|o|obj|class|log|tmp|temp|bak|swp|orig|rej|map|tsbuildinfo|egg-info|gcda|gcno|out|pid|coverage)$"
    r"|^\.DS_Store$|^Thumbs\.db$|^core\.\d+$|^npm-debug\.log|^(?:package-lock\.json|yarn\.lock|pnpm-lock\.yaml|bun\.lockb?)$"
)
SECRETS: Final = re.compile(
    r"""(?ix) (?:^|/) (?:
        \.env (?!\.(?:example|sample|template|dist|defaults?|test|schema)\b) (?: \.[\w.-]+ )?
      | [\w-]+\.env (?<!example\.env) (?<!sample\.env) (?<!template\.env)
      | \.envrc | \.netrc | _netrc | \.pgpass | \.my\.cnf | \.npmrc | \.pypirc | \.git-credentials | \.htpasswd
      | \.vault-token | \.terraformrc | terraform\.tfstate (?:\.backup)? | credentials\.tfrc\.json
      | (?:master|server|private|client|tls|ssl)\.key | id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?(?!\.pub)
      | [\w.-]*\.(?:pem|p12|pfx|jks|keystore|kdbx|ppk|asc|gpg) (?<!pub\.pem)
      | [\w.-]* (?<!\.pub) private[_-]?key [\w.-]*
      | \.ssh (?: /(?! (?:known_hosts|config|authorized_keys) (?:$|\.) | [\w.-]+\.pub $) [^/]* )? $ | \.ssh/[*]
      | \.aws (?: /(?:credentials|config|sso/.*|cli/.*) )? $ | \.aws/credentials | \.azure (?:/.*)?
      | \.config/gcloud (?:/.*)?
      | \.kube (?:/(?:config|cache/.*))? $ | \.kube/config | kubeconfig (?:\.\w+)? $ | admin\.conf$
      | \.docker/config\.json | \.config/gh(?:/.*)?
      | \.config/[^/]+/(?:tokens?|credentials?|auth) [\w.-]* | \.config/hub | \.cargo/credentials (?:\.toml)?
      | \.gem/credentials | \.gnupg (?:/.*)? | \.password-store (?:/.*)? | \.1password (?:/.*)? | \.config/op (?:/.*)?
      | \.claude/\.credentials\.json | \.claude\.json | \.codex/auth\.json | \.gemini/oauth_creds\.json
      | \.config/github-copilot (?:/.*)? | \.local/share/opencode/auth\.json | \.qwen/oauth_creds\.json
      | \.pi/agent/auth\.json
      | etc/(?:shadow|gshadow|sudoers|master\.passwd|krb5\.keytab) (?:[-.].*)? $ | etc/ssl/private (?:/.*)?
      | proc/(?:self|\d+)/environ | run/secrets (?:/.*)? | var/run/secrets (?:/.*)?
      | (?:client_)?secrets? \.(?:ya?ml|json|toml|txt|env|ini|properties) | secrets?/[^/]+ $
      | credentials? (?:\.(?:ya?ml|json|toml|txt|ini|csv|xml))? $ | service[-_]?account [\w-]* \.json
      | (?:api|access|auth)[_-]?(?:keys?|tokens?) (?:\.(?:txt|json|ya?ml))? $
      | passwords? \.(?:txt|csv|json|ya?ml|db) | login\.keychain (?:-db)?
      | Login\ Data | (?:Default|Profile\ \d+)/(?:Network/)?Cookies | key[34]\.db | logins\.(?:json|db)
      | cookies\.sqlite | wallet\.dat | \.bitcoin(?:/.*)?
      | keystore/.*
      | (?:dev|approver)-token $ | var/agents\.yaml | \.config/cstp/agents\.yaml
    ) $ """
)
HISTORY_FILES: Final = re.compile(r"(?:^|/)\.(?:bash|zsh|python|psql|mysql|node_repl|sqlite)_?history$")
AGENT_SETTINGS: Final = re.compile(
    r"""(?x) (?:^|/) (?:
        \.claude (?:$|/(?! (?:projects|todos|commands|agents|skills|plans)/ )) .* | \.claude\.json | \.mcp\.json
      | \.codex (?:$|/.*) | \.cursor (?:$|/(?:hooks|mcp|cli|permissions) .*) | \.gemini (?:$|/.*) | \.qwen (?:$|/.*)
      | \.copilot (?:$|/.*) | \.github/(?:hooks|copilot) (?:$|/.*) | \.opencode (?:$|/.*) | opencode\.jsonc?
      | \.pi (?:$|/.*) | \.config/(?:opencode|github-copilot|claude|amp|codex) (?:$|/.*)
    ) $ """
)
CSTP_FILES: Final = re.compile(
    r"""(?x) (?:^|/) (?: cstp\.ya?ml | \.cstp (?:$|/.*) | \.config/cstp (?:$|/.*) | (?:var|etc)/(?:lib/)?cstp (?:$|/.*)
      | var/ (?: (?:dev|approver)-token | agents\.yaml | journal\.db [\w-]* | .*\.cstp.* ) | journal\.db (?:-wal|-shm)?
      | agent-safety\.ya?ml | guardrails/ [^/]+ \.ya?ml | guardrails /? | [\w-]*rulebook[\w-]*\.ya?ml ) $ """
)
BACKUPS: Final = re.compile(
    r"(?i)(?:^|[/_.-])(?:backups?|snapshots?|dumps?|archives?)(?:$|[/_.-])|\.(?:dump|sql\.gz|bak\.gz|bkp)$|/\.snapshots?(?:/|$)|\.tib$|\.vbk$"
)
STARTUP: Final = re.compile(
    r"""(?x) (?:^|/) (?: \.(?:bash|zsh|profile|login|logout) (?:rc|_profile|_login|_logout|env|profile)? $ | \.profile $
      | \.config/(?:fish/config\.fish|autostart/.*|systemd/.*)
      | etc/(?:profile|bashrc|zshrc|crontab|rc\.local|environment) $
      | etc/(?:profile|cron)\.[^/]+ (?:/.*)?
      | etc/(?:systemd|init|init\.d|ld\.so\.\w+|pam\.d|sudoers\.d)(?:/.*)? $ | var/spool/cron (?:/.*)?
      | Library/Launch(?:Agents|Daemons)(?:/.*)? | \.ssh/(?:authorized_keys|config|rc) ) $ """
)
GIT_CONTROL: Final = re.compile(
    r"(?:^|/)(?:\.git(?:/.*)?|\.githooks(?:/.*)?|\.husky(?:/.*)?|\.pre-commit-config\.yaml)$"
)
GLOB_ALL: Final = frozenset({"*", "**", ".*", "*.*", "**/*", ".[!.]*", ".??*", "{*,.*}", "./*"})


def resolve_path(path: str, directory: str) -> str:
    """Return a path without `.` and `..`, behind the directory if it is relative and that is known."""
    if path.startswith(("file://localhost/", "file:///")):
        path = "/" + path.split("/", 3)[3]
    if path.startswith((HOME, "/", UNKNOWN)) or re.match(r"[A-Za-z]:[\\/]", path):
        joined = path
    else:
        joined = posixpath.join(directory, path) if directory else path
    # Two leading slashes are kept by normpath, since POSIX leaves their meaning open.
    normal = posixpath.normpath(joined)
    return normal[1:] if normal.startswith("//") else normal


@lru_cache(maxsize=4096)
def classify_path(path: str, directory: str = "", project: str = "") -> frozenset[str]:
    """Return the kinds of a path as written in a command that runs in `directory`; `project` is the root of the work.

    Both may be empty: then relative paths count as inside the project unless they climb out of it.
    """
    windows = re.match(rf"(?:[A-Za-z]:|\.{{1,2}}|~|/tmp|{UNKNOWN}\w*)?\\|[A-Za-z]:", path)
    shown = path.replace("\\", "/") if windows else path
    resolved = resolve_path(shown, directory)
    # `.env*` and `id_rsa*` stand for files that they may match.
    kinds = {kind for kind, pattern in NAMED_KINDS if pattern.search(resolved) or pattern.search(resolved.rstrip("*"))}
    if HISTORY_FILES.search(resolved):
        kinds.add(Place.SECRET)
    return frozenset(kinds | locate_path(resolved, project))


NAMED_KINDS: Final = (
    (Place.SECRET, SECRETS),
    (Place.AGENT_SETTINGS, AGENT_SETTINGS),
    (Place.CSTP, CSTP_FILES),
    (Place.BACKUP, BACKUPS),
    (Place.STARTUP, STARTUP),
    (Place.GIT, GIT_CONTROL),
)


def locate_path(resolved: str, project: str) -> set[str]:
    """Return the location of a resolved path."""
    base, _, last = resolved.rpartition("/")
    is_everything = last in GLOB_ALL
    folder = (base or ("/" if resolved.startswith("/") else ".")) if is_everything else resolved
    if re.match(r"[A-Za-z]:", folder):
        return {locate_on_windows(folder)}
    if HARMLESS_DEVICES.fullmatch(resolved):
        return set()
    if DEVICES.match(resolved):
        return {Place.DEVICE}
    # First, since a project may be in a temporary folder. The root and home folders are not projects.
    if (
        project
        and is_below(folder, (project,))
        and not locate_path(project, "") & {Place.ROOT, Place.SYSTEM, Place.HOME}
    ):
        return locate_in_project(posixpath.relpath(folder, project))
    if is_below(folder, TEMPORARY_FOLDERS):
        return {Place.TEMPORARY}
    if folder == "/":
        return {Place.ROOT}
    if folder.startswith("/"):
        return locate_absolute(folder)
    if folder == HOME or re.fullmatch(r"~\w*", folder):
        return {Place.HOME}
    if folder.startswith("~"):
        return {Place.BUILD if HOME_CACHES.match(folder) else Place.OUTSIDE}
    if folder.startswith(UNKNOWN) or re.match(rf"[^/]*{UNKNOWN}", folder):
        # `$DIR/x` may be anywhere; with an empty variable it is in the root.
        return {Place.BUILD if is_build_output(folder) else Place.UNKNOWN}
    if folder == ".." or folder.startswith("../"):
        return {Place.OUTSIDE}
    return locate_in_project(folder)


def locate_on_windows(folder: str) -> Place:
    inner = folder[2:].strip("/").lower()
    if not inner:
        return Place.ROOT
    if re.fullmatch(r"users(?:/[^/]+)?", inner):
        return Place.HOME
    if re.match(r"(?:windows|program files(?: \(x86\))?|programdata)(?:/|$)", inner):
        return Place.SYSTEM
    is_temporary = re.match(r"(?:windows/)?te?mp(?:/|$)|users/[^/]+/appdata/local/temp/", inner)
    return Place.TEMPORARY if is_temporary else Place.OUTSIDE


def locate_absolute(folder: str) -> set[str]:
    if HOME_FOLDERS.fullmatch(folder):
        return {Place.HOME}
    top = "/" + folder.split("/", 2)[1]
    if HOME_FOLDERS.match(folder) or top in ("/mnt", "/media", "/Volumes", "/data", "/srv"):
        return {Place.SYSTEM} if folder == top else {Place.OUTSIDE}
    # A shell pattern such as `/*` or `/b*` at the top is as dangerous as the folders that it may match.
    if top in SYSTEM_FOLDERS or "*" in top:
        return {Place.SYSTEM}
    return {Place.OUTSIDE}


def locate_in_project(inner: str) -> set[str]:
    """Return the kinds of a path that is relative to the project's root."""
    if inner in (".", ""):
        return {Place.PROJECT_ROOT}
    if UNKNOWN in inner.partition("/")[0]:
        return {Place.PROJECT, Place.UNKNOWN}
    return {Place.BUILD if is_build_output(inner) else Place.PROJECT}


def is_build_output(path: str) -> bool:
    """Return whether a path is in a folder that a build makes again, or has the name of such a file."""
    parts = [part for part in path.split("/") if part]
    if any(part in BUILD_NAMES or part.endswith(".egg-info") or part.startswith("cmake-build") for part in parts):
        return True
    return bool(parts) and bool(BUILD_FILES.search(parts[-1]))


def is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
