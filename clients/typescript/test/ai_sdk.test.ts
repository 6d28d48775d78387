import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";
import * as v7 from "ai";
import { MockLanguageModelV3, convertArrayToReadableStream } from "ai/test";
import * as v6 from "ai-v6";
import * as z from "zod";
import { guardTools, type AiSdkGuards } from "../src/ai_sdk.js";
import { Blocked, Client, ServerUnreachable } from "../src/index.js";
import { ApprovalService } from "../src/gen/cstp/v1/approvals_pb.js";
import { connect, outcomesOf } from "./table.js";

const cstp = connect();
after(() => cstp.close());

type Sdk = typeof v7;
type Execute = (input: { service: string }, options: { toolCallId: string }) => unknown;
type Guards = AiSdkGuards<{ deploy: { execute: Execute } }>;

/** Two versions of the SDK, which the tests use alike. */
const VERSIONS = { "ai 7": v7, "ai 6": v6 as unknown as Sdk };

const USAGE = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
};

/** Returns a model that calls the tool once and then says that it is done; in a stream, it calls the tool. */
function makeModel() {
  const call = { type: "tool-call", toolCallId: "call-1", toolName: "deploy", input: '{"service": "shop"}' } as const;
  return new MockLanguageModelV3({
    doStream: async () => ({
      stream: convertArrayToReadableStream([
        { type: "stream-start", warnings: [] },
        call,
        { type: "finish", finishReason: { unified: "tool-calls", raw: undefined }, usage: USAGE },
      ]),
    }),
    doGenerate: async ({ prompt }) => {
      const called = prompt.some(({ role }) => role === "tool");
      return {
        content: called ? [{ type: "text", text: "done" }] : [call],
        finishReason: called ? { unified: "stop", raw: "stop" } : { unified: "tool-calls", raw: "tool_calls" },
        usage: USAGE,
        warnings: [],
      };
    },
  });
}

/** Returns the tools of an agent, under guard. */
function toolsOf(execute: Execute, guards: Guards = {}, judge = cstp) {
  const inputSchema = z.object({ service: z.string() });
  const deploy = { description: "Deploys a service", inputSchema, execute };
  return guardTools<{ deploy: typeof deploy }>(judge, { deploy }, guards);
}

/** Has an agent call the tool, and returns what became of it and what the model was told of it. */
async function runAgent(sdk: Sdk, tools: ReturnType<typeof toolsOf>, more: object = {}) {
  const model = makeModel();
  const stopWhen = ({ steps }: { steps: unknown[] }) => steps.length > 1;
  const settings = { model, tools, stopWhen, prompt: "Deploy the shop", ...more };
  const result = await sdk.generateText(settings as unknown as Parameters<Sdk["generateText"]>[0]);
  const parts = result.steps.flatMap(({ content }) => content);
  const told = JSON.stringify(model.doGenerateCalls.at(-1)?.prompt.at(-1)?.content);
  return { result, parts, told };
}

function announced(title: string, metadata = {}): Guards {
  return { tools: { deploy: { intent: title, metadata } } };
}

for (const [name, sdk] of Object.entries(VERSIONS)) {
  test(`${name}: an allowed call is executed, and its outcome reviewed`, async () => {
    const title = `Deploy the shop ${randomUUID()}`;
    const { result, told } = await runAgent(
      sdk,
      toolsOf(async ({ service }) => `${service} is live`, announced(title)),
    );
    assert.equal(result.text, "done");
    assert.ok(told.includes("shop is live"), told);
    assert.deepEqual(await outcomesOf(cstp, title), [["SUCCESS", undefined]]);
  });

  test(`${name}: a blocked call is not executed, and the model is told why`, async () => {
    const tools = toolsOf(() => assert.fail("it ran"), announced("Deploy", { affectsProduction: true }));
    const { parts, told } = await runAgent(sdk, tools);
    const failed = parts.find(({ type }) => type === "tool-error") as { error: unknown } | undefined;
    assert.ok(failed?.error instanceof Blocked);
    assert.ok(told.includes("Production needs a review Have it reviewed"), told);
    assert.ok(told.includes('"error-text"'), told);
  });

  test(`${name}: a tool that throws is a failure`, async () => {
    const title = `Deploy nothing ${randomUUID()}`;
    const tools = toolsOf(() => Promise.reject(new RangeError("no such service")), announced(title));
    const { told } = await runAgent(sdk, tools);
    assert.ok(told.includes("no such service"), told);
    assert.deepEqual(await outcomesOf(cstp, title), [["FAILURE", "RangeError: no such service"]]);
  });

  test(`${name}: outputs that come one by one are all guarded`, async () => {
    const title = `Deploy step by step ${randomUUID()}`;
    const tools = toolsOf(async function* () {
      yield "building";
      yield "live";
    }, announced(title));
    const { told } = await runAgent(sdk, tools);
    assert.ok(told.includes("live"), told);
    assert.deepEqual(await outcomesOf(cstp, title), [["SUCCESS", undefined]]);
  });

  test(`${name}: outputs are streamed as they come`, async () => {
    const title = `Deploy in sight ${randomUUID()}`;
    const tools = toolsOf(async function* () {
      yield "building";
      yield "live";
    }, announced(title));
    const settings = { model: makeModel(), tools, prompt: "Deploy the shop" };
    const { fullStream } = sdk.streamText(settings as unknown as Parameters<Sdk["streamText"]>[0]);
    const outputs: unknown[] = [];
    for await (const part of fullStream) if (part.type === "tool-result") outputs.push([part.output, part.preliminary]);
    assert.deepEqual(outputs, [
      ["building", true],
      ["live", true],
      ["live", undefined],
    ]);
    assert.deepEqual(await outcomesOf(cstp, title), [["SUCCESS", undefined]]);
  });

  test(`${name}: outputs of a function that is no generator are one, the last`, async () => {
    const title = `Deploy in a stream ${randomUUID()}`;
    const { told } = await runAgent(
      sdk,
      toolsOf(() => ReadableStream.from(["building", "live"]), announced(title)),
    );
    assert.ok(told.includes('"live"'), told);
    assert.deepEqual(await outcomesOf(cstp, title), [["SUCCESS", undefined]]);
  });

  test(`${name}: a call that is aborted is abandoned`, async () => {
    const title = `Deploy slowly ${randomUUID()}`;
    const caller = new AbortController();
    const tools = toolsOf(
      () => {
        caller.abort(new Error("enough"));
        throw caller.signal.reason;
      },
      { approvals: "ask", ...announced(title) },
    );
    await runAgent(sdk, tools, { abortSignal: caller.signal }).catch(() => {});
    assert.deepEqual(await outcomesOf(cstp, title), [["ABANDONED", "Error: enough"]]);
  });

  test(`${name}: what needs approval is blocked until somebody grants it on the server`, async () => {
    const tools = toolsOf(() => "live", announced(`Deploy ${randomUUID()}`, { rows: 5000 }));
    const { told } = await runAgent(sdk, tools);
    const [id = ""] = /apr-[0-9a-f]+/.exec(told) ?? [];
    await grant(id);
    assert.ok((await runAgent(sdk, tools)).told.includes("live"));
    assert.match((await runAgent(sdk, tools)).told, /needs approval/);
  });

  for (const approved of [true, false]) {
    test(`${name}: the user is asked, and ${approved ? "approves" : "denies"} the call`, async () => {
      const title = `Deploy after asking ${randomUUID()}`;
      const ran: string[] = [];
      const guards: Guards = { approvals: "ask", ...announced(title, { rows: 5000 }) };
      const tools = toolsOf(({ service }) => ran.push(service), guards);
      const asked = await runAgent(sdk, tools);
      const request = asked.parts.find((part) => part.type === "tool-approval-request");
      assert.ok(request, JSON.stringify(asked.parts));
      assert.deepEqual(ran, []);
      const answer = { type: "tool-approval-response", approvalId: request.approvalId, approved };
      const messages = [
        { role: "user", content: "Deploy the shop" },
        ...asked.result.response.messages,
        { role: "tool", content: [answer] },
      ];
      await runAgent(sdk, tools, { prompt: undefined, messages });
      assert.deepEqual(ran, approved ? ["shop"] : []);
      assert.deepEqual(await outcomesOf(cstp, title), approved ? [["SUCCESS", undefined]] : []);
    });
  }

  test(`${name}: the user is not asked about what was granted on the server, nor about what is blocked`, async () => {
    const title = `Deploy what was granted ${randomUUID()}`;
    const guards: Guards = { approvals: "ask", ...announced(title, { rows: 5000 }) };
    const refused = await runAgent(
      sdk,
      toolsOf(() => "live", { ...guards, approvals: "tell" }),
    );
    await grant(/apr-[0-9a-f]+/.exec(refused.told)?.[0] ?? "");
    // A grant is good for one announcement, so that it was made only once.
    assert.ok(
      (
        await runAgent(
          sdk,
          toolsOf(() => "live", guards),
        )
      ).told.includes("live"),
    );
    const blocking: Guards = { approvals: "ask", ...announced(title, { rows: 5000, affectsProduction: true }) };
    const blocked = await runAgent(
      sdk,
      toolsOf(() => assert.fail("it ran"), blocking),
    );
    assert.ok(blocked.told.includes("Production needs a review"), blocked.told);
  });

  for (const approvals of ["tell", "ask"] as const) {
    test(`${name}: nothing is executed where the server is away, with approvals: ${approvals}`, async () => {
      const away = new Client("127.0.0.1:1", { attempts: 1 });
      const { parts } = await runAgent(
        sdk,
        toolsOf(() => assert.fail("it ran"), { approvals }, away),
      );
      const failed = parts.find(({ type }) => type === "tool-error") as { error: unknown } | undefined;
      assert.ok(failed?.error instanceof ServerUnreachable);
      away.close();
    });
  }
}

async function grant(id: string): Promise<void> {
  const approver = connect("approver");
  await approver.service(ApprovalService).grantApproval({ id });
  approver.close();
}

test("what is announced of a tool may be a function of its input", async () => {
  const inputSchema = z.object({ service: z.string() });
  const execute = async ({ service }: { service: string }) => service;
  const service = randomUUID();
  const said = (input: { service: string }) => ({ intent: `Deploy ${input.service}`, category: "deployment" });
  // By the types of both versions, of which the inputs are inferred.
  const seventh = guardTools(cstp, { deploy: v7.tool({ inputSchema, execute }) }, { tools: { deploy: said } });
  const sixth = guardTools(
    cstp,
    { deploy: v6.tool({ inputSchema, execute }) },
    { tools: { deploy: ({ service }) => said({ service }) } },
  );
  for (const { deploy } of [seventh, sixth]) {
    await (deploy.execute as unknown as (...call: unknown[]) => unknown)({ service }, callOptions());
  }
  assert.equal((await outcomesOf(cstp, `Deploy ${service}`)).length, 2);
});

test("outputs that nobody waits for any more are abandoned", async () => {
  const title = `Deploy half ${randomUUID()}`;
  const { deploy } = toolsOf(async function* () {
    yield "building";
    yield "live";
  }, announced(title));
  for await (const _ of deploy.execute({ service: "shop" }, callOptions()) as AsyncIterable<string>) break;
  assert.deepEqual(await outcomesOf(cstp, title), [["ABANDONED", undefined]]);
});

test("an approval of another call is none", async () => {
  const { deploy } = toolsOf(() => assert.fail("it ran"), {
    approvals: "ask",
    ...announced("Deploy", { rows: 5000 }),
  });
  const other = [
    { role: "assistant", content: [{ type: "tool-approval-request", approvalId: "a", toolCallId: "another" }] },
    { role: "tool", content: [{ type: "tool-approval-response", approvalId: "a", approved: true }] },
  ];
  await assert.rejects(async () => deploy.execute({ service: "shop" }, callOptions(other)), Blocked);
  const former = [
    JSON.parse(JSON.stringify(other).replace("another", "call-1")),
    { role: "user", content: "Again" },
  ].flat();
  await assert.rejects(async () => deploy.execute({ service: "shop" }, callOptions(former)), Blocked);
});

/** Returns what the SDK tells a tool of a call. */
function callOptions(messages: object[] = []): { toolCallId: string } {
  return { toolCallId: "call-1", messages } as { toolCallId: string };
}

test("a tool may ask its user by itself, and one of which false is said is as it was", async () => {
  const [own, free] = [() => true, async () => "free"];
  const tools = { deploy: { needsApproval: own, execute: async () => "live" }, read: { execute: free } };
  const guarded = guardTools(cstp, tools, { approvals: "ask", tools: { read: false } });
  assert.equal(await (guarded.deploy.needsApproval as (...call: unknown[]) => unknown)({}, callOptions()), true);
  assert.equal(guarded.read, tools.read);
});

test("what cannot be guarded is refused at once", () => {
  const tools = { deploy: { execute: () => "live" }, elsewhere: {} };
  assert.throws(() => guardTools(cstp, tools), /the tool 'elsewhere' has no execute/);
  assert.throws(
    () => guardTools(cstp, tools, { tools: { elsewhere: false, deplyo: {} } as object }),
    /there is no tool 'deplyo'/,
  );
  for (const each of [{ approval: "ask" }, { intent: "one for all" }, { tools: { deploy: { stake: 4 } } }]) {
    assert.throws(() => guardTools(cstp, { deploy: tools.deploy }, each as object), /a guard has no option/);
  }
});
