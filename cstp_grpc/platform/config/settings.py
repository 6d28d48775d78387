"""The settings by their keys, each with its meaning; the keys of the design (server, auth, cstp) keep their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from cstp_grpc.contract.enums import JudgedContent, NodeRule, Reaction, RulePreset, RuleSeverity
from cstp_grpc.contract.errors import ConfigError
from cstp_grpc.platform.config.environment import is_loopback
from cstp_grpc.platform.config.listeners import (
    EXPECTED_PERMISSIONS,
    A2aSettings,
    AuthSettings,
    GrpcSettings,
    MetricsSettings,
    OtlpSettings,
    RateLimitSettings,
    ServerSettings,
    ServeSettings,
)
from cstp_grpc.platform.config.other_agents import FederationSettings, LiaisonSettings
from cstp_grpc.platform.config.settings_section import URL, SettingsSection, SqliteFile, add_setting_descriptions
from cstp_grpc.platform.config.yaml_file import DEFAULT_DATA_DIR

PROJECT_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class ProviderSettings(SettingsSection):
    """Who runs the agent."""

    organization: str = Field(min_length=1)
    """The name of the organisation."""
    url: str = Field(pattern=URL)
    """Its site."""


class CardSigningSettings(SettingsSection):
    """The key that signs the agent cards, so that others can tell them from forged ones. Needs `server.public_url`."""

    key_file: Path | None = None
    """A PEM file with the private key: EC (P-256, P-384, P-521), RSA of at least 2048 bits, or Ed25519."""
    key: SecretStr | None = None
    """The private key itself in PEM, in place of a file; write `${NAME}` to take it from the environment."""
    key_id: str | None = Field(default=None, min_length=1, max_length=200)
    """What verifiers know the key by (`kid`); when absent, the thumbprint of its public key (RFC 7638)."""

    @model_validator(mode="after")
    def check_source(self) -> CardSigningSettings:
        if (self.key_file is None) == (self.key is None):
            raise ValueError("either key_file or key must be given")
        return self


class AgentSettings(SettingsSection):
    """Who answers."""

    name: str = Field(default="cstp", min_length=1)
    """The name in answers and on the agent card."""
    description: str = Field(default="Decision intelligence for AI agents", min_length=1)
    """One sentence for the agent card."""
    version: str | None = Field(default=None, min_length=1, max_length=100)
    """The agent's version on the agent card; when absent, that of CSTP."""
    contact: str | None = None
    """Whom to write to; on the agent card."""
    provider: ProviderSettings | None = None
    """Who runs the agent; on the agent card."""
    documentation_url: str | None = Field(default=None, pattern=URL)
    """Where to read about the agent; on the agent card."""
    card_signing: CardSigningSettings | None = None
    """The key that signs the agent cards; without one they are not signed."""


class QuerySettings(SettingsSection):
    """Searching."""

    max_results: int = Field(default=50, ge=1, le=50)
    """Caps the limit of every query."""
    min_score: float = Field(default=0.08, ge=0, le=1)
    """The least score of an answer where the query gives none. A score is a calibrated relevance, not a similarity."""


class GuardrailSettings(SettingsSection):
    """The rule set."""

    config_path: Path | None = None
    """A rulebook, or a folder of them, in the place of the packaged rules. [default: those of `preset`]
    `guardrails/default.yaml` means the packaged rules, too, if there is no folder `guardrails` beside the configuration
    file."""
    preset: RulePreset = RulePreset.STANDARD
    """The packaged rules, if there is no `config_path`: `default`; `standard`, which also reads commands; `strict`,
    which blocks commands that cannot be read before they run; `paranoid`, which also asks about destructive actions
    in the project."""
    disabled_packs: list[str] = []
    """Packaged rulebooks that are left out, such as `safety-messaging`."""
    undeclared: Reaction = Reaction.ALLOW
    """What happens to an action whose context has keys that no rule knows, or whose undeclared category resembles a
    declared one: `allow` only lists them in `ignoredContext`, `warn` and `block` add the violation `undeclared-input`.
    """
    unknown_action: Reaction = Reaction.WARN
    """What happens to an action that states none of the inputs that rules read: `allow`, or `warn` or `block` by the
    violation `unknown-action`."""

    max_values: int = Field(default=2_000, ge=100, le=10_000)
    """The most values in the context of a check or the metadata of an announcement, nested ones included. A request
    with more is refused before they are converted."""

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
    """Announcing."""

    store_received: bool = True
    """False keeps the audit entry of an announcement without its content."""
    auto_respond: bool = True
    """False records and acknowledges announcements without feedback."""
    shared_by: list[str] = []
    """Agents whose announcements other agents are told of unless they state `visibility: private`; `*` for all. Others
    state `visibility: shared`, or nobody is told."""
    min_score: float = Field(default=0.35, ge=0, le=1)
    """The least score of a similar decision in feedback, unless `cstp.query.min_score` is greater: who announces has
    asked for nothing."""
    related_min_score: float = Field(default=0.45, ge=0, le=1)
    """How alike intents must be at the least for agents to be told of each other's."""

    @model_validator(mode="after")
    def check_sharing(self) -> IntentSettings:
        if self.shared_by and not self.store_received:
            raise ValueError("shared_by needs store_received, because only stored intents can be shared")
        return self


class CstpSettings(SettingsSection):
    """The protocol's methods."""

    query: QuerySettings = QuerySettings()
    """Searching."""
    guardrails: GuardrailSettings = GuardrailSettings()
    """The rule set."""
    intent: IntentSettings = IntentSettings()
    """Announcing."""

    @property
    def least_feedback_score(self) -> float:
        """The least score of a similar decision in the feedback on an announcement."""
        return max(self.intent.min_score, self.query.min_score)


class StorageSettings(SettingsSection):
    """The journal."""

    url: Annotated[str, SqliteFile] | None = None
    """`sqlite:///PATH` or `postgresql://…`; when absent, a SQLite file in the data folder."""
    pool_size: int = Field(default=8, ge=1, le=100)
    """Connections kept for reading."""
    write_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long a call waits for its record to be on disk before it is answered UNAVAILABLE."""
    refresh_seconds: float = Field(default=1.0, gt=0)
    """How often a server looks for work that others left: deliveries, notifications, sessions left alone."""
    watch_seconds: float = Field(default=0.05, gt=0)
    """How often it asks whether others wrote to the same database, so that its searches and watchers see it. PostgreSQL
    notifies it of that, and while it does, the server asks once a second only."""
    max_watchers: int = Field(default=32, ge=1, le=256)
    """Streams of changed decisions that may be open at once, and as many of intents; more are refused."""
    watchers_per_agent: int = Field(default=8, ge=1, le=256)
    """Streams of changed decisions that one agent may have open at once, and as many of intents."""
    stalled_watch_seconds: float = Field(default=60.0, gt=0)
    """How long the reader of such a stream may take nothing of it until the stream ends."""
    exports_per_agent: int = Field(default=8, ge=1, le=256)
    """Exports of decisions that one agent may have open at once. One that is not read holds up to 16 decisions in
    memory."""


class IndexSettings(SettingsSection):
    """The vector index. The journal can always rebuild it, and exact search answers without it."""

    mode: Literal["embedded", "http", "off"] = "embedded"
    """`embedded` runs a Chroma server once there are `exact_limit` decisions, `http` uses one by URL, and `off` always
    searches exactly."""
    url: str | None = None
    """The Chroma server in mode `http`; it must serve this journal alone."""
    exact_limit: int = Field(default=300_000, ge=0)
    """Up to how many candidate rows search is exact; the index is used beyond it."""
    overfetch: int = Field(default=200, ge=10, le=5000)
    """How many candidates the index proposes; they are scored exactly and filtered here."""


class EmbeddingSettings(SettingsSection):
    """Texts to vectors."""

    provider: Literal["minilm", "lexical", "onnx", "openai"] = "minilm"
    """`minilm` is all-MiniLM-L6-v2; `lexical` compares words only and needs no weights; `onnx` is the
    sentence-transformer in the folder `model_path`; `openai` asks an endpoint with the embeddings API of OpenAI.
    `cstp reindex` changes the embedder of a journal while servers run."""
    model_path: Path | None = None
    """For `minilm` a folder with model.safetensors and tokenizer.json, or model.onnx and tokenizer.json, tried before
    any other. For `onnx` one with tokenizer.json, model.onnx (or onnx/model.onnx) and 1_Pooling/config.json."""
    download: bool = True
    """Whether the weights of `minilm` may be downloaded where they are found nowhere."""
    threads: int = Field(default=1, ge=1, le=64)
    """Threads for one batch of texts, such as a query. For `minilm` and `onnx`, as is the next."""
    batch_threads: int = Field(default=2, ge=1, le=64)
    """How many batches of texts are embedded at once, as imports do. More than the cores make it no faster."""
    cache_size: int = Field(default=4096, ge=0)
    """How many query texts keep their vectors in memory."""
    url: str | None = Field(default=None, pattern=URL)
    """Where `openai` asks, without `/embeddings`: `https://api.openai.com/v1`, `http://localhost:11434/v1`."""
    model: str | None = Field(default=None, min_length=1, max_length=200)
    """The model that `openai` asks for. Vectors of different models are never compared."""
    api_key: SecretStr | None = Field(default=None, min_length=1)
    """What `openai` authenticates with, best given by the environment: `CSTP_EMBEDDING__API_KEY`. It is sent to
    `https` addresses and to this machine only."""
    dimensions: int | None = Field(default=None, ge=1, le=65_536)
    """The length of the vectors, needed for `openai`. Other vectors are errors."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=600)
    """How long `openai` may take for a batch of texts, with retries."""
    batch: int = Field(default=64, ge=1, le=2048)
    """How many texts `openai` is sent at a time."""
    retries: int = Field(default=2, ge=0, le=10)
    """How often a request of `openai` that failed for a transient reason is repeated."""

    @model_validator(mode="after")
    def check_provider(self) -> EmbeddingSettings:
        needed = {"onnx": ("model_path",), "openai": ("url", "model", "dimensions")}.get(self.provider, ())
        if missing := [name for name in needed if getattr(self, name) is None]:
            raise ValueError(f"{' and '.join(missing)} must be given where the provider is {self.provider}")
        parts = urlsplit(self.url or "")
        if "@" in parts.netloc:
            raise ValueError("url must have no user or password: the key belongs in api_key (CSTP_EMBEDDING__API_KEY)")
        if self.api_key is not None and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ValueError("api_key would be sent unencrypted: url must begin with https, or name this machine")
        return self


class ApprovalSettings(SettingsSection):
    """Approvals by people of what guardrails of the severity `approve` ask about."""

    enabled: bool = True
    """False leaves them out: what needs an approval is not allowed, nothing is requested, and the methods are unknown
    over both transports."""
    expiry_minutes: float = Field(default=1440.0, gt=0, le=525_600)
    """How long a request waits for a decision, and how long a grant for its use."""
    max_reuse_minutes: float = Field(default=10_080.0, gt=0, le=525_600)
    """How far ahead a grant may say that it lets the action through any number of times."""
    max_pending_per_agent: int = Field(default=100, ge=1, le=10_000)
    """How many requests of an agent may be pending; what needs one more is answered RATE_LIMITED."""
    keep_days: float = Field(default=365.0, gt=0, le=3650)
    """How long requests are kept after their last change, with the contents of the actions."""
    instructions: str | None = Field(default=None, min_length=1, max_length=1000)
    """How to have a request decided, shown to those who wait for it; `{id}` stands for the request. `cstp serve --dev`
    sets it to the command that grants it."""


class AuditSettings(SettingsSection):
    """The audit trail."""

    enabled: bool = True
    """False records no checks, announcements and refusals in the trail. Meant for measuring; the start warns of it."""
    judged_content: JudgedContent = JudgedContent.FULL
    """What the trail keeps of the actions that guardrails judge: `full`, all that they were judged by, so that `cstp
    guardrails replay` can judge them by other rules; `description`, their descriptions alone; or `nothing`. Of
    announcements whose content is not stored (`cstp.intent.store_received: false`) it keeps nothing in any case."""
    keep_days: float | None = Field(default=None, gt=0, le=36500)
    """After how many days entries are removed, up to a checkpoint; absent keeps them for ever. What is left still
    verifies."""
    keep_content_days: float | None = Field(default=None, gt=0, le=36500)
    """After how many days the contents of entries are removed: descriptions of actions, and what guardrails judged.
    Their hashes stay. Absent keeps them as long as the entries."""
    checkpoint_entries: int = Field(default=1000, ge=1)
    """After how many new entries a server signs a checkpoint of the trail."""
    checkpoint_seconds: float = Field(default=300.0, gt=0)
    """After how many seconds it signs one anyway if there are new entries; and when it stops."""
    signing_key_file: Path | None = None
    """The private Ed25519 key that signs checkpoints, in PEM. By default a server makes one, `audit-signing-key.pem` in
    the data folder; `cstp audit public-key` prints the key that verifies its signatures."""


class RecordRetentionSettings(SettingsSection):
    """How long records stay; what is absent stays until it is deleted or erased. Other retention is where its module is
    configured: `liaison.retention`, `approvals.keep_days`, `a2a.task_days`, `federation.callbacks`."""

    decision_days: float | None = Field(default=None, gt=0, le=36_500)
    """Days after its last change, reviews included, until a decision is deleted with its reviews and former contents;
    only its id stays. What nodes of the Intent Layer say stays as long as they do."""
    intent_days: float | None = Field(default=None, ge=2, le=36_500)
    """Days until an announced intent is deleted, open or closed. Guardrails that ask for earlier outcomes do not count
    those that are gone, so keep intents longer than their `within`."""


class ProjectSettings(SettingsSection):
    """A project whose nodes are read and whose learnings are taken in."""

    name: str = Field(max_length=200, pattern=PROJECT_NAME)
    """What callers name it by: letters, digits, `.`, `_` and `-`."""
    root: Path
    """Its folder, which must be there at the start. Nothing outside it is read or written."""
    rules: dict[NodeRule, RuleSeverity] = {}
    """How severe breaches of rules for nodes are, by the rule's name: `error`, `warning` or `off`. It goes before what
    the project's `.intent-layer/config.yaml` says."""

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
    """False leaves it out, with its projects: their nodes are not read, and its methods are unknown over both
    transports."""
    projects: list[ProjectSettings] = []
    """The projects that are served; no other folder is ever read."""
    duplicate_threshold: float = Field(default=0.6, gt=0, le=1)
    """How alike a learning and what its node says must be for its acceptance to need force."""
    refresh_seconds: float = Field(default=30.0, gt=0)
    """How often changed nodes are taken over into the journal, so that searches find what they say."""

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


LogLevel = Literal["debug", "info", "warning", "error"]
LoggerName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,199}$")]


class LoggingSettings(SettingsSection):
    """The log, one line an event on standard error."""

    level: LogLevel = "info"
    """The least level that is written."""
    levels: dict[LoggerName, LogLevel] = {}
    """The same for loggers by name, and those below: `cstp_grpc.modules.federation: debug`, `bridge: warning`."""
    calls: Literal["off", "json", "logfmt"] = "off"
    """Whether and in which form a line is written for each call: its request, trace, agent, method, status, duration,
    verdict and number of results, and nothing of what was said."""
    slow_call_seconds: float | None = Field(default=None, gt=0)
    """From how long on a call is written as a warning, in the same form, even if not each call is."""


class Settings(BaseModel):
    """Everything that can be configured."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=add_setting_descriptions)

    data_dir: Path = DEFAULT_DATA_DIR
    """The folder of everything that is kept: journal, index, converted weights, development token."""
    agent: AgentSettings = AgentSettings()
    """Who answers."""
    serve: ServeSettings = ServeSettings()
    """The processes of `cstp serve`."""
    server: ServerSettings = ServerSettings()
    """The HTTP bridge."""
    a2a: A2aSettings = A2aSettings()
    """The A2A peer."""
    grpc: GrpcSettings = GrpcSettings()
    """The gRPC server."""
    auth: AuthSettings = AuthSettings()
    """Who may call."""
    cstp: CstpSettings = CstpSettings()
    """The protocol's methods."""
    storage: StorageSettings = StorageSettings()
    """The journal."""
    index: IndexSettings = IndexSettings()
    """The vector index."""
    embedding: EmbeddingSettings = EmbeddingSettings()
    """Texts to vectors."""
    rate_limits: RateLimitSettings = RateLimitSettings()
    """How often an agent may call."""
    approvals: ApprovalSettings = ApprovalSettings()
    """Approvals by people of what guardrails of the severity `approve` ask about."""
    audit: AuditSettings = AuditSettings()
    """The audit trail."""
    retention: RecordRetentionSettings = RecordRetentionSettings()
    """How long records stay."""
    intent_layer: IntentLayerSettings = IntentLayerSettings()
    """The Intent Layer."""
    liaison: LiaisonSettings = LiaisonSettings()
    """Handing chat sessions to liaison agents."""
    federation: FederationSettings = FederationSettings()
    """Agents that are asked too."""
    logging: LoggingSettings = LoggingSettings()
    """The log."""
    metrics: MetricsSettings = MetricsSettings()
    """Metrics for Prometheus."""
    otlp: OtlpSettings = OtlpSettings()
    """Traces and metrics over OTLP."""

    @model_validator(mode="after")
    def check_auth(self) -> Settings:
        if not self.auth.enabled:
            # Every listener counts: an open bridge would let strangers in to a server on loopback.
            hosts = {"server.host": self.server.host, "grpc.host": self.grpc.host, "a2a.grpc_host": self.a2a.grpc_host}
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
    def check_index(self) -> Settings:
        if self.index.mode == "http" and not self.index.url:
            raise ValueError("index.url is needed where index.mode is http")
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
