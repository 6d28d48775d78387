import type { DescMethod, DescService, MessageInitShape as Init } from "@bufbuild/protobuf";
import { ConnectError, createClient } from "@connectrpc/connect";
import type { CallOptions, Client as Stub, Interceptor, Transport } from "@connectrpc/connect";
import { createAsyncIterable } from "@connectrpc/connect/protocol";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { Connection } from "./connection.js";
import { InvalidArgument, Unavailable } from "./error_classes.js";
import { typed } from "./errors.js";
import { CstpService } from "./gen/cstp/v1/cstp_pb.js";
import { JournalService, type ImportDecisionsRequestSchema as ImportDecisions } from "./gen/cstp/v1/journal_pb.js";
import { LiaisonService, type WatchEventsRequestSchema as WatchEvents } from "./gen/liaison/v1/liaison_pb.js";
import { identified } from "./identifiers.js";
import { policyOf, REAL_PACE, type Pace } from "./policy.js";

const TARGET = /^(?:(grpcs?|https?):\/\/)?(\[[\da-f:.]+\]|[^\s:/?#@[\]]+)(:\d{1,5})?\/?$/i;
const PINGS = { pingIntervalMs: 30_000, pingTimeoutMs: 30_000 };
const MAX_BYTES = 64 * 1024 * 1024;

type Cstp = Stub<typeof CstpService>;
type Limits = { signal: AbortSignal | undefined; timeoutMs: number | undefined };
type Call<T> = (signal: AbortSignal, leftMs: number) => Promise<T>;
type Stream<T> = Iterable<T> | AsyncIterable<T>;

export interface ClientOptions {
  /** The bearer token that says who calls. */
  readonly token?: string | undefined;
  /** The certificates, as PEM, that servers are trusted by; those that come with Node.js when absent. */
  readonly rootCertificates?: string | Buffer | undefined;
  /** How often a call that may be repeated is tried at the most; as the service config says when absent. */
  readonly attempts?: number | undefined;
}

/** Calls a server of CSTP over one gRPC connection, opened when needed. Calls that fail reject with CstpError. */
export class Client {
  readonly #ended = new AbortController();
  readonly #connection: Connection;
  readonly #transport: Transport;

  /** `target` is HOST:PORT, also behind grpc://, grpcs:// (TLS), http:// or https:// (TLS). Throws InvalidArgument. */
  constructor(target: string, { token, rootCertificates, attempts }: ClientOptions = {}) {
    if (!/^[!-~]+$/.test(token ?? "-")) throw InvalidArgument.field("token", "must be visible ASCII characters");
    const authorize: Interceptor = (next) => (request) => {
      if (token) request.header.set("authorization", `Bearer ${token}`);
      return next(request);
    };
    const baseUrl = urlOf(target);
    this.#connection = new Connection(baseUrl, PINGS, { ca: rootCertificates });
    const options = { baseUrl, sessionManager: this.#connection, readMaxBytes: MAX_BYTES, interceptors: [authorize] };
    this.#transport = retrying(createGrpcTransport(options), target, this.#ended.signal, attempts);
  }

  /** Announces what is about to be done; it gets a correlation id where it has none, so that it can be repeated. */
  readonly announceIntent: Cstp["announceIntent"] = (...call) => this.service(CstpService).announceIntent(...call);

  /** Finds past decisions that resemble a text. */
  readonly queryDecisions: Cstp["queryDecisions"] = (...call) => this.service(CstpService).queryDecisions(...call);

  /** Has an action judged by the guardrails. */
  readonly checkGuardrails: Cstp["checkGuardrails"] = (...call) => this.service(CstpService).checkGuardrails(...call);

  /** Imports decisions. All are read before the first is sent, since they may have to be sent again. */
  async importDecisions(decisions: Stream<Init<typeof ImportDecisions>>, options?: CallOptions) {
    return this.service(JournalService).importDecisions(await listed(decisions), options);
  }

  /** Yields events as they happen, from when the first is asked for until the loop is left. */
  async *watchEvents(request: Init<typeof WatchEvents>, options: CallOptions = {}) {
    const left = new AbortController();
    const signal = AbortSignal.any([left.signal, ...(options.signal ? [options.signal] : [])]);
    try {
      yield* this.service(LiaisonService).watchEvents(request, { ...options, signal });
    } finally {
      left.abort();
    }
  }

  /** Returns the generated stub of any service, with the same token, deadlines, retries and errors. */
  service<T extends DescService>(service: T): Stub<T> {
    return createClient(service, this.#transport);
  }

  /** Ends all calls and closes the connection. */
  close(): void {
    this.#ended.abort(new Unavailable("The client is closed"));
    this.#connection.close();
  }
}

/** Returns a transport with the deadlines and retries of the service config, whose errors tell their reasons. */
export function retrying(
  inner: Transport,
  target: string,
  ended: AbortSignal,
  attempts?: number,
  pace: Pace = REAL_PACE,
): Transport {
  const told = (error: unknown, signal: AbortSignal): unknown =>
    signal.aborted ? signal.reason : error instanceof ConnectError ? typed(error, target) : error;
  async function* telling<T>(answers: AsyncIterable<T>, signal: AbortSignal) {
    try {
      yield* answers;
    } catch (error) {
      throw told(error, signal);
    }
  }
  async function repeat<T>(method: DescMethod, limits: Limits, call: Call<T>): Promise<T> {
    const { timeoutMs, attempts: usual, pauseAfter } = policyOf(method);
    const end = pace.now() + ((limits.timeoutMs ?? timeoutMs) || Infinity);
    const signal = AbortSignal.any(limits.signal ? [limits.signal, ended] : [ended]);
    for (let tried = 1; ; tried++) {
      try {
        return await call(signal, end < Infinity ? Math.max(1, Math.ceil(end - pace.now())) : 0);
      } catch (error) {
        const pause = tried < (attempts ?? usual) ? pauseAfter(tried, error, pace.random) : Infinity;
        if (signal.aborted || pause === Infinity || pause >= end - pace.now()) throw told(error, signal);
        await pace.sleep(pause, signal).catch((stopped) => Promise.reject(told(stopped, signal)));
      }
    }
  }
  return {
    unary: async (method, signal, timeoutMs, header, input, values) => {
      const message = identified(method.input, input);
      return repeat(method, { signal, timeoutMs }, (stop, left) =>
        inner.unary(method, stop, left, header, message, values),
      );
    },
    stream: async (method, signal, timeoutMs, header, input, values) => {
      const messages = method.methodKind === "bidi_streaming" ? input : await listed(input);
      return repeat(method, { signal, timeoutMs }, async (stop, left) => {
        const answers = await inner.stream(method, stop, left, header, messages, values);
        // A single answer is waited for, because until then the call may fail and be repeated.
        const single = method.methodKind === "client_streaming";
        return { ...answers, message: single ? await listed(answers.message) : telling(answers.message, stop) };
      });
    },
  };
}

async function listed<T>(messages: Stream<T>): Promise<AsyncIterable<T>> {
  const list: T[] = [];
  for await (const message of messages) list.push(message);
  return { [Symbol.asyncIterator]: () => createAsyncIterable(list)[Symbol.asyncIterator]() };
}

function urlOf(target: string): string {
  const [, scheme = "grpc", host, port = ""] = TARGET.exec(target) ?? [];
  const url = `${/s$/i.test(scheme) ? "https" : "http"}://${host}${port}`;
  if (host && (port || /^http/i.test(scheme)) && URL.canParse(url)) return url;
  throw InvalidArgument.field("target", "must be HOST:PORT, grpc://HOST:PORT, grpcs://HOST:PORT or https://HOST");
}
