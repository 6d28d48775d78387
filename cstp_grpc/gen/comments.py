"""The comments before the rpcs of the contract, by gRPC path."""

RPC_COMMENTS: dict[str, str] = {
    '/cstp.v1.AccessService/GetAccess': "Tells which agent the caller's token identifies, what it may do, by which guardrails it is judged and which limits hold for it.",
    '/cstp.v1.AuditService/ListAuditEntries': 'Lists entries of the trail, latest first, page by page.',
    '/cstp.v1.AuditService/ListIntents': 'Lists announced intents, latest first, page by page.',
    '/cstp.v1.CstpService/AnnounceIntent': 'Announces what the caller is about to do, records it, and answers with similar past decisions, the verdict of the guardrails and suggestions. Errors: QUERY_FAILED, GUARDRAIL_EVAL_FAILED (the intent is recorded all the same) and CONFLICT where the correlation id was used for another content.',
    '/cstp.v1.CstpService/CheckGuardrails': 'Judges an action by the guardrails and records the check. Errors: GUARDRAIL_EVAL_FAILED where there is no usable rule set; a single rule that cannot be evaluated is a violation instead.',
    '/cstp.v1.CstpService/QueryDecisions': "Finds past decisions that resemble a text, most similar first, among the shared ones and the caller's own. Errors: QUERY_FAILED.",
    '/cstp.v1.JournalService/GetDecision': "Reads one decision: the caller's own whole, another's shared one without its context and the text of its reasons. Errors: NOT_FOUND, also for another's private decision.",
    '/cstp.v1.JournalService/ImportDecisions': 'Imports decisions from other records, one message each. Importing a source again changes nothing where its content is the same and updates the decision where it is not. Records are stored batch by batch; after a broken stream, what was stored stays, and the import can simply be repeated.',
    '/cstp.v1.JournalService/ListDecisions': 'Lists the decisions the caller may read, latest first, page by page, without contexts and texts of reasons.',
    '/cstp.v1.JournalService/RecordDecision': "Records a decision of the caller's. Errors: CONFLICT where the request id was used for another content.",
    '/cstp.v1.JournalService/ReviewDecision': 'Sets how a decision that the caller may read turned out, and the lesson. Reviewing again replaces the review. Errors: NOT_FOUND.',
    '/cstp.v1.JournalService/ShareDecision': "Lets every agent find a decision of the caller's. Errors: NOT_FOUND, PERMISSION_DENIED for another's shared one.",
    '/cstp.v1.JournalService/UnshareDecision': "Takes back the sharing of a decision of the caller's. Errors: NOT_FOUND, PERMISSION_DENIED for another's shared one.",
    '/cstp.v1.TaskService/GetTask': "Reads one task of the caller's. Errors: NOT_FOUND.",
    '/cstp.v1.TaskService/ListTasks': "Lists tasks of the caller's, last changed first, page by page.",
    '/cstp.v1.TaskService/SaveTask': "Keeps a new task of the caller's, or another state of one. Errors: CONFLICT where the version is not the stored one, or the task has ended.",
}
