import { setTimeout as sleep } from "node:timers/promises";
import type { DescMethod } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import { statusOf } from "./errors.js";
import serviceConfig from "./gen/service_config.js";

/** What the service config says of a method. */
export interface Policy {
  /** How long a call may take; 0 is for ever. */
  readonly timeoutMs: number;
  /** How often it may be tried. */
  readonly attempts: number;
  /** How long to wait after an attempt, the first of which is 1, that failed; Infinity where it is not to be repeated. */
  pauseAfter(tried: number, error: unknown, random: () => number): number;
}

/** The clock that calls are timed and repeated by. */
export interface Pace {
  /** Milliseconds since any instant. */
  now(): number;
  /** A number from 0 to 1. */
  random(): number;
  /** Settles after `ms` milliseconds; rejects as soon as the signal is aborted. */
  sleep(ms: number, signal: AbortSignal): Promise<void>;
}

export const REAL_PACE: Pace = {
  now: () => performance.now(),
  random: Math.random,
  sleep: (ms, signal) => sleep(ms, undefined, { signal }),
};

type MethodConfig = (typeof serviceConfig.methodConfig)[number];

const UNKNOWN: Policy = { timeoutMs: 0, attempts: 1, pauseAfter: () => Infinity };
const POLICIES: ReadonlyMap<string, Policy> = new Map(
  serviceConfig.methodConfig.flatMap((config) =>
    config.name.map(({ service, method }) => [`${service}.${method}`, policyFrom(config)]),
  ),
);

/** Returns what the service config says of a method; nothing is one attempt, which may take for ever. */
export function policyOf(method: DescMethod): Policy {
  return POLICIES.get(`${method.parent.typeName}.${method.name}`) ?? UNKNOWN;
}

function policyFrom({ timeout, retryPolicy: retry }: MethodConfig): Policy {
  const timeoutMs = milliseconds(timeout);
  if (!retry) return { ...UNKNOWN, timeoutMs };
  const first = milliseconds(retry.initialBackoff);
  const most = milliseconds(retry.maxBackoff);
  return {
    timeoutMs,
    attempts: retry.maxAttempts,
    pauseAfter(tried, error, random) {
      if (!(error instanceof ConnectError && retry.retryableStatusCodes.includes(statusOf(error)))) return Infinity;
      const pushback = error.metadata.get("grpc-retry-pushback-ms");
      if (pushback !== null) return /^\d+$/.test(pushback) ? Number(pushback) : Infinity;
      return random() * Math.min(first * retry.backoffMultiplier ** (tried - 1), most);
    },
  };
}

function milliseconds(duration: string): number {
  return Number.parseFloat(duration) * 1000;
}
