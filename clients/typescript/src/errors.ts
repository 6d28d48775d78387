import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  PreconditionFailureSchema,
  RetryInfoSchema,
} from "./gen/google/rpc/error_details_pb.js";
import { type CstpError, type ErrorClass } from "./cstp_error.js";
import { DeadlineExceeded, InternalError, InvalidArgument, Unavailable } from "./error_classes.js";
import { BY_CODE, BY_REASON } from "./error_tables.js";

/** That of the contract's reasons; those of others may have the same names. */
const DOMAIN = "cstp";

/** There is no server at the address, or the network between fails. */
export class ServerUnreachable extends Unavailable {}

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
  if (info?.domain !== DOMAIN) return errorForStatus(error, target);
  const known = BY_REASON.get(info.reason);
  const delay = error.findDetails(RetryInfoSchema)[0]?.retryDelay;
  return new (known ?? InternalError)(error.rawMessage, {
    metadata: known ? info.metadata : { reason: info.reason, ...info.metadata },
    violations: error
      .findDetails(BadRequestSchema)
      .flatMap(({ fieldViolations }) => fieldViolations.map(({ field, description }) => ({ field, description }))),
    blocks: error.findDetails(PreconditionFailureSchema).flatMap(({ violations }) =>
      violations.map(({ type, subject, description }) => ({
        guardrailId: type,
        name: subject,
        message: description,
      })),
    ),
    retryDelayMs: delay && durationMs(delay),
    cause: error,
  });
}

function errorForStatus(error: ConnectError, target: string): CstpError {
  const code = codeOf(error);
  const text = error.rawMessage;
  if (code === Code.Unavailable)
    return new ServerUnreachable(`No server answers at ${target}: ${text}`, { cause: error });
  const tooLarge = code === Code.ResourceExhausted ? classForSizeLimit(text) : undefined;
  const kind = tooLarge ?? BY_CODE[code] ?? InternalError;
  if (kind === DeadlineExceeded) return new kind(`${target} did not answer in time`, { cause: error });
  return new kind(`${target} answered ${statusOf(error)}: ${text}`, { cause: error });
}

/** Returns what a text says of a message beyond a limit: only the text tells it from other exhaustion. */
function classForSizeLimit(text: string): ErrorClass | undefined {
  if (text.includes("Received message larger")) return InvalidArgument;
  return /Sent message larger|larger than configured/.test(text) ? InternalError : undefined;
}
