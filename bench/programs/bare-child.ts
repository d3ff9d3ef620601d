/** Sends each message back, without cuffi. */
import { BARE_FD, BareSocket } from '../ways/bare-socket.ts';

const end = (): never => process.exit();
const socket = new BareSocket(
  BARE_FD,
  () => {
    if (!socket.send()) end();
  },
  end,
);
