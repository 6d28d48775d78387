import { randomUUID } from "node:crypto";
import { clone, create, type DescMessage, type MessageInitShape } from "@bufbuild/protobuf";

/** The fields by which the server recognises a repetition, by their paths. */
const FIELDS: ReadonlyMap<string, readonly string[]> = new Map([
  ["cstp.v1.AnnounceIntentRequest", ["correlationId"]],
  ["cstp.v1.PreActionRequest", ["announcement", "correlationId"]],
  ["cstp.v1.RecordDecisionRequest", ["requestId"]],
  ["cstp.v1.RecordThoughtRequest", ["requestId"]],
  ["cstp.v1.ReviewDecisionRequest", ["requestId"]],
]);

/** Returns a request with the identifier that makes its repetition safe, where its type has one. */
export function identified<I extends DescMessage>(schema: I, request: MessageInitShape<I>): MessageInitShape<I> {
  const path = FIELDS.get(schema.typeName);
  if (path === undefined) return request;
  const message: Record<string, unknown> = clone(schema, create(schema, request));
  let holder: Record<string, unknown> | undefined = message;
  for (const name of path.slice(0, -1)) holder = holder?.[name] as Record<string, unknown> | undefined;
  const field = path[path.length - 1];
  // Nowhere to put it where the request lacks what it must have; the server says so.
  if (holder !== undefined && field !== undefined) holder[field] ??= randomUUID();
  return message as MessageInitShape<I>;
}
