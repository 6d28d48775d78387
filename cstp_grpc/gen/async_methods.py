"""A method for every call of the contract in an event loop; each raises CstpError."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from cstp_grpc.contract.calls import AsyncCallExecutor, Fields, Json, OnFailure
from cstp_grpc.gen import calls

if TYPE_CHECKING:
    from cstp_grpc.gen.cstp.v1 import access_pb2, admin_pb2, approvals_pb2, audit_pb2, calibration_pb2, cstp_pb2, erasure_pb2, guardrails_pb2, intents_pb2, journal_pb2, pre_actions_pb2, session_context_pb2, status_pb2, types_pb2
    from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2
    from cstp_grpc.gen.liaison.v1 import liaison_pb2


class AsyncCstp:
    """The methods of cstp.v1.AccessService, cstp.v1.AdminService, cstp.v1.ApprovalService, cstp.v1.IntentService,
    cstp.v1.CstpService, cstp.v1.AuditService, cstp.v1.CalibrationService, cstp.v1.ErasureService,
    cstp.v1.GuardrailService, cstp.v1.JournalService, cstp.v1.PreActionService, cstp.v1.SessionContextService,
    cstp.v1.StatusService.
    """

    def __init__(self, caller: AsyncCallExecutor) -> None:
        self._caller = caller

    async def get_access(self, *, timeout: float | None = None) -> access_pb2.GetAccessResponse:
        """Returns the agent that the caller's token identifies, with its permissions, guardrails and limits.

        Args:
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_access()
        return await self._caller.make(call, timeout=timeout)

    async def create_token(
        self,
        request_id: str,
        agent: str,
        permissions: Sequence[str],
        *,
        expires_at: datetime | None = None,
        note: str | None = None,
        timeout: float | None = None,
    ) -> admin_pb2.CreateTokenResponse:
        """Makes a token for an agent and answers with its secret, which is kept nowhere and cannot be had again.

        A repetition with the same requestId makes no other token: it gives this one a new secret in place of the one
        before, as long as nobody has used it and ten minutes are not over. Errors: PERMISSION_DENIED for a permission
        that the caller lacks; CONFLICT for a requestId that was used otherwise or too long ago, for an agent of another
        tenant, for a name that looks like that of another agent, and for an agent with 20 tokens that can be used;
        INVALID_ARGUMENT for a reserved name, one with stray spaces or letters of several alphabets, or an end in the
        past or too far ahead.

        Args:
            request_id: Chosen by the caller at random, to make a repetition safe: 1 to 128 visible ASCII characters.
            agent: The agent that it identifies; 1 to 200 characters.
            permissions: Permissions of the token; at least one, and only those of the caller. One of query, check,
                announce, record, review, admin, any, converse, route, erase, approve, oversee, migrate.
            expires_at: When it expires. [default: after `auth.managed_tokens.default_days`]
            note: Its purpose; 1 to 200 characters.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.create_token(request_id, agent, permissions, expires_at=expires_at, note=note)
        return await self._caller.make(call, timeout=timeout)

    def list_tokens(
        self,
        *,
        page_size: int = 0,
        agent: str | None = None,
        with_ended: bool = False,
        id_prefix: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[admin_pb2.AgentToken]:
        """Lists tokens without their secrets, the newest first, page by page.

        Errors: INVALID_ARGUMENT for a page token of other conditions. Yields one after another and fetches pages as
        they are needed.

        Args:
            page_size: Of each page: maximum number of items in the page, at most 1000. [default: 50]
            agent: Of exactly this agent.
            with_ended: True lists those too that were revoked or have expired.
            id_prefix: Only items whose identifiers begin with this text; 4 to 64 visible ASCII characters.
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_tokens(page_size=page_size, agent=agent, with_ended=with_ended, id_prefix=id_prefix)
        return self._caller.pages(call, timeout=timeout)

    async def rotate_token(
        self,
        request_id: str,
        id: str,
        *,
        keep_seconds: int | None = None,
        expires_at: datetime | None = None,
        timeout: float | None = None,
    ) -> admin_pb2.RotateTokenResponse:
        """Makes another token with the agent, permissions and note of one that can be used, and lets that one end a
        while later.

        A repetition is answered as that of CreateToken. Errors: NOT_FOUND; PERMISSION_DENIED for a token with a
        permission that the caller lacks; CONFLICT for a token that has ended, and as CreateToken.

        Args:
            request_id: As for CreateToken.
            id: The identifier of the token.
            keep_seconds: Seconds for which the old token is still accepted, up to 30 days and at most until it expires;
                0 revokes it at once. [default: one hour]
            expires_at: When the new token expires. [default: the lifetime of the old one]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.rotate_token(request_id, id, keep_seconds=keep_seconds, expires_at=expires_at)
        return await self._caller.make(call, timeout=timeout)

    async def revoke_token(self, id: str, *, timeout: float | None = None) -> admin_pb2.AgentToken:
        """Ends a token at once.

        Revoking it again changes nothing. Errors: NOT_FOUND.

        Args:
            id: Its identifier.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.revoke_token(id)
        return await self._caller.make(call, timeout=timeout)

    async def get_approval(self, id: str, *, timeout: float | None = None) -> approvals_pb2.Approval:
        """Returns an approval request with the whole action that it is about.

        Errors: NOT_FOUND for one that does not exist or is another agent's, unless the caller has the permission
        `approve`.

        Args:
            id: Its identifier.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_approval(id)
        return await self._caller.make(call, timeout=timeout)

    def list_approvals(
        self,
        *,
        page_size: int = 0,
        status: Sequence[str] = (),
        agent: str | None = None,
        digest: str | None = None,
        id_prefix: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[approvals_pb2.Approval]:
        """Lists approval requests, latest first, page by page: those of the caller, and with the permission `approve`
        those of every agent.

        Errors: INVALID_ARGUMENT for a token of other conditions. Yields one after another and fetches pages as they are
        needed.

        Args:
            page_size: Of each page: maximum number of items in the page, at most 1000. [default: 50]
            status: In any of these states. One of pending, granted, denied, used, expired, revoked.
            agent: Of exactly this agent.
            digest: About exactly this action.
            id_prefix: Only items whose identifiers begin with this text; 4 to 64 visible ASCII characters.
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_approvals(page_size=page_size, status=status, agent=agent, digest=digest, id_prefix=id_prefix)
        return self._caller.pages(call, timeout=timeout)

    async def grant_approval(
        self,
        id: str,
        *,
        comment: str | None = None,
        reusable_until: datetime | None = None,
        timeout: float | None = None,
    ) -> approvals_pb2.Approval:
        """Grants an approval for the guardrails on which the caller may decide; it is granted once it is for all that
        ask.

        Granting it again changes nothing. Errors: NOT_FOUND; PERMISSION_DENIED for a request of the caller's own, and
        where every guardrail that asks names other approvers; CONFLICT where it is not pending; INVALID_ARGUMENT for a
        reusableUntil in the past or too far ahead.

        Args:
            id: Its identifier.
            comment: Comment for the agent and other approvers; 1 to 2000 characters.
            reusable_until: Until when the approval can be used any number of times. If several people grant it, the
                earliest of their instants counts, and it can be used once if one of them gives none. [default: it can
                be used once]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.grant_approval(id, comment=comment, reusable_until=reusable_until)
        return await self._caller.make(call, timeout=timeout)

    async def deny_approval(
        self,
        id: str,
        *,
        comment: str | None = None,
        timeout: float | None = None,
    ) -> approvals_pb2.Approval:
        """Denies an approval, for one of the guardrails that ask or all: until the request expires, checks and
        announcements of the action are answered with the comment.

        Denying it again changes nothing. Errors: NOT_FOUND; PERMISSION_DENIED as for GrantApproval; CONFLICT where it
        is not pending.

        Args:
            id: Its identifier.
            comment: Why; 1 to 2000 characters.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.deny_approval(id, comment=comment)
        return await self._caller.make(call, timeout=timeout)

    async def revoke_approval(
        self,
        id: str,
        *,
        comment: str | None = None,
        timeout: float | None = None,
    ) -> approvals_pb2.Approval:
        """Revokes an approval that is not used up, or a denial.

        The next check of the action makes a new request. Revoking it again changes nothing. Errors: NOT_FOUND;
        PERMISSION_DENIED as for GrantApproval; CONFLICT if it is neither granted nor denied.

        Args:
            id: Its identifier.
            comment: Why; 1 to 2000 characters.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.revoke_approval(id, comment=comment)
        return await self._caller.make(call, timeout=timeout)

    def watch_approvals(
        self,
        *,
        status: Sequence[str] = (),
        agent: str | None = None,
        after: str | None = None,
        resume: bool = True,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[approvals_pb2.WatchApprovalsResponse, None]:
        """Answers each approval request that the caller may read whenever it has changed, until the caller ends the
        call; of changes in a row perhaps the last one alone.

        The first answer has a resume token alone and says where the watch begins. A watch that is opened with the token
        of any answer goes on there, on any server of this agent. Errors: INVALID_ARGUMENT for a token of another
        journal, RATE_LIMITED for too many watches, UNAVAILABLE if the server stops or the caller takes nothing for
        long. Yields each as it comes, over gRPC only. After a passing failure a watch goes on by itself behind the last
        one that was seen, pausing as the client's RetryPolicy says, anew after each, for as long as it takes.

        Args:
            status: In any of these states, as they are read. One of pending, granted, denied, used, expired, revoked.
            agent: Of exactly this agent.
            after: Resume token of a response; the watch continues after it. [default: now]
            resume: Whether it goes on after a passing failure; it is else raised.
            on_failure: Is told each such failure, and how many seconds the pause is.
            timeout: Seconds after which it ends with DeadlineExceeded; without an end when absent.
        """
        call = calls.watch_approvals(status=status, agent=agent, after=after)
        return self._caller.watch(call, resume=resume, on_failure=on_failure, timeout=timeout)

    async def close_intent(
        self,
        correlation_id: str,
        outcome: str,
        *,
        notes: str | None = None,
        decision_id: str | None = None,
        revision: int | None = None,
        timeout: float | None = None,
    ) -> intents_pb2.CloseIntentResponse:
        """Closes an intent of the caller: it is done, failed or given up.

        Repeating the call changes nothing; another closing of the same revision is refused. Errors: NOT_FOUND where the
        caller announced no such intent or revision, or may not read the decision; CONFLICT where it is closed in
        another way.

        Args:
            correlation_id: The correlation id under which the caller announced it: 1 to 128 visible ASCII characters.
            outcome: How it turned out. One of success, failure, partial, abandoned.
            notes: Notes; 1 to 2000 characters.
            decision_id: The resulting decision; the caller must be able to read it.
            revision: The revision to close, from 1. A caller that may announce another revision should state it, so
                that a repeated call does not close that one. [default: the latest]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.close_intent(correlation_id, outcome, notes=notes, decision_id=decision_id, revision=revision)
        return await self._caller.make(call, timeout=timeout)

    def watch_intents(
        self,
        *,
        agent: str | None = None,
        category: str | None = None,
        stakes: Sequence[str] = (),
        project: str | None = None,
        after: str | None = None,
        oversee: bool = False,
        resume: bool = True,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[intents_pb2.WatchIntentsResponse, None]:
        """Answers each intent as it is announced, of the caller and of agents that share theirs, until the caller ends
        the call.

        The first answer has a resume token alone and says where the watch begins. A watch that is opened with the token
        of any answer goes on there, on any server of this agent, and may repeat what was announced while another
        announcement was being stored. Errors: INVALID_ARGUMENT for a token of another journal, RATE_LIMITED for too
        many watches, UNAVAILABLE if the server stops or the caller takes nothing for long. Yields each as it comes,
        over gRPC only. After a passing failure a watch goes on by itself behind the last one that was seen, pausing as
        the client's RetryPolicy says, anew after each, for as long as it takes.

        Args:
            agent: Announced by exactly this agent.
            category: Of exactly this category.
            stakes: With any of these stakes. One of low, medium, high, critical.
            project: About exactly this project.
            after: Resume token of a response; the watch continues after it. [default: now]
            oversee: True follows those of every agent, private ones too, without contexts and metadata. It needs the
                permission `oversee`, and the audit trail records the call. Errors: PERMISSION_DENIED.
            resume: Whether it goes on after a passing failure; it is else raised.
            on_failure: Is told each such failure, and how many seconds the pause is.
            timeout: Seconds after which it ends with DeadlineExceeded; without an end when absent.
        """
        call = calls.watch_intents(
            agent=agent,
            category=category,
            stakes=stakes,
            project=project,
            after=after,
            oversee=oversee,
        )
        return self._caller.watch(call, resume=resume, on_failure=on_failure, timeout=timeout)

    async def announce_intent(
        self,
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
        timeout: float | None = None,
    ) -> cstp_pb2.AnnounceIntentResponse:
        """Announces an intent, records it, and returns similar past decisions, the verdict of the guardrails and
        suggestions; with paths, also the nodes that govern their code.

        Another content under the same correlation id is a revision of the intent. Errors: QUERY_FAILED,
        GUARDRAIL_EVAL_FAILED (the intent is recorded all the same), NOT_FOUND for an unknown project, and RATE_LIMITED
        as for CheckGuardrails.

        Args:
            intent: The intended action; 1 to 8000 characters, not blank.
            context: Further text that is searched together with the intent; at most 20000 characters.
            category: The category of the decision; similar decisions of this category come first.
            stakes: Stakes of the action. [default: medium] One of low, medium, high, critical.
            confidence: How sure the agent is, 0 to 1.
            agent: Who the agent says it is.
            correlation_id: Chosen by the caller to tie announcements and answers together: 1 to 128 visible ASCII
                characters. Generated when absent. The content that the caller announced last under it, announced again,
                is a repetition, which is recorded once; any other content is a revision. Ids of other agents are other
                ids.
            metadata: Structured data; the guardrails read it as `context`. At most 24 levels deep, and with as many
                values as that. Checks that `confirmedChecks` in it lists by their texts are not suggested.
            project: The configured project that contains the paths. [default: the only configured project, if there are
                paths]
            paths: The files and folders that the agent is about to touch, relative to the project's root; at most 100,
                each of 1 to 4096 characters. They need not exist yet.
            scope: Who answers. [default: the configured scope for the category and stakes] One of local, federated.
            agents: The peers to ask where the scope is federated; when empty, all that speak for the category. Required
                peers that do are always asked. At most 32.
            min_journal_revision: The journalRevision of an earlier response to this agent: the search covers the
                journal at that revision or later, on whichever server. 1 to 100 characters; without it, recent writes
                of other servers may be missing. It is not sent to peers. Nothing is recorded if the server cannot reach
                the revision.
            visibility: Visibility of the intent. If it is shared, other agents that announce a similar intent within 24
                hours can read its text, category, stakes, project, paths, verdict and closing. A shared and a private
                announcement have different contents: announcing it again as private hides it. It is not sent to peers.
                [default: as configured for the agent, otherwise private] One of private, shared.
            command: The command that is about to run, as the shell gets it; 1 to 65536 characters. Guardrails read its
                structure.
            shell: The language of the command. [default: bash] One of bash, powershell.
            directory: The absolute folder in which the command runs; at most 4096 characters. Paths inside it count as
                the project.
            reads: The files that a tool is about to read, absolute or relative to the directory; at most 100.
            writes: The files that a tool is about to write, likewise.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.announce_intent(
            intent,
            context=context,
            category=category,
            stakes=stakes,
            confidence=confidence,
            agent=agent,
            correlation_id=correlation_id,
            metadata=metadata,
            project=project,
            paths=paths,
            scope=scope,
            agents=agents,
            min_journal_revision=min_journal_revision,
            visibility=visibility,
            command=command,
            shell=shell,
            directory=directory,
            reads=reads,
            writes=writes,
        )
        return await self._caller.make(call, timeout=timeout)

    async def query_decisions(
        self,
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
        timeout: float | None = None,
    ) -> cstp_pb2.QueryDecisionsResponse:
        """Finds past decisions that resemble a text, most similar first, among the shared ones and the caller's own.

        Errors: QUERY_FAILED.

        Args:
            query: Search text; 1 to 8000 characters, not blank.
            filters: Conditions that answers must meet.
            limit: Maximum number of decisions, 1 to 50. The server's configured maximum caps it. [default: 10]
            min_score: Minimum score of a result, 0 to 1. [default: the configured score, 0.1 unless changed, for the
                best result, and others need half of it and a tenth of the best score]
            include_reasons: Whether to answer with the types of the decisions' reasons. Their texts are never part of a
                query's answer.
            agent: Who the agent says it is.
            scope: Who answers. [default: the configured scope for the category and stakes] One of local, federated.
            agents: The peers to ask where the scope is federated; when empty, all that speak for the category, or all
                of them if none is filtered by. At most 32.
            min_journal_revision: The journalRevision of an earlier response to this agent: the search covers the
                journal at that revision or later, on whichever server. 1 to 100 characters; without it, recent writes
                of other servers may be missing. It is not sent to peers.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.query_decisions(
            query,
            filters=filters,
            limit=limit,
            min_score=min_score,
            include_reasons=include_reasons,
            agent=agent,
            scope=scope,
            agents=agents,
            min_journal_revision=min_journal_revision,
        )
        return await self._caller.make(call, timeout=timeout)

    async def check_guardrails(
        self,
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
        timeout: float | None = None,
    ) -> cstp_pb2.CheckGuardrailsResponse:
        """Evaluates an action against the guardrails and records the check.

        Errors: GUARDRAIL_EVAL_FAILED if there is no usable rule set; a single rule that cannot be evaluated is a
        violation instead. RATE_LIMITED if the action needs an approval and the caller has too many pending approval
        requests.

        Args:
            description: In words; 1 to 8000 characters, not blank.
            category: The category of the decision.
            stakes: Stakes of the action. [default: medium] One of low, medium, high, critical.
            confidence: How sure the agent is, 0 to 1.
            context: The inputs of the guardrails, by their names in snake case or camel case. A null means absent. At
                most 24 levels deep, and with at most 2000 values unless the server is configured otherwise.
            project: The project that the action is about, for guardrails that are about some projects only. It need not
                be one that the server is configured with.
            command: The command that is about to run, as the shell gets it; 1 to 65536 characters. Guardrails read its
                structure.
            shell: The language of the command. [default: bash] One of bash, powershell.
            directory: The absolute folder in which the command runs; at most 4096 characters. Paths inside it count as
                the project.
            reads: The files that a tool is about to read, absolute or relative to the directory; at most 100.
            writes: The files that a tool is about to write, likewise.
            agent: Who the agent says it is.
            scope: Who answers. [default: the configured scope for the category and stakes] One of local, federated.
            agents: The peers to ask where the scope is federated; when empty, all that speak for the category. Required
                peers that do are always asked. At most 32.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.check_guardrails(
            description,
            category=category,
            stakes=stakes,
            confidence=confidence,
            context=context,
            project=project,
            command=command,
            shell=shell,
            directory=directory,
            reads=reads,
            writes=writes,
            agent=agent,
            scope=scope,
            agents=agents,
        )
        return await self._caller.make(call, timeout=timeout)

    def list_audit_entries(
        self,
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
        timeout: float | None = None,
    ) -> AsyncIterator[audit_pb2.AuditEntry]:
        """Lists entries of the trail, latest first, page by page.

        Yields one after another and fetches pages as they are needed.

        Args:
            page_size: Of each page: maximum number of items in the page, at most 1000. [default: 50]
            event: About exactly this. One of guardrail_check, intent_announced, decision_recorded, decision_imported,
                decision_reviewed, decision_shared, decision_unshared, context_read, learning_reported,
                learning_reviewed, node_created, session_opened, session_context_updated, context_shared,
                session_routed, session_returned, session_claimed, session_closed, verdicts_merged, callback_sent,
                push_notification_sent, session_deleted, calls_refused, intent_closed, decision_updated,
                decision_linked, decision_deleted, approval_requested, approval_granted, approval_denied,
                approval_revoked, approval_used, approval_expired, token_created, token_rotated, token_revoked,
                agent_erased, content_removed, entries_removed, subject_erased, notification_sent, verification_failed,
                records_overseen.
            requesting_agent: Caused by exactly this agent.
            allowed: With exactly this verdict.
            guardrail_id: Where exactly this guardrail blocked, warned or was in a dry run.
            request_id: Caused by exactly this request.
            correlation_id: With exactly this correlation id.
            decision_id: About exactly this decision.
            after: At this instant or later.
            before: At this instant or earlier.
            error: That failed for exactly this reason, an ErrorReason without its prefix.
            approval_id: About exactly this approval.
            words: Whose action contains each of these words, in upper or lower case (of ASCII).
            category: Whose evaluated action has exactly this category. Actions that are not stored never match, nor do
                the next two.
            stakes: Whose evaluated action has any of these stakes. One of low, medium, high, critical.
            project: Whose evaluated action names exactly this project.
            with_total: True counts the matching entries too, which takes longer.
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_audit_entries(
            page_size=page_size,
            event=event,
            requesting_agent=requesting_agent,
            allowed=allowed,
            guardrail_id=guardrail_id,
            request_id=request_id,
            correlation_id=correlation_id,
            decision_id=decision_id,
            after=after,
            before=before,
            error=error,
            approval_id=approval_id,
            words=words,
            category=category,
            stakes=stakes,
            project=project,
            with_total=with_total,
        )
        return self._caller.pages(call, timeout=timeout)

    def list_judged_actions(
        self,
        *,
        page_size: int = 0,
        requesting_agent: str | None = None,
        allowed: bool | None = None,
        guardrail_id: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[audit_pb2.JudgedAction]:
        """Lists evaluated actions of checks and announcements, each with its rules and verdict: latest first, page by
        page.

        Use it to try another rulebook on them, as `cstp guardrails replay` does. Errors: INVALID_ARGUMENT for a token
        of other conditions, QUERY_FAILED. Yields one after another and fetches pages as they are needed.

        Args:
            page_size: Of each page: maximum number of items in the page, at most 200. [default: 50]
            requesting_agent: Checked or announced by exactly this agent.
            allowed: With exactly this verdict.
            guardrail_id: Where exactly this guardrail blocked, warned or was in a dry run.
            after: Evaluated at this instant or later.
            before: Evaluated at this instant or earlier.
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_judged_actions(
            page_size=page_size,
            requesting_agent=requesting_agent,
            allowed=allowed,
            guardrail_id=guardrail_id,
            after=after,
            before=before,
        )
        return self._caller.pages(call, timeout=timeout)

    def list_intents(
        self,
        *,
        page_size: int = 0,
        agent: str | None = None,
        correlation_id: str | None = None,
        category: str | None = None,
        stakes: Sequence[str] = (),
        after: datetime | None = None,
        before: datetime | None = None,
        closed: bool | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[audit_pb2.IntentRecord]:
        """Lists announced intents, latest first, page by page.

        A caller without the permission `admin` needs `oversee`: it gets them without their contexts, and the audit
        trail records the call. Yields one after another and fetches pages as they are needed.

        Args:
            page_size: Of each page: maximum number of items in the page, at most 1000. [default: 50]
            agent: Announced by exactly this agent.
            correlation_id: With exactly this correlation id.
            category: Of exactly this category.
            stakes: With any of these stakes. One of low, medium, high, critical.
            after: Received at this instant or later.
            before: Received at this instant or earlier.
            closed: Only closed ones where true, only open ones where false.
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_intents(
            page_size=page_size,
            agent=agent,
            correlation_id=correlation_id,
            category=category,
            stakes=stakes,
            after=after,
            before=before,
            closed=closed,
        )
        return self._caller.pages(call, timeout=timeout)

    async def summarize_audit(
        self,
        *,
        after: datetime | None = None,
        before: datetime | None = None,
        conditions: audit_pb2.AuditConditions | Fields | None = None,
        bucket: str | None = None,
        group_by: Sequence[str] = (),
        max_groups: int = 0,
        timeout: float | None = None,
    ) -> audit_pb2.SummarizeAuditResponse:
        """Counts entries of a period: in all, by hour or day, and by agent, guardrail, category and so on.

        A caller without the permission `admin` needs `oversee`, and the audit trail records the call. Errors:
        INVALID_ARGUMENT for a period of more than 1000 buckets; PERMISSION_DENIED for `words`, which need `admin`;
        QUERY_FAILED.

        Args:
            after: At this instant or later. [default: a day before `before`]
            before: At this instant or earlier. [default: now]
            conditions: Which entries count.
            bucket: Adds figures for each hour or day. At most 1000 buckets: 41 days by hour, 2 years by day. One of
                hour, day.
            group_by: Adds figures for each group, for each of these; each once. One of event, agent, guardrail,
                category, project, stakes.
            max_groups: Maximum number of groups of each kind, at most 100. [default: 20]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.summarize_audit(
            after=after,
            before=before,
            conditions=conditions,
            bucket=bucket,
            group_by=group_by,
            max_groups=max_groups,
        )
        return await self._caller.make(call, timeout=timeout)

    def watch_audit(
        self,
        *,
        conditions: audit_pb2.AuditConditions | Fields | None = None,
        after: str | None = None,
        resume: bool = True,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[audit_pb2.WatchAuditResponse, None]:
        """Streams each entry as it is added, until the caller ends the call.

        The first response has only a `resumeToken`: the position at which the watch begins. A watch that is opened with
        the token of any response continues after it, on any server of this agent. Errors: INVALID_ARGUMENT for a token
        of another trail, RATE_LIMITED for too many watches, UNAVAILABLE if the server stops or the caller does not read
        for long. Yields each as it comes, over gRPC only. After a passing failure a watch goes on by itself behind the
        last one that was seen, pausing as the client's RetryPolicy says, anew after each, for as long as it takes.

        Args:
            conditions: Which entries to send.
            after: Resume token of a response; the watch continues after it. [default: now]
            resume: Whether it goes on after a passing failure; it is else raised.
            on_failure: Is told each such failure, and how many seconds the pause is.
            timeout: Seconds after which it ends with DeadlineExceeded; without an end when absent.
        """
        call = calls.watch_audit(conditions=conditions, after=after)
        return self._caller.watch(call, resume=resume, on_failure=on_failure, timeout=timeout)

    def verify_audit(
        self,
        *,
        public_keys: Sequence[str] = (),
        checkpoints: Sequence[audit_pb2.AuditCheckpoint | Fields] = (),
        resume: bool = True,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[audit_pb2.VerifyAuditResponse, None]:
        """Verifies the whole trail as it is now, and streams the progress, each finding, and the report at the end.

        This server does it, so it convinces those who trust the server; others verify an export or the database.
        Errors: INVALID_ARGUMENT for a malformed key or checkpoint, RATE_LIMITED for too many long reads of the trail,
        QUERY_FAILED. Yields each as it comes, over gRPC only. After a passing failure a watch goes on by itself behind
        the last one that was seen, pausing as the client's RetryPolicy says, anew after each, for as long as it takes.

        Args:
            public_keys: PEM texts of the keys that may have signed checkpoints. [default: the key of this server]
            checkpoints: Checkpoints that were stored elsewhere, as ListCheckpoints has returned them.
            resume: Whether it goes on after a passing failure; it is else raised.
            on_failure: Is told each such failure, and how many seconds the pause is.
            timeout: Seconds after which it ends with DeadlineExceeded; without an end when absent.
        """
        call = calls.verify_audit(public_keys=public_keys, checkpoints=checkpoints)
        return self._caller.watch(call, resume=resume, on_failure=on_failure, timeout=timeout)

    def export_audit(
        self,
        *,
        format: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        resume: bool = True,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[audit_pb2.ExportAuditResponse, None]:
        """Streams the entries of a period as a document for other programs, in the order in which they were added, with
        their hashes.

        Errors: RATE_LIMITED for too many long reads of the trail, QUERY_FAILED. Yields each as it comes, over gRPC
        only. After a passing failure a watch goes on by itself behind the last one that was seen, pausing as the
        client's RetryPolicy says, anew after each, for as long as it takes.

        Args:
            format: Format of the document. [default: jsonl] One of jsonl, csv, cloudevents.
            after: At this instant or later.
            before: At this instant or earlier.
            resume: Whether it goes on after a passing failure; it is else raised.
            on_failure: Is told each such failure, and how many seconds the pause is.
            timeout: Seconds after which it ends with DeadlineExceeded; without an end when absent.
        """
        call = calls.export_audit(format=format, after=after, before=before)
        return self._caller.watch(call, resume=resume, on_failure=on_failure, timeout=timeout)

    def get_evidence(
        self,
        *,
        decision_id: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        public_keys: Sequence[str] = (),
        checkpoints: Sequence[audit_pb2.AuditCheckpoint | Fields] = (),
        resume: bool = True,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[audit_pb2.GetEvidenceResponse, None]:
        """Streams evidence about a decision or a period: a JSON document with the entries, the results, and the proof
        of each entry up to a signed checkpoint.

        It signs a checkpoint first, so that the latest entries can be proved at once. Errors: INVALID_ARGUMENT for more
        than 20 000 entries, RATE_LIMITED for too many long reads of the trail, QUERY_FAILED. Yields each as it comes,
        over gRPC only. After a passing failure a watch goes on by itself behind the last one that was seen, pausing as
        the client's RetryPolicy says, anew after each, for as long as it takes.

        Args:
            decision_id: Entries about this decision, its causes and its outcome.
            after: Entries at this instant or later.
            before: Entries at this instant or earlier.
            public_keys: PEM texts of the keys that may have signed checkpoints. [default: the key of this server]
            checkpoints: Checkpoints that were stored elsewhere, as ListCheckpoints has returned them.
            resume: Whether it goes on after a passing failure; it is else raised.
            on_failure: Is told each such failure, and how many seconds the pause is.
            timeout: Seconds after which it ends with DeadlineExceeded; without an end when absent.
        """
        call = calls.get_evidence(
            decision_id=decision_id,
            after=after,
            before=before,
            public_keys=public_keys,
            checkpoints=checkpoints,
        )
        return self._caller.watch(call, resume=resume, on_failure=on_failure, timeout=timeout)

    def list_checkpoints(
        self,
        *,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[audit_pb2.AuditCheckpoint]:
        """Lists the signed checkpoints of the trail, latest first, page by page.

        Errors: INVALID_ARGUMENT for a malformed token. Yields one after another and fetches pages as they are needed.

        Args:
            page_size: Of each page: maximum number of items in the page, at most 1000. [default: 50]
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_checkpoints(page_size=page_size)
        return self._caller.pages(call, timeout=timeout)

    async def get_public_key(self, *, timeout: float | None = None) -> audit_pb2.GetPublicKeyResponse:
        """Returns the public key of the checkpoints that this server signs; the key pair is created if it is missing.

        Args:
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_public_key()
        return await self._caller.make(call, timeout=timeout)

    async def get_calibration(
        self,
        *,
        filters: types_pb2.DecisionFilters | Fields | None = None,
        all_agents: bool = False,
        group_by: Sequence[str] = (),
        oversee: bool = False,
        timeout: float | None = None,
    ) -> calibration_pb2.GetCalibrationResponse:
        """Compares the confidences that agents stated with how their decisions turned out.

        A success counts as 1, a partial success as 0.5, a failure as 0; decisions that were abandoned, or that have no
        confidence or no outcome, are left out. With fewer decisions than `minimum` there are no figures. Errors:
        INVALID_ARGUMENT, QUERY_FAILED.

        Args:
            filters: Conditions that decisions must meet; without an agent, those of the caller are evaluated. `outcome`
                must be empty.
            all_agents: True evaluates the decisions of every agent, as far as the caller may read them.
            group_by: Adds figures for each group, for each of these; each once. One of agent, category, stakes, month.
            oversee: True reads the decisions of every agent, private ones too, without contexts and texts of reasons.
                It needs the permission `oversee`, and the audit trail records the call. Errors: PERMISSION_DENIED.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_calibration(filters=filters, all_agents=all_agents, group_by=group_by, oversee=oversee)
        return await self._caller.make(call, timeout=timeout)

    async def get_patterns(
        self,
        *,
        filters: types_pb2.DecisionFilters | Fields | None = None,
        all_agents: bool = False,
        limit: int = 0,
        oversee: bool = False,
        timeout: float | None = None,
    ) -> calibration_pb2.GetPatternsResponse:
        """Finds what decisions that failed have in common: reasons, tags, categories, stakes and projects that go with
        failure, and failures that resemble each other.

        Only a failure counts as one; successes and partial successes are the others; abandoned decisions are left out.
        Errors: INVALID_ARGUMENT, QUERY_FAILED.

        Args:
            filters: Conditions that decisions must meet; without an agent, those of the caller are read. `outcome` must
                be empty.
            all_agents: True reads the decisions of every agent, as far as the caller may read them.
            limit: Maximum number of factors and of groups of failures, each at most 100. [default: 20]
            oversee: True reads the decisions of every agent, private ones too, without contexts and texts of reasons.
                It needs the permission `oversee`, and the audit trail records the call. Errors: PERMISSION_DENIED.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_patterns(filters=filters, all_agents=all_agents, limit=limit, oversee=oversee)
        return await self._caller.make(call, timeout=timeout)

    async def erase_agent(
        self,
        agent: str,
        *,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> erasure_pb2.EraseAgentResponse:
        """Erases the data of an agent: its decisions with their reviews, vectors and links, its reviews of others'
        decisions, its thoughts, intents, approval requests, tasks, citations and notifications, and the contents of its
        audit entries and of entries about its decisions and requests.

        The identifiers of its decisions stay, and so do the agent, event and time of each audit entry. It works in
        batches: repeat a failed call, and it continues. Revoke the agent's tokens first, or it can leave new data. With
        `dryRun` it only counts. Errors: INVALID_ARGUMENT for a name that the server itself uses, PERMISSION_DENIED for
        an agent of another tenant, UNAVAILABLE.

        Args:
            agent: The agent, by the name of its tokens; 1 to 200 characters. It must belong to the caller's tenant; an
                agent that neither the configuration nor a token names any more belongs to the tenant `default`.
            dry_run: True erases nothing and returns how much would be erased.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.erase_agent(agent, dry_run=dry_run)
        return await self._caller.make(call, timeout=timeout)

    async def erase_subject(
        self,
        subject: str,
        *,
        confirm: bool = False,
        timeout: float | None = None,
    ) -> erasure_pb2.EraseSubjectResponse:
        """Erases what is kept about a subject, a user of chat sessions of the caller's tenant: the sessions with their
        contexts, messages, shared contexts, routings and events, and the contents of their entries in the audit trail,
        of which the identifiers stay.

        Without `confirm` nothing is erased, and the answer says how much there is. It is done in batches, so a call
        that fails is repeated and goes on. Errors: UNAVAILABLE.

        Args:
            subject: The user, by the user_id of its sessions, letter by letter; 1 to 200 characters.
            confirm: True erases it, for good; false and absent say how much there is.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.erase_subject(subject, confirm=confirm)
        return await self._caller.make(call, timeout=timeout)

    def list_guardrails(
        self,
        *,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[guardrails_pb2.Guardrail]:
        """Lists the guardrails in force, in the order in which violations are reported.

        What they compare is shown to callers with the permission `admin` only. Errors: INVALID_ARGUMENT for a token of
        other rules. Yields one after another and fetches pages as they are needed.

        Args:
            page_size: Of each page: maximum number of items in the page, at most 1000. [default: 50]
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_guardrails(page_size=page_size)
        return self._caller.pages(call, timeout=timeout)

    def list_inputs(
        self,
        *,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[guardrails_pb2.GuardrailInput]:
        """Lists the inputs that guardrails read from the context of an action, or from the metadata of an announcement,
        by name.

        Errors: INVALID_ARGUMENT for a token of other rules. Yields one after another and fetches pages as they are
        needed.

        Args:
            page_size: Of each page: maximum number of items in the page, at most 1000. [default: 50]
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_inputs(page_size=page_size)
        return self._caller.pages(call, timeout=timeout)

    async def get_rulebook(self, *, timeout: float | None = None) -> guardrails_pb2.GetRulebookResponse:
        """Tells which rulebooks are in force, since when, and why those that are in the files now are not, if that is
        so.

        Args:
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_rulebook()
        return await self._caller.make(call, timeout=timeout)

    def explain_guardrails(
        self,
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
        timeout: float | None = None,
    ) -> AsyncIterator[cstp_pb2.CheckGuardrailsResponse]:
        """Explains what the guardrails in force make of an action: whether each fires, the value of each part of its
        condition, and where its inputs come from.

        It is no check: nothing is recorded, and no approval is used. Errors: INVALID_ARGUMENT for a token of other
        rules, an id that no guardrail has, and a context out of bounds. Yields one after another and fetches pages as
        they are needed.

        Args:
            description: In words; 1 to 8000 characters, not blank.
            category: The category of the decision.
            stakes: Stakes of the action. [default: medium] One of low, medium, high, critical.
            confidence: How sure the agent is, 0 to 1.
            context: The inputs of the guardrails, by their names in snake case or camel case. A null means absent. At
                most 24 levels deep, and with at most 2000 values unless the server is configured otherwise.
            project: The project that the action is about, for guardrails that are about some projects only. It need not
                be one that the server is configured with.
            command: The command that is about to run, as the shell gets it; 1 to 65536 characters. Guardrails read its
                structure.
            shell: The language of the command. [default: bash] One of bash, powershell.
            directory: The absolute folder in which the command runs; at most 4096 characters. Paths inside it count as
                the project.
            reads: The files that a tool is about to read, absolute or relative to the directory; at most 100.
            writes: The files that a tool is about to write, likewise.
            acting_agent: The agent that acts, for guardrails that apply to some agents only. [default: the caller]
            permissions: The permissions of that agent, without PERMISSION_ANY. [default: those of the caller, if
                neither is given] One of query, check, announce, record, review, admin, any, converse, route, erase,
                approve, oversee, migrate.
            at: The instant at which it acts. [default: now]
            guardrail_ids: Only these guardrails; all when empty.
            page_size: Of each page: maximum number of items in the page, at most 1000. [default: 50]
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.explain_guardrails(
            description,
            category=category,
            stakes=stakes,
            confidence=confidence,
            context=context,
            project=project,
            command=command,
            shell=shell,
            directory=directory,
            reads=reads,
            writes=writes,
            acting_agent=acting_agent,
            permissions=permissions,
            at=at,
            guardrail_ids=guardrail_ids,
            page_size=page_size,
        )
        return self._caller.pages(call, timeout=timeout)

    async def batch_check_guardrails(
        self,
        actions: Sequence[cstp_pb2.Action | Fields],
        *,
        agent: types_pb2.AgentInfo | Fields | None = None,
        timeout: float | None = None,
    ) -> guardrails_pb2.BatchCheckGuardrailsResponse:
        """Evaluates up to 500 actions, each as CheckGuardrails would in the local scope, and records all checks in one
        durable write.

        An action that cannot be evaluated gets an error, and the others get their verdicts. Errors: INVALID_ARGUMENT if
        an action is malformed or the response would be too long, UNAVAILABLE if the checks cannot be recorded.

        Args:
            actions: At least one, and at most 500.
            agent: Who the agent says it is.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.batch_check_guardrails(actions, agent=agent)
        return await self._caller.make(call, timeout=timeout)

    async def try_rulebook(
        self,
        rulebooks: Sequence[guardrails_pb2.RulebookText | Fields],
        *,
        actions: Sequence[cstp_pb2.Action | Fields] = (),
        acting_agent: str | None = None,
        permissions: Sequence[str] = (),
        at: datetime | None = None,
        timeout: float | None = None,
    ) -> guardrails_pb2.TryRulebookResponse:
        """Evaluates actions by rulebooks that the request contains, and runs the tests in them.

        Nothing is stored, and the rules in force are not used. Invalid rulebooks are no error: the response lists their
        problems. Facts that need a look at other records, such as the intents of other agents, are not available.
        Errors: INVALID_ARGUMENT for an action out of bounds, RATE_LIMITED for too many at once.

        Args:
            rulebooks: The rulebooks; together at most 262 144 bytes. They may extend each other and the packaged ones.
            actions: The actions, as for CheckGuardrails.
            acting_agent: The agent that acts. [default: the caller]
            permissions: The permissions of that agent, without PERMISSION_ANY. [default: those of the caller, if
                neither is given] One of query, check, announce, record, review, admin, any, converse, route, erase,
                approve, oversee, migrate.
            at: The instant at which it acts. [default: now]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.try_rulebook(rulebooks, actions=actions, acting_agent=acting_agent, permissions=permissions, at=at)
        return await self._caller.make(call, timeout=timeout)

    def replay_rulebook(
        self,
        rulebooks: Sequence[guardrails_pb2.RulebookText | Fields],
        *,
        after: datetime | None = None,
        before: datetime | None = None,
        requesting_agent: str | None = None,
        examples: int | None = None,
        resume: bool = True,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[guardrails_pb2.ReplayRulebookResponse, None]:
        """Evaluates recorded checks and announcements by rulebooks that the request contains, each as of its own
        instant and for its own agent, and streams the progress, then a summary of the verdicts that would change.

        Nothing is stored. Errors: INVALID_ARGUMENT for invalid rulebooks, with their problems; RATE_LIMITED for too
        many at once; QUERY_FAILED. Yields each as it comes, over gRPC only. After a passing failure a watch goes on by
        itself behind the last one that was seen, pausing as the client's RetryPolicy says, anew after each, for as long
        as it takes.

        Args:
            rulebooks: The rulebooks; together at most 262 144 bytes. They may extend each other and the packaged ones.
            after: Evaluated at this instant or later. [default: 7 days before `before`]
            before: Evaluated at this instant or earlier. [default: now]
            requesting_agent: Checked or announced by exactly this agent.
            examples: Number of examples of each change, at most 100. [default: 3]
            resume: Whether it goes on after a passing failure; it is else raised.
            on_failure: Is told each such failure, and how many seconds the pause is.
            timeout: Seconds after which it ends with DeadlineExceeded; without an end when absent.
        """
        call = calls.replay_rulebook(
            rulebooks,
            after=after,
            before=before,
            requesting_agent=requesting_agent,
            examples=examples,
        )
        return self._caller.watch(call, resume=resume, on_failure=on_failure, timeout=timeout)

    async def record_decision(
        self,
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
        timeout: float | None = None,
    ) -> journal_pb2.Decision:
        """Records a decision of the caller's.

        Errors: CONFLICT where the request id was used for another content.

        Args:
            title: Title of the decision; 1 to 500 characters, not blank.
            request_id: Chosen by the caller to make a repetition safe: 1 to 128 visible ASCII characters.
            context: The circumstances; private, never part of a query's answer, at most 200000 characters.
            category: Its category, for instance "architecture"; 1 to 100 characters.
            stakes: Stakes of the action. One of low, medium, high, critical.
            confidence: How sure the agent was, 0 to 1.
            status: Its status. [default: decided, or reviewed if there is an outcome] One of proposed, decided,
                reviewed, superseded.
            outcome: How it turned out, where that is known already. One of success, failure, partial, abandoned.
            date: When it was decided. [default: the time of recording]
            notes: The lesson; readable wherever the decision is. At most 5000 characters.
            reasons: Why.
            tags: Words to find it by.
            project: The project it belongs to; 1 to 200 characters.
            visibility: Who may read it. [default: private] One of private, shared.
            review_by: When its outcome is due for review, if it is; ListDecisions lists due decisions.
            links: How it relates to others.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.record_decision(
            title,
            request_id=request_id,
            context=context,
            category=category,
            stakes=stakes,
            confidence=confidence,
            status=status,
            outcome=outcome,
            date=date,
            notes=notes,
            reasons=reasons,
            tags=tags,
            project=project,
            visibility=visibility,
            review_by=review_by,
            links=links,
        )
        return await self._caller.make(call, timeout=timeout)

    async def get_decision(
        self,
        id: str,
        *,
        oversee: bool = False,
        timeout: float | None = None,
    ) -> journal_pb2.Decision:
        """Reads one decision: the caller's own whole, another's shared one without its context and the text of its
        reasons.

        Errors: NOT_FOUND, also for another's private decision.

        Args:
            id: Its identifier.
            oversee: True reads the decisions of every agent, private ones too, without contexts and texts of reasons.
                It needs the permission `oversee`, and the audit trail records the call. Errors: PERMISSION_DENIED.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_decision(id, oversee=oversee)
        return await self._caller.make(call, timeout=timeout)

    def list_decisions(
        self,
        *,
        page_size: int = 0,
        filters: types_pb2.DecisionFilters | Fields | None = None,
        review_due: bool = False,
        id_prefix: str | None = None,
        oversee: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[journal_pb2.Decision]:
        """Lists the decisions the caller may read, latest first, page by page, without contexts, texts of reasons and
        history.

        Yields one after another and fetches pages as they are needed.

        Args:
            page_size: Of each page: maximum number of items in the page, at most 1000. [default: 50]
            filters: Conditions that decisions must meet.
            review_due: Only decisions of the caller's whose review is due: `reviewBy` has passed, nobody has reviewed
                them since, and they are not superseded.
            id_prefix: Only items whose identifiers begin with this text; 4 to 64 visible ASCII characters.
            oversee: True reads the decisions of every agent, private ones too, without contexts and texts of reasons.
                It needs the permission `oversee`, and the audit trail records the call. Errors: PERMISSION_DENIED.
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_decisions(
            page_size=page_size,
            filters=filters,
            review_due=review_due,
            id_prefix=id_prefix,
            oversee=oversee,
        )
        return self._caller.pages(call, timeout=timeout)

    async def review_decision(
        self,
        id: str,
        outcome: str,
        *,
        notes: str | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> journal_pb2.Decision:
        """Sets how a decision that the caller may read turned out, and the lesson.

        The latest review counts; earlier ones stay in the history of the decision. Errors: NOT_FOUND, INVALID_ARGUMENT
        for a summary, CONFLICT if the request id was used for another review of the decision.

        Args:
            id: Its identifier.
            outcome: The outcome. One of success, failure, partial, abandoned.
            notes: The lesson; at most 5000 characters. [default: unchanged]
            request_id: Chosen by the caller to make a repetition safe: 1 to 128 visible ASCII characters. Without it,
                each call is another review.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.review_decision(id, outcome, notes=notes, request_id=request_id)
        return await self._caller.make(call, timeout=timeout)

    async def update_decision(
        self,
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
        timeout: float | None = None,
    ) -> journal_pb2.Decision:
        """Changes the content of a decision of the caller's and keeps the former one.

        An update that changes nothing makes no revision, so that repeating one does no harm. What a review says is
        changed by ReviewDecision, who may read it by ShareDecision. Errors: NOT_FOUND, PERMISSION_DENIED for another's
        shared one, INVALID_ARGUMENT for a summary, CONFLICT if its revision is not the expected one.

        Args:
            id: Its identifier.
            title: Title of the decision; 1 to 500 characters, not blank.
            context: The circumstances; private, at most 200000 characters.
            category: Its category; 1 to 100 characters.
            stakes: Stakes of the action. One of low, medium, high, critical.
            confidence: How sure the agent was, 0 to 1.
            status: Where it stands. A review and a successor still count more. One of proposed, decided, reviewed,
                superseded.
            date: When it was decided.
            reasons: Why; replaces all reasons.
            tags: Words to find it by; replaces all of them.
            project: The project it belongs to; 1 to 200 characters.
            review_by: When its outcome is to be reviewed.
            update_mask: The fields of `changes` that count. One that is named here and absent there is removed; title,
                status and date cannot be. Absent or empty, all fields that `changes` has.
            expected_revision: The revision on which the changes are based. [default: any]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.update_decision(
            id,
            title=title,
            context=context,
            category=category,
            stakes=stakes,
            confidence=confidence,
            status=status,
            date=date,
            reasons=reasons,
            tags=tags,
            project=project,
            review_by=review_by,
            update_mask=update_mask,
            expected_revision=expected_revision,
        )
        return await self._caller.make(call, timeout=timeout)

    async def delete_decision(self, id: str, *, timeout: float | None = None) -> journal_pb2.DeleteDecisionResponse:
        """Deletes a decision of the caller's: its content, its reviews, its former contents and all links from and to
        it.

        No answer has it any more; only its identifier stays, so that importing its source again does not bring it back.
        Entries of the audit trail keep its title. Deleting it again changes nothing. Errors: NOT_FOUND,
        PERMISSION_DENIED for another's shared one.

        Args:
            id: Its identifier.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.delete_decision(id)
        return await self._caller.make(call, timeout=timeout)

    async def link_decisions(
        self,
        id: str,
        *,
        add: journal_pb2.Links | Fields | None = None,
        remove: journal_pb2.Links | Fields | None = None,
        timeout: float | None = None,
    ) -> journal_pb2.Decision:
        """Adds and removes links from a decision of the caller's to others.

        Those of the caller that it supersedes become superseded, and the others of the links that are removed count
        again. An import of a changed source replaces the links of its decision. Errors: NOT_FOUND, also for a decision
        to link to that the caller may not read; PERMISSION_DENIED for another's shared one; INVALID_ARGUMENT for a link
        to itself, for superseding what supersedes it, itself or by way of others, or for more than 100 links of a kind.

        Args:
            id: The identifier of the decision that the links lead from.
            add: Links to add; those that exist stay.
            remove: Links to remove, also where another decision of the caller's declared them; unknown ones are
                ignored. One that is in `add` too stays.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.link_decisions(id, add=add, remove=remove)
        return await self._caller.make(call, timeout=timeout)

    async def get_decision_graph(
        self,
        id: str,
        *,
        depth: int = 0,
        max_nodes: int = 0,
        oversee: bool = False,
        timeout: float | None = None,
    ) -> journal_pb2.GetDecisionGraphResponse:
        """Follows the links from and to a decision, as far as the caller may read the decisions at both ends.

        Errors: NOT_FOUND.

        Args:
            id: Its identifier.
            depth: Maximum distance from it in links, at most 10. [default: 2]
            max_nodes: Maximum number of decisions, at most 500. [default: 100]
            oversee: True reads the decisions of every agent, private ones too, without contexts and texts of reasons.
                It needs the permission `oversee`, and the audit trail records the call. Errors: PERMISSION_DENIED.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_decision_graph(id, depth=depth, max_nodes=max_nodes, oversee=oversee)
        return await self._caller.make(call, timeout=timeout)

    async def find_duplicate_decisions(
        self,
        *,
        filters: types_pb2.DecisionFilters | Fields | None = None,
        min_similarity: float | None = None,
        limit: int = 0,
        timeout: float | None = None,
    ) -> journal_pb2.FindDuplicateDecisionsResponse:
        """Finds decisions of the caller's that say nearly the same: of the latest 2000 that pass the filters and are
        not superseded, groups of which each is similar to another.

        Args:
            filters: Conditions that decisions must meet.
            min_similarity: Minimum cosine similarity of duplicates, 0.5 to 1. [default: 0.9]
            limit: Maximum number of groups, at most 100. [default: 20]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.find_duplicate_decisions(filters=filters, min_similarity=min_similarity, limit=limit)
        return await self._caller.make(call, timeout=timeout)

    async def explain_search(
        self,
        query: str,
        *,
        filters: types_pb2.DecisionFilters | Fields | None = None,
        limit: int | None = None,
        min_score: float | None = None,
        expected: Sequence[str] = (),
        timeout: float | None = None,
    ) -> journal_pb2.ExplainSearchResponse:
        """Searches as QueryDecisions does, in this agent's journal alone, and explains each score, and why expected
        decisions are not among the results.

        Errors: NOT_FOUND for an expected decision that does not exist, also for another's private one and for one that
        has expired; QUERY_FAILED.

        Args:
            query: Search text; 1 to 8000 characters, not blank.
            filters: Conditions that answers must meet.
            limit: Maximum number of results, 1 to 50. The server's configured maximum caps it. [default: 10]
            min_score: Minimum score of a result, 0 to 1. [default: the configured score, 0.1 unless changed, for the
                best result, and others need half of it and a tenth of the best score]
            expected: Identifiers of decisions that are expected among the results, at most 20. They are explained in
                any case.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.explain_search(query, filters=filters, limit=limit, min_score=min_score, expected=expected)
        return await self._caller.make(call, timeout=timeout)

    async def compact_decisions(
        self,
        *,
        filters: types_pb2.DecisionFilters | Fields | None = None,
        min_decisions: int | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> journal_pb2.CompactDecisionsResponse:
        """Writes summaries of old decisions of the caller's that have an outcome, one of each topic.

        A topic is a category, or the first tag of decisions without one, among decisions of one project with the same
        visibility. A summary is a decision with the tag "summary" which counts the outcomes of up to 50 decisions,
        quotes titles and lessons of some, and links to all of them. They stay as they are; session contexts show the
        summary in their place, and queries show it in the place of several that are less relevant. A repetition writes
        nothing; later decisions of a topic are added by a new summary, which supersedes the former one. A summary is
        deleted once a decision that it cites is deleted, is shared or unshared, or no longer agrees with it. Errors:
        QUERY_FAILED.

        Args:
            filters: Conditions that decisions must meet. [default of `dateBefore`: 90 days ago]
            min_decisions: Minimum number of decisions of a topic that no summary cites yet, 2 to 50. [default: 5]
            dry_run: True answers the summaries without writing them.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.compact_decisions(filters=filters, min_decisions=min_decisions, dry_run=dry_run)
        return await self._caller.make(call, timeout=timeout)

    def export_decisions(
        self,
        *,
        filters: types_pb2.DecisionFilters | Fields | None = None,
        include_deleted: bool = False,
        resume: bool = True,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[journal_pb2.Decision, None]:
        """Answers all decisions that the caller may read, latest first: its own whole, as GetDecision does without
        their history but with their provenance, and others' shared ones without contexts and texts of reasons.

        What changes meanwhile may or may not be among them. Errors: RATE_LIMITED for too many exports at once. Yields
        each as it comes, over gRPC only. After a passing failure a watch goes on by itself behind the last one that was
        seen, pausing as the client's RetryPolicy says, anew after each, for as long as it takes.

        Args:
            filters: Conditions that decisions must meet.
            include_deleted: True also answers the deletions of the caller's decisions, before all decisions and
                whatever the filters are.
            resume: Whether it goes on after a passing failure; it is else raised.
            on_failure: Is told each such failure, and how many seconds the pause is.
            timeout: Seconds after which it ends with DeadlineExceeded; without an end when absent.
        """
        call = calls.export_decisions(filters=filters, include_deleted=include_deleted)
        return self._caller.watch(call, resume=resume, on_failure=on_failure, timeout=timeout)

    def watch_decisions(
        self,
        *,
        filters: types_pb2.DecisionFilters | Fields | None = None,
        after: str | None = None,
        oversee: bool = False,
        resume: bool = True,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[journal_pb2.WatchDecisionsResponse, None]:
        """Streams each change of the decisions that the caller may read, until the caller ends the call.

        The first response has only a `journalRevision`: the position at which the watch begins. A watch opened with the
        revision of any response continues after it, on any server of this agent. Several changes of a decision may
        arrive as one, and deletions are reported for the caller's own decisions only. Errors: INVALID_ARGUMENT for a
        revision of another journal, RATE_LIMITED for too many watches, UNAVAILABLE if the server stops or the caller
        does not read for long. Yields each as it comes, over gRPC only. After a passing failure a watch goes on by
        itself behind the last one that was seen, pausing as the client's RetryPolicy says, anew after each, for as long
        as it takes.

        Args:
            filters: Conditions that changed decisions must meet. Deletions are told whatever they are.
            after: The `journalRevision` of a response; the watch begins after it. [default: now]
            oversee: True follows those of every agent, private ones too, without contexts and texts of reasons. It
                needs the permission `oversee`, and the audit trail records the call. Errors: PERMISSION_DENIED.
            resume: Whether it goes on after a passing failure; it is else raised.
            on_failure: Is told each such failure, and how many seconds the pause is.
            timeout: Seconds after which it ends with DeadlineExceeded; without an end when absent.
        """
        call = calls.watch_decisions(filters=filters, after=after, oversee=oversee)
        return self._caller.watch(call, resume=resume, on_failure=on_failure, timeout=timeout)

    async def share_decision(self, id: str, *, timeout: float | None = None) -> journal_pb2.Decision:
        """Lets every agent find a decision of the caller's.

        Errors: NOT_FOUND, PERMISSION_DENIED for another's shared one, INVALID_ARGUMENT for a summary of private
        decisions.

        Args:
            id: Its identifier.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.share_decision(id)
        return await self._caller.make(call, timeout=timeout)

    async def unshare_decision(self, id: str, *, timeout: float | None = None) -> journal_pb2.Decision:
        """Takes back the sharing of a decision of the caller's.

        Errors: NOT_FOUND, PERMISSION_DENIED for another's shared one.

        Args:
            id: Its identifier.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.unshare_decision(id)
        return await self._caller.make(call, timeout=timeout)

    def import_decisions(
        self,
        requests: Iterable[journal_pb2.ImportDecisionsRequest | Fields] | AsyncIterable[journal_pb2.ImportDecisionsRequest | Fields],
        *,
        batch: int = 100,
        timeout: float | None = None,
    ) -> AsyncIterator[journal_pb2.ImportResult]:
        """Imports decisions from other records, one message each.

        Importing a source again updates the decision if its content has changed. A decision that the caller deleted
        stays deleted unless the record says otherwise. Records are stored in batches; after a broken stream the stored
        batches stay, and the import can be repeated. Errors: PERMISSION_DENIED for a record with an identity without
        the permission `migrate`. They travel in batches, each of which is stored when its results are yielded; over
        gRPC only.

        Args:
            requests: What is sent.
            batch: How many travel together.
            timeout: Seconds that a batch may take, repetitions included; what the client was made with when absent.
        """
        call = calls.import_decisions()
        return self._caller.upload(call, requests, batch=batch, timeout=timeout)

    async def record_thought(
        self,
        text: str,
        *,
        decision_id: str | None = None,
        correlation_id: str | None = None,
        visibility: str | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> journal_pb2.Thought:
        """Attaches a step of the caller's reasoning to one of its intents, or to a decision that it may read.

        Only the caller can read it unless it is shared, and it expires. Errors: NOT_FOUND for a decision that the
        caller may not read and for an intent that it did not announce, CONFLICT where the request id was used for
        another thought, RATE_LIMITED for too many thoughts of the caller.

        Args:
            text: The reasoning, not blank; at most as many characters as `thoughts.max_characters` allows, 4000 by
                default.
            decision_id: The decision that it is about; the caller must be able to read it.
            correlation_id: The correlation id of the caller's intent that it is about: 1 to 128 visible ASCII
                characters.
            visibility: Who may read it: with `shared`, all agents that may read the decision that it is about, or the
                decision in which its intent resulted. [default: private] One of private, shared.
            request_id: Chosen by the caller to make a repetition safe: 1 to 128 visible ASCII characters.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.record_thought(
            text,
            decision_id=decision_id,
            correlation_id=correlation_id,
            visibility=visibility,
            request_id=request_id,
        )
        return await self._caller.make(call, timeout=timeout)

    def list_thoughts(
        self,
        *,
        page_size: int = 0,
        decision_id: str | None = None,
        correlation_id: str | None = None,
        oversee: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[journal_pb2.Thought]:
        """Lists thoughts, latest first, page by page: those about a decision that the caller may read, or its own ones
        about an intent, or all its own ones.

        Errors: NOT_FOUND for a decision that the caller may not read. Yields one after another and fetches pages as
        they are needed.

        Args:
            page_size: Of each page: maximum number of items in the page, at most 1000. [default: 50]
            decision_id: Only those about this decision, or about intents that were closed with it as their result.
            correlation_id: Only those about intents with this correlation id.
            oversee: True reads the thoughts of every agent, private ones without their texts. It needs the permission
                `oversee`, and the audit trail records the call. Errors: PERMISSION_DENIED.
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_thoughts(
            page_size=page_size,
            decision_id=decision_id,
            correlation_id=correlation_id,
            oversee=oversee,
        )
        return self._caller.pages(call, timeout=timeout)

    async def delete_thought(self, id: str, *, timeout: float | None = None) -> journal_pb2.DeleteThoughtResponse:
        """Deletes a thought of the caller's.

        Deleting it again changes nothing.

        Args:
            id: Its identifier.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.delete_thought(id)
        return await self._caller.make(call, timeout=timeout)

    async def pre_action(
        self,
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
        timeout: float | None = None,
    ) -> pre_actions_pb2.PreActionResponse:
        """Announces an intent, as AnnounceIntent does, and records its decision if the verdict allows the action, in
        one transaction.

        If peers are asked, the announcement is stored before the peers are called, and a repeated call records a
        missing decision. The same announcement with the same correlation id and decision is a repetition: its decision
        is recorded once, and the guardrails are evaluated again. The caller also needs the permission `record`. Errors:
        as AnnounceIntent; CONFLICT, with nothing recorded, if the announcement was made with another decision, or its
        decision is deleted.

        Args:
            intent: The intended action; 1 to 8000 characters, not blank.
            context: Further text that is searched together with the intent; at most 20000 characters.
            category: The category of the decision; similar decisions of this category come first.
            stakes: Stakes of the action. [default: medium] One of low, medium, high, critical.
            confidence: How sure the agent is, 0 to 1.
            agent: Who the agent says it is.
            correlation_id: Chosen by the caller to tie announcements and answers together: 1 to 128 visible ASCII
                characters. Generated when absent. The content that the caller announced last under it, announced again,
                is a repetition, which is recorded once; any other content is a revision. Ids of other agents are other
                ids.
            metadata: Structured data; the guardrails read it as `context`. At most 24 levels deep, and with as many
                values as that. Checks that `confirmedChecks` in it lists by their texts are not suggested.
            project: The configured project that contains the paths. [default: the only configured project, if there are
                paths]
            paths: The files and folders that the agent is about to touch, relative to the project's root; at most 100,
                each of 1 to 4096 characters. They need not exist yet.
            scope: Who answers. [default: the configured scope for the category and stakes] One of local, federated.
            agents: The peers to ask where the scope is federated; when empty, all that speak for the category. Required
                peers that do are always asked. At most 32.
            min_journal_revision: The journalRevision of an earlier response to this agent: the search covers the
                journal at that revision or later, on whichever server. 1 to 100 characters; without it, recent writes
                of other servers may be missing. It is not sent to peers. Nothing is recorded if the server cannot reach
                the revision.
            visibility: Visibility of the intent. If it is shared, other agents that announce a similar intent within 24
                hours can read its text, category, stakes, project, paths, verdict and closing. A shared and a private
                announcement have different contents: announcing it again as private hides it. It is not sent to peers.
                [default: as configured for the agent, otherwise private] One of private, shared.
            command: The command that is about to run, as the shell gets it; 1 to 65536 characters. Guardrails read its
                structure.
            shell: The language of the command. [default: bash] One of bash, powershell.
            directory: The absolute folder in which the command runs; at most 4096 characters. Paths inside it count as
                the project.
            reads: The files that a tool is about to read, absolute or relative to the directory; at most 100.
            writes: The files that a tool is about to write, likewise.
            decision: The decision to record. Its context, category, stakes, confidence and project default to those of
                the announcement. Without it, the intent is the title, and a long intent continues in the context; a
                server that does not store contents of intents requires it.
            links: How the decision relates to others.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.pre_action(
            intent,
            context=context,
            category=category,
            stakes=stakes,
            confidence=confidence,
            agent=agent,
            correlation_id=correlation_id,
            metadata=metadata,
            project=project,
            paths=paths,
            scope=scope,
            agents=agents,
            min_journal_revision=min_journal_revision,
            visibility=visibility,
            command=command,
            shell=shell,
            directory=directory,
            reads=reads,
            writes=writes,
            decision=decision,
            links=links,
        )
        return await self._caller.make(call, timeout=timeout)

    async def get_session_context(
        self,
        *,
        task: str | None = None,
        project: str | None = None,
        paths: Sequence[str] = (),
        max_tokens: int | None = None,
        timeout: float | None = None,
    ) -> session_context_pb2.GetSessionContextResponse:
        """Returns the context for the start of a session: the caller's decisions that are due for review, that failed
        and that are recent, lessons by category, the rules and inputs in force, the calibration of its confidences,
        intents of others, and the nodes that govern the given paths.

        It fits a budget of tokens, the most useful parts first. Errors: QUERY_FAILED, NOT_FOUND for an unknown project,
        INVALID_ARGUMENT for a path that leaves the project.

        Args:
            task: The task of the session, which selects related intents of others; 1 to 8000 characters, not blank.
                [default: recent intents are related]
            project: The configured project of the session; its decisions come first. [default: the only configured
                project, if there are paths]
            paths: The files and folders that it is about, relative to the project's root; at most 100. When empty and a
                project is named, its root.
            max_tokens: Maximum size of the Markdown in tokens, 200 to 100000. A token is estimated as four characters.
                [default: 2000]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_session_context(task=task, project=project, paths=paths, max_tokens=max_tokens)
        return await self._caller.make(call, timeout=timeout)

    def get_ready_queue(
        self,
        *,
        reasons: Sequence[str] = (),
        project: str | None = None,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[session_context_pb2.ReadyItem]:
        """Lists what the caller should look after: its overdue reviews, intents that it never closed, a drift of its
        confidences, and old decisions without an outcome.

        The kinds come in this order, and within a kind the oldest item first. Errors: QUERY_FAILED. Yields one after
        another and fetches pages as they are needed.

        Args:
            reasons: Only items with one of these reasons. [default: all] One of overdue_review, unclosed_intent, drift,
                stale_decision.
            project: Only items of exactly this project, and a drift, which concerns all projects. [default: any]
            limit: Maximum number of items, 1 to 100. [default: 20]
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_ready_queue(reasons=reasons, project=project, limit=limit)
        return self._caller.pages(call, timeout=timeout)

    def list_agents(
        self,
        *,
        page_size: int = 0,
        since: datetime | None = None,
        agent: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[status_pb2.KnownAgent]:
        """Lists agents by name, page by page: those with a credential and up to 10000 of the audit trail.

        Only agents of the caller's tenant are listed; an agent without a known credential belongs to the tenant
        `default`. Errors: INVALID_ARGUMENT for a page token of another listing, and for a `since` of more than 366 days
        ago. Yields one after another and fetches pages as they are needed.

        Args:
            page_size: Of each page: maximum number of items in the page, at most 200. [default: 50]
            since: Counts cover audit entries from this time on, at most 366 days ago. [default: 7 days ago]
            agent: Only the agent with exactly this name.
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_agents(page_size=page_size, since=since, agent=agent)
        return self._caller.pages(call, timeout=timeout)

    async def list_peers(
        self,
        *,
        timeout_seconds: float | None = None,
        timeout: float | None = None,
    ) -> status_pb2.ListPeersResponse:
        """Calls every configured peer and returns its health, by name.

        All are called concurrently; the answer comes when the last one has answered or timed out. Errors: RATE_LIMITED
        if too many calls wait for peers.

        Args:
            timeout_seconds: Seconds to wait for a peer, above 0 and at most 30; each peer's own timeout applies too.
                [default: that of each peer]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_peers(timeout_seconds=timeout_seconds)
        return await self._caller.make(call, timeout=timeout)

    async def get_server_status(self, *, timeout: float | None = None) -> status_pb2.GetServerStatusResponse:
        """Returns the version, rules, database, search, queues, processes and warnings of the server.

        It answers even if the database does not. With several workers, figures of a process are those of the worker
        that answers. Errors: none.

        Args:
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_server_status()
        return await self._caller.make(call, timeout=timeout)


class AsyncIntentLayer:
    """The methods of intent_layer.v1.IntentLayerService."""

    def __init__(self, caller: AsyncCallExecutor) -> None:
        self._caller = caller

    async def resolve_context(
        self,
        project: str,
        path: str,
        *,
        sections: Sequence[str] = (),
        compact: bool = False,
        with_pending: bool = False,
        max_tokens: int | None = None,
        timeout: float | None = None,
    ) -> intent_layer_pb2.ResolveContextResponse:
        """Returns the context of a path: the merged sections of the nodes from the project's root down to it.

        A path that does not exist yet is governed by its nearest existing ancestor. Errors: NOT_FOUND for an unknown
        project, INVALID_ARGUMENT for a path that leaves it.

        Args:
            project: The project, as configured.
            path: A file or folder of it; `.` is the root. It need not exist yet.
            sections: Only these sections, in any case and in this order; all when empty. Headings of level 3 count too.
            compact: Whether the Markdown leaves the title, the hierarchy and the origins out.
            with_pending: Whether unreviewed learnings are included; for a folder also those about its contents.
            max_tokens: Maximum size of the Markdown in tokens, 50 to 1000000. [default: no limit] The target's own
                Pitfalls, Checks and Contracts stay longest.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.resolve_context(
            project,
            path,
            sections=sections,
            compact=compact,
            with_pending=with_pending,
            max_tokens=max_tokens,
        )
        return await self._caller.make(call, timeout=timeout)

    def list_nodes(
        self,
        project: str,
        *,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[intent_layer_pb2.NodeSummary]:
        """Lists the nodes of a project, a parent before its children.

        Errors: NOT_FOUND. Yields one after another and fetches pages as they are needed.

        Args:
            project: The project.
            page_size: Of each page: maximum number of items in the page, at most 1000. [default: 50]
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_nodes(project, page_size=page_size)
        return self._caller.pages(call, timeout=timeout)

    async def get_node(
        self,
        project: str,
        path: str,
        *,
        timeout: float | None = None,
    ) -> intent_layer_pb2.GetNodeResponse:
        """Reads one node with its sections.

        Errors: NOT_FOUND.

        Args:
            project: The project.
            path: Its folder or its file.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_node(project, path)
        return await self._caller.make(call, timeout=timeout)

    async def validate_nodes(
        self,
        project: str,
        *,
        paths: Sequence[str] = (),
        timeout: float | None = None,
    ) -> intent_layer_pb2.ValidateNodesResponse:
        """Validates nodes: sections, budget, links, paths, freshness.

        Errors: NOT_FOUND.

        Args:
            project: The project.
            paths: A folder stands for the nodes in it and below, any other path for the node that covers it; all nodes
                when empty.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.validate_nodes(project, paths=paths)
        return await self._caller.make(call, timeout=timeout)

    async def place_fact(
        self,
        project: str,
        paths: Sequence[str],
        *,
        timeout: float | None = None,
    ) -> intent_layer_pb2.PlaceFactResponse:
        """Returns where a fact about several paths belongs: at their lowest common ancestor.

        Errors: NOT_FOUND.

        Args:
            project: The project.
            paths: The paths that it applies to. One that is not there is taken for a file unless it ends with `/`, and
                a pattern such as `api/*` for the folder above its first wildcard.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.place_fact(project, paths)
        return await self._caller.make(call, timeout=timeout)

    async def init_node(
        self,
        project: str,
        path: str,
        *,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> intent_layer_pb2.InitNodeResponse:
        """Writes a commented skeleton of a node for a folder, based on its files.

        Errors: NOT_FOUND; CONFLICT if the folder has a node.

        Args:
            project: The project.
            path: The folder.
            dry_run: Whether to show it only.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.init_node(project, path, dry_run=dry_run)
        return await self._caller.make(call, timeout=timeout)

    async def report_learning(
        self,
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
        timeout: float | None = None,
    ) -> intent_layer_pb2.Learning:
        """Files what an agent learned for review; nodes stay as they are.

        Errors: NOT_FOUND.

        Args:
            project: The project.
            path: The file or folder that it is about.
            title: In one line; 1 to 200 characters, not blank.
            detail: In full; 1 to 20000 characters, not blank.
            type: Its kind. One of pitfall, check, pattern, insight.
            agent_id: The agent that learned it. [default: the caller]
            evidence: Evidence, such as output, a commit or a link; at most 20000 characters.
            also_paths: Further files or folders that it is about.
            operation: The operation of the agent, in one line; at most 200 characters.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.report_learning(
            project,
            path,
            title,
            detail,
            type,
            agent_id=agent_id,
            evidence=evidence,
            also_paths=also_paths,
            operation=operation,
        )
        return await self._caller.make(call, timeout=timeout)

    def list_learnings(
        self,
        project: str,
        *,
        states: Sequence[str] = (),
        types: Sequence[str] = (),
        path: str | None = None,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[intent_layer_pb2.Learning]:
        """Lists filed learnings, latest first.

        Errors: NOT_FOUND. Yields one after another and fetches pages as they are needed.

        Args:
            project: The project.
            states: In one of these states; any when empty. One of pending, integrated, rejected.
            types: Of one of these kinds; any when empty. One of pitfall, check, pattern, insight.
            path: Only those about this file or folder, or something in it.
            page_size: Of each page: maximum number of items in the page, at most 1000. [default: 50]
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_learnings(project, states=states, types=types, path=path, page_size=page_size)
        return self._caller.pages(call, timeout=timeout)

    async def review_learning(
        self,
        project: str,
        id: str,
        verdict: str,
        *,
        reviewer: str | None = None,
        reason: str = "",
        edits: intent_layer_pb2.Edits | Fields | None = None,
        force: bool = False,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> intent_layer_pb2.ReviewLearningResponse:
        """Accepts, rejects or defers a learning.

        Accepting merges it into the node that covers its paths. Errors: NOT_FOUND; CONFLICT where it was reviewed
        already, or where the node says likely the same and the review is not forced; the error's metadata says in which
        `file` and `line`.

        Args:
            project: The project.
            id: The learning.
            verdict: The verdict. One of accept, reject, defer.
            reviewer: The reviewer that the caller acts for, recorded with the caller; never trusted.
            reason: Why; at most 2000 characters.
            edits: Text to merge in place of the reported one.
            force: Whether a likely duplicate is merged all the same.
            dry_run: Whether to show only what would happen.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.review_learning(
            project,
            id,
            verdict,
            reviewer=reviewer,
            reason=reason,
            edits=edits,
            force=force,
            dry_run=dry_run,
        )
        return await self._caller.make(call, timeout=timeout)


class AsyncLiaison:
    """The methods of liaison.v1.LiaisonService."""

    def __init__(self, caller: AsyncCallExecutor) -> None:
        self._caller = caller

    async def open_session(
        self,
        *,
        user_id: str | None = None,
        chat_session_id: str | None = None,
        context: Mapping[str, Json] | None = None,
        timeout: float | None = None,
    ) -> liaison_pb2.OpenSessionResponse:
        """Opens a chat session with the guide.

        A user of a tenant has at most one that is active: the same call again returns it. Errors: CONFLICT where the
        user has an active session that was opened with another content, or the identifier is taken.

        Args:
            user_id: The user; 1 to 200 characters. [default: the calling agent]
            chat_session_id: Identifier of the session: 1 to 128 visible ASCII characters. [default: random]
            context: Initial context of the agents; without `conversation_history`, because messages are appended.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.open_session(user_id=user_id, chat_session_id=chat_session_id, context=context)
        return await self._caller.make(call, timeout=timeout)

    async def get_session(
        self,
        chat_session_id: str | None = None,
        *,
        user_id: str | None = None,
        timeout: float | None = None,
    ) -> liaison_pb2.ChatSession:
        """Reads one chat session; its messages are listed by ListMessages.

        Errors: SESSION_NOT_FOUND.

        Args:
            chat_session_id: Its identifier. [default: the active session of the user]
            user_id: The user whose active session is read if there is no identifier. [default: the calling agent]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_session(chat_session_id, user_id=user_id)
        return await self._caller.make(call, timeout=timeout)

    def list_sessions(
        self,
        *,
        user_id: str | None = None,
        active_agent: str | None = None,
        status: str | None = None,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[liaison_pb2.ChatSession]:
        """Lists chat sessions, last opened first, page by page.

        Yields one after another and fetches pages as they are needed.

        Args:
            user_id: Only those of this user.
            active_agent: Only those that this agent has.
            status: Only open or only closed sessions. [default: both] One of active, closed.
            page_size: Of each page: maximum number of items in the page, at most 100. [default: 50]
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_sessions(user_id=user_id, active_agent=active_agent, status=status, page_size=page_size)
        return self._caller.pages(call, timeout=timeout)

    async def append_message(
        self,
        chat_session_id: str,
        content: str,
        role: str,
        *,
        metadata: Mapping[str, Json] | None = None,
        message_id: str | None = None,
        claim_number: int | None = None,
        timeout: float | None = None,
    ) -> liaison_pb2.ChatMessage:
        """Appends a message to the conversation history.

        With a message_id, the same call again appends nothing. Errors: SESSION_NOT_FOUND, also where the session is
        closed; CONFLICT where the message_id was used with another content; SESSION_WITH_ANOTHER_AGENT if the
        claim_number is not that of the live claim, or if a local liaison agent speaks as the assistant that does not
        have the session (any more).

        Args:
            chat_session_id: The session.
            content: Text of the message; 1 to 100000 characters.
            role: Who speaks. One of user, assistant, system.
            metadata: Structured data that belongs to it; at most 24 levels deep.
            message_id: Makes a repetition safe: 1 to 128 visible ASCII characters, once within the session.
            claim_number: The number of the claim by which the caller has the session; refused if another one is
                current, or none.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.append_message(
            chat_session_id,
            content,
            role,
            metadata=metadata,
            message_id=message_id,
            claim_number=claim_number,
        )
        return await self._caller.make(call, timeout=timeout)

    def list_messages(
        self,
        chat_session_id: str,
        *,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[liaison_pb2.ChatMessage]:
        """Lists the messages of a chat session in their order, page by page.

        Errors: SESSION_NOT_FOUND. Yields one after another and fetches pages as they are needed.

        Args:
            chat_session_id: The session.
            page_size: Of each page: maximum number of items in the page, at most 100. [default: 50]
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_messages(chat_session_id, page_size=page_size)
        return self._caller.pages(call, timeout=timeout)

    async def update_context(
        self,
        chat_session_id: str,
        context: Mapping[str, Json],
        *,
        version: int | None = None,
        claim_number: int | None = None,
        timeout: float | None = None,
    ) -> liaison_pb2.ChatSession:
        """Changes the context of a chat session, member by member.

        Errors: SESSION_NOT_FOUND, also where the session is closed; SESSION_UPDATE_FAILED where it was changed since
        the stated version; SESSION_WITH_ANOTHER_AGENT if the claim_number is not that of the live claim.

        Args:
            chat_session_id: The session.
            context: Members to set; null removes one. `conversation_history` is not for it, since messages are
                appended.
            version: The version that the session must have. [default: any]
            claim_number: The number of the claim by which the caller has the session; refused if another one is
                current, or none.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.update_context(chat_session_id, context, version=version, claim_number=claim_number)
        return await self._caller.make(call, timeout=timeout)

    async def close_session(
        self,
        chat_session_id: str,
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> liaison_pb2.ChatSession:
        """Closes a chat session for good; one that is closed stays as it is.

        Errors: SESSION_NOT_FOUND; SESSION_UPDATE_FAILED where it was changed since the stated version.

        Args:
            chat_session_id: The session.
            version: The version that the session must have. [default: any]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.close_session(chat_session_id, version=version)
        return await self._caller.make(call, timeout=timeout)

    async def delete_session(
        self,
        chat_session_id: str,
        *,
        timeout: float | None = None,
    ) -> liaison_pb2.DeleteSessionResponse:
        """Deletes a chat session of the tenant, its messages, and the shares, activations and events that belong to it.

        The audit trail keeps its entries, which have hashes of contexts unless contents are kept there, and says that
        the session was deleted. Shares that name the session go also if there is no such session any more. What was
        delivered to remote agents is theirs to delete.

        Args:
            chat_session_id: The session, active or closed.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.delete_session(chat_session_id)
        return await self._caller.make(call, timeout=timeout)

    async def delete_user_sessions(
        self,
        user_id: str,
        *,
        timeout: float | None = None,
    ) -> liaison_pb2.DeleteUserSessionsResponse:
        """Deletes all chat sessions that a user of the tenant has had until now, each as DeleteSession does.

        Args:
            user_id: The user.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.delete_user_sessions(user_id)
        return await self._caller.make(call, timeout=timeout)

    async def route_to_liaison_agent(
        self,
        target_pillar: str,
        *,
        chat_session_id: str | None = None,
        routing_reason: str | None = None,
        context_to_share: Mapping[str, Json] | None = None,
        user_id: str | None = None,
        timeout: float | None = None,
    ) -> liaison_pb2.RouteToLiaisonAgentResponse:
        """Hands a chat session that is with the guide to the liaison agent of a pillar, together with its context.

        The same pillar and the same context again, until the session is returned, give the answer of the first call,
        byte for byte. Errors: MISSING_PARAMETER, INVALID_PILLAR, SESSION_NOT_FOUND, SESSION_WITH_ANOTHER_AGENT,
        LIAISON_AGENT_UNAVAILABLE, CONTEXT_SHARING_FAILED, SESSION_UPDATE_FAILED, and PERMISSION_DENIED where guardrails
        block it, whose violations it names; after each of them nothing has changed.

        Args:
            target_pillar: The pillar: one of those that are configured, `content`, `insights`, `journey` and `solution`
                by default.
            chat_session_id: The session. [default: the active session of the user]
            routing_reason: Why; at most 2000 characters.
            context_to_share: The context to share; at most 24 levels deep. [default: the whole context of the
                conversation, with its history]
            user_id: The user whose active session is routed if there is no identifier. [default: the calling agent]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.route_to_liaison_agent(
            target_pillar,
            chat_session_id=chat_session_id,
            routing_reason=routing_reason,
            context_to_share=context_to_share,
            user_id=user_id,
        )
        return await self._caller.make(call, timeout=timeout)

    async def return_to_guide(
        self,
        chat_session_id: str,
        *,
        reason: str | None = None,
        version: int | None = None,
        claim_number: int | None = None,
        timeout: float | None = None,
    ) -> liaison_pb2.ReturnToGuideResponse:
        """Gives a chat session back to the guide; one that is with the guide stays as it is.

        Errors: SESSION_NOT_FOUND, also where the session is closed; SESSION_UPDATE_FAILED where it was changed since
        the stated version; SESSION_WITH_ANOTHER_AGENT if the claim_number is not that of the live claim, or if the
        caller is a local liaison agent that does not have the session (any more).

        Args:
            chat_session_id: The session.
            reason: Why; at most 2000 characters.
            version: The version that the session must have. [default: any]
            claim_number: The number of the claim by which the caller has the session; refused if another one is
                current, or none.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.return_to_guide(chat_session_id, reason=reason, version=version, claim_number=claim_number)
        return await self._caller.make(call, timeout=timeout)

    async def share_context_to_agent(
        self,
        source_agent: str,
        target_agent: str,
        shared_context: Mapping[str, Json],
        *,
        conversation_id: str | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
    ) -> liaison_pb2.ShareContextToAgentResponse:
        """Shares a context with a liaison agent without handing a session over.

        The same agents and the same context, or the same idempotency_key, share once. Errors: MISSING_PARAMETER,
        INVALID_PILLAR for an agent of no pillar, LIAISON_AGENT_UNAVAILABLE, CONTEXT_SHARING_FAILED, CONFLICT where the
        key was used with another content, and PERMISSION_DENIED where guardrails block it.

        Args:
            source_agent: Who shares it, for instance `guide`; at most 200 characters.
            target_agent: The receiving agent: `liaison_` and a pillar.
            shared_context: The context; at most 24 levels deep.
            conversation_id: The conversation that it belongs to, as the source names it; 1 to 200 characters.
            idempotency_key: Idempotency key: 1 to 128 visible ASCII characters. [default: derived from the agents, the
                conversation and the hash of the context]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.share_context_to_agent(
            source_agent,
            target_agent,
            shared_context,
            conversation_id=conversation_id,
            idempotency_key=idempotency_key,
        )
        return await self._caller.make(call, timeout=timeout)

    async def get_share(self, share_id: str, *, timeout: float | None = None) -> liaison_pb2.Share:
        """Reads a share and the state of its delivery.

        Errors: NOT_FOUND.

        Args:
            share_id: Its identifier.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.get_share(share_id)
        return await self._caller.make(call, timeout=timeout)

    async def heartbeat(
        self,
        target_pillar: str,
        *,
        leaving: bool = False,
        timeout: float | None = None,
    ) -> liaison_pb2.HeartbeatResponse:
        """Tells that the local liaison agent of a pillar is there; without it for some time, the agent counts as
        unavailable.

        Errors: MISSING_PARAMETER, INVALID_PILLAR, and PERMISSION_DENIED where the pillar is another agent's.

        Args:
            target_pillar: The pillar that the caller serves.
            leaving: True tells that it goes away.
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.heartbeat(target_pillar, leaving=leaving)
        return await self._caller.make(call, timeout=timeout)

    async def list_liaison_agents(
        self,
        *,
        target_pillar: str | None = None,
        timeout: float | None = None,
    ) -> liaison_pb2.ListLiaisonAgentsResponse:
        """Lists the liaison agents of the pillars, whether each is there for the caller's tenant, and how many of its
        sessions it has.

        A remote agent is asked, unless that was done a moment ago.

        Args:
            target_pillar: Only the agent of this pillar. [default: agents of all pillars]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_liaison_agents(target_pillar=target_pillar)
        return await self._caller.make(call, timeout=timeout)

    async def claim_session(
        self,
        chat_session_id: str,
        *,
        claimant: str | None = None,
        timeout: float | None = None,
    ) -> liaison_pb2.ClaimSessionResponse:
        """Takes a chat session that was handed to the caller, the local liaison agent of its pillar, and returns the
        activation with the shared context.

        Of several instances of an agent one has the session; calling again keeps it. Errors: SESSION_NOT_FOUND;
        SESSION_WITH_ANOTHER_AGENT; CONFLICT where another instance has it; PERMISSION_DENIED where the pillar is
        another agent's.

        Args:
            chat_session_id: The session.
            claimant: The instance of the agent that claims it; 1 to 200 characters. [default: the calling agent's name]
            timeout: Seconds that the call may take, repetitions included; what the client was made with when absent.
        """
        call = calls.claim_session(chat_session_id, claimant=claimant)
        return await self._caller.make(call, timeout=timeout)

    def list_events(
        self,
        *,
        chat_session_id: str | None = None,
        agent: str | None = None,
        types: Sequence[str] = (),
        after: int = 0,
        page_size: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[liaison_pb2.Event]:
        """Lists what happened, in its order, from a sequence on.

        Yields one after another and fetches pages as they are needed.

        Args:
            chat_session_id: Only those of this session.
            agent: Only those that concern this agent.
            types: Only those of these types; any when empty.
            after: Only those after this sequence.
            page_size: Of each page: maximum number of items in the page, at most 100. [default: 50]
            timeout: Seconds that a page may take, repetitions included; what the client was made with when absent.
        """
        call = calls.list_events(
            chat_session_id=chat_session_id,
            agent=agent,
            types=types,
            after=after,
            page_size=page_size,
        )
        return self._caller.pages(call, timeout=timeout)

    def watch_events(
        self,
        *,
        chat_session_id: str | None = None,
        agent: str | None = None,
        types: Sequence[str] = (),
        after: int | None = None,
        resume: bool = True,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[liaison_pb2.Event, None]:
        """Streams what happens, in its order, as it happens.

        Ask again with the last sequence that you saw to go on where a stream ended. Errors: INVALID_ARGUMENT if the
        tenant has no such sequence yet, as after a restored backup; RATE_LIMITED if as many streams are open as may be,
        with their `limit` in the metadata; UNAVAILABLE if the server stops. Yields each as it comes, over gRPC only.
        After a passing failure a watch goes on by itself behind the last one that was seen, pausing as the client's
        RetryPolicy says, anew after each, for as long as it takes.

        Args:
            chat_session_id: Only those of this session.
            agent: Only those that concern this agent.
            types: Only those of these types; any when empty.
            after: Only events after this sequence; 0 is the beginning. [default: only new events]
            resume: Whether it goes on after a passing failure; it is else raised.
            on_failure: Is told each such failure, and how many seconds the pause is.
            timeout: Seconds after which it ends with DeadlineExceeded; without an end when absent.
        """
        call = calls.watch_events(chat_session_id=chat_session_id, agent=agent, types=types, after=after)
        return self._caller.watch(call, resume=resume, on_failure=on_failure, timeout=timeout)
