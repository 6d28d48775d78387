import type { ClientHttp2Session } from "node:http2";
import { Http2SessionManager } from "@connectrpc/connect-node";

/** Connect's connection, with an end in good order: its own is an error to the server, which logs it. */
export class Connection extends Http2SessionManager {
  #session: ClientHttp2Session | undefined;

  /** Opens a stream, as Connect does. */
  override async request(...stream: Parameters<Http2SessionManager["request"]>) {
    const opened = await super.request(...stream);
    this.#session = opened.session as ClientHttp2Session | undefined;
    return opened;
  }

  /** Closes the connection, once all its streams have ended, or gives up to open it. */
  close(): void {
    if (this.state() === "connecting") this.abort();
    else this.#session?.close();
  }
}
