/**
 * What a borrowed buffer keeps for an owner that its caller named: the owner stays alive with it,
 * and is nothing else to it. The buffer does not count as closed when a resource among them is.
 */
export const held = (owner: unknown): unknown => (owner === undefined ? undefined : { owner });
