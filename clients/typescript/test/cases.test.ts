import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fromJson, toJson, type DescMessage, type JsonValue, type MessageShape } from "@bufbuild/protobuf";
import { Client, CstpError, CstpService, JournalService, LiaisonService } from "../src/index.js";
import { PreActionService } from "../src/gen/cstp/v1/pre_actions_pb.js";
import { readTable, type Table } from "./table.js";

/** One call, and what becomes of it; clients/cases.yaml says what the fields mean. */
interface Step {
  call: keyof typeof METHODS;
  request: JsonValue;
  requests: JsonValue[];
  take: number;
  answer?: JsonValue;
  answers?: JsonValue;
  error?: {
    reason: string;
    message?: string;
    violations?: string[];
    blocks?: string[];
    metadata?: Record<string, string>;
    requestId?: boolean;
    retryDelayMs?: [number, number];
  };
}

interface Case extends Step {
  name: string;
  server?: string;
  token?: string;
  timeoutMs?: number;
  attempts?: number;
  steps?: Step[];
}

interface CasesTable extends Table {
  cases: Case[];
}

const METHODS = {
  announceIntent: CstpService.method.announceIntent,
  queryDecisions: CstpService.method.queryDecisions,
  checkGuardrails: CstpService.method.checkGuardrails,
  importDecisions: JournalService.method.importDecisions,
  reviewDecision: JournalService.method.reviewDecision,
  recordThought: JournalService.method.recordThought,
  preAction: PreActionService.method.preAction,
  recordDecision: JournalService.method.recordDecision,
  watchEvents: LiaisonService.method.watchEvents,
};

const table = readTable<CasesTable>();
if (table === undefined) {
  test("the table of cases", () => assert.fail("CSTP_CASES is not set: run `make test-clients` in the repository"));
} else {
  const roots = readFileSync(table.rootCertificates, "utf8");
  for (const each of table.cases) {
    test(each.name, { timeout: 60_000 }, () => run(table, roots, each));
  }
}

async function run(table: Table, roots: string, each: Case): Promise<void> {
  const client = new Client(table.servers[each.server ?? "plain"] ?? "", {
    token: table.tokens[each.token ?? "alice"] ?? undefined,
    rootCertificates: roots,
    attempts: each.attempts,
  });
  try {
    for (const step of each.steps ?? [each]) await judge(step, make(client, step, each.timeoutMs));
  } finally {
    client.close();
  }
}

async function make(client: Client, step: Step, timeoutMs: number | undefined): Promise<JsonValue> {
  const options = timeoutMs === undefined ? {} : { timeoutMs };
  const read = <I extends DescMessage>(schema: I): MessageShape<I> => fromJson(schema, step.request);
  switch (step.call) {
    case "announceIntent": {
      const { input, output } = METHODS.announceIntent;
      return printed(output, await client.announceIntent(read(input), options));
    }
    case "queryDecisions": {
      const { input, output } = METHODS.queryDecisions;
      return printed(output, await client.queryDecisions(read(input), options));
    }
    case "checkGuardrails": {
      const { input, output } = METHODS.checkGuardrails;
      return printed(output, await client.checkGuardrails(read(input), options));
    }
    case "importDecisions": {
      const { input, output } = METHODS.importDecisions;
      const decisions = step.requests.map((request) => fromJson(input, request));
      return printed(output, await client.importDecisions(decisions, options));
    }
    case "reviewDecision": {
      const { input, output } = METHODS.reviewDecision;
      return printed(output, await client.service(JournalService).reviewDecision(read(input), options));
    }
    case "recordThought": {
      const { input, output } = METHODS.recordThought;
      return printed(output, await client.service(JournalService).recordThought(read(input), options));
    }
    case "preAction": {
      const { input, output } = METHODS.preAction;
      return printed(output, await client.service(PreActionService).preAction(read(input), options));
    }
    case "recordDecision": {
      const { input, output } = METHODS.recordDecision;
      return printed(output, await client.service(JournalService).recordDecision(read(input), options));
    }
    case "watchEvents": {
      const { input, output } = METHODS.watchEvents;
      const answers: JsonValue[] = [];
      for await (const answer of client.watchEvents(read(input), options)) {
        if (answers.push(printed(output, answer)) === step.take) break;
      }
      return answers;
    }
  }
}

function printed<O extends DescMessage>(schema: O, message: MessageShape<O>): JsonValue {
  return toJson(schema, message, { alwaysEmitImplicit: true });
}

async function judge(step: Step, call: Promise<JsonValue>): Promise<void> {
  const wanted = step.error;
  if (wanted === undefined) {
    const answer = await call;
    assert.ok(holds(step.answer ?? step.answers ?? null, answer), JSON.stringify(answer));
    return;
  }
  const error = await call.then(
    (answer) => assert.fail(`answered ${JSON.stringify(answer)}`),
    (thrown: unknown) => thrown,
  );
  assert.ok(error instanceof CstpError, String(error));
  assert.equal(error.reason, wanted.reason, error.message);
  assert.ok(error.message.includes(wanted.message ?? ""), error.message);
  assert.deepEqual(error.violations.map(({ field }) => field).sort(), (wanted.violations ?? []).sort());
  assert.deepEqual(
    error.blocks.map(({ guardrailId }) => guardrailId),
    wanted.blocks ?? [],
  );
  assert.ok(error.blocks.every(({ name, message }) => name && message));
  assert.ok(holds(wanted.metadata ?? {}, error.metadata), JSON.stringify(error.metadata));
  if (wanted.requestId !== undefined) assert.equal(Boolean(error.requestId), wanted.requestId);
  if (wanted.retryDelayMs !== undefined) {
    const [least, most] = wanted.retryDelayMs;
    const delay = error.retryDelayMs ?? NaN;
    assert.ok(delay >= least && delay <= most, `the delay is ${delay} ms`);
  }
}

/** Whether an answer holds what is wanted, as clients/cases.yaml says. */
function holds(wanted: JsonValue, given: JsonValue | undefined): boolean {
  if (wanted === "$any") return given !== undefined && given !== null;
  if (Array.isArray(wanted)) {
    return (
      Array.isArray(given) && given.length === wanted.length && wanted.every((each, index) => holds(each, given[index]))
    );
  }
  if (typeof wanted !== "object" || wanted === null) return wanted === given;
  if (typeof given !== "object" || given === null || Array.isArray(given)) return false;
  return Object.entries(wanted).every(([name, each]) => each !== undefined && holds(each, given[name]));
}
