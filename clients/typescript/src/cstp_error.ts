/** What is wrong with one field of a request; `field` is its path as the contract writes it. */
export interface FieldViolation {
  readonly field: string;
  readonly description: string;
}

/** A guardrail that forbids what was asked for. */
export interface Block {
  readonly guardrailId: string;
  readonly name: string;
  readonly message: string;
}

/** What an error tells beside its message. */
export interface Details {
  readonly metadata?: Readonly<Record<string, string>>;
  readonly violations?: readonly FieldViolation[];
  readonly blocks?: readonly Block[];
  readonly retryDelayMs?: number | undefined;
  readonly cause?: unknown;
}

/** A call that failed. Its class and `reason` say why; `cause` is the error of Connect. */
export class CstpError extends Error {
  /** The reason that the class stands for: a value of the contract's ErrorReason without its prefix. */
  static readonly reason: string = "INTERNAL";

  readonly reason: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly violations: readonly FieldViolation[];
  /** The guardrails that forbid it. */
  readonly blocks: readonly Block[];
  /** How many milliseconds to wait before trying again; undefined where waiting does not help. */
  readonly retryDelayMs: number | undefined;

  constructor(message: string, details: Details = {}) {
    super(message, { cause: details.cause });
    this.name = new.target.name;
    this.reason = new.target.reason;
    this.metadata = details.metadata ?? {};
    this.violations = details.violations ?? [];
    this.blocks = details.blocks ?? [];
    this.retryDelayMs = details.retryDelayMs;
  }

  /** Returns the error for a single field of a request. */
  static field<E extends CstpError>(this: ErrorClass<E>, field: string, description: string): E {
    return new this(`${field}: ${description}`, { violations: [{ field, description }] });
  }

  /** The id under which the server's log tells more; undefined where no server answered. */
  get requestId(): string | undefined {
    return this.metadata["requestId"];
  }
}

/** A class of errors. */
export type ErrorClass<E extends CstpError = CstpError> = new (message: string, details?: Details) => E;
