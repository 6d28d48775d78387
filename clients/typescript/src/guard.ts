import type { Client } from "./client.js";
import { GuardedAction, type Announced, type Announcement, type GuardOptions } from "./guarded_action.js";

export { Blocked, type Announced, type Announcement, type GuardOptions } from "./guarded_action.js";

/** What may be said of one guarded run beside what is said of all. */
export interface RunOptions extends GuardOptions {
  /** Ends the announcement; an action that ends after it was aborted is reviewed as abandoned. */
  readonly signal?: AbortSignal | undefined;
}

/**
 * Returns a function that runs only if the guardrails allow it, each call of it announced. `announcement` may be a
 * function of its arguments:
 *
 *     const drop = guard(
 *       client,
 *       (table: string) => ({ intent: `Drop the table ${table}`, category: "database", stakes: Stakes.HIGH }),
 *       async (table: string) => database.drop(table),
 *     );
 *
 * A call rejects with Blocked unless the verdict allows the action; warnings do not block. It rejects with a CstpError
 * if the announcement or the record fails. In both cases nothing has run. The action is recorded as a decision with the
 * confidence that was given, for which the token needs the permissions announce, record and review; afterwards its
 * outcome is set to success, to failure with the error in its notes, or to abandoned if it was aborted. Errors pass
 * unchanged. If the review fails, that is only a warning of the process. Throws TypeError for unknown options.
 */
export function guard<A extends unknown[], R>(
  client: Client,
  announcement: Announcement | ((...args: A) => Announcement),
  action: (...args: A) => R | PromiseLike<R>,
  options: GuardOptions = {},
): (...args: A) => Promise<R> {
  // Once now, so that a misspelled option is not found by the first call only.
  if (typeof announcement !== "function") new GuardedAction(client, announcement, options);
  return async (...args) => {
    const said = typeof announcement === "function" ? announcement(...args) : announcement;
    return new GuardedAction(client, said, options).run(() => action(...args));
  };
}

/** Runs an action once under guard, and passes the server's response to it; see `guard`. */
export async function runGuarded<R>(
  client: Client,
  announcement: Announcement,
  action: (announced: Announced) => R | PromiseLike<R>,
  { signal, ...options }: RunOptions = {},
): Promise<R> {
  return new GuardedAction(client, announcement, options).run(action, { signal });
}
