import { spawn } from "node:child_process";

// Run the hook with an event, and return its answer; what goes wrong is an error.
function ask(event) {
  return new Promise((resolve, reject) => {
    const hook = spawn(COMMAND[0], COMMAND.slice(1), { stdio: ["pipe", "pipe", "ignore"], timeout: MILLISECONDS });
    let printed = "";
    hook.stdout.setEncoding("utf8").on("data", (text) => (printed += text));
    hook.stdin.on("error", () => {});
    hook.on("error", reject);
    hook.on("close", (code) => {
      try {
        if (code !== 0) throw new Error(`it ended with ${code}`);
        resolve(JSON.parse(printed));
      } catch (error) {
        reject(error);
      }
    });
    hook.stdin.end(JSON.stringify(event));
  });
}

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
      const answer = await ask(event("PreToolUse", input, output.args)).catch((error) => ({
        decision: "deny",
        reason: `CSTP: the hook failed, so that the call was not judged: ${error.message}`,
      }));
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
