"""The servicers of guardrails: translate, call the domain once, translate back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract import proto_values
from cstp_grpc.contract.call_scope import reject_agents
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.core.audit.model import AuditEntry, AuditFilter
from cstp_grpc.core.guardrails import messages
from cstp_grpc.core.guardrails.checker import GuardrailChecker, batch_check_id
from cstp_grpc.core.guardrails.evaluator import UnknownInputPolicy
from cstp_grpc.core.guardrails.model import Action, ParsedRulebook
from cstp_grpc.core.guardrails.rules_in_force import FailedLoad, RuleExplainer, RulesInForce
from cstp_grpc.core.guardrails.trials import SentRulebook, replay_rulebooks, try_rulebooks
from cstp_grpc.gen.cstp.v1 import cstp_pb2, guardrails_pb2, guardrails_pb2_grpc
from cstp_grpc.platform.blocking_stream import stream_blocking
from cstp_grpc.platform.storage.background_work import RunBlocking
from cstp_grpc.platform.storage.pagination import Page, PageRequest
from cstp_grpc.platform.stream_limit import StreamLimit


class GuardrailChecks:
    """Serves CheckGuardrails of cstp.v1.CstpService for this agent, `name`, alone: it refuses calls that name peers."""

    def __init__(self, name: str, checker: GuardrailChecker) -> None:
        self._name = name
        self._checker = checker

    async def CheckGuardrails(
        self, request: cstp_pb2.CheckGuardrailsRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.CheckGuardrailsResponse:
        """Evaluate guardrails for an action."""
        if request.agents:
            reject_agents(request.scope, request.agents)
        caller = current_caller.get()
        check = await self._checker.judge_and_record(
            messages.parse_action(request.action, caller),
            caller.agent,
            messages.claimed_agent_name(request),
            caller.request_id,
            caller.reader,
        )
        return messages.CHECK.encode(check, agent=self._name, check_id=caller.request_id)


@dataclass(frozen=True, slots=True)
class RulebookTrials:
    """The parts that trials of rulebooks use: the policy on unknown inputs, the recorded actions, and their limit."""

    policy: UnknownInputPolicy
    read_page: Callable[[AuditFilter, PageRequest], Page[AuditEntry]]
    limit: StreamLimit
    clock: Callable[[], datetime]


class GuardrailService(guardrails_pb2_grpc.GuardrailServiceServicer):
    """Serves cstp.v1.GuardrailService.

    `name` is the name of this agent, `run_blocking` runs long work, and `max_bytes` is the maximum size of all verdicts
    of a batch.
    """

    def __init__(
        self,
        name: str,
        rules: RulesInForce,
        checker: GuardrailChecker,
        explainer: RuleExplainer,
        trials: RulebookTrials,
        run_blocking: RunBlocking,
        max_bytes: int,
    ) -> None:
        self._name = name
        self._trials = trials
        self._rules = rules
        self._checker = checker
        self._explainer = explainer
        self._run_blocking = run_blocking
        self._max_bytes = max_bytes

    def ListGuardrails(
        self, request: guardrails_pb2.ListGuardrailsRequest, context: grpc.ServicerContext
    ) -> guardrails_pb2.ListGuardrailsResponse:
        rules = self._rules.current.listing
        page = rules.list_guardrails(PageRequest(request.page_size, request.page_token))
        shows_expressions = Permission.ADMIN in current_caller.get().permissions
        return guardrails_pb2.ListGuardrailsResponse(
            guardrails=[
                messages.guardrail_message(listed, shows_expressions=shows_expressions) for listed in page.items
            ],
            next_page_token=page.next_token,
            rule_set_version=rules.version,
        )

    def ListInputs(
        self, request: guardrails_pb2.ListInputsRequest, context: grpc.ServicerContext
    ) -> guardrails_pb2.ListInputsResponse:
        rules = self._rules.current.listing
        page = rules.list_inputs(PageRequest(request.page_size, request.page_token))
        return guardrails_pb2.ListInputsResponse(
            inputs=[messages.input_message(listed) for listed in page.items],
            next_page_token=page.next_token,
            rule_set_version=rules.version,
        )

    def GetRulebook(
        self, request: guardrails_pb2.GetRulebookRequest, context: grpc.ServicerContext
    ) -> guardrails_pb2.GetRulebookResponse:
        state = self._rules.state
        rules, failure = state.loaded.listing, state.failure
        return guardrails_pb2.GetRulebookResponse(
            rule_set_version=rules.version,
            loaded_at=proto_values.timestamp_message(rules.loaded_at),
            rulebooks=map(RULEBOOK.encode, rules.rule_set.rulebooks),
            last_failed_load=None if failure is None else FAILED_LOAD.encode(failure),
        )

    async def ExplainGuardrails(
        self, request: guardrails_pb2.ExplainGuardrailsRequest, context: grpc.ServicerContext
    ) -> guardrails_pb2.ExplainGuardrailsResponse:
        caller = current_caller.get()
        explained = await self._explainer.explain(
            messages.parse_explained_action(request, caller, request.action),
            request.guardrail_ids,
            PageRequest(request.page_size, request.page_token),
            caller.reader,
        )
        return messages.explanation_message(explained, self._name)

    async def BatchCheckGuardrails(
        self, request: guardrails_pb2.BatchCheckGuardrailsRequest, context: grpc.ServicerContext
    ) -> guardrails_pb2.BatchCheckGuardrailsResponse:
        """Evaluate guardrails for several actions."""
        caller = current_caller.get()
        results = await self._checker.judge_and_record_batch(
            [messages.parse_action(action, caller) for action in request.actions],
            caller.agent,
            messages.claimed_agent_name(request),
            caller.request_id,
            caller.reader,
            self._run_blocking,
            self._max_bytes,
        )
        response = guardrails_pb2.BatchCheckGuardrailsResponse()
        for place, result in enumerate(results):
            message = response.results.add()
            if isinstance(result, CstpError):
                message.error.reason, message.error.message = result.reason, result.message
            else:
                check_id = batch_check_id(caller.request_id, place)
                messages.CHECK.write(message.verdict, result, agent=self._name, check_id=check_id)
        return response

    async def TryRulebook(
        self, request: guardrails_pb2.TryRulebookRequest, context: grpc.ServicerContext
    ) -> guardrails_pb2.TryRulebookResponse:
        caller = current_caller.get()
        actions = [messages.parse_explained_action(request, caller, each) for each in request.actions]
        with self._trials.limit.hold(caller.agent):
            return await self._run_blocking(self._try, sent_rulebooks(request.rulebooks), actions)

    def _try(self, sent: Sequence[SentRulebook], actions: Sequence[Action]) -> guardrails_pb2.TryRulebookResponse:
        # Encoded on the thread too: thousands of explanations take a part of a second.
        report = try_rulebooks(sent, actions, self._trials.policy)
        return messages.trial_message(report, self._name, self._max_bytes)

    async def ReplayRulebook(  # type: ignore[override]  # the stubs know threads' iterators only
        self, request: guardrails_pb2.ReplayRulebookRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[guardrails_pb2.ReplayRulebookResponse, None]:
        return self._replayed(current_caller.get().agent, request)

    async def _replayed(
        self, agent: str, request: guardrails_pb2.ReplayRulebookRequest
    ) -> AsyncGenerator[guardrails_pb2.ReplayRulebookResponse, None]:
        trials = self._trials
        before = proto_values.datetime_field(request, "before") or trials.clock()
        after = proto_values.datetime_field(request, "after") or max(before, EARLIEST) - REPLAYED_PERIOD
        conditions = REPLAYED.decode(request, after=after, before=before, with_judged=True)
        examples = proto_values.optional_field(request, "examples")
        sent = sent_rulebooks(request.rulebooks)
        with trials.limit.hold(agent):
            progress = replay_rulebooks(sent, conditions, trials.read_page, trials.policy, examples)
            async with aclosing(stream_blocking(progress, self._run_blocking)) as parts:
                async for part in parts:
                    yield messages.replay_message(part)


REPLAYED = MessageMapper(AuditFilter, guardrails_pb2.ReplayRulebookRequest, given=("after", "before", "with_judged"))
REPLAYED_PERIOD = timedelta(days=7)
EARLIEST = datetime.min.replace(tzinfo=UTC) + REPLAYED_PERIOD
"""The earliest instant that has a period before it."""


def sent_rulebooks(texts: Iterable[guardrails_pb2.RulebookText]) -> list[SentRulebook]:
    return [SentRulebook(each.name, each.text) for each in texts]


RULEBOOK = MessageMapper(
    ParsedRulebook,
    guardrails_pb2.Rulebook,
    {
        # Without its path, which would reveal details of the machine to callers.
        "file": lambda rulebook: Path(rulebook.file).name,
        "guardrails": lambda rulebook: len(rulebook.guardrails),
    },
)
FAILED_LOAD = MessageMapper(
    FailedLoad,
    guardrails_pb2.FailedLoad,
    {
        "problem_count": lambda failure: len(failure.problems),
        "problems": lambda failure: messages.problem_messages(failure.problems),
    },
)
