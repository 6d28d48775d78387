import type { Client } from "./client.js";
import type { Blocked } from "./guarded_action.js";
import { ToolGuardPlan, type ToolGuards } from "./tool_guards.js";

export type { ToolAction, ToolGuard, ToolGuards } from "./tool_guards.js";

/** A client of MCP: that of `@modelcontextprotocol/client`, or of `@modelcontextprotocol/sdk`. */
export interface ToolCaller {
  callTool(params: { name: string; arguments?: Record<string, unknown> }, ...rest: never[]): Promise<unknown>;
}

/** What guards are given of a call: its arguments, as the model wrote them. */
export type Arguments = Readonly<Record<string, unknown>>;

/** How the tools of MCP servers are guarded, by their names. */
export type McpGuards = ToolGuards<Readonly<Record<string, Arguments>>>;

type CallTool = (params: { name: string; arguments?: Arguments }, ...rest: unknown[]) => Promise<unknown>;

/**
 * Puts the tool calls of a client of MCP under guard and returns the client, whose `callTool` is replaced. A call that is
 * not allowed resolves with a result whose `isError` is true and which says why, as the results of tools that failed
 * do; a call that could not be judged rejects with a CstpError. Neither is sent. Results with `isError`, and calls that
 * reject, are reviewed as failures. Requests that are made with `client.request` are not guarded. Throws TypeError for
 * unknown options.
 */
export function guardToolCalls<C extends ToolCaller>(cstp: Client, client: C, guards: McpGuards = {}): C {
  const plan = new ToolGuardPlan(cstp, guards);
  const callTool = client.callTool.bind(client) as unknown as CallTool;
  const guarded: CallTool = async (params, ...rest) => {
    const action = plan.actionOf(params.name, params.arguments ?? {});
    if (!action) return callTool(params, ...rest);
    const signal = signalOf(rest);
    const blocked = await action.blocked({ signal });
    if (blocked) return blockedResult(blocked);
    return action.run(() => callTool(params, ...rest), { signal, failureOf });
  };
  client.callTool = guarded as unknown as C["callTool"];
  return client;
}

function blockedResult({ message }: Blocked) {
  return { content: [{ type: "text" as const, text: message }], isError: true };
}

/** Returns what the result of a tool that failed says; undefined for another result. */
function failureOf(result: unknown): string | undefined {
  const { isError, content } = result as { isError?: boolean; content?: { type: string; text?: string }[] };
  if (!isError) return undefined;
  const texts = (content ?? []).flatMap(({ type, text }) => (type === "text" && text ? [text] : []));
  return texts.join(" ") || "the tool failed";
}

/** Returns the signal by which a call can be ended; it is among the options, whose place differs between versions. */
function signalOf(rest: unknown[]): AbortSignal | undefined {
  return rest.map((each) => (each as { signal?: AbortSignal } | undefined)?.signal).find((each) => each !== undefined);
}
