// Both generations of the official JavaScript client find the agent by its URL alone and send it a text. Reads A2A_URL
// and A2A_TOKEN and prints, by version, what came of it as JSON.

import { randomUUID } from 'node:crypto';
import { env, stdout } from 'node:process';
import { SendMessageRequest, Task } from '@a2a-js/sdk';
import * as v1_0 from '@a2a-js/sdk/client';
import * as v0_3 from 'a2a-js-sdk-v0.3/client';

const MESSAGES = {
  '1.0': { messageId: randomUUID(), role: 'ROLE_USER', parts: [{ text: 'Refactor the parser' }] },
  0.3: { kind: 'message', messageId: randomUUID(), role: 'user', parts: [{ kind: 'text', text: 'Refactor the parser' }] },
};

stdout.write(
  JSON.stringify({
    '1.0': await session(v1_0, SendMessageRequest.fromJSON({ message: MESSAGES['1.0'] }), Task.toJSON),
    0.3: await session(v0_3, { message: MESSAGES[0.3] }, (task) => task),
  }),
);

async function session({ ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory }, request, toJson) {
  const card = await new DefaultAgentCardResolver().resolve(env.A2A_URL);
  const client = await new ClientFactory({ transports: [new JsonRpcTransportFactory({ fetchImpl })] }).createFromUrl(env.A2A_URL);
  const task = toJson(await client.sendMessage(request));
  const extended = await client.getAgentCard();
  return {
    state: task.status.state,
    skills: card.skills.map((skill) => skill.id),
    extended: extended.skills.map((skill) => skill.id),
  };
}

// The token alone is added, and to nothing but calls.
function fetchImpl(url, init) {
  const headers = new Headers(init.headers);
  headers.set('authorization', `Bearer ${env.A2A_TOKEN}`);
  return fetch(url, { ...init, headers });
}
