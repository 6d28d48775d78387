import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createServer, type Http2Server } from "node:http2";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";
import { Code, ConnectError, type ConnectRouter } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import {
  Blocked,
  Client,
  CstpService,
  JournalService,
  PermissionDenied,
  ServerUnreachable,
  Visibility,
  guard,
  runGuarded,
} from "../src/index.js";
import { ApprovalService } from "../src/gen/cstp/v1/approvals_pb.js";
import { connect, outcomesOf } from "./table.js";

const UNREVIEWED = { affectsProduction: true };

const client = connect();
after(() => client.close());

/** Returns a text that no other test announces. */
function named(text: string): string {
  return `${text} ${randomUUID()}`;
}

test("what is allowed runs, and is a success", async () => {
  const title = named("Rename a variable");
  const rename = guard(
    client,
    { intent: title, category: "code", confidence: 0.7 },
    async (from: string, to: string) => `${from} to ${to}`,
  );
  assert.equal(await rename("a", "b"), "a to b");
  assert.deepEqual(await outcomesOf(client, title), [["SUCCESS", undefined]]);
});

test("what guardrails forbid does not run", async () => {
  const title = named("Deploy");
  const ran: boolean[] = [];
  const deploy = guard(
    client,
    (reviewed: boolean) => ({ intent: title, metadata: { ...UNREVIEWED, codeReviewCompleted: reviewed } }),
    (reviewed: boolean) => void ran.push(reviewed),
  );
  await deploy(true);
  await assert.rejects(deploy(false), (error) => {
    assert.ok(error instanceof Blocked);
    assert.equal(
      error.message.split("\nSuggestions:")[0],
      `'${title}' is blocked:\n- no-review: Production needs a review Have it reviewed`,
    );
    assert.deepEqual(
      error.violations.map(({ guardrailId }) => guardrailId),
      ["no-review"],
    );
    assert.equal(error.response.guardrailStatus?.allowed, false);
    assert.equal(error.approvable, false);
    return true;
  });
  assert.deepEqual(ran, [true]);
  assert.deepEqual(await outcomesOf(client, title), [["SUCCESS", undefined]]);
});

test("what needs approval does not run before it is granted", async () => {
  const approver = connect("approver");
  const act = guard(client, { intent: named("Change many rows"), metadata: { rows: 5000 } }, () => "changed");
  const blocked = await act().then(
    () => assert.fail("it ran"),
    (error: unknown) => error,
  );
  assert.ok(blocked instanceof Blocked);
  assert.ok(blocked.approvable);
  const id = blocked.response.guardrailStatus?.approval?.id;
  assert.ok(id);
  assert.ok(blocked.message.includes(`needs approval (${id}):\n- many-rows: `), blocked.message);
  await approver.service(ApprovalService).grantApproval({ id });
  assert.equal(await act(), "changed");
  await assert.rejects(act(), Blocked);
  approver.close();
});

test("an error is a failure, and passes unchanged", async () => {
  const title = named("Migrate");
  const error = new RangeError("no\nsuch  table");
  const migrate = guard(client, { intent: title }, () => {
    throw error;
  });
  await assert.rejects(migrate(), (thrown) => thrown === error);
  assert.deepEqual(await outcomesOf(client, title), [["FAILURE", "RangeError: no such table"]]);
});

test("an action that is aborted is abandoned", async () => {
  const title = named("Wait for ever");
  const caller = new AbortController();
  const reason = new Error("changed my mind");
  const run = runGuarded(
    client,
    { intent: title },
    () => {
      caller.abort(reason);
      throw reason;
    },
    { signal: caller.signal },
  );
  await assert.rejects(run, (thrown) => thrown === reason);
  assert.deepEqual(await outcomesOf(client, title), [["ABANDONED", "Error: changed my mind"]]);
});

test("an action that is aborted before it is announced does not run", async () => {
  const signal = AbortSignal.abort(new Error("too late"));
  await assert.rejects(
    runGuarded(client, { intent: named("Never") }, () => assert.fail("it ran"), { signal }),
    /too late/,
  );
});

test("a block is given what the server answered", async () => {
  const intent = named("Look first");
  await runGuarded(client, { intent }, ({ response, decision }) => {
    assert.equal(response.guardrailStatus?.allowed, true);
    assert.equal(decision?.title, intent);
    assert.equal(decision.visibility, Visibility.PRIVATE);
  });
  await runGuarded(
    client,
    { intent: named("Look first, for all") },
    ({ decision }) => assert.equal(decision?.visibility, Visibility.SHARED),
    { share: true },
  );
});

test("an intent that is longer than a title is kept whole", async () => {
  const intent = "Tell a long story 🙂 ".repeat(50) + randomUUID();
  const { title, id } = await runGuarded(client, { intent, context: "It is late" }, ({ decision }) => {
    assert.ok(decision);
    return decision;
  });
  assert.ok(title.length <= 500 && title.endsWith("…") && intent.startsWith(title.slice(0, -1)), title);
  const { decision } = await client.service(JournalService).getDecision({ id });
  assert.equal(decision?.context, `${intent}\n\nIt is late`);
});

test("without a record an action is announced alone", async () => {
  const intent = named("Act unrecorded");
  await runGuarded(client, { intent }, ({ decision }) => assert.equal(decision, undefined), { record: false });
  assert.deepEqual(await outcomesOf(client, intent), []);
});

test("a generator is no success, since it runs after the review", async () => {
  const intent = named("Generate");
  const generate = guard(client, { intent }, async function* () {
    yield assert.fail("it ran");
  });
  await assert.rejects(generate(), /a generator runs after it was called/);
  assert.equal((await outcomesOf(client, intent))[0]?.[0], "FAILURE");
});

test("a misspelled option is refused at once", () => {
  const misspelled: object = { intent: "Lose data", stake: 4 };
  assert.throws(() => guard(client, misspelled as { intent: string }, () => {}), /no option 'stake'/);
  assert.throws(() => guard(client, { intent: "Lose data" }, () => {}, { recrod: false } as object), /'recrod'/);
  assert.throws(
    () => guard(client, { intent: "Tell all" }, () => {}, { record: false, share: true }),
    /share only what it records/,
  );
});

test("who may not record is told so before anything runs", async () => {
  const announcer = connect("announcer");
  const act = guard(announcer, { intent: named("Act") }, () => assert.fail("it ran"));
  await assert.rejects(act(), (error) => {
    assert.ok(error instanceof PermissionDenied);
    return /permission record; with record: false/.test(error.message);
  });
  announcer.close();
});

test("nothing runs where the server is away", async () => {
  const away = new Client("127.0.0.1:1", { attempts: 1 });
  await assert.rejects(guard(away, { intent: "Act alone" }, () => assert.fail("it ran"))(), ServerUnreachable);
  away.close();
});

/** Runs a test with a client of a server in this process. */
async function scripted(routes: (router: ConnectRouter) => void, run: (client: Client) => Promise<void>) {
  const server: Http2Server = createServer(connectNodeAdapter({ routes }));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const scriptedClient = new Client(`127.0.0.1:${(server.address() as AddressInfo).port}`, { attempts: 1 });
  try {
    await run(scriptedClient);
  } finally {
    scriptedClient.close();
    await new Promise((resolve) => server.close(resolve));
  }
}

test("nothing runs without a verdict, nor against violations", async () => {
  const violated = { allowed: true, violations: [{ guardrailId: "g", message: "no" }] };
  const answers = [{ received: true }, { received: true, guardrailStatus: violated }];
  const routes = ({ service }: ConnectRouter) =>
    service(CstpService, { announceIntent: () => answers.shift() ?? assert.fail("asked again") });
  await scripted(routes, async (scriptedClient) => {
    const act = guard(scriptedClient, { intent: "Act unjudged" }, () => assert.fail("it ran"));
    await assert.rejects(act(), /the server gave no verdict/);
    await assert.rejects(act(), /is blocked:\n- g: no/);
  });
});

test("a review that fails loses no result, and is warned of", async () => {
  const warned = new Promise<Error>((resolve) => process.once("warning", resolve));
  const routes = ({ service }: ConnectRouter) => {
    service(CstpService, { announceIntent: () => ({ received: true, guardrailStatus: { allowed: true } }) });
    service(JournalService, {
      recordDecision: () => ({ decision: { id: "dec-1" } }),
      reviewDecision: () => Promise.reject(new ConnectError("broken", Code.Internal)),
    });
  };
  await scripted(routes, async (scriptedClient) => {
    assert.equal(await guard(scriptedClient, { intent: "Compute" }, () => 3)(), 3);
    const warning = await warned;
    assert.equal(warning.name, "CstpGuardWarning");
    assert.match(warning.message, /dec-1 could not be reviewed/);
  });
});
