// Verifies the signatures of the card at CARD_URL by the public key CARD_KEY (PEM) with the official JavaScript client,
// and prints a line for each of CARD_CASES: one with a `version` asks for the card of that version, one with a
// `description` forges it first.

import { createPublicKey } from 'node:crypto';
import { env, stdout } from 'node:process';
import { verifyAgentCardSignature } from '@a2a-js/sdk';

console.debug = () => {};

async function verify({ version, description }) {
  const headers = version ? { 'A2A-Version': version } : {};
  const card = await (await fetch(env.CARD_URL, { headers })).json();
  if (description) card.description = description;
  try {
    await verifyAgentCardSignature(async () => createPublicKey(env.CARD_KEY))(card);
    return 'verified';
  } catch (error) {
    return error.message;
  }
}

for (const each of JSON.parse(env.CARD_CASES)) stdout.write(`${await verify(each)}\n`);
