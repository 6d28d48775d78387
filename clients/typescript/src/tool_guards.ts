import type { Client } from "./client.js";
import {
  ANNOUNCED,
  GuardedAction,
  OPTIONS,
  requireKnown,
  type Announcement,
  type GuardOptions,
} from "./guarded_action.js";

/** What is announced of the calls of a tool, and how they are guarded. */
export interface ToolAction extends Partial<Announcement>, GuardOptions {}

/** How a tool is guarded: as said, as a function of its input says, or not at all where that is false. */
export type ToolGuard<I> = false | ToolAction | ((input: I) => false | ToolAction);

/** How tools are guarded: those of `tools` as it says, beyond what holds for all of them. */
export interface ToolGuards<Inputs extends object> extends Omit<ToolAction, "intent"> {
  readonly tools?: { readonly [Name in keyof Inputs]?: ToolGuard<Inputs[Name]> } | undefined;
}

const ACTION = new Set([...ANNOUNCED, ...OPTIONS]);

/** Makes a guarded action of a call of a tool. */
export class ToolGuardPlan {
  readonly #client: Client;
  readonly #shared: Omit<ToolAction, "intent">;
  readonly #tools: ReadonlyMap<string, ToolGuard<never>>;

  /** `more` are members that the framework's own guards have beside these. Throws TypeError for unknown members. */
  constructor(client: Client, { tools = {}, ...shared }: ToolGuards<Record<string, never>>, more: string[] = []) {
    requireKnown(shared, new Set([...ACTION, ...more].filter((key) => key !== "intent")));
    for (const each of Object.values(tools)) if (typeof each === "object") requireKnown(each, ACTION);
    this.#client = client;
    this.#shared = Object.fromEntries(Object.entries(shared).filter(([key]) => !more.includes(key)));
    this.#tools = new Map(Object.entries(tools).flatMap(([name, each]) => (each === undefined ? [] : [[name, each]])));
  }

  /** The tools of which something is said. */
  get names(): Iterable<string> {
    return this.#tools.keys();
  }

  /** Whether calls of a tool are guarded, whatever their input. */
  guards(name: string): boolean {
    return this.#tools.get(name) !== false;
  }

  /** Returns the guarded action of a call, or undefined where it is not to be guarded. Throws TypeError. */
  actionOf(name: string, input: unknown): GuardedAction | undefined {
    const guard = this.#tools.get(name) ?? {};
    const said = typeof guard === "function" ? guard(input as never) : guard;
    if (said === false) return undefined;
    requireKnown(said, ACTION);
    // What is undefined is left out: it is not to take back what holds for all tools, such as high stakes.
    const stated = Object.entries(said).filter(([, value]) => value !== undefined);
    const { record, share, timeoutMs, ...announcement }: ToolAction = {
      ...this.#shared,
      ...Object.fromEntries(stated),
    };
    // Not cut, however long: what the guardrails do not read, they cannot forbid.
    const intent = announcement.intent ?? `Call ${name} with ${JSON.stringify(input ?? {})}`;
    return new GuardedAction(this.#client, { ...announcement, intent }, { record, share, timeoutMs });
  }
}
