import { randomUUID } from 'node:crypto';

/** What names something to other processes for its life: 16 random bytes in hex. */
export const shareId = (): string => randomUUID().replaceAll('-', '');
