import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";
import { Client as McpClient, InMemoryTransport } from "@modelcontextprotocol/client";
import { Client as McpClientV1 } from "@modelcontextprotocol/sdk/client/index.js";
import { McpServer } from "@modelcontextprotocol/server";
import * as z from "zod";
import { Client, ServerUnreachable, type Client as CstpClient } from "../src/index.js";
import { guardToolCalls, type McpGuards } from "../src/mcp.js";
import { connect, outcomesOf } from "./table.js";

const cstp = connect();
after(() => cstp.close());

const HOST = { name: "host", version: "1.0.0" };
const CLIENTS = {
  "@modelcontextprotocol/client": () => new McpClient(HOST),
  "@modelcontextprotocol/sdk": () => new McpClientV1(HOST),
};

type Host = InstanceType<typeof McpClient>;

/** A server with one tool, which remembers its calls and fails, or waits for the end of the call, when it is told to. */
class Shop {
  readonly deployed: string[] = [];
  readonly #server = new McpServer({ name: "shop", version: "1.0.0" });

  constructor() {
    const inputSchema = z.object({ service: z.string() });
    const outputSchema = z.object({ deployed: z.number() });
    this.#server.registerTool("deploy", { inputSchema, outputSchema }, async ({ service }, { mcpReq }) => {
      this.deployed.push(service);
      if (service === "nothing") throw new Error("there is no such service");
      if (service === "slow") await new Promise((resolve) => mcpReq.signal.addEventListener("abort", resolve));
      return { content: [{ type: "text", text: "done" }], structuredContent: { deployed: this.deployed.length } };
    });
  }

  /** Returns a connected client whose tool calls are guarded. */
  async connect(make: () => Host | McpClientV1, guards?: McpGuards, judge: CstpClient = cstp): Promise<Host> {
    const [near, far] = InMemoryTransport.createLinkedPair();
    const client = guardToolCalls(judge, make() as Host, guards);
    await Promise.all([this.#server.connect(far), client.connect(near)]);
    // The client then knows that results have to be structured, which one that was blocked is not.
    await client.listTools();
    return client;
  }
}

/** Returns guards of the tool that announce its calls under a title, with an input of the guardrails. */
function announced(title: string, affectsProduction = false): McpGuards {
  return { category: "deployment", tools: { deploy: { intent: title, metadata: { affectsProduction } } } };
}

for (const [name, make] of Object.entries(CLIENTS)) {
  test(`${name}: an allowed call is sent, and its outcome reviewed`, async () => {
    const shop = new Shop();
    const title = `Deploy the shop ${randomUUID()}`;
    const client = await shop.connect(make, announced(title));
    const result = await client.callTool({ name: "deploy", arguments: { service: "shop" } });
    assert.deepEqual(result.structuredContent, { deployed: 1 });
    assert.deepEqual(await outcomesOf(cstp, title), [["SUCCESS", undefined]]);
    await client.close();
  });

  test(`${name}: a blocked call is not sent, and its result says why`, async () => {
    const shop = new Shop();
    const client = await shop.connect(make, announced("Deploy the shop", true));
    const result = await client.callTool({ name: "deploy", arguments: { service: "shop" } });
    assert.equal(result.isError, true);
    const [said] = result.content;
    assert.ok(said?.type === "text");
    assert.match(said.text, /is blocked:\n- no-review: Production needs a review Have it reviewed/);
    assert.deepEqual(shop.deployed, []);
    await client.close();
  });

  test(`${name}: a tool that fails is a failure`, async () => {
    const title = `Deploy nothing ${randomUUID()}`;
    const client = await new Shop().connect(make, announced(title));
    const result = await client.callTool({ name: "deploy", arguments: { service: "nothing" } });
    assert.equal(result.isError, true);
    assert.deepEqual(await outcomesOf(cstp, title), [["FAILURE", "there is no such service"]]);
    await client.close();
  });

  test(`${name}: a call that its caller ends is abandoned`, async () => {
    const shop = new Shop();
    const title = `Deploy slowly ${randomUUID()}`;
    const client = await shop.connect(make, announced(title));
    const caller = new AbortController();
    const options = { signal: caller.signal };
    const params = { name: "deploy", arguments: { service: "slow" } };
    // The place of the options differs between the versions.
    const call =
      make === CLIENTS["@modelcontextprotocol/sdk"]
        ? (client as unknown as McpClientV1).callTool(params, undefined, options)
        : client.callTool(params, options);
    const ended = assert.rejects(call, /enough/);
    while (shop.deployed.length === 0) await new Promise((resolve) => setImmediate(resolve));
    caller.abort(new Error("enough"));
    await ended;
    assert.equal((await outcomesOf(cstp, title))[0]?.[0], "ABANDONED");
    await client.close();
  });
}

test("nothing is sent where the server of CSTP is away", async () => {
  const shop = new Shop();
  const away = new Client("127.0.0.1:1", { attempts: 1 });
  const client = await shop.connect(CLIENTS["@modelcontextprotocol/client"], {}, away);
  await assert.rejects(client.callTool({ name: "deploy", arguments: { service: "shop" } }), ServerUnreachable);
  assert.deepEqual(shop.deployed, []);
  await client.close();
  away.close();
});

test("a tool of which nothing is said is announced by its name and arguments", async () => {
  const service = randomUUID();
  const client = await new Shop().connect(CLIENTS["@modelcontextprotocol/client"]);
  await client.callTool({ name: "deploy", arguments: { service } });
  assert.equal((await outcomesOf(cstp, `Call deploy with {"service":"${service}"}`)).length, 1);
  await client.close();
});

test("a call is announced as a function of its arguments says, or not at all", async () => {
  const shop = new Shop();
  const client = await shop.connect(CLIENTS["@modelcontextprotocol/client"], {
    tools: { deploy: ({ service }) => service !== "free" && { metadata: { affectsProduction: true } } },
  });
  const free = await client.callTool({ name: "deploy", arguments: { service: "free" } });
  const blocked = await client.callTool({ name: "deploy", arguments: { service: "shop" } });
  assert.deepEqual([free.isError ?? false, blocked.isError, shop.deployed], [false, true, ["free"]]);
  await client.close();
});

test("what is undefined of a tool does not take back what is said of all", async () => {
  const shop = new Shop();
  const client = await shop.connect(CLIENTS["@modelcontextprotocol/client"], {
    metadata: { affectsProduction: true },
    tools: { deploy: { metadata: undefined } },
  });
  const { isError } = await client.callTool({ name: "deploy", arguments: { service: "shop" } });
  assert.deepEqual([isError, shop.deployed], [true, []]);
  await client.close();
});

test("a misspelled option is refused at once", () => {
  const misspelled: object[] = [{ stake: 4 }, { intent: "the same for all" }, { tools: { deploy: { stake: 4 } } }];
  for (const each of misspelled) {
    assert.throws(() => guardToolCalls(cstp, new McpClient(HOST), each), /a guard has no option/);
  }
});
