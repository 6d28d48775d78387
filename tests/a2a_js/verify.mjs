// Verifies the signatures of the card at CARD_URL by the public key CARD_KEY (PEM) with the official JavaScript client.
// With CARD_VERSION, asks for the card of that version; with CARD_DESCRIPTION, forges the description first.

import { createPublicKey } from 'node:crypto';
import { env, stdout } from 'node:process';
import { verifyAgentCardSignature } from '@a2a-js/sdk';

console.debug = () => {};
const headers = env.CARD_VERSION ? { 'A2A-Version': env.CARD_VERSION } : {};
const card = await (await fetch(env.CARD_URL, { headers })).json();
if (env.CARD_DESCRIPTION) card.description = env.CARD_DESCRIPTION;
try {
  await verifyAgentCardSignature(async () => createPublicKey(env.CARD_KEY))(card);
  stdout.write('verified');
} catch (error) {
  stdout.write(error.message);
}
