import assert from "node:assert/strict";
import { createServer as createHttp2Server, type Http2Server } from "node:http2";
import { createServer, type AddressInfo, type Server } from "node:net";
import { test } from "node:test";
import { Code, ConnectError, createClient, createRouterTransport, type ConnectRouter } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { retrying } from "../src/client.js";
import {
  Client,
  CstpService,
  DeadlineExceeded,
  InternalError,
  InvalidArgument,
  JournalService,
  NotFound,
  ServerUnreachable,
  Unavailable,
} from "../src/index.js";
import type { Pace } from "../src/policy.js";
import { ErrorInfoSchema } from "../src/gen/google/rpc/error_details_pb.js";
import { TaskService } from "../src/gen/cstp/v1/tasks_pb.js";

const PUSHBACK = "grpc-retry-pushback-ms";

/** A clock that only pauses move, and which remembers them; chance always takes the longest. */
class Paces implements Pace {
  readonly pauses: number[] = [];
  #now = 0;

  now(): number {
    return this.#now;
  }

  random(): number {
    return 1;
  }

  async sleep(ms: number, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    this.pauses.push(ms);
    this.#now += ms;
  }
}

/** Returns the pauses of a client, and a stub of a server in memory that fails with these errors before it answers. */
function failing(errors: ConnectError[], attempts?: number) {
  const pace = new Paces();
  const fail = () => {
    const error = errors.shift();
    if (error) throw error;
    return {};
  };
  const seen: string[][] = [];
  const inner = createRouterTransport(({ service }) => {
    service(CstpService, { queryDecisions: fail });
    service(TaskService, { saveTask: fail });
    service(JournalService, {
      async importDecisions(requests) {
        const sources: string[] = [];
        for await (const { source } of requests) sources.push(source);
        seen.push(sources);
        return fail();
      },
    });
  });
  const transport = retrying(inner, "server", new AbortController().signal, attempts, pace);
  return { pace, seen, transport, cstp: createClient(CstpService, transport) };
}

function unavailable(pushback?: string): ConnectError {
  return new ConnectError("not now", Code.Unavailable, pushback === undefined ? {} : { [PUSHBACK]: pushback });
}

test("pauses grow until the attempts are used up", async () => {
  const { cstp, pace } = failing(Array.from({ length: 4 }, () => unavailable()));
  await assert.rejects(cstp.queryDecisions({}), ServerUnreachable);
  assert.deepEqual(pace.pauses, [100, 200, 400]);
});

test("pauses do not grow beyond the greatest", async () => {
  const { cstp, pace } = failing(
    Array.from({ length: 8 }, () => unavailable()),
    9,
  );
  await cstp.queryDecisions({});
  assert.deepEqual(pace.pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
});

test("the server's pause takes the place of the own one", async () => {
  const { cstp, pace } = failing([unavailable("1234"), unavailable("0")]);
  await cstp.queryDecisions({});
  assert.deepEqual(pace.pauses, [1234, 0]);
});

for (const pushback of ["-1", "soon", ""]) {
  test(`a pushback of "${pushback}" ends the call`, async () => {
    const { cstp, pace } = failing([unavailable(pushback)]);
    await assert.rejects(cstp.queryDecisions({}), Unavailable);
    assert.deepEqual(pace.pauses, []);
  });
}

test("a pause that would reach the deadline is not begun", async () => {
  const { cstp, pace } = failing(
    Array.from({ length: 9 }, () => unavailable()),
    9,
  );
  await assert.rejects(cstp.queryDecisions({}, { timeoutMs: 11_300 }), Unavailable);
  assert.deepEqual(pace.pauses, [100, 200, 400, 800, 1600, 3200]);
});

test("other failures are not repeated", async () => {
  const { cstp, pace } = failing([new ConnectError("broken", Code.Internal)]);
  await assert.rejects(cstp.queryDecisions({}), InternalError);
  assert.deepEqual(pace.pauses, []);
});

test("a reason of others is none of the contract", async () => {
  const details = [{ desc: ErrorInfoSchema, value: { reason: "RATE_LIMITED", domain: "example.com" } }];
  const { cstp } = failing([new ConnectError("not yours", Code.NotFound, undefined, details)]);
  await assert.rejects(cstp.queryDecisions({}), NotFound);
});

test("methods that are not to be repeated are tried once", async () => {
  const { transport, pace } = failing([unavailable()], 4);
  await assert.rejects(createClient(TaskService, transport).saveTask({}), Unavailable);
  assert.deepEqual(pace.pauses, []);
});

test("a stream that can be read but once is sent again", async () => {
  const { transport, seen } = failing([unavailable()]);
  async function* decisions() {
    yield { source: "a" };
    yield { source: "b" };
  }
  await createClient(JournalService, transport).importDecisions(decisions());
  assert.deepEqual(seen, [
    ["a", "b"],
    ["a", "b"],
  ]);
});

test("a call that its caller ends rejects with what the caller says", async () => {
  const reason = new Error("changed my mind");
  const caller = new AbortController();
  const inner = createRouterTransport(({ service }) => {
    service(CstpService, {
      queryDecisions() {
        caller.abort(reason);
        throw unavailable();
      },
    });
  });
  const transport = retrying(inner, "server", new AbortController().signal, undefined, new Paces());
  const call = createClient(CstpService, transport).queryDecisions({}, { signal: caller.signal });
  await assert.rejects(call, reason);
});

/** Has a server listen on a free port of loopback, and returns its target. */
async function listening(server: Http2Server | Server): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `grpc://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** Runs a test with the URL of a server on loopback. */
async function serving(
  routes: (router: ConnectRouter) => void,
  run: (url: string, server: Http2Server) => Promise<void>,
) {
  const server = createHttp2Server(connectNodeAdapter({ routes }));
  try {
    await run(await listening(server), server);
  } finally {
    await new Promise((resolve) => server.close(resolve));
  }
}

test("a call whose connection is lost is repeated on another", { timeout: 30_000 }, async () => {
  let attempts = 0;
  let lose = () => {};
  const routes = ({ service }: ConnectRouter) =>
    service(CstpService, {
      queryDecisions() {
        attempts += 1;
        if (attempts === 1) lose();
        return { agent: `attempt ${attempts}` };
      },
    });
  await serving(routes, async (url, server) => {
    server.on("session", (session) => (lose = () => session.destroy()));
    const client = new Client(url);
    const answer = await client.queryDecisions({ query: "anything" });
    assert.equal(answer.agent, "attempt 2");
    client.close();
  });
});

test("a client that is closed ends its calls and takes no others", { timeout: 30_000 }, async () => {
  let arrived = () => {};
  const waiting = new Promise<void>((resolve) => (arrived = resolve));
  const routes = ({ service }: ConnectRouter) =>
    service(CstpService, {
      queryDecisions(_request, { signal }) {
        arrived();
        return new Promise((_resolve, reject) =>
          signal.addEventListener("abort", () => reject(signal.reason as Error)),
        );
      },
    });
  await serving(routes, async (url) => {
    const client = new Client(url);
    const ended = assert.rejects(client.queryDecisions({ query: "anything" }), /client is closed/);
    await waiting;
    client.close();
    await ended;
    await assert.rejects(client.checkGuardrails({}), /client is closed/);
  });
});

test("a deadline covers a server that takes connections and says nothing", { timeout: 30_000 }, async () => {
  const server = createServer((socket) => socket.resume());
  const client = new Client(await listening(server));
  await assert.rejects(client.queryDecisions({ query: "anything" }, { timeoutMs: 50 }), DeadlineExceeded);
  client.close();
  await new Promise((resolve) => server.close(resolve));
});

for (const target of [
  "",
  "host",
  "grpc://host",
  "ftp://host:1",
  "http://me:secret@host",
  "grpc://host:1/path",
  "host:99999",
]) {
  test(`"${target}" is no target`, () => {
    assert.throws(
      () => new Client(target),
      (error) => error instanceof InvalidArgument && error.violations[0]?.field === "target",
    );
  });
}

for (const target of ["host:1", "[::1]:1", "grpc://host:1", "GRPCS://host:443", "http://host", "https://host/"]) {
  test(`"${target}" is a target`, () => new Client(target).close());
}

for (const token of ["", "two words", "line\n"]) {
  test(`${JSON.stringify(token)} is no token`, () => {
    assert.throws(
      () => new Client("host:1", { token }),
      (error) => error instanceof InvalidArgument && error.violations[0]?.field === "token",
    );
  });
}
