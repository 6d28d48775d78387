"""Wiring of guardrails: the rules in force, their reload, and their own service."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.measures import Measure, MeasureKind, Readings, read_value
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.guardrails.cel_engine import COMPILED
from cstp_grpc.core.guardrails.checker import GuardrailChecker
from cstp_grpc.core.guardrails.evaluator import UnknownInputPolicy
from cstp_grpc.core.guardrails.reloading import RulebookReloader, RuleLoader
from cstp_grpc.core.guardrails.rulebook import RulebookError, read_rulebooks
from cstp_grpc.core.guardrails.rulebook_files import RulebookCopy
from cstp_grpc.core.guardrails.rules_in_force import LoadedRules, RuleExplainer, RulesInForce
from cstp_grpc.core.guardrails.servicer import GuardrailService, RulebookTrials
from cstp_grpc.gen.cstp.v1 import guardrails_pb2_grpc
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.stream_limit import StreamLimit
from cstp_grpc.server.deployment import Deployment, rulebook_path
from cstp_grpc.server.execution import PoolName
from cstp_grpc.server.open_services import RULEBOOK_HEALTH
from cstp_grpc.server.server_module import Module, SharedParts

TRIALS_PER_AGENT = 2
"""Trials and replays of rulebooks that an agent may have in progress. Chosen: each computes for seconds."""


@dataclass(frozen=True, slots=True)
class RuleParts:
    """The rules in force, and the part that replaces them when their files change."""

    in_force: RulesInForce
    reloader: RulebookReloader


def open_rules(
    settings: Settings, deployment: Deployment, clock: Callable[[], datetime], server_keys: frozenset[str]
) -> RuleParts:
    """Load the rules that the settings name; `server_keys` are keys of contexts that the server reads itself.

    Raises RulebookError.
    """
    guardrails = settings.cstp.guardrails
    policy = unknown_input_policy(settings)
    loader = RuleLoader(rulebook_path(settings), policy, server_keys, clock, guardrails.disabled_packs)
    copy = None if deployment.rulebook_copy is None else RulebookCopy(deployment.rulebook_copy)
    rules = RulesInForce(load_first_rules(loader, copy))
    # Those of other files are nobody else's business.
    COMPILED.finish(keep=guardrails.config_path is None)
    if copy is not None:
        rules.follow(lambda loaded: copy.write(loaded.files))
    return RuleParts(rules, RulebookReloader(loader, rules))


def unknown_input_policy(settings: Settings) -> UnknownInputPolicy:
    return UnknownInputPolicy(settings.cstp.guardrails.undeclared, settings.cstp.guardrails.unknown_action)


def load_first_rules(loader: RuleLoader, copy: RulebookCopy | None) -> LoadedRules:
    """Load the rules with which a server begins. Raises RulebookError.

    A worker that restarts while the files are invalid begins with the rules that workers loaded last.
    """
    try:
        loaded = loader.load(*read_rulebooks(loader.path))
    except RulebookError:
        last = None if copy is None else copy.read()
        if last is None:
            raise
        return loader.load(last)
    if copy is not None:
        copy.write(loaded.files)
    return loaded


def build_guardrails_module(shared: SharedParts, parts: RuleParts, checker: GuardrailChecker) -> Module:
    """Build the service that describes the rules to agents, and the reloading of changed rulebooks."""
    rules, reloader = parts.in_force, parts.reloader
    rules.follow(lambda loaded: checker.use_evaluator(loaded.evaluator))
    # The threads of searches: a batch computes, and must not take those of single checks.
    run_blocking = shared.pools[PoolName.QUERIES].run
    settings = shared.settings
    # Half of a message, because the estimate leaves out what frames the fields.
    max_bytes = settings.grpc.max_message_bytes // 2
    explainer = RuleExplainer(rules, checker, shared.clock, run_blocking)
    trail = SqlAuditTrail(shared.database, shared.writer)
    limit = StreamLimit("trials of rulebooks", TRIALS_PER_AGENT, "fixed")
    trials = RulebookTrials(unknown_input_policy(settings), trail.page, limit, shared.clock)
    servicer = GuardrailService(settings.agent.name, rules, checker, explainer, trials, run_blocking, max_bytes)
    return Module(
        servicers=[(guardrails_pb2_grpc.add_GuardrailServiceServicer_to_server, servicer)],
        late_background=[reloader],
        on_reload=[reloader.request_reload],
        health={RULEBOOK_HEALTH: rules.is_up_to_date},
        measures=build_rule_measures(rules),
    )


def build_rule_measures(rules: RulesInForce) -> list[Measure]:
    """Build the figures of the rules in force and of loading others."""

    def read_info() -> Readings:
        return {(rules.current.listing.version,): 1}

    def read_loads() -> Readings:
        return {("replaced",): rules.replacements, ("failed",): rules.failures}

    return [
        Measure("rule_set_info", "The version of the rules in force, which dashboards join.", read_info, ("rule_set",)),
        Measure("guardrails_in_force", "Guardrails of these rules.", read_value(lambda: rules.current.listing.count)),
        Measure(
            "rulebook_loads",
            "Changes of rulebooks, by whether they replaced the rules or could not be loaded.",
            read_loads,
            ("result",),
            MeasureKind.COUNTER,
        ),
        Measure(
            "rulebooks_up_to_date",
            "Whether the rules in force are those of the files; 0 if these cannot be loaded.",
            read_value(rules.is_up_to_date),
        ),
    ]
