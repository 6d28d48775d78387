import { randomUUID } from "node:crypto";
import type { JsonObject, MessageInitShape as Init } from "@bufbuild/protobuf";
import type { CallOptions } from "@connectrpc/connect";
import type { Client } from "./client.js";
import { PermissionDenied } from "./error_classes.js";
import type { AnnounceIntentRequestSchema, AnnounceIntentResponse } from "./gen/cstp/v1/cstp_pb.js";
import { JournalService, type Decision } from "./gen/cstp/v1/journal_pb.js";
import {
  DecisionStatus,
  Outcome,
  Severity,
  Visibility,
  type Scope,
  type Stakes,
  type Violation,
} from "./gen/cstp/v1/types_pb.js";

/** What is announced of an action. */
export interface Announcement {
  /** What is about to be done; 1 to 8000 characters. */
  readonly intent: string;
  /** Further text to search together with the intent. */
  readonly context?: string | undefined;
  /** The category of the decision. */
  readonly category?: string | undefined;
  /** Stakes of the action. [default: medium] */
  readonly stakes?: Stakes | undefined;
  /** How sure the agent is, 0 to 1; it is recorded, so that calibration can compare it with the outcome. */
  readonly confidence?: number | undefined;
  /** The inputs of the guardrails. */
  readonly metadata?: JsonObject | undefined;
  /** The project that contains `paths`. */
  readonly project?: string | undefined;
  /** The files and folders that the action touches. */
  readonly paths?: readonly string[] | undefined;
  /** Who the agent says it is. */
  readonly agent?: { readonly id?: string; readonly url?: string } | undefined;
  /** Who judges the action. */
  readonly scope?: Scope | undefined;
  /** The peers to ask where the scope is federated. */
  readonly agents?: readonly string[] | undefined;
}

/** How an action is guarded. */
export interface GuardOptions {
  /** Whether to record a decision and review its outcome; true when absent. */
  readonly record?: boolean | undefined;
  /** Whether every agent may read that decision, with the error of a failure; false when absent. */
  readonly share?: boolean | undefined;
  /** How long each call to the server may take; as the service config says when absent. */
  readonly timeoutMs?: number | undefined;
}

/** A guarded action in progress. */
export interface Announced {
  /** What the server answered to the announcement. */
  readonly response: AnnounceIntentResponse;
  /** The decision to review; undefined where none is recorded. */
  readonly decision: Decision | undefined;
}

/** The names of what can be announced; the compiler finds one that is missing. */
export const ANNOUNCED = keysOf<Announcement>({
  intent: true,
  context: true,
  category: true,
  stakes: true,
  confidence: true,
  metadata: true,
  project: true,
  paths: true,
  agent: true,
  scope: true,
  agents: true,
});
export const OPTIONS = keysOf<GuardOptions>({ record: true, share: true, timeoutMs: true });

/** As the contract limits the title of a decision. */
const MAX_TITLE_CHARACTERS = 500;
/** Of an error, in the notes of its decision. Chosen: a message, not a page. */
const MAX_NOTE_CHARACTERS = 500;

/** The announced action is not allowed, or there was no verdict; nothing has run. */
export class Blocked extends Error {
  /** What blocks, and what needs approval. */
  readonly violations: readonly Violation[];
  /** What only warns. */
  readonly warnings: readonly Violation[];
  /** What the server suggests. */
  readonly suggestions: readonly string[];

  constructor(
    readonly intent: string,
    /** What the server answered to the announcement. */
    readonly response: AnnounceIntentResponse,
  ) {
    super(explain(intent, response));
    this.name = new.target.name;
    this.violations = response.guardrailStatus?.violations ?? [];
    this.warnings = response.guardrailStatus?.warnings ?? [];
    this.suggestions = response.suggestions;
  }

  /** Whether only the approval of a person is missing. */
  get approvable(): boolean {
    return needsApprovalAlone(this.response);
  }
}

function explain(intent: string, { guardrailStatus: verdict, suggestions }: AnnounceIntentResponse): string {
  if (!verdict) return `'${intent}' is not allowed: the server gave no verdict`;
  const request = verdict.approval?.id ? ` (${verdict.approval.id})` : "";
  const lines = [`'${intent}' ${verdict.approvalRequired ? "needs approval" : "is blocked"}${request}:`];
  for (const { guardrailId, agent, message, suggestion } of verdict.violations) {
    const by = agent ? `${guardrailId} of ${agent}` : guardrailId;
    lines.push([`- ${by}: ${message}`, suggestion].filter(Boolean).join(" "));
  }
  if (suggestions.length > 0) lines.push(`Suggestions: ${suggestions.join("; ")}`);
  return lines.join("\n");
}

/** How an action is run that was announced. */
export interface Run<R = unknown> {
  /** Ends the announcement; an action that ends after it was aborted is abandoned. */
  readonly signal?: AbortSignal | undefined;
  /** Whether a person who may decide has approved what needs approval. */
  readonly approved?: boolean;
  /** Finds in a result that it stands for a failure, and says of what. */
  readonly failureOf?: (result: R) => string | undefined;
}

/** One guarded action, from its announcement to its review. */
export class GuardedAction {
  readonly #client: Client;
  readonly #announcement: Announcement;
  readonly #options: GuardOptions;
  // Chosen here and not by the server: the record is then another call of the same intent.
  readonly #correlationId = randomUUID();
  #response: Promise<AnnounceIntentResponse> | undefined;

  /** Throws TypeError for unknown members. */
  constructor(client: Client, announcement: Announcement, options: GuardOptions = {}) {
    // A misspelled member, such as `stake`, would announce less than was meant.
    requireKnown(announcement, ANNOUNCED);
    requireKnown(options, OPTIONS);
    if (options.share && options.record === false) throw new TypeError("a guard can share only what it records");
    this.#client = client;
    this.#announcement = announcement;
    this.#options = options;
  }

  /** Announces the action, once. Rejects with a CstpError. */
  announce(signal?: AbortSignal): Promise<AnnounceIntentResponse> {
    const request = { ...this.#announcement, correlationId: this.#correlationId };
    return (this.#response ??= this.#client.announceIntent(
      request as Init<typeof AnnounceIntentRequestSchema>,
      this.#limits(signal),
    ));
  }

  /** Returns why the action is not allowed; undefined where it is. Rejects with a CstpError. */
  async blocked({ signal, approved = false }: Omit<Run, "failureOf"> = {}): Promise<Blocked | undefined> {
    const response = await this.announce(signal);
    if (isAllowed(response) || (approved && needsApprovalAlone(response))) return undefined;
    return new Blocked(this.#announcement.intent, response);
  }

  /** Runs the action if it is allowed, and reviews its outcome. Rejects with Blocked and CstpError. */
  async run<R>(action: (announced: Announced) => R | PromiseLike<R>, run: Run<R> = {}): Promise<R> {
    const announced = await this.#begin(run);
    let result: R;
    try {
      run.signal?.throwIfAborted();
      result = requireFinished(await action(announced));
    } catch (error) {
      await this.#end(announced, outcomeOf(error, run.signal), noteOf(error));
      throw error;
    }
    const failure = run.failureOf?.(result);
    await this.#end(announced, failure === undefined ? Outcome.SUCCESS : Outcome.FAILURE, failure && noteOf(failure));
    return result;
  }

  /** Yields what the action yields if it is allowed, and reviews its outcome. Rejects with Blocked and CstpError. */
  async *stream<T>(
    action: (announced: Announced) => AsyncIterable<T>,
    run: Omit<Run, "failureOf"> = {},
  ): AsyncGenerator<T, void> {
    const announced = await this.#begin(run);
    // What holds where the reader leaves before the end.
    let outcome = Outcome.ABANDONED;
    let note: string | undefined;
    try {
      run.signal?.throwIfAborted();
      yield* action(announced);
      outcome = Outcome.SUCCESS;
    } catch (error) {
      outcome = outcomeOf(error, run.signal);
      note = noteOf(error);
      throw error;
    } finally {
      await this.#end(announced, outcome, note);
    }
  }

  async #begin(run: Omit<Run, "failureOf">): Promise<Announced> {
    const blocked = await this.blocked(run);
    if (blocked) throw blocked;
    const response = await this.announce();
    return { response, decision: this.#options.record === false ? undefined : await this.#record() };
  }

  async #record(): Promise<Decision> {
    const { intent, context, category, stakes, confidence, project } = this.#announcement;
    const title = shorten(intent, MAX_TITLE_CHARACTERS);
    // Nothing of a long intent is lost: the title is cut, and the whole opens the context.
    const whole = title === intent ? context : [intent, context].filter(Boolean).join("\n\n");
    const decision = {
      ...{ title, context: whole, category, stakes, confidence, project },
      status: DecisionStatus.DECIDED,
      visibility: this.#options.share ? Visibility.SHARED : undefined,
    };
    try {
      const journal = this.#client.service(JournalService);
      const request = { requestId: this.#correlationId, decision };
      const answer = await journal.recordDecision(
        request as Parameters<typeof journal.recordDecision>[0],
        this.#limits(),
      );
      if (!answer.decision) throw new TypeError("the server recorded no decision");
      return answer.decision;
    } catch (error) {
      throw error instanceof PermissionDenied ? recordDenied(error) : error;
    }
  }

  async #end({ decision }: Announced, outcome: Outcome, notes?: string): Promise<void> {
    if (!decision) return;
    const request = { id: decision.id, outcome, ...(notes ? { notes } : {}) };
    try {
      await this.#client.service(JournalService).reviewDecision(request, this.#limits());
    } catch (error) {
      // The action is done, and its own result counts.
      const needed = error instanceof PermissionDenied ? ": the token lacks the permission review" : "";
      process.emitWarning(`The outcome of the decision ${decision.id} could not be reviewed${needed}`, {
        type: "CstpGuardWarning",
        detail: String(error),
      });
    }
  }

  #limits(signal?: AbortSignal): CallOptions {
    const { timeoutMs } = this.#options;
    return { ...(timeoutMs === undefined ? {} : { timeoutMs }), ...(signal ? { signal } : {}) };
  }
}

/** Whether a verdict allows the action. Without a verdict it is not allowed, and violations block even if it says so. */
export function isAllowed({ guardrailStatus: verdict }: AnnounceIntentResponse): boolean {
  return verdict !== undefined && verdict.allowed && verdict.violations.length === 0;
}

/** Whether only the approval of a person is missing. */
export function needsApprovalAlone({ guardrailStatus: verdict }: AnnounceIntentResponse): boolean {
  return (
    verdict !== undefined &&
    verdict.approvalRequired &&
    verdict.violations.every(({ severity }) => severity === Severity.APPROVE)
  );
}

/** Throws TypeError for a member that is not known. */
export function requireKnown(given: object, known: ReadonlySet<string>): void {
  const unknown = Object.keys(given).find((key) => !known.has(key));
  if (unknown !== undefined) throw new TypeError(`a guard has no option '${unknown}'`);
}

/** Returns a text of so many characters at the most. */
function shorten(text: string, length: number): string {
  // Half of a pair of surrogates is no character.
  return text.length <= length ? text : `${text.slice(0, length - 1).replace(/[\ud800-\udbff]$/, "")}…`;
}

function outcomeOf(error: unknown, signal: AbortSignal | undefined): Outcome {
  const aborted = signal?.aborted || (error instanceof Error && error.name === "AbortError");
  return aborted ? Outcome.ABANDONED : Outcome.FAILURE;
}

function noteOf(error: unknown): string {
  const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  return shorten(text.replace(/\s+/g, " ").trim(), MAX_NOTE_CHARACTERS);
}

/** Returns a result. Throws TypeError for a generator, which would run unguarded, after the review. */
function requireFinished<R>(result: R): R {
  if (/^\[object (Async)?Generator\]$/.test(Object.prototype.toString.call(result))) {
    throw new TypeError("a generator runs after it was called: guard what it does");
  }
  return result;
}

function recordDenied(error: PermissionDenied): PermissionDenied {
  const message =
    `Nothing was done, because the decision could not be recorded: ${error.message}. Recording needs the permission` +
    " record; with record: false the guard only announces";
  return new PermissionDenied(message, { metadata: error.metadata, cause: error });
}

function keysOf<T>(keys: Record<keyof T, true>): ReadonlySet<string> {
  return new Set(Object.keys(keys));
}
