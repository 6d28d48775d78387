import type { Client } from "./client.js";
import { needsApprovalAlone, type GuardedAction } from "./guarded_action.js";
import { ToolGuardPlan, type ToolGuards } from "./tool_guards.js";

export type { ToolAction, ToolGuard, ToolGuards } from "./tool_guards.js";

/** What the AI SDK tells of a call, as far as guards read it. */
interface CallOptions {
  readonly toolCallId: string;
  readonly messages: readonly { readonly role: string; readonly content: unknown }[];
  readonly abortSignal?: AbortSignal;
}

/** A tool of the AI SDK, as far as guards read it. */
interface SdkTool {
  readonly execute?: (input: unknown, options: CallOptions) => unknown;
  readonly needsApproval?: boolean | ((input: unknown, options: CallOptions) => boolean | PromiseLike<boolean>);
}

/** What a tool takes. The SDK says of some that they execute or do not; `any`, since options differ between versions. */
type InputOf<T> = T extends { execute?: infer E }
  ? E extends (input: infer I, options: any) => unknown
    ? I
    : never
  : never;

/** How the tools of an agent are guarded. */
export interface AiSdkGuards<Tools extends object> extends ToolGuards<{ [Name in keyof Tools]: InputOf<Tools[Name]> }> {
  /**
   * What becomes of calls that only lack the approval of a person. `tell`: they are blocked, and the model is told which
   * approval is requested, until somebody has granted it on the server. `ask`: the SDK asks the user of the application,
   * as for any tool with `needsApproval`; whoever answers decides, whomever the guardrail names. `tell` when absent.
   */
  readonly approvals?: "tell" | "ask" | undefined;
}

/** How many verdicts wait for their calls at once; beyond it the oldest are forgotten, and their calls are judged again. */
const MAX_WAITING = 1000;
/** How long a verdict waits for its call. Chosen: the SDK executes as soon as it knows that nobody is to be asked. */
const FRESH_MS = 30_000;

/**
 * Returns tools of the AI SDK, each call of which is guarded: the tool runs only if the guardrails allow the call. One that
 * is not allowed throws Blocked, which the SDK tells the model as the tool's error, with the message and suggestion of
 * the guardrail; one that could not be judged throws a CstpError. A tool that throws is reviewed as a failure, one whose
 * call is aborted as abandoned.
 *
 * Throws TypeError for unknown options and tools, and for a tool without `execute`, which runs where no guard can be,
 * unless `tools` says `false` of it.
 */
export function guardTools<Tools extends Record<string, object>>(
  client: Client,
  tools: Tools,
  guards: AiSdkGuards<Tools> = {},
): Tools {
  const plan = new ToolGuardPlan(client, guards, ["approvals"]);
  const unknown = [...plan.names].find((name) => !Object.hasOwn(tools, name));
  if (unknown !== undefined) throw new TypeError(`there is no tool '${unknown}' to guard`);
  const guarded = Object.entries(tools).map(([name, tool]) => [
    name,
    plan.guards(name) ? guardTool(plan, name, tool, guards.approvals === "ask") : tool,
  ]);
  return Object.fromEntries(guarded) as Tools;
}

function guardTool(plan: ToolGuardPlan, name: string, tool: SdkTool, askUser: boolean): object {
  const { execute, needsApproval } = tool;
  if (!execute) throw new TypeError(`the tool '${name}' has no execute: guard it where it runs, or say false of it`);
  const waiting = new WaitingVerdicts();
  const actionOf = (input: unknown, options: CallOptions) => waiting.take(input, options) ?? plan.actionOf(name, input);
  const runOf = (options: CallOptions) => ({
    signal: options.abortSignal,
    approved: askUser && userApproved(options),
  });
  // The SDK has to be told before whether outputs come one by one.
  const guardedExecute = isGeneratorFunction(execute)
    ? (input: unknown, options: CallOptions) => {
        const outputs = () => execute.call(tool, input, options) as AsyncIterable<unknown>;
        return actionOf(input, options)?.stream(outputs, runOf(options)) ?? outputs();
      }
    : async (input: unknown, options: CallOptions) => {
        const output = async () => lastOf(await execute.call(tool, input, options));
        return actionOf(input, options)?.run(output, runOf(options)) ?? output();
      };
  const asks = async (input: unknown, options: CallOptions) => {
    const own = typeof needsApproval === "function" ? await needsApproval.call(tool, input, options) : needsApproval;
    if (own) return true;
    // The SDK asks again before it executes what the user approved, to see that approving it was called for.
    if (userApproved(options)) return true;
    const action = plan.actionOf(name, input);
    return action !== undefined && waiting.isToBeAsked(action, input, options);
  };
  const members = { execute: guardedExecute, ...(askUser ? { needsApproval: asks } : {}) };
  return Object.assign(Object.create(Object.getPrototypeOf(tool) as object | null), tool, members) as object;
}

/**
 * The verdicts of calls that the SDK asked about and is about to execute. They are used and not asked for again, because
 * a grant of approval is good for one announcement.
 */
class WaitingVerdicts {
  readonly #actions = new Map<string, { readonly action: GuardedAction; readonly since: number }>();

  /** Returns whether the user is to be asked about a call; else the action waits for it. */
  async isToBeAsked(action: GuardedAction, input: unknown, options: CallOptions): Promise<boolean> {
    // Without an answer the call fails with the same error when it is executed.
    const response = await action.announce().catch(() => undefined);
    if (response && needsApprovalAlone(response)) return true;
    const oldest = this.#actions.keys().next();
    if (this.#actions.size >= MAX_WAITING && !oldest.done) this.#actions.delete(oldest.value);
    this.#actions.set(keyOf(input, options), { action, since: performance.now() });
    return false;
  }

  /** Returns the action that waits for a call, if there is one; it does so once. */
  take(input: unknown, options: CallOptions): GuardedAction | undefined {
    const key = keyOf(input, options);
    const found = this.#actions.get(key);
    this.#actions.delete(key);
    return found && performance.now() - found.since < FRESH_MS ? found.action : undefined;
  }
}

/** The input is part of it, because providers may use an id of a call again. */
function keyOf(input: unknown, { toolCallId }: CallOptions): string {
  return JSON.stringify([toolCallId, input]);
}

/** Returns whether the messages end with the user's approval of a call, as they do where the SDK executes it for that. */
function userApproved({ toolCallId, messages }: CallOptions): boolean {
  const requests = messages.flatMap(partsOf).filter((part) => part["type"] === "tool-approval-request");
  const ids = new Set(requests.flatMap((part) => (part["toolCallId"] === toolCallId ? [part["approvalId"]] : [])));
  const answers = messages
    .slice(-1)
    .flatMap(partsOf)
    .filter((part) => part["type"] === "tool-approval-response");
  return answers.some((part) => ids.has(part["approvalId"]) && part["approved"] === true);
}

function partsOf({ content }: CallOptions["messages"][number]): Record<string, unknown>[] {
  return Array.isArray(content) ? (content as Record<string, unknown>[]) : [];
}

function isGeneratorFunction(execute: object): boolean {
  return Object.prototype.toString.call(execute) === "[object AsyncGeneratorFunction]";
}

/** Returns an output; of several that come one by one, as from a function that returns a stream, the last. */
async function lastOf(output: unknown): Promise<unknown> {
  if (typeof output !== "object" || output === null || !(Symbol.asyncIterator in output)) return output;
  let last: unknown;
  for await (last of output as AsyncIterable<unknown>);
  return last;
}
