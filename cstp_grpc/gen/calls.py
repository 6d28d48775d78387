"""What every call of the contract is, as `cstp_grpc.contract.calls` writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from cstp_grpc.contract.calls import Fields, UnaryCall, Json, PagedCall, UploadCall, WatchCall

if TYPE_CHECKING:
    from cstp_grpc.gen.cstp.v1 import access_pb2, admin_pb2, approvals_pb2, audit_pb2, calibration_pb2, cstp_pb2, erasure_pb2, guardrails_pb2, intents_pb2, journal_pb2, pre_actions_pb2, session_context_pb2, status_pb2, types_pb2
    from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2
    from cstp_grpc.gen.liaison.v1 import liaison_pb2


def get_access() -> UnaryCall[access_pb2.GetAccessResponse]:
    """Describe getAccess of cstp.v1.AccessService."""
    return UnaryCall("cstp.getAccess", {})


def create_token(
    request_id: str,
    agent: str,
    permissions: Sequence[str],
    *,
    expires_at: datetime | None = None,
    note: str | None = None,
) -> UnaryCall[admin_pb2.CreateTokenResponse]:
    """Describe createToken of cstp.v1.AdminService."""
    return UnaryCall(
        "cstp.createToken",
        {
            "request_id": request_id,
            "agent": agent,
            "permissions": permissions,
            "expires_at": expires_at,
            "note": note,
        },
    )


def list_tokens(
    *,
    page_size: int = 0,
    agent: str | None = None,
    with_ended: bool = False,
    id_prefix: str | None = None,
) -> PagedCall[admin_pb2.AgentToken]:
    """Describe listTokens of cstp.v1.AdminService."""
    return PagedCall(
        "cstp.listTokens",
        {
            "page_size": page_size,
            "agent": agent,
            "with_ended": with_ended,
            "id_prefix": id_prefix,
        },
        "tokens",
    )


def rotate_token(
    request_id: str,
    id: str,
    *,
    keep_seconds: int | None = None,
    expires_at: datetime | None = None,
) -> UnaryCall[admin_pb2.RotateTokenResponse]:
    """Describe rotateToken of cstp.v1.AdminService."""
    return UnaryCall(
        "cstp.rotateToken",
        {
            "request_id": request_id,
            "id": id,
            "keep_seconds": keep_seconds,
            "expires_at": expires_at,
        },
    )


def revoke_token(id: str) -> UnaryCall[admin_pb2.AgentToken]:
    """Describe revokeToken of cstp.v1.AdminService."""
    return UnaryCall("cstp.revokeToken", {"id": id}, "token")


def get_approval(id: str) -> UnaryCall[approvals_pb2.Approval]:
    """Describe getApproval of cstp.v1.ApprovalService."""
    return UnaryCall("cstp.getApproval", {"id": id}, "approval")


def list_approvals(
    *,
    page_size: int = 0,
    status: Sequence[str] = (),
    agent: str | None = None,
    digest: str | None = None,
    id_prefix: str | None = None,
) -> PagedCall[approvals_pb2.Approval]:
    """Describe listApprovals of cstp.v1.ApprovalService."""
    return PagedCall(
        "cstp.listApprovals",
        {
            "page_size": page_size,
            "status": status,
            "agent": agent,
            "digest": digest,
            "id_prefix": id_prefix,
        },
        "approvals",
    )


def grant_approval(
    id: str,
    *,
    comment: str | None = None,
    reusable_until: datetime | None = None,
) -> UnaryCall[approvals_pb2.Approval]:
    """Describe grantApproval of cstp.v1.ApprovalService."""
    return UnaryCall(
        "cstp.grantApproval",
        {
            "id": id,
            "comment": comment,
            "reusable_until": reusable_until,
        },
        "approval",
    )


def deny_approval(id: str, *, comment: str | None = None) -> UnaryCall[approvals_pb2.Approval]:
    """Describe denyApproval of cstp.v1.ApprovalService."""
    return UnaryCall("cstp.denyApproval", {"id": id, "comment": comment}, "approval")


def revoke_approval(id: str, *, comment: str | None = None) -> UnaryCall[approvals_pb2.Approval]:
    """Describe revokeApproval of cstp.v1.ApprovalService."""
    return UnaryCall("cstp.revokeApproval", {"id": id, "comment": comment}, "approval")


def watch_approvals(
    *,
    status: Sequence[str] = (),
    agent: str | None = None,
    after: str | None = None,
) -> WatchCall[approvals_pb2.WatchApprovalsResponse]:
    """Describe watchApprovals of cstp.v1.ApprovalService."""
    return WatchCall("cstp.watchApprovals", {"status": status, "agent": agent, "after": after}, "", "resume_token")


def close_intent(
    correlation_id: str,
    outcome: str,
    *,
    notes: str | None = None,
    decision_id: str | None = None,
    revision: int | None = None,
) -> UnaryCall[intents_pb2.CloseIntentResponse]:
    """Describe closeIntent of cstp.v1.IntentService."""
    return UnaryCall(
        "cstp.closeIntent",
        {
            "correlation_id": correlation_id,
            "outcome": outcome,
            "notes": notes,
            "decision_id": decision_id,
            "revision": revision,
        },
    )


def watch_intents(
    *,
    agent: str | None = None,
    category: str | None = None,
    stakes: Sequence[str] = (),
    project: str | None = None,
    after: str | None = None,
    oversee: bool = False,
) -> WatchCall[intents_pb2.WatchIntentsResponse]:
    """Describe watchIntents of cstp.v1.IntentService."""
    return WatchCall(
        "cstp.watchIntents",
        {
            "agent": agent,
            "category": category,
            "stakes": stakes,
            "project": project,
            "after": after,
            "oversee": oversee,
        },
        "",
        "resume_token",
    )


def announce_intent(
    intent: str,
    *,
    context: str | None = None,
    category: str | None = None,
    stakes: str | None = None,
    confidence: float | None = None,
    agent: types_pb2.AgentInfo | Fields | None = None,
    correlation_id: str | None = None,
    metadata: Mapping[str, Json] | None = None,
    project: str | None = None,
    paths: Sequence[str] = (),
    scope: str | None = None,
    agents: Sequence[str] = (),
    min_journal_revision: str | None = None,
    visibility: str | None = None,
    command: str | None = None,
    shell: str | None = None,
    directory: str | None = None,
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
) -> UnaryCall[cstp_pb2.AnnounceIntentResponse]:
    """Describe announceIntent of cstp.v1.CstpService."""
    return UnaryCall(
        "cstp.announceIntent",
        {
            "intent": intent,
            "context": context,
            "category": category,
            "stakes": stakes,
            "confidence": confidence,
            "agent": agent,
            "correlation_id": correlation_id,
            "metadata": metadata,
            "project": project,
            "paths": paths,
            "scope": scope,
            "agents": agents,
            "min_journal_revision": min_journal_revision,
            "visibility": visibility,
            "command": command,
            "shell": shell,
            "directory": directory,
            "reads": reads,
            "writes": writes,
        },
    )


def query_decisions(
    query: str,
    *,
    filters: types_pb2.DecisionFilters | Fields | None = None,
    limit: int | None = None,
    min_score: float | None = None,
    include_reasons: bool = False,
    agent: types_pb2.AgentInfo | Fields | None = None,
    scope: str | None = None,
    agents: Sequence[str] = (),
    min_journal_revision: str | None = None,
) -> UnaryCall[cstp_pb2.QueryDecisionsResponse]:
    """Describe queryDecisions of cstp.v1.CstpService."""
    return UnaryCall(
        "cstp.queryDecisions",
        {
            "query": query,
            "filters": filters,
            "limit": limit,
            "min_score": min_score,
            "include_reasons": include_reasons,
            "agent": agent,
            "scope": scope,
            "agents": agents,
            "min_journal_revision": min_journal_revision,
        },
    )


def check_guardrails(
    description: str,
    *,
    category: str | None = None,
    stakes: str | None = None,
    confidence: float | None = None,
    context: Mapping[str, Json] | None = None,
    project: str | None = None,
    command: str | None = None,
    shell: str | None = None,
    directory: str | None = None,
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
    agent: types_pb2.AgentInfo | Fields | None = None,
    scope: str | None = None,
    agents: Sequence[str] = (),
) -> UnaryCall[cstp_pb2.CheckGuardrailsResponse]:
    """Describe checkGuardrails of cstp.v1.CstpService."""
    return UnaryCall(
        "cstp.checkGuardrails",
        {
            "action": {
                "description": description,
                "category": category,
                "stakes": stakes,
                "confidence": confidence,
                "context": context,
                "project": project,
                "command": command,
                "shell": shell,
                "directory": directory,
                "reads": reads,
                "writes": writes,
            },
            "agent": agent,
            "scope": scope,
            "agents": agents,
        },
    )


def list_audit_entries(
    *,
    page_size: int = 0,
    event: str | None = None,
    requesting_agent: str | None = None,
    allowed: bool | None = None,
    guardrail_id: str | None = None,
    request_id: str | None = None,
    correlation_id: str | None = None,
    decision_id: str | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
    error: str | None = None,
    approval_id: str | None = None,
    words: Sequence[str] = (),
    category: str | None = None,
    stakes: Sequence[str] = (),
    project: str | None = None,
    with_total: bool = False,
) -> PagedCall[audit_pb2.AuditEntry]:
    """Describe listAuditEntries of cstp.v1.AuditService."""
    return PagedCall(
        "cstp.listAuditEntries",
        {
            "page_size": page_size,
            "event": event,
            "requesting_agent": requesting_agent,
            "allowed": allowed,
            "guardrail_id": guardrail_id,
            "request_id": request_id,
            "correlation_id": correlation_id,
            "decision_id": decision_id,
            "after": after,
            "before": before,
            "error": error,
            "approval_id": approval_id,
            "words": words,
            "category": category,
            "stakes": stakes,
            "project": project,
            "with_total": with_total,
        },
        "entries",
    )


def list_judged_actions(
    *,
    page_size: int = 0,
    requesting_agent: str | None = None,
    allowed: bool | None = None,
    guardrail_id: str | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
) -> PagedCall[audit_pb2.JudgedAction]:
    """Describe listJudgedActions of cstp.v1.AuditService."""
    return PagedCall(
        "cstp.listJudgedActions",
        {
            "page_size": page_size,
            "requesting_agent": requesting_agent,
            "allowed": allowed,
            "guardrail_id": guardrail_id,
            "after": after,
            "before": before,
        },
        "actions",
    )


def list_intents(
    *,
    page_size: int = 0,
    agent: str | None = None,
    correlation_id: str | None = None,
    category: str | None = None,
    stakes: Sequence[str] = (),
    after: datetime | None = None,
    before: datetime | None = None,
    closed: bool | None = None,
) -> PagedCall[audit_pb2.IntentRecord]:
    """Describe listIntents of cstp.v1.AuditService."""
    return PagedCall(
        "cstp.listIntents",
        {
            "page_size": page_size,
            "agent": agent,
            "correlation_id": correlation_id,
            "category": category,
            "stakes": stakes,
            "after": after,
            "before": before,
            "closed": closed,
        },
        "intents",
    )


def summarize_audit(
    *,
    after: datetime | None = None,
    before: datetime | None = None,
    conditions: audit_pb2.AuditConditions | Fields | None = None,
    bucket: str | None = None,
    group_by: Sequence[str] = (),
    max_groups: int = 0,
) -> UnaryCall[audit_pb2.SummarizeAuditResponse]:
    """Describe summarizeAudit of cstp.v1.AuditService."""
    return UnaryCall(
        "cstp.summarizeAudit",
        {
            "after": after,
            "before": before,
            "conditions": conditions,
            "bucket": bucket,
            "group_by": group_by,
            "max_groups": max_groups,
        },
    )


def watch_audit(
    *,
    conditions: audit_pb2.AuditConditions | Fields | None = None,
    after: str | None = None,
) -> WatchCall[audit_pb2.WatchAuditResponse]:
    """Describe watchAudit of cstp.v1.AuditService."""
    return WatchCall("cstp.watchAudit", {"conditions": conditions, "after": after}, "", "resume_token")


def verify_audit(
    *,
    public_keys: Sequence[str] = (),
    checkpoints: Sequence[audit_pb2.AuditCheckpoint | Fields] = (),
) -> WatchCall[audit_pb2.VerifyAuditResponse]:
    """Describe verifyAudit of cstp.v1.AuditService."""
    return WatchCall("cstp.verifyAudit", {"public_keys": public_keys, "checkpoints": checkpoints}, "", "")


def export_audit(
    *,
    format: str | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
) -> WatchCall[audit_pb2.ExportAuditResponse]:
    """Describe exportAudit of cstp.v1.AuditService."""
    return WatchCall("cstp.exportAudit", {"format": format, "after": after, "before": before}, "", "")


def get_evidence(
    *,
    decision_id: str | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
    public_keys: Sequence[str] = (),
    checkpoints: Sequence[audit_pb2.AuditCheckpoint | Fields] = (),
) -> WatchCall[audit_pb2.GetEvidenceResponse]:
    """Describe getEvidence of cstp.v1.AuditService."""
    return WatchCall(
        "cstp.getEvidence",
        {
            "decision_id": decision_id,
            "after": after,
            "before": before,
            "public_keys": public_keys,
            "checkpoints": checkpoints,
        },
        "",
        "",
    )


def list_checkpoints(*, page_size: int = 0) -> PagedCall[audit_pb2.AuditCheckpoint]:
    """Describe listCheckpoints of cstp.v1.AuditService."""
    return PagedCall("cstp.listCheckpoints", {"page_size": page_size}, "checkpoints")


def get_public_key() -> UnaryCall[audit_pb2.GetPublicKeyResponse]:
    """Describe getPublicKey of cstp.v1.AuditService."""
    return UnaryCall("cstp.getPublicKey", {})


def get_calibration(
    *,
    filters: types_pb2.DecisionFilters | Fields | None = None,
    all_agents: bool = False,
    group_by: Sequence[str] = (),
    oversee: bool = False,
) -> UnaryCall[calibration_pb2.GetCalibrationResponse]:
    """Describe getCalibration of cstp.v1.CalibrationService."""
    return UnaryCall(
        "cstp.getCalibration",
        {
            "filters": filters,
            "all_agents": all_agents,
            "group_by": group_by,
            "oversee": oversee,
        },
    )


def get_patterns(
    *,
    filters: types_pb2.DecisionFilters | Fields | None = None,
    all_agents: bool = False,
    limit: int = 0,
    oversee: bool = False,
) -> UnaryCall[calibration_pb2.GetPatternsResponse]:
    """Describe getPatterns of cstp.v1.CalibrationService."""
    return UnaryCall(
        "cstp.getPatterns",
        {
            "filters": filters,
            "all_agents": all_agents,
            "limit": limit,
            "oversee": oversee,
        },
    )


def erase_agent(agent: str, *, dry_run: bool = False) -> UnaryCall[erasure_pb2.EraseAgentResponse]:
    """Describe eraseAgent of cstp.v1.ErasureService."""
    return UnaryCall("cstp.eraseAgent", {"agent": agent, "dry_run": dry_run})


def erase_subject(subject: str, *, confirm: bool = False) -> UnaryCall[erasure_pb2.EraseSubjectResponse]:
    """Describe eraseSubject of cstp.v1.ErasureService."""
    return UnaryCall("cstp.eraseSubject", {"subject": subject, "confirm": confirm})


def list_guardrails(*, page_size: int = 0) -> PagedCall[guardrails_pb2.Guardrail]:
    """Describe listGuardrails of cstp.v1.GuardrailService."""
    return PagedCall("cstp.listGuardrails", {"page_size": page_size}, "guardrails")


def list_inputs(*, page_size: int = 0) -> PagedCall[guardrails_pb2.GuardrailInput]:
    """Describe listInputs of cstp.v1.GuardrailService."""
    return PagedCall("cstp.listInputs", {"page_size": page_size}, "inputs")


def get_rulebook() -> UnaryCall[guardrails_pb2.GetRulebookResponse]:
    """Describe getRulebook of cstp.v1.GuardrailService."""
    return UnaryCall("cstp.getRulebook", {})


def explain_guardrails(
    description: str,
    *,
    category: str | None = None,
    stakes: str | None = None,
    confidence: float | None = None,
    context: Mapping[str, Json] | None = None,
    project: str | None = None,
    command: str | None = None,
    shell: str | None = None,
    directory: str | None = None,
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
    acting_agent: str | None = None,
    permissions: Sequence[str] = (),
    at: datetime | None = None,
    guardrail_ids: Sequence[str] = (),
    page_size: int = 0,
) -> PagedCall[cstp_pb2.CheckGuardrailsResponse]:
    """Describe explainGuardrails of cstp.v1.GuardrailService."""
    return PagedCall(
        "cstp.explainGuardrails",
        {
            "action": {
                "description": description,
                "category": category,
                "stakes": stakes,
                "confidence": confidence,
                "context": context,
                "project": project,
                "command": command,
                "shell": shell,
                "directory": directory,
                "reads": reads,
                "writes": writes,
            },
            "acting_agent": acting_agent,
            "permissions": permissions,
            "at": at,
            "guardrail_ids": guardrail_ids,
            "page_size": page_size,
        },
        "verdict",
    )


def batch_check_guardrails(
    actions: Sequence[cstp_pb2.Action | Fields],
    *,
    agent: types_pb2.AgentInfo | Fields | None = None,
) -> UnaryCall[guardrails_pb2.BatchCheckGuardrailsResponse]:
    """Describe batchCheckGuardrails of cstp.v1.GuardrailService."""
    return UnaryCall("cstp.batchCheckGuardrails", {"actions": actions, "agent": agent})


def try_rulebook(
    rulebooks: Sequence[guardrails_pb2.RulebookText | Fields],
    *,
    actions: Sequence[cstp_pb2.Action | Fields] = (),
    acting_agent: str | None = None,
    permissions: Sequence[str] = (),
    at: datetime | None = None,
) -> UnaryCall[guardrails_pb2.TryRulebookResponse]:
    """Describe tryRulebook of cstp.v1.GuardrailService."""
    return UnaryCall(
        "cstp.tryRulebook",
        {
            "rulebooks": rulebooks,
            "actions": actions,
            "acting_agent": acting_agent,
            "permissions": permissions,
            "at": at,
        },
    )


def replay_rulebook(
    rulebooks: Sequence[guardrails_pb2.RulebookText | Fields],
    *,
    after: datetime | None = None,
    before: datetime | None = None,
    requesting_agent: str | None = None,
    examples: int | None = None,
) -> WatchCall[guardrails_pb2.ReplayRulebookResponse]:
    """Describe replayRulebook of cstp.v1.GuardrailService."""
    return WatchCall(
        "cstp.replayRulebook",
        {
            "rulebooks": rulebooks,
            "after": after,
            "before": before,
            "requesting_agent": requesting_agent,
            "examples": examples,
        },
        "",
        "",
    )


def record_decision(
    title: str,
    *,
    request_id: str | None = None,
    context: str | None = None,
    category: str | None = None,
    stakes: str | None = None,
    confidence: float | None = None,
    status: str | None = None,
    outcome: str | None = None,
    date: datetime | None = None,
    notes: str | None = None,
    reasons: Sequence[journal_pb2.Reason | Fields] = (),
    tags: Sequence[str] = (),
    project: str | None = None,
    visibility: str | None = None,
    review_by: datetime | None = None,
    links: journal_pb2.Links | Fields | None = None,
) -> UnaryCall[journal_pb2.Decision]:
    """Describe recordDecision of cstp.v1.JournalService."""
    return UnaryCall(
        "cstp.recordDecision",
        {
            "request_id": request_id,
            "decision": {
                "title": title,
                "context": context,
                "category": category,
                "stakes": stakes,
                "confidence": confidence,
                "status": status,
                "outcome": outcome,
                "date": date,
                "notes": notes,
                "reasons": reasons,
                "tags": tags,
                "project": project,
                "visibility": visibility,
                "review_by": review_by,
            },
            "links": links,
        },
        "decision",
    )


def get_decision(id: str, *, oversee: bool = False) -> UnaryCall[journal_pb2.Decision]:
    """Describe getDecision of cstp.v1.JournalService."""
    return UnaryCall("cstp.getDecision", {"id": id, "oversee": oversee}, "decision")


def list_decisions(
    *,
    page_size: int = 0,
    filters: types_pb2.DecisionFilters | Fields | None = None,
    review_due: bool = False,
    id_prefix: str | None = None,
    oversee: bool = False,
) -> PagedCall[journal_pb2.Decision]:
    """Describe listDecisions of cstp.v1.JournalService."""
    return PagedCall(
        "cstp.listDecisions",
        {
            "page_size": page_size,
            "filters": filters,
            "review_due": review_due,
            "id_prefix": id_prefix,
            "oversee": oversee,
        },
        "decisions",
    )


def review_decision(
    id: str,
    outcome: str,
    *,
    notes: str | None = None,
    request_id: str | None = None,
) -> UnaryCall[journal_pb2.Decision]:
    """Describe reviewDecision of cstp.v1.JournalService."""
    return UnaryCall(
        "cstp.reviewDecision",
        {
            "id": id,
            "outcome": outcome,
            "notes": notes,
            "request_id": request_id,
        },
        "decision",
    )


def update_decision(
    id: str,
    *,
    title: str | None = None,
    context: str | None = None,
    category: str | None = None,
    stakes: str | None = None,
    confidence: float | None = None,
    status: str | None = None,
    date: datetime | None = None,
    reasons: Sequence[journal_pb2.Reason | Fields] = (),
    tags: Sequence[str] = (),
    project: str | None = None,
    review_by: datetime | None = None,
    update_mask: Sequence[str] | None = None,
    expected_revision: int | None = None,
) -> UnaryCall[journal_pb2.Decision]:
    """Describe updateDecision of cstp.v1.JournalService."""
    return UnaryCall(
        "cstp.updateDecision",
        {
            "id": id,
            "changes": {
                "title": title,
                "context": context,
                "category": category,
                "stakes": stakes,
                "confidence": confidence,
                "status": status,
                "date": date,
                "reasons": reasons,
                "tags": tags,
                "project": project,
                "review_by": review_by,
            },
            "update_mask": update_mask,
            "expected_revision": expected_revision,
        },
        "decision",
    )


def delete_decision(id: str) -> UnaryCall[journal_pb2.DeleteDecisionResponse]:
    """Describe deleteDecision of cstp.v1.JournalService."""
    return UnaryCall("cstp.deleteDecision", {"id": id})


def link_decisions(
    id: str,
    *,
    add: journal_pb2.Links | Fields | None = None,
    remove: journal_pb2.Links | Fields | None = None,
) -> UnaryCall[journal_pb2.Decision]:
    """Describe linkDecisions of cstp.v1.JournalService."""
    return UnaryCall("cstp.linkDecisions", {"id": id, "add": add, "remove": remove}, "decision")


def get_decision_graph(
    id: str,
    *,
    depth: int = 0,
    max_nodes: int = 0,
    oversee: bool = False,
) -> UnaryCall[journal_pb2.GetDecisionGraphResponse]:
    """Describe getDecisionGraph of cstp.v1.JournalService."""
    return UnaryCall(
        "cstp.getDecisionGraph",
        {
            "id": id,
            "depth": depth,
            "max_nodes": max_nodes,
            "oversee": oversee,
        },
    )


def find_duplicate_decisions(
    *,
    filters: types_pb2.DecisionFilters | Fields | None = None,
    min_similarity: float | None = None,
    limit: int = 0,
) -> UnaryCall[journal_pb2.FindDuplicateDecisionsResponse]:
    """Describe findDuplicateDecisions of cstp.v1.JournalService."""
    return UnaryCall(
        "cstp.findDuplicateDecisions",
        {
            "filters": filters,
            "min_similarity": min_similarity,
            "limit": limit,
        },
    )


def explain_search(
    query: str,
    *,
    filters: types_pb2.DecisionFilters | Fields | None = None,
    limit: int | None = None,
    min_score: float | None = None,
    expected: Sequence[str] = (),
) -> UnaryCall[journal_pb2.ExplainSearchResponse]:
    """Describe explainSearch of cstp.v1.JournalService."""
    return UnaryCall(
        "cstp.explainSearch",
        {
            "query": query,
            "filters": filters,
            "limit": limit,
            "min_score": min_score,
            "expected": expected,
        },
    )


def compact_decisions(
    *,
    filters: types_pb2.DecisionFilters | Fields | None = None,
    min_decisions: int | None = None,
    dry_run: bool = False,
) -> UnaryCall[journal_pb2.CompactDecisionsResponse]:
    """Describe compactDecisions of cstp.v1.JournalService."""
    return UnaryCall(
        "cstp.compactDecisions",
        {
            "filters": filters,
            "min_decisions": min_decisions,
            "dry_run": dry_run,
        },
    )


def export_decisions(
    *,
    filters: types_pb2.DecisionFilters | Fields | None = None,
    include_deleted: bool = False,
) -> WatchCall[journal_pb2.Decision]:
    """Describe exportDecisions of cstp.v1.JournalService."""
    return WatchCall(
        "cstp.exportDecisions",
        {"filters": filters, "include_deleted": include_deleted},
        "decision",
        "",
    )


def watch_decisions(
    *,
    filters: types_pb2.DecisionFilters | Fields | None = None,
    after: str | None = None,
    oversee: bool = False,
) -> WatchCall[journal_pb2.WatchDecisionsResponse]:
    """Describe watchDecisions of cstp.v1.JournalService."""
    return WatchCall(
        "cstp.watchDecisions",
        {"filters": filters, "after": after, "oversee": oversee},
        "",
        "journal_revision",
    )


def share_decision(id: str) -> UnaryCall[journal_pb2.Decision]:
    """Describe shareDecision of cstp.v1.JournalService."""
    return UnaryCall("cstp.shareDecision", {"id": id}, "decision")


def unshare_decision(id: str) -> UnaryCall[journal_pb2.Decision]:
    """Describe unshareDecision of cstp.v1.JournalService."""
    return UnaryCall("cstp.unshareDecision", {"id": id}, "decision")


def import_decisions() -> UploadCall[journal_pb2.ImportDecisionsRequest, journal_pb2.ImportResult]:
    """Describe importDecisions of cstp.v1.JournalService."""
    return UploadCall("cstp.importDecisions", "results")


def record_thought(
    text: str,
    *,
    decision_id: str | None = None,
    correlation_id: str | None = None,
    visibility: str | None = None,
    request_id: str | None = None,
) -> UnaryCall[journal_pb2.Thought]:
    """Describe recordThought of cstp.v1.JournalService."""
    return UnaryCall(
        "cstp.recordThought",
        {
            "text": text,
            "decision_id": decision_id,
            "correlation_id": correlation_id,
            "visibility": visibility,
            "request_id": request_id,
        },
        "thought",
    )


def list_thoughts(
    *,
    page_size: int = 0,
    decision_id: str | None = None,
    correlation_id: str | None = None,
    oversee: bool = False,
) -> PagedCall[journal_pb2.Thought]:
    """Describe listThoughts of cstp.v1.JournalService."""
    return PagedCall(
        "cstp.listThoughts",
        {
            "page_size": page_size,
            "decision_id": decision_id,
            "correlation_id": correlation_id,
            "oversee": oversee,
        },
        "thoughts",
    )


def delete_thought(id: str) -> UnaryCall[journal_pb2.DeleteThoughtResponse]:
    """Describe deleteThought of cstp.v1.JournalService."""
    return UnaryCall("cstp.deleteThought", {"id": id})


def pre_action(
    intent: str,
    *,
    context: str | None = None,
    category: str | None = None,
    stakes: str | None = None,
    confidence: float | None = None,
    agent: types_pb2.AgentInfo | Fields | None = None,
    correlation_id: str | None = None,
    metadata: Mapping[str, Json] | None = None,
    project: str | None = None,
    paths: Sequence[str] = (),
    scope: str | None = None,
    agents: Sequence[str] = (),
    min_journal_revision: str | None = None,
    visibility: str | None = None,
    command: str | None = None,
    shell: str | None = None,
    directory: str | None = None,
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
    decision: journal_pb2.DecisionContent | Fields | None = None,
    links: journal_pb2.Links | Fields | None = None,
) -> UnaryCall[pre_actions_pb2.PreActionResponse]:
    """Describe preAction of cstp.v1.PreActionService."""
    return UnaryCall(
        "cstp.preAction",
        {
            "announcement": {
                "intent": intent,
                "context": context,
                "category": category,
                "stakes": stakes,
                "confidence": confidence,
                "agent": agent,
                "correlation_id": correlation_id,
                "metadata": metadata,
                "project": project,
                "paths": paths,
                "scope": scope,
                "agents": agents,
                "min_journal_revision": min_journal_revision,
                "visibility": visibility,
                "command": command,
                "shell": shell,
                "directory": directory,
                "reads": reads,
                "writes": writes,
            },
            "decision": decision,
            "links": links,
        },
    )


def get_session_context(
    *,
    task: str | None = None,
    project: str | None = None,
    paths: Sequence[str] = (),
    max_tokens: int | None = None,
) -> UnaryCall[session_context_pb2.GetSessionContextResponse]:
    """Describe getSessionContext of cstp.v1.SessionContextService."""
    return UnaryCall(
        "cstp.getSessionContext",
        {
            "task": task,
            "project": project,
            "paths": paths,
            "max_tokens": max_tokens,
        },
    )


def get_ready_queue(
    *,
    reasons: Sequence[str] = (),
    project: str | None = None,
    limit: int | None = None,
) -> PagedCall[session_context_pb2.ReadyItem]:
    """Describe getReadyQueue of cstp.v1.SessionContextService."""
    return PagedCall(
        "cstp.getReadyQueue",
        {"reasons": reasons, "project": project, "limit": limit},
        "items",
        numbered=True,
    )


def list_agents(
    *,
    page_size: int = 0,
    since: datetime | None = None,
    agent: str | None = None,
) -> PagedCall[status_pb2.KnownAgent]:
    """Describe listAgents of cstp.v1.StatusService."""
    return PagedCall("cstp.listAgents", {"page_size": page_size, "since": since, "agent": agent}, "agents")


def list_peers(*, timeout_seconds: float | None = None) -> UnaryCall[status_pb2.ListPeersResponse]:
    """Describe listPeers of cstp.v1.StatusService."""
    return UnaryCall("cstp.listPeers", {"timeout_seconds": timeout_seconds})


def get_server_status() -> UnaryCall[status_pb2.GetServerStatusResponse]:
    """Describe getServerStatus of cstp.v1.StatusService."""
    return UnaryCall("cstp.getServerStatus", {})


def resolve_context(
    project: str,
    path: str,
    *,
    sections: Sequence[str] = (),
    compact: bool = False,
    with_pending: bool = False,
    max_tokens: int | None = None,
) -> UnaryCall[intent_layer_pb2.ResolveContextResponse]:
    """Describe resolveContext of intent_layer.v1.IntentLayerService."""
    return UnaryCall(
        "intentLayer.resolveContext",
        {
            "project": project,
            "path": path,
            "sections": sections,
            "compact": compact,
            "with_pending": with_pending,
            "max_tokens": max_tokens,
        },
    )


def list_nodes(project: str, *, page_size: int = 0) -> PagedCall[intent_layer_pb2.NodeSummary]:
    """Describe listNodes of intent_layer.v1.IntentLayerService."""
    return PagedCall("intentLayer.listNodes", {"project": project, "page_size": page_size}, "nodes")


def get_node(project: str, path: str) -> UnaryCall[intent_layer_pb2.GetNodeResponse]:
    """Describe getNode of intent_layer.v1.IntentLayerService."""
    return UnaryCall("intentLayer.getNode", {"project": project, "path": path})


def validate_nodes(project: str, *, paths: Sequence[str] = ()) -> UnaryCall[intent_layer_pb2.ValidateNodesResponse]:
    """Describe validateNodes of intent_layer.v1.IntentLayerService."""
    return UnaryCall("intentLayer.validateNodes", {"project": project, "paths": paths})


def place_fact(project: str, paths: Sequence[str]) -> UnaryCall[intent_layer_pb2.PlaceFactResponse]:
    """Describe placeFact of intent_layer.v1.IntentLayerService."""
    return UnaryCall("intentLayer.placeFact", {"project": project, "paths": paths})


def init_node(project: str, path: str, *, dry_run: bool = False) -> UnaryCall[intent_layer_pb2.InitNodeResponse]:
    """Describe initNode of intent_layer.v1.IntentLayerService."""
    return UnaryCall("intentLayer.initNode", {"project": project, "path": path, "dry_run": dry_run})


def report_learning(
    project: str,
    path: str,
    title: str,
    detail: str,
    type: str,
    *,
    agent_id: str | None = None,
    evidence: str | None = None,
    also_paths: Sequence[str] = (),
    operation: str | None = None,
) -> UnaryCall[intent_layer_pb2.Learning]:
    """Describe reportLearning of intent_layer.v1.IntentLayerService."""
    return UnaryCall(
        "intentLayer.reportLearning",
        {
            "project": project,
            "path": path,
            "type": type,
            "title": title,
            "detail": detail,
            "agent_id": agent_id,
            "evidence": evidence,
            "also_paths": also_paths,
            "operation": operation,
        },
        "learning",
    )


def list_learnings(
    project: str,
    *,
    states: Sequence[str] = (),
    types: Sequence[str] = (),
    path: str | None = None,
    page_size: int = 0,
) -> PagedCall[intent_layer_pb2.Learning]:
    """Describe listLearnings of intent_layer.v1.IntentLayerService."""
    return PagedCall(
        "intentLayer.listLearnings",
        {
            "project": project,
            "states": states,
            "types": types,
            "path": path,
            "page_size": page_size,
        },
        "learnings",
    )


def review_learning(
    project: str,
    id: str,
    verdict: str,
    *,
    reviewer: str | None = None,
    reason: str = "",
    edits: intent_layer_pb2.Edits | Fields | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> UnaryCall[intent_layer_pb2.ReviewLearningResponse]:
    """Describe reviewLearning of intent_layer.v1.IntentLayerService."""
    return UnaryCall(
        "intentLayer.reviewLearning",
        {
            "project": project,
            "id": id,
            "verdict": verdict,
            "reviewer": reviewer,
            "reason": reason,
            "edits": edits,
            "force": force,
            "dry_run": dry_run,
        },
    )


def open_session(
    *,
    user_id: str | None = None,
    chat_session_id: str | None = None,
    context: Mapping[str, Json] | None = None,
) -> UnaryCall[liaison_pb2.OpenSessionResponse]:
    """Describe openSession of liaison.v1.LiaisonService."""
    return UnaryCall(
        "liaison.openSession",
        {
            "user_id": user_id,
            "chat_session_id": chat_session_id,
            "context": context,
        },
    )


def get_session(
    chat_session_id: str | None = None,
    *,
    user_id: str | None = None,
) -> UnaryCall[liaison_pb2.ChatSession]:
    """Describe getSession of liaison.v1.LiaisonService."""
    return UnaryCall("liaison.getSession", {"chat_session_id": chat_session_id, "user_id": user_id}, "chat_session")


def list_sessions(
    *,
    user_id: str | None = None,
    active_agent: str | None = None,
    status: str | None = None,
    page_size: int = 0,
) -> PagedCall[liaison_pb2.ChatSession]:
    """Describe listSessions of liaison.v1.LiaisonService."""
    return PagedCall(
        "liaison.listSessions",
        {
            "user_id": user_id,
            "active_agent": active_agent,
            "status": status,
            "page_size": page_size,
        },
        "chat_sessions",
    )


def append_message(
    chat_session_id: str,
    content: str,
    role: str,
    *,
    metadata: Mapping[str, Json] | None = None,
    message_id: str | None = None,
    claim_number: int | None = None,
) -> UnaryCall[liaison_pb2.ChatMessage]:
    """Describe appendMessage of liaison.v1.LiaisonService."""
    return UnaryCall(
        "liaison.appendMessage",
        {
            "chat_session_id": chat_session_id,
            "role": role,
            "content": content,
            "metadata": metadata,
            "message_id": message_id,
            "claim_number": claim_number,
        },
        "message",
    )


def list_messages(chat_session_id: str, *, page_size: int = 0) -> PagedCall[liaison_pb2.ChatMessage]:
    """Describe listMessages of liaison.v1.LiaisonService."""
    return PagedCall(
        "liaison.listMessages",
        {
            "chat_session_id": chat_session_id,
            "page_size": page_size,
        },
        "messages",
    )


def update_context(
    chat_session_id: str,
    context: Mapping[str, Json],
    *,
    version: int | None = None,
    claim_number: int | None = None,
) -> UnaryCall[liaison_pb2.ChatSession]:
    """Describe updateContext of liaison.v1.LiaisonService."""
    return UnaryCall(
        "liaison.updateContext",
        {
            "chat_session_id": chat_session_id,
            "context": context,
            "version": version,
            "claim_number": claim_number,
        },
        "chat_session",
    )


def close_session(chat_session_id: str, *, version: int | None = None) -> UnaryCall[liaison_pb2.ChatSession]:
    """Describe closeSession of liaison.v1.LiaisonService."""
    return UnaryCall(
        "liaison.closeSession",
        {"chat_session_id": chat_session_id, "version": version},
        "chat_session",
    )


def delete_session(chat_session_id: str) -> UnaryCall[liaison_pb2.DeleteSessionResponse]:
    """Describe deleteSession of liaison.v1.LiaisonService."""
    return UnaryCall("liaison.deleteSession", {"chat_session_id": chat_session_id})


def delete_user_sessions(user_id: str) -> UnaryCall[liaison_pb2.DeleteUserSessionsResponse]:
    """Describe deleteUserSessions of liaison.v1.LiaisonService."""
    return UnaryCall("liaison.deleteUserSessions", {"user_id": user_id})


def route_to_liaison_agent(
    target_pillar: str,
    *,
    chat_session_id: str | None = None,
    routing_reason: str | None = None,
    context_to_share: Mapping[str, Json] | None = None,
    user_id: str | None = None,
) -> UnaryCall[liaison_pb2.RouteToLiaisonAgentResponse]:
    """Describe routeToLiaisonAgent of liaison.v1.LiaisonService."""
    return UnaryCall(
        "liaison.routeToLiaisonAgent",
        {
            "target_pillar": target_pillar,
            "chat_session_id": chat_session_id,
            "routing_reason": routing_reason,
            "context_to_share": context_to_share,
            "user_id": user_id,
        },
    )


def return_to_guide(
    chat_session_id: str,
    *,
    reason: str | None = None,
    version: int | None = None,
    claim_number: int | None = None,
) -> UnaryCall[liaison_pb2.ReturnToGuideResponse]:
    """Describe returnToGuide of liaison.v1.LiaisonService."""
    return UnaryCall(
        "liaison.returnToGuide",
        {
            "chat_session_id": chat_session_id,
            "reason": reason,
            "version": version,
            "claim_number": claim_number,
        },
    )


def share_context_to_agent(
    source_agent: str,
    target_agent: str,
    shared_context: Mapping[str, Json],
    *,
    conversation_id: str | None = None,
    idempotency_key: str | None = None,
) -> UnaryCall[liaison_pb2.ShareContextToAgentResponse]:
    """Describe shareContextToAgent of liaison.v1.LiaisonService."""
    return UnaryCall(
        "liaison.shareContextToAgent",
        {
            "source_agent": source_agent,
            "target_agent": target_agent,
            "shared_context": shared_context,
            "conversation_id": conversation_id,
            "idempotency_key": idempotency_key,
        },
    )


def get_share(share_id: str) -> UnaryCall[liaison_pb2.Share]:
    """Describe getShare of liaison.v1.LiaisonService."""
    return UnaryCall("liaison.getShare", {"share_id": share_id}, "share")


def heartbeat(target_pillar: str, *, leaving: bool = False) -> UnaryCall[liaison_pb2.HeartbeatResponse]:
    """Describe heartbeat of liaison.v1.LiaisonService."""
    return UnaryCall("liaison.heartbeat", {"target_pillar": target_pillar, "leaving": leaving})


def list_liaison_agents(*, target_pillar: str | None = None) -> UnaryCall[liaison_pb2.ListLiaisonAgentsResponse]:
    """Describe listLiaisonAgents of liaison.v1.LiaisonService."""
    return UnaryCall("liaison.listLiaisonAgents", {"target_pillar": target_pillar})


def claim_session(
    chat_session_id: str,
    *,
    claimant: str | None = None,
) -> UnaryCall[liaison_pb2.ClaimSessionResponse]:
    """Describe claimSession of liaison.v1.LiaisonService."""
    return UnaryCall("liaison.claimSession", {"chat_session_id": chat_session_id, "claimant": claimant})


def list_events(
    *,
    chat_session_id: str | None = None,
    agent: str | None = None,
    types: Sequence[str] = (),
    after: int = 0,
    page_size: int = 0,
) -> PagedCall[liaison_pb2.Event]:
    """Describe listEvents of liaison.v1.LiaisonService."""
    return PagedCall(
        "liaison.listEvents",
        {
            "chat_session_id": chat_session_id,
            "agent": agent,
            "types": types,
            "after": after,
            "page_size": page_size,
        },
        "events",
        numbered=True,
    )


def watch_events(
    *,
    chat_session_id: str | None = None,
    agent: str | None = None,
    types: Sequence[str] = (),
    after: int | None = None,
) -> WatchCall[liaison_pb2.Event]:
    """Describe watchEvents of liaison.v1.LiaisonService."""
    return WatchCall(
        "liaison.watchEvents",
        {
            "chat_session_id": chat_session_id,
            "agent": agent,
            "types": types,
            "after": after,
        },
        "event",
        "sequence",
        "liaison.listEvents",
    )
