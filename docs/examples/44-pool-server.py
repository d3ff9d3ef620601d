"""The worker in Python of 44-pool-server.ts: it does what the others do."""

import os

import cuffi

parent = cuffi.parent()
with parent.receive() as shared:
    weights = memoryview(shared.copy_to_host()).cast('f').tolist()


def score(row):
    with row:
        items = memoryview(row.copy_to_host()).cast('f').tolist()
    if -1 in items:
        os._exit(1)  # what no worker should do
    return sum(item * weight for item, weight in zip(items, weights))


parent.serve(score)
