"""Units a second that dask.distributed hands out and takes back.

The shape is the scheduler benchmark's: one text unit a model, a unit for each shard of images, and one
that ranks it, which needs both. Workers live in one process and compute nothing, so that only the
bookkeeping is timed. Prints one JSON object.

usage: dask_rate.py SHARDS WORKERS
"""

import asyncio
import json
import sys
import time

import dask
import distributed
from distributed import Client, LocalCluster


def encode(shard):
    return shard


def rank(images, texts):
    return images + texts


async def one(client, shards):
    before = time.perf_counter()
    texts = client.submit(encode, 0, pure=False)
    images = client.map(encode, range(shards), pure=False, batch_size=5000)
    ranks = client.map(rank, images, texts=texts, pure=False, batch_size=5000)
    await distributed.wait(ranks)
    return time.perf_counter() - before


async def main(shards, workers):
    dask.config.set({"distributed.worker.memory.terminate": False, "distributed.admin.tick.limit": "1h"})
    cluster = LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=False, dashboard_address=None,
        asynchronous=True, silence_logs=50,
    )
    async with cluster, Client(cluster, asynchronous=True) as client:
        await one(client, min(shards, 1000))
        seconds = await one(client, shards)
    units = 2 * shards + 1
    print(json.dumps({
        "version": distributed.__version__,
        "units": units,
        "workers": workers,
        "seconds": seconds,
        "per_second": units / seconds,
    }))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
