"""Wiring of approvals."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta

from cstp_grpc.contract.enums import Enforcement, Permission, Severity
from cstp_grpc.core.guardrails.model import RuleSet
from cstp_grpc.core.guardrails.rules_in_force import LoadedRules, RulesInForce
from cstp_grpc.gen.cstp.v1 import approvals_pb2_grpc
from cstp_grpc.modules.approvals.model import ApprovalNotifier
from cstp_grpc.modules.approvals.requests import ApprovalRecorder, ApprovalRequester
from cstp_grpc.modules.approvals.review import ApprovalFeed, ApprovalReviewer
from cstp_grpc.modules.approvals.servicer import ApprovalService
from cstp_grpc.modules.approvals.sql_store import SqlApprovalStore
from cstp_grpc.platform.config import AuthSettings
from cstp_grpc.platform.storage.background_work import ExpiryTask
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens
from cstp_grpc.server.execution import PoolName
from cstp_grpc.server.server_module import Module, SharedParts
from cstp_grpc.server.wiring.decisions import build_watch_limits, build_watcher_measure

logger = logging.getLogger(__name__)

EXPIRY_SECONDS = 5.0
"""Interval of the search for expired requests. Chosen: checks notice an expiry themselves; this notifies watchers."""
REMOVAL_SECONDS = 600.0
"""Interval of the search for old requests. Chosen: they are kept for days, so minutes do not matter."""


def build_approvals_module(
    shared: SharedParts, rules: RulesInForce, notifier: ApprovalNotifier | None, tokens: RevisionTokens
) -> tuple[Module, ApprovalRequester]:
    """Build approvals, and the gate through which verdicts request and use them.

    `notifier` notifies announcing agents of the decision, if there are callbacks.
    """
    settings, clock, writer = shared.settings.approvals, shared.clock, shared.writer
    auth = shared.settings.auth
    if shared.deployment.resident:
        # Without a server nobody has a token, and every user may grant approvals.
        warn_of_missing_approvers(rules.current, auth)
        rules.follow(lambda loaded: warn_of_missing_approvers(loaded, auth))
    store = SqlApprovalStore(shared.database)
    storage, run_blocking = shared.settings.storage, shared.pools[PoolName.OTHERS].run
    feed = ApprovalFeed(store, tokens, clock, build_watch_limits(storage), storage.refresh_seconds, run_blocking)
    lifetime = timedelta(minutes=settings.expiry_minutes)
    recorder = ApprovalRecorder(store, shared.sink, notifier, feed.notify)
    gate = ApprovalRequester(
        store, recorder, writer, clock, lifetime, settings.max_pending_per_agent, settings.instructions
    )
    max_reuse = timedelta(minutes=settings.max_reuse_minutes)
    reviewer = ApprovalReviewer(store, recorder, writer, clock, lifetime=lifetime, max_reuse=max_reuse)
    kept = timedelta(days=settings.keep_days)
    service = ApprovalService(reviewer, feed, run_blocking)
    module = Module(
        late_background=[
            ExpiryTask(
                "approval-expiry", reviewer.end_expired, EXPIRY_SECONDS, logger, "expired approvals are not ended"
            ),
            ExpiryTask(
                "approval-retention",
                lambda: reviewer.remove_ended(kept),
                REMOVAL_SECONDS,
                logger,
                "old approvals are not removed",
            ),
        ],
        servicers=[(approvals_pb2_grpc.add_ApprovalServiceServicer_to_server, service)],
        begin_stop=[feed.close],
        on_foreign_commit=[feed.notify],
        measures=[build_watcher_measure("approvals", feed)],
    )
    return module, gate


def warn_of_missing_approvers(rules: LoadedRules, auth: AuthSettings) -> None:
    """Log the loaded guardrails that require approvals that nobody can grant."""
    for problem in find_missing_approvers(rules.rule_set, auth):
        logger.warning("%s", problem)


def find_missing_approvers(rule_set: RuleSet, auth: AuthSettings) -> Iterator[str]:
    """Yield a sentence for each guardrail that requires an approval that no token can grant."""
    asking = [
        each
        for each in rule_set.guardrails
        if each.severity is Severity.APPROVE and each.enforcement is Enforcement.ENFORCE
    ]
    if auth.jwt:
        # Only the issuer knows who may approve.
        return
    able = {token.name for token in auth.tokens if Permission.APPROVE in token.permissions}
    able |= {each.name for each in auth.certificates if Permission.APPROVE in each.permissions}
    if asking and not auth.enabled:
        # All callers are the same agent, and nobody decides on a request of their own.
        yield f"the guardrail {asking[0].id} asks for approvals, which nobody can grant while auth.enabled is false"
        return
    for rule in asking:
        if not able.intersection(rule.approvers or able):
            named = f" of {', '.join(rule.approvers)}" if rule.approvers else ""
            yield f"the guardrail {rule.id} asks for approvals, and no token{named} has the permission approve"
