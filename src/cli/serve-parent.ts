/** The loop of the child of a command: a reply to each value of its parent. */
import { ClosedError, PeerGoneError } from '../errors.ts';

/** What the loop needs of a `Peer`. */
interface Parent<Receives, Sends> {
  readonly closed: boolean;
  receive(): Promise<Receives>;
  send(value: Sends): Promise<void>;
}

/**
 * Sends `first`, and then for each value what `serve` returns, until the parent ends the connection. If
 * a value cannot be received or served, the reply is what `failed` returns for the reason.
 */
export async function serveParent<Receives, Sends>(
  parent: Parent<Receives, Sends>,
  first: Sends,
  serve: (value: Receives) => Promise<Sends>,
  failed: (message: string) => Sends,
): Promise<void> {
  let reply = first;
  try {
    while (!parent.closed) {
      await parent.send(reply);
      try {
        reply = await serve(await parent.receive());
      } catch (error) {
        reply = failed(String(error instanceof Error ? error.message : error));
      }
    }
  } catch (error) {
    // The parent has exited, so nobody reads the reply.
    if (!(error instanceof ClosedError || error instanceof PeerGoneError)) throw error;
  }
}
