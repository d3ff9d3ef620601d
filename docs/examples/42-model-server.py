"""The model of 42-model-server.ts adds the numbers of each row: with torch, or on the CPU without it."""

import array
import os

import cuffi

try:
    import torch
except ImportError:
    torch = None

if torch and os.environ.get('CUFFI_DRIVER') != 'emulated':
    model = torch.nn.Linear(4, 1, bias=False, device='cuda')
    torch.nn.init.ones_(model.weight)

    def score(batch):
        with batch, torch.inference_mode():
            return model(torch.from_dlpack(batch))

else:

    def score(batch):
        with batch:
            rows = memoryview(batch.copy_to_host()).cast('f', batch.shape)
        scores = cuffi.empty((batch.shape[0], 1))
        scores.copy_from_host(array.array('f', map(sum, rows.tolist())))
        return scores


cuffi.parent().serve(score)
