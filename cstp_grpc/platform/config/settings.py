"""The settings by their keys, each with its meaning; the keys of the design (server, auth, cstp) keep their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from cstp_grpc.contract.enums import JudgedContent, NodeRule, Reaction, RulePreset, RuleSeverity
from cstp_grpc.contract.errors import ConfigError
from cstp_grpc.platform.config import listeners
from cstp_grpc.platform.config.embedding import EmbeddingSettings
from cstp_grpc.platform.config.environment import is_loopback
from cstp_grpc.platform.config.identity import EXPECTED_PERMISSIONS, AuthSettings
from cstp_grpc.platform.config.notifications import NotificationSettings
from cstp_grpc.platform.config.other_agents import FederationSettings, LiaisonSettings
from cstp_grpc.platform.config.process_log import LoggingSettings
from cstp_grpc.platform.config.settings_section import URL, SettingsSection, SqliteFile, add_setting_descriptions
from cstp_grpc.platform.config.yaml_file import DEFAULT_DATA_DIR

PROJECT_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class ProviderSettings(SettingsSection):
    """Who runs the agent."""

    organization: str = Field(min_length=1)
    """The name of the organisation."""
    url: str = Field(pattern=URL)
    """Its website."""


class CardSigningSettings(SettingsSection):
    """The key that signs the agent cards, so that clients can detect forged cards. Needs `server.public_url`."""

    key_file: Path | None = None
    """A PEM file with the private key: EC (P-256, P-384, P-521), RSA of at least 2048 bits, or Ed25519."""
    key: SecretStr | None = None
    """The private key itself in PEM, instead of a file; write `${NAME}` to read it from the environment."""
    key_id: str | None = Field(default=None, min_length=1, max_length=200)
    """The key id (`kid`) by which verifiers find the key. [default: the thumbprint of its public key (RFC 7638)]"""

    @model_validator(mode="after")
    def check_source(self) -> CardSigningSettings:
        if (self.key_file is None) == (self.key is None):
            raise ValueError("either key_file or key must be given")
        return self


class AgentSettings(SettingsSection):
    """The agent that this server represents."""

    name: str = Field(default="cstp", min_length=1)
    """The agent's name in answers and on the agent card."""
    description: str = Field(default="Decision intelligence for AI agents", min_length=1)
    """One sentence for the agent card."""
    version: str | None = Field(default=None, min_length=1, max_length=100)
    """The agent's version on the agent card. [default: the version of CSTP]"""
    contact: str | None = None
    """The contact address on the agent card."""
    provider: ProviderSettings | None = None
    """The organisation that runs the agent, on the agent card."""
    documentation_url: str | None = Field(default=None, pattern=URL)
    """The URL of the agent's documentation, on the agent card."""
    card_signing: CardSigningSettings | None = None
    """The key that signs the agent cards. [default: cards are not signed]"""


class QuerySettings(SettingsSection):
    """Search."""

    max_results: int = Field(default=50, ge=1, le=50)
    """The maximum number of results of a query."""
    min_score: float = Field(default=0.1, ge=0, le=1)
    """The minimum score of the best result if the query sets none; others need half of it and a tenth of the best
    score. A score is a calibrated relevance, not a similarity."""


class GuardrailSettings(SettingsSection):
    """The rule set."""

    config_path: Path | None = None
    """A rulebook, or a folder of rulebooks, that replaces the packaged rules. [default: the rules of `preset`]
    `guardrails/default.yaml` also means the packaged rules if there is no folder `guardrails` next to the configuration
    file."""
    preset: RulePreset = RulePreset.STANDARD
    """The packaged rules, if there is no `config_path`: `default`; `standard`, which also reads commands; `strict`,
    which blocks commands that cannot be read before they run; `paranoid`, which also asks about destructive actions
    in the project."""
    disabled_packs: list[str] = []
    """Packaged rulebooks to leave out, such as `safety-messaging`."""
    undeclared: Reaction = Reaction.ALLOW
    """How to treat an action with context keys that no rule reads, or with an undeclared category that resembles a
    declared one: `allow` only lists them in `ignoredContext`, `warn` and `block` add the violation `undeclared-input`.
    """
    unknown_action: Reaction = Reaction.WARN
    """How to treat an action that sets no input that rules read: `allow` it, or `warn` or `block` with the violation
    `unknown-action`."""

    max_values: int = Field(default=2_000, ge=100, le=10_000)
    """The maximum number of values in the context of a check or the metadata of an announcement, nested values
    included. A larger request is refused before it is converted."""

    @property
    def source(self) -> str:
        """The origin of the rules, for people: a path, or the packaged rules by their preset."""
        if self.config_path is not None:
            return str(self.config_path)
        left_out = f" without {', '.join(self.disabled_packs)}" if self.disabled_packs else ""
        return f"the packaged {self.preset} rules{left_out}"

    @field_validator("config_path", mode="before")
    @classmethod
    def read_empty_as_absent(cls, path: object) -> object:
        """Return None for an empty path, which would otherwise mean the working directory."""
        return path or None


class IntentSettings(SettingsSection):
    """Announcements."""

    store_received: bool = True
    """False stores the audit entry of an announcement without its content."""
    auto_respond: bool = True
    """False records and acknowledges announcements without feedback."""
    shared_by: list[str] = []
    """Agents whose announcements are shared with other agents unless they set `visibility: private`; `*` means all. The
    announcements of other agents are shared only if they set `visibility: shared`."""
    min_score: float = Field(default=0.35, ge=0, le=1)
    """The minimum score of a similar decision in feedback, or `cstp.query.min_score` if that is greater. Feedback is
    stricter because the agent did not ask for it."""
    related_min_score: float = Field(default=0.45, ge=0, le=1)
    """The minimum similarity of two agents' intents for feedback to mention one to the other."""

    @model_validator(mode="after")
    def check_sharing(self) -> IntentSettings:
        if self.shared_by and not self.store_received:
            raise ValueError("shared_by needs store_received, because only stored intents can be shared")
        return self


class CstpSettings(SettingsSection):
    """The protocol's methods."""

    query: QuerySettings = QuerySettings()
    """Search."""
    guardrails: GuardrailSettings = GuardrailSettings()
    """The rule set."""
    intent: IntentSettings = IntentSettings()
    """Announcements."""

    @property
    def least_feedback_score(self) -> float:
        """The minimum score of a similar decision in the feedback on an announcement."""
        return max(self.intent.min_score, self.query.min_score)


class StorageSettings(SettingsSection):
    """The journal."""

    url: Annotated[str, SqliteFile] | None = None
    """`sqlite:///PATH` or `postgresql://…`. [default: a SQLite file in the data folder]"""
    pool_size: int = Field(default=8, ge=1, le=100)
    """The number of database connections for reading."""
    write_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long a call waits for its record to be on disk before it is answered UNAVAILABLE."""
    refresh_seconds: float = Field(default=1.0, gt=0)
    """How often a server looks for work that another server left behind: deliveries, notifications and unattended
    sessions."""
    watch_seconds: float = Field(default=0.05, gt=0)
    """How often a server checks for writes of other servers to the same database, so that its searches and watchers see
    them. PostgreSQL sends notifications; while these arrive, the server checks only once a second."""
    max_watchers: int = Field(default=32, ge=1, le=256)
    """The maximum number of open streams of changed decisions, and of open streams of intents. More are refused."""
    watchers_per_agent: int = Field(default=8, ge=1, le=256)
    """The maximum number of open streams of changed decisions for one agent, and of open streams of intents."""
    stalled_watch_seconds: float = Field(default=60.0, gt=0)
    """How long a reader may read nothing from such a stream before the stream ends."""
    exports_per_agent: int = Field(default=8, ge=1, le=256)
    """The maximum number of open exports of decisions for one agent. An unread export holds up to 16 decisions in
    memory."""


HTTP_ADDRESS = r"https?://([^\s/@]*@)?(\[[^\s/]+\]|[^\s/:@]+)(:\d{1,5})?(/\S*)?$"


class SearchSettings(SettingsSection):
    """The search for decisions."""

    engine: Literal["memory", "postgresql", "chroma"] = "memory"
    """`memory` holds all vectors and words in each server. With the others a server holds none: `postgresql` keeps them
    in a database with pgvector, and `chroma` in a Chroma server; several journals can share one."""
    url: str | None = None
    """The URL of the engine: `postgresql://…` or `http://…`. [default: the database of the journal]"""


class ApprovalSettings(SettingsSection):
    """Approvals by people, for guardrails of the severity `approve`."""

    enabled: bool = True
    """False disables approvals: actions that need an approval are not allowed, nothing is requested, and the methods
    are unknown over both transports."""
    expiry_minutes: float = Field(default=1440.0, gt=0, le=525_600)
    """How long a request waits for a decision, and how long a grant waits to be used."""
    max_reuse_minutes: float = Field(default=10_080.0, gt=0, le=525_600)
    """The maximum time for which a grant may allow an action any number of times."""
    max_pending_per_agent: int = Field(default=100, ge=1, le=10_000)
    """The maximum number of pending requests of an agent. An action that needs one more is answered with RATE_LIMITED.
    """
    keep_days: float = Field(default=365.0, gt=0, le=3650)
    """How long requests are kept after their last change, with the contents of the actions."""
    instructions: str | None = Field(default=None, min_length=1, max_length=1000)
    """Instructions for getting a request decided, shown to agents and users who wait for it; `{id}` is replaced by the
    request's id. `cstp serve --dev` sets it to the command that grants the request."""


class AuditSettings(SettingsSection):
    """The audit trail."""

    enabled: bool = True
    """False records no checks, announcements and refusals in the trail. Meant for measurements; the server warns at the
    start."""
    judged_content: JudgedContent = JudgedContent.FULL
    """How much of an evaluated action the trail stores: `full` stores all inputs of the evaluation, so that `cstp
    guardrails replay` can evaluate the action with other rules; `description` stores only its description; `nothing`
    stores neither. Announcements whose content is not stored (`cstp.intent.store_received: false`) are never stored
    here."""
    keep_days: float | None = Field(default=None, gt=0, le=36500)
    """Days until entries are removed, up to a checkpoint. The remaining entries still verify. [default: never]"""
    keep_content_days: float | None = Field(default=None, gt=0, le=36500)
    """Days until the contents of entries are removed: the descriptions and inputs of evaluated actions. Their hashes
    stay. [default: as long as the entries]"""
    checkpoint_entries: int = Field(default=1000, ge=1)
    """The number of new entries after which a server signs a checkpoint of the trail."""
    checkpoint_seconds: float = Field(default=300.0, gt=0)
    """Seconds after which a server signs a checkpoint if there are new entries. It also signs one when it stops."""
    signing_key_file: Path | None = None
    """A PEM file with the private Ed25519 key that signs checkpoints. [default: `audit-signing-key.pem` in the data
    folder, generated by the server] `cstp audit public-key` prints the key that verifies its signatures."""


class RecordRetentionSettings(SettingsSection):
    """How long records are kept. By default, all but thoughts stay until they are deleted or erased. Other retention
    settings are in the sections of their modules: `liaison.retention`, `approvals.keep_days`, `a2a.task_days`,
    `federation.callbacks`."""

    decision_days: float | None = Field(default=None, gt=0, le=36_500)
    """Days after its last change, reviews included, until a decision is deleted with its reviews and former contents;
    only its id stays. Entries copied from nodes of the Intent Layer stay as long as the nodes."""
    intent_days: float | None = Field(default=None, ge=2, le=36_500)
    """Days until an announced intent is deleted, open or closed. Guardrails that count earlier outcomes do not count
    deleted intents, so keep intents longer than their `within`."""
    thought_days: float | None = Field(default=30, gt=0, le=36_500)
    """Days until a thought expires: it is no longer returned, and soon deleted. `null` keeps thoughts about a decision
    as long as the decision, and those about an intent until they or their agent's data are deleted."""


class ThoughtSettings(SettingsSection):
    """How much agents may attach of their reasoning (RecordThought). `retention.thought_days` is its age."""

    max_characters: int = Field(default=4000, ge=1, le=20_000)
    """The maximum length of a thought."""
    per_target: int = Field(default=200, ge=1)
    """The maximum number of an agent's thoughts about one decision or intent. Those of others do not count."""
    per_agent: int = Field(default=5000, ge=1)
    """The maximum number of an agent's thoughts. Expired ones do not count."""


class ProjectSettings(SettingsSection):
    """A project whose nodes are served and whose learnings are accepted."""

    name: str = Field(max_length=200, pattern=PROJECT_NAME)
    """The project's name in calls: letters, digits, `.`, `_` and `-`."""
    root: Path
    """The project's folder, which must exist at the start. Nothing outside it is read or written."""
    rules: dict[NodeRule, RuleSeverity] = {}
    """The severity of each rule for nodes, by the rule's name: `error`, `warning` or `off`. It overrides the project's
    `.intent-layer/config.yaml`."""

    @field_validator("rules", mode="before")
    @classmethod
    def accept_unquoted_off(cls, rules: Any) -> Any:
        """Accept unquoted `off`, which YAML parses as false."""
        return (
            {name: "off" if word is False else word for name, word in rules.items()}
            if isinstance(rules, dict)
            else rules
        )


class IntentLayerSettings(SettingsSection):
    """The Intent Layer: context before an edit, learning after it."""

    enabled: bool = True
    """False disables the Intent Layer with its projects: their nodes are not read, and its methods are unknown over
    both transports."""
    projects: list[ProjectSettings] = []
    """The projects to serve. No other folder is read."""
    duplicate_threshold: float = Field(default=0.6, gt=0, le=1)
    """The similarity of a learning to the contents of its node from which accepting it needs force."""
    refresh_seconds: float = Field(default=30.0, gt=0)
    """How often changed nodes are copied into the journal, so that searches find their contents."""

    @field_validator("projects")
    @classmethod
    def check_projects(cls, projects: list[ProjectSettings]) -> list[ProjectSettings]:
        names = [project.name for project in projects]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise ValueError(f"named twice: {', '.join(duplicates)}")
        return projects

    def check_roots(self) -> None:
        """Check that the folders of all projects exist, unless they are left out. Raises ConfigError."""
        if not self.enabled:
            return
        lines = [
            f"intent_layer.projects.{number}.root: {project.root} is no folder"
            for number, project in enumerate(self.projects)
            if not project.root.is_dir()
        ]
        if lines:
            raise ConfigError("\n".join(lines))


class Settings(BaseModel):
    """All settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=add_setting_descriptions)

    data_dir: Path = DEFAULT_DATA_DIR
    """The folder of all stored data: journal, converted weights, development token."""
    agent: AgentSettings = AgentSettings()
    """The agent that this server represents."""
    serve: listeners.ServeSettings = listeners.ServeSettings()
    """The processes of `cstp serve`."""
    server: listeners.ServerSettings = listeners.ServerSettings()
    """The HTTP bridge."""
    console: listeners.ConsoleSettings = listeners.ConsoleSettings()
    """The console, pages for people in a browser."""
    a2a: listeners.A2aSettings = listeners.A2aSettings()
    """The A2A peer."""
    grpc: listeners.GrpcSettings = listeners.GrpcSettings()
    """The gRPC server."""
    auth: AuthSettings = AuthSettings()
    """Who may call."""
    cstp: CstpSettings = CstpSettings()
    """The protocol's methods."""
    storage: StorageSettings = StorageSettings()
    """The journal."""
    search: SearchSettings = SearchSettings()
    """The search for decisions."""
    embedding: EmbeddingSettings = EmbeddingSettings()
    """The embedder, which turns texts into vectors."""
    rate_limits: listeners.RateLimitSettings = listeners.RateLimitSettings()
    """How often an agent may call."""
    approvals: ApprovalSettings = ApprovalSettings()
    """Approvals by people, for guardrails of the severity `approve`."""
    audit: AuditSettings = AuditSettings()
    """The audit trail."""
    retention: RecordRetentionSettings = RecordRetentionSettings()
    """How long records are kept."""
    thoughts: ThoughtSettings = ThoughtSettings()
    """Reasoning that agents attach to intents and decisions."""
    intent_layer: IntentLayerSettings = IntentLayerSettings()
    """The Intent Layer."""
    liaison: LiaisonSettings = LiaisonSettings()
    """Chat sessions and their routing to liaison agents."""
    federation: FederationSettings = FederationSettings()
    """Peers: other agents whose verdicts count."""
    notifications: NotificationSettings = NotificationSettings()
    """Webhooks that are notified of approvals, blocked actions and failed verifications."""
    logging: LoggingSettings = LoggingSettings()
    """The log."""
    metrics: listeners.MetricsSettings = listeners.MetricsSettings()
    """Metrics for Prometheus."""
    otlp: listeners.OtlpSettings = listeners.OtlpSettings()
    """Traces and metrics over OTLP."""

    @model_validator(mode="after")
    def check_auth(self) -> Settings:
        if not self.auth.enabled:
            # Every listener counts: an open bridge would let strangers in to a server on loopback.
            hosts = {"server.host": self.server.host, "grpc.host": self.grpc.host, "a2a.grpc_host": self.a2a.grpc_host}
            hosts["console.host"] = self.console.host
            for key, host in hosts.items():
                if not is_loopback(host):
                    raise ValueError(f"auth.enabled: false is accepted on loopback only, but {key} is {host}")
            # Others reach a proxy on this machine, and through it everything.
            if self.serve.behind_proxy:
                raise ValueError("auth.enabled: false is accepted on loopback only, but serve.behind_proxy is true")
        return self

    @model_validator(mode="after")
    def check_card_signing(self) -> Settings:
        if self.agent.card_signing is not None and not self.server.public_url:
            raise ValueError("agent.card_signing needs server.public_url, which is the address that is signed")
        return self

    @model_validator(mode="after")
    def check_federation(self) -> Settings:
        if any(peer.name == self.agent.name for peer in self.federation.peers):
            raise ValueError(f"federation.peers: {self.agent.name} is the name of this agent itself")
        return self

    @model_validator(mode="after")
    def check_search(self) -> Settings:
        engine, url = self.search.engine, self.search.url
        if engine == "chroma" and not re.match(HTTP_ADDRESS, url or ""):
            raise ValueError("search.url: must be like http://HOST:PORT where search.engine is chroma")
        if engine == "postgresql" and not re.match(r"postgres(ql)?(\+psycopg)?://", url or self.storage_url):
            raise ValueError("search.url: must begin with postgresql:// where search.engine is postgresql")
        return self

    def warnings(self) -> list[str]:
        """Return one sentence for each setting that is valid but probably unintended."""
        sentences = []
        if self.auth.tokens and (missing := self.auth.missing_permissions()):
            verbs = [EXPECTED_PERMISSIONS[each] for each in missing]
            listed = " or ".join(filter(None, (", ".join(verbs[:-1]), verbs[-1])))
            sentences.append(
                f"auth.tokens: no token may {listed}, which takes {', '.join(missing)} in its permissions."
            )
        if not self.audit.enabled:
            sentences.append("audit.enabled: is false, so that the audit trail records nothing.")
        return sentences

    @property
    def disabled_services(self) -> frozenset[str]:
        """The services of the contract that are left out, by their full names."""
        enabled = {
            "intent_layer.v1.IntentLayerService": self.intent_layer.enabled,
            "liaison.v1.LiaisonService": self.liaison.enabled,
            "cstp.v1.TaskService": self.a2a.enabled,
            "cstp.v1.ApprovalService": self.approvals.enabled,
            "cstp.v1.AdminService": self.auth.has_managed_tokens,
        }
        return frozenset(service for service in enabled if not enabled[service])

    @property
    def storage_url(self) -> str:
        """The journal's database as SQLAlchemy writes it."""
        url = self.storage.url or f"sqlite:///{self.data_dir / 'journal.db'}"
        # To SQLAlchemy, `postgresql://` means psycopg2, which is not a dependency, and `postgres://` nothing.
        return re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)
