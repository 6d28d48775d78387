export const Cstp = async ({ directory }) => {
  const introductions = new Map();
  const contexts = new Map();
  const event = (name, input, args) => ({
    hook_event_name: name,
    session_id: input.sessionID,
    cwd: directory,
    tool_name: input.tool,
    tool_input: args,
    tool_use_id: input.callID,
  });
  return {
    "experimental.chat.system.transform": async (input, output) => {
      const session = input.sessionID;
      if (!introductions.has(session)) introductions.set(session, ask(event("SessionStart", input)).catch(() => ({})));
      const { context } = await introductions.get(session);
      if (context) output.system.push(context);
    },
    "tool.execute.before": async (input, output) => {
      if (UNASKED.includes(input.tool)) return;
      const answer = await judge(event("PreToolUse", input, output.args));
      if (answer.decision === "deny") throw new Error(answer.reason);
      if (answer.context) contexts.set(input.callID, answer.context);
    },
    "tool.execute.after": async (input, output) => {
      // The model is told with the result: there is no other way before its next answer.
      const context = contexts.get(input.callID);
      contexts.delete(input.callID);
      if (context && typeof output.output === "string") output.output += `\n\n${context}`;
      if (EDITORS.includes(input.tool)) await ask(event("PostToolUse", input, input.args)).catch(() => {});
    },
  };
};
