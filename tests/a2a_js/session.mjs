// The session of test_js_client.py with the official JavaScript client: over every transport that the cards offer, in
// both versions. Reads A2A_URL, A2A_TOKEN and A2A_OTHER_TOKEN (of two agents) and prints what came of it as JSON.

import { randomUUID } from 'node:crypto';
import { env, exit, stdout } from 'node:process';
import {
  A2A_VERSION_HEADER,
  AgentCard,
  CancelTaskRequest,
  GetTaskRequest,
  HTTP_EXTENSION_HEADER,
  ListTasksRequest,
  Part,
  SendMessageRequest,
  StreamResponse,
  SubscribeToTaskRequest,
  Task,
} from '@a2a-js/sdk';
import {
  ClientFactory,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
  RestTransportFactory,
  ServiceParameters,
  withA2AExtensions,
  withA2AVersion,
} from '@a2a-js/sdk/client';
import { GrpcTransportFactory } from '@a2a-js/sdk/client/grpc';
import { InterceptingCall } from '@grpc/grpc-js';

const EXTENSION = 'urn:cstp:extension:v1';
const MILLISECONDS = 20_000;
const CARDS = { '1.0': '/.well-known/agent-card.json', 0.3: '/.well-known/agent.json' };
const WAYS = [
  { binding: 'JSONRPC', version: '1.0' },
  { binding: 'HTTP+JSON', version: '1.0' },
  { binding: 'GRPC', version: '1.0' },
  { binding: 'JSONRPC', version: '0.3' },
  { binding: 'GRPC', version: '0.3' },
];

const INTENT = 'Deploy the payment service to production';
const UNREVIEWED = { [EXTENSION]: { stakes: 'high', context: { affectsProduction: true, ciPassing: true } } };
const QUERY = { method: 'cstp.queryDecisions', params: { query: 'payment service' } };

const report = {};
for (const way of WAYS) {
  report[`${way.binding}-${way.version}`] = await session(way);
}
// Channels of the client have no way to be closed.
stdout.write(JSON.stringify(report), () => exit(0));

async function session(way) {
  const resolver = new DefaultAgentCardResolver({ path: CARDS[way.version], legacyCompat: { enabled: true } });
  const card = await resolver.resolve(env.A2A_URL);
  const heard = [];
  const alice = await connect(way, card, env.A2A_TOKEN, heard);
  const bob = await connect(way, card, env.A2A_OTHER_TOKEN);
  const stranger = await connect(way, card);

  const text = await alice.sendMessage(request([INTENT]), options());
  const spoken = [...heard];
  const activated = await alice.sendMessage(request([INTENT]), options(withA2AExtensions(EXTENSION)));
  const data = await alice.sendMessage(request([QUERY], { contextId: text.contextId }), options());
  const stream = await all(alice.sendMessageStream(request([INTENT]), options()));
  const blocked = await alice.sendMessage(request([INTENT], { metadata: UNREVIEWED }), options());
  const passed = await alice.sendMessage(
    request(['code review is done now', { codeReviewCompleted: true }], { contextId: blocked.contextId }),
    options(),
  );

  return {
    protocol: [alice.transport.protocolName, alice.protocolVersion],
    card: AgentCard.toJSON(card),
    extendedCard: AgentCard.toJSON(await alice.getAgentCard(options())),
    text: Task.toJSON(text),
    data: Task.toJSON(data),
    stream: stream.map(StreamResponse.toJSON),
    got: Task.toJSON(await alice.getTask(GetTaskRequest.fromJSON({ id: text.id }), options())),
    listed: await outcome(() => list(alice, text.contextId)),
    canceled: await outcome(() => cancel(alice, text.id)),
    subscribed: await outcome(() => all(alice.resubscribeTask(SubscribeToTaskRequest.fromJSON({ id: text.id }), options()))),
    heard: { plain: spoken, activated: heard.slice(spoken.length, spoken.length + 1), task: Task.toJSON(activated) },
    method: await outcome(() => callMethod(alice)),
    blocked: Task.toJSON(blocked),
    passed: Task.toJSON(passed),
    other: {
      get: await outcome(() => bob.getTask(GetTaskRequest.fromJSON({ id: text.id }), options())),
      cancel: await outcome(() => cancel(bob, text.id)),
      list: await outcome(() => list(bob, text.contextId)),
    },
    stranger: {
      send: await outcome(() => stranger.sendMessage(request([INTENT]), options())),
      stream: await outcome(() => all(stranger.sendMessageStream(request([INTENT]), options()))),
      get: await outcome(() => stranger.getTask(GetTaskRequest.fromJSON({ id: text.id }), options())),
      getUnknown: await outcome(() => stranger.getTask(GetTaskRequest.fromJSON({ id: 'no-such-task' }), options())),
      cancel: await outcome(() => cancel(stranger, text.id)),
      card: await outcome(() => stranger.getAgentCard(options())),
    },
  };
}

// A client that authenticates with `token` and, in `heard`, keeps which extensions the answers call active.
function connect(way, card, token, heard = []) {
  const fetchImpl = async (...request) => {
    const response = await fetch(...request);
    heard.push(response.headers.get(HTTP_EXTENSION_HEADER));
    return response;
  };
  const listen = (callOptions, nextCall) =>
    new InterceptingCall(nextCall(callOptions), {
      start: (metadata, listener, next) =>
        next(metadata, {
          onReceiveMetadata: (received, pass) => {
            heard.push(received.get(HTTP_EXTENSION_HEADER)[0] ?? null);
            pass(received);
          },
        }),
    });
  const authenticate = async ({ options }) => {
    if (token) options.serviceParameters.authorization = `Bearer ${token}`;
  };
  const legacyCompat = { enabled: true };
  const transports = {
    JSONRPC: new JsonRpcTransportFactory({ fetchImpl, legacyCompat }),
    'HTTP+JSON': new RestTransportFactory({ fetchImpl, legacyCompat }),
    GRPC: new GrpcTransportFactory({ grpcCallOptions: { interceptors: [listen] }, legacyCompat }),
  };
  const factory = new ClientFactory({
    transports: [transports[way.binding]],
    clientConfig: { interceptors: [{ before: authenticate, after: async () => {} }] },
  });
  return factory.createFromAgentCard(card);
}

function options(...updates) {
  return { serviceParameters: ServiceParameters.create(...updates), signal: AbortSignal.timeout(MILLISECONDS) };
}

function request(contents, more = {}) {
  const parts = contents.map((content) => (typeof content === 'string' ? { text: content } : { data: content }));
  return SendMessageRequest.fromJSON({ message: { messageId: randomUUID(), role: 'ROLE_USER', parts, ...more } });
}

async function all(answers) {
  const found = [];
  for await (const answer of answers) found.push(answer);
  return found;
}

async function list(client, contextId) {
  const found = await client.listTasks(ListTasksRequest.fromJSON({ contextId }), options());
  return found.tasks.map((task) => task.id);
}

function cancel(client, id) {
  return client.cancelTask(CancelTaskRequest.fromJSON({ id }), options());
}

// Calls a method of ours by its name, which JSON-RPC of 1.0 alone has a way to do.
async function callMethod(client) {
  if (!client.transport.callExtensionMethod) return null;
  const given = options(withA2AVersion(client.protocolVersion), withA2AExtensions(EXTENSION));
  given.serviceParameters.authorization = `Bearer ${env.A2A_TOKEN}`;
  const answer = await client.transport.callExtensionMethod(QUERY.method, QUERY.params, given);
  return answer.result;
}

// What a call came to: its result, or the name, text and code of its error.
async function outcome(call) {
  try {
    return { result: await call() };
  } catch (error) {
    return { error: error.name, message: error.message, code: error.envelopeCode ?? error.statusCode ?? error.status };
  }
}
