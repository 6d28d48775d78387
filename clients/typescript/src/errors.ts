import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  PreconditionFailureSchema,
  RetryInfoSchema,
} from "./gen/google/rpc/error_details_pb.js";

/** That of the contract's reasons; those of others may have the same names. */
const DOMAIN = "cstp";

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

  /** The id under which the server's log tells more; undefined where no server answered. */
  get requestId(): string | undefined {
    return this.metadata["requestId"];
  }
}

/** A field is missing, unknown or out of its range; `violations` names each. */
export class InvalidArgument extends CstpError {
  static override readonly reason: string = "INVALID_ARGUMENT";

  /** Returns the error for a single field. */
  static field(field: string, description: string): InvalidArgument {
    return new InvalidArgument(`${field}: ${description}`, { violations: [{ field, description }] });
  }
}

/** An intent lacks a parameter. */
export class MissingParameter extends InvalidArgument {
  static override readonly reason = "MISSING_PARAMETER";
}

/** There is no such pillar. */
export class InvalidPillar extends InvalidArgument {
  static override readonly reason = "INVALID_PILLAR";
}

/** There is no such method. */
export class MethodNotFound extends CstpError {
  static override readonly reason = "METHOD_NOT_FOUND";
}

/** Something unforeseen, or a reason that this client does not know; `metadata.reason` then names it. */
export class InternalError extends CstpError {
  static override readonly reason = "INTERNAL";
}

/** The bearer token is missing, unknown or expired. */
export class AuthenticationRequired extends CstpError {
  static override readonly reason = "AUTHENTICATION_REQUIRED";
}

/** The agent lacks a permission. */
export class PermissionDenied extends CstpError {
  static override readonly reason = "PERMISSION_DENIED";
}

/** Too many calls; `retryDelayMs` says how long to wait. */
export class RateLimited extends CstpError {
  static override readonly reason = "RATE_LIMITED";
}

/** The journal, the embedder or the search cannot answer. */
export class QueryFailed extends CstpError {
  static override readonly reason = "QUERY_FAILED";
}

/** There is no usable rule set. */
export class GuardrailEvalFailed extends CstpError {
  static override readonly reason = "GUARDRAIL_EVAL_FAILED";
}

/** There is nothing of that name that the caller may see. */
export class NotFound extends CstpError {
  static override readonly reason: string = "NOT_FOUND";
}

/** The tenant has no such chat session, or it is closed. */
export class SessionNotFound extends NotFound {
  static override readonly reason = "SESSION_NOT_FOUND";
}

/** An identifier chosen by the caller was used with another content. */
export class Conflict extends CstpError {
  static override readonly reason = "CONFLICT";
}

/** The deadline passed before the answer. */
export class DeadlineExceeded extends CstpError {
  static override readonly reason = "DEADLINE_EXCEEDED";
}

/** The server cannot answer now; trying again may help. */
export class Unavailable extends CstpError {
  static override readonly reason: string = "UNAVAILABLE";
}

/** There is no server at the address, or the network between fails. */
export class ServerUnreachable extends Unavailable {}

/** A context may not be shared as it is, or the agent that it is for refused it. */
export class ContextSharingFailed extends CstpError {
  static override readonly reason = "CONTEXT_SHARING_FAILED";
}

/** A chat session was changed at the same time; reading it again and trying again may help. */
export class SessionUpdateFailed extends CstpError {
  static override readonly reason = "SESSION_UPDATE_FAILED";
}

/** A liaison agent does not answer now; `retryDelayMs` says when to try again. */
export class LiaisonAgentUnavailable extends CstpError {
  static override readonly reason = "LIAISON_AGENT_UNAVAILABLE";
}

/** A chat session is with another agent than the guide. */
export class SessionWithAnotherAgent extends CstpError {
  static override readonly reason = "SESSION_WITH_ANOTHER_AGENT";
}

type Kind = new (message: string, details?: Details) => CstpError;

const BY_REASON: ReadonlyMap<string, Kind> = new Map(
  [
    InvalidArgument,
    MissingParameter,
    InvalidPillar,
    MethodNotFound,
    InternalError,
    AuthenticationRequired,
    PermissionDenied,
    RateLimited,
    QueryFailed,
    GuardrailEvalFailed,
    NotFound,
    SessionNotFound,
    Conflict,
    DeadlineExceeded,
    Unavailable,
    ContextSharingFailed,
    SessionUpdateFailed,
    LiaisonAgentUnavailable,
    SessionWithAnotherAgent,
  ].map((kind) => [kind.reason, kind]),
);

/** What a status without details means: gRPC itself or something between answered. Others are InternalError. */
const BY_CODE: Readonly<Partial<Record<Code, Kind>>> = {
  [Code.Unauthenticated]: AuthenticationRequired,
  [Code.PermissionDenied]: PermissionDenied,
  // Without details this is a limit on calls in progress, not the rate limit of an agent.
  [Code.ResourceExhausted]: Unavailable,
  [Code.NotFound]: NotFound,
  [Code.Unimplemented]: MethodNotFound,
  [Code.InvalidArgument]: InvalidArgument,
  [Code.OutOfRange]: InvalidArgument,
  [Code.AlreadyExists]: Conflict,
  [Code.Aborted]: Conflict,
  [Code.DeadlineExceeded]: DeadlineExceeded,
  [Code.Unavailable]: ServerUnreachable,
  // A server that stops cancels the calls that it could not finish.
  [Code.Canceled]: Unavailable,
};

/** Returns the name of the gRPC status of a failed call, for instance `RESOURCE_EXHAUSTED`. */
export function statusOf(error: ConnectError): string {
  return Code[codeOf(error)].replace(/(?<=.)[A-Z]/g, "_$&").toUpperCase();
}

/** Connect has several codes for what gRPC calls UNAVAILABLE: a server that cannot be reached, or is gone. */
function codeOf(error: ConnectError): Code {
  const failed = error.cause instanceof Error && "code" in error.cause;
  const cut = error.code === Code.Canceled && !error.metadata.has("grpc-status");
  return failed || cut ? Code.Unavailable : error.code;
}

/** Returns the error for a call to `target` that Connect says failed. */
export function typed(error: ConnectError, target: string): CstpError {
  const info = error.findDetails(ErrorInfoSchema)[0];
  if (info?.domain !== DOMAIN) return bare(error, target);
  const known = BY_REASON.get(info.reason);
  const delay = error.findDetails(RetryInfoSchema)[0]?.retryDelay;
  return new (known ?? InternalError)(error.rawMessage, {
    metadata: known ? info.metadata : { reason: info.reason, ...info.metadata },
    violations: error
      .findDetails(BadRequestSchema)
      .flatMap(({ fieldViolations }) => fieldViolations.map(({ field, description }) => ({ field, description }))),
    blocks: error
      .findDetails(PreconditionFailureSchema)
      .flatMap(({ violations }) =>
        violations.map(({ type, subject, description }) => ({ guardrailId: type, name: subject, message: description })),
      ),
    retryDelayMs: delay && durationMs(delay),
    cause: error,
  });
}

function bare(error: ConnectError, target: string): CstpError {
  const code = codeOf(error);
  const kind = (code === Code.ResourceExhausted && tooLarge(error.rawMessage)) || (BY_CODE[code] ?? InternalError);
  if (kind === ServerUnreachable)
    return new kind(`No server answers at ${target}: ${error.rawMessage}`, { cause: error });
  if (kind === DeadlineExceeded) return new kind(`${target} did not answer in time`, { cause: error });
  return new kind(`${target} answered ${statusOf(error)}: ${error.rawMessage}`, { cause: error });
}

/** Returns what a text says of a message beyond a limit: only the text tells it from other exhaustion. */
function tooLarge(text: string): Kind | undefined {
  if (text.includes("Received message larger")) return InvalidArgument;
  return /Sent message larger|larger than configured/.test(text) ? InternalError : undefined;
}
