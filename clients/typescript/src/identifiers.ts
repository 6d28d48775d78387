import { randomUUID } from "node:crypto";
import { clone, create, type DescMessage, type MessageInitShape } from "@bufbuild/protobuf";

/** The fields by which the server recognises a repetition. */
const FIELDS: ReadonlyMap<string, string> = new Map([
  ["cstp.v1.AnnounceIntentRequest", "correlationId"],
  ["cstp.v1.RecordDecisionRequest", "requestId"],
  ["cstp.v1.ReviewDecisionRequest", "requestId"],
]);

/** Returns a request with the identifier that makes its repetition safe, where its type has one. */
export function identified<I extends DescMessage>(schema: I, request: MessageInitShape<I>): MessageInitShape<I> {
  const field = FIELDS.get(schema.typeName);
  if (field === undefined) return request;
  const message: Record<string, unknown> = clone(schema, create(schema, request));
  message[field] ??= randomUUID();
  return message as MessageInitShape<I>;
}
