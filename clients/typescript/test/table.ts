import { readFileSync } from "node:fs";
import { Client, JournalService, Outcome } from "../src/index.js";

/** The servers that `make test-clients` starts, with what it gives the tests of every language. */
export interface Table {
  servers: Record<string, string>;
  tokens: Record<string, string | null>;
  rootCertificates: string;
}

/** Returns the table; undefined where nobody started servers. */
export function readTable<T extends Table>(): T | undefined {
  const path = process.env["CSTP_CASES"];
  return path === undefined ? undefined : (JSON.parse(readFileSync(path, "utf8")) as T);
}

/** Returns a client of the plain server, for a token of the table by its name. */
export function connect(name = "alice"): Client {
  const table = readTable();
  if (!table) throw new Error("CSTP_CASES is not set: run `make test-clients` in the repository");
  return new Client(table.servers["plain"] ?? "", { token: table.tokens[name] ?? undefined });
}

/** Returns the outcomes and notes of the decisions of a title. */
export async function outcomesOf(client: Client, title: string): Promise<[string, string | undefined][]> {
  const { decisions } = await client.service(JournalService).listDecisions({ pageSize: 100 });
  return decisions.flatMap((each) => (each.title === title ? [[Outcome[each.outcome] ?? "", each.notes]] : []));
}
