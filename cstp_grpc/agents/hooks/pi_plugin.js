export default function (pi) {
  const introduced = new Set();
  const contexts = new Map();
  const event = (name, ctx, call = {}) => ({
    hook_event_name: name,
    session_id: ctx.sessionManager.getSessionId(),
    cwd: ctx.cwd,
    tool_name: call.toolName,
    tool_input: call.input,
    tool_use_id: call.toolCallId,
  });
  pi.on("before_agent_start", async ({ prompt }, ctx) => {
    const session = ctx.sessionManager.getSessionId();
    const events = introduced.has(session) ? [] : [event("SessionStart", ctx)];
    introduced.add(session);
    if (prompt) events.push({ ...event("UserPromptSubmit", ctx), prompt });
    const answers = await Promise.all(events.map((each) => ask(each).catch(() => ({}))));
    const content = answers.flatMap(({ context }) => context ?? []).join("\n\n");
    if (content) return { message: { customType: "cstp", content, display: false } };
  });
  pi.on("tool_call", async (call, ctx) => {
    if (UNASKED.includes(call.toolName)) return;
    const answer = await judge(event("PreToolUse", ctx, call));
    if (answer.decision === "deny") return { block: true, reason: answer.reason };
    if (answer.context) contexts.set(call.toolCallId, answer.context);
  });
  pi.on("tool_result", async (result, ctx) => {
    const name = result.isError ? "PostToolUseFailure" : "PostToolUse";
    if (EDITORS.includes(result.toolName)) await ask(event(name, ctx, result)).catch(() => {});
    // The model is told with the result: there is no other way before its next answer.
    const text = contexts.get(result.toolCallId);
    contexts.delete(result.toolCallId);
    if (!text) return;
    // Without the structured content, Pi would drop it.
    return { content: [...result.content, { type: "text", text }], structuredContent: result.structuredContent };
  });
}
