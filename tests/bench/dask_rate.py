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
from distributed import Client, Scheduler, Worker


def encode(shard):
    return shard


def rank(images, texts):
    return images + texts


async def one(client, shards):
    before = time.perf_counter()
    texts = client.submit(encode, 0, pure=False)
    images = client.map(encode, range(shards), pure=False, batch_size=5000)
    ranks = client.map(rank, images, texts=texts, pure=False, batch_size=5000)
    done = 0
    async for batch in distributed.as_completed(ranks, with_results=False).batches():
        done += len(batch)
    assert done == shards, done
    return time.perf_counter() - before


async def main(shards, workers):
    dask.config.set({"distributed.worker.memory.terminate": False, "distributed.admin.tick.limit": "1h"})
    async with Scheduler(port=0, dashboard_address=":0") as scheduler:
        crowd = [Worker(scheduler.address, nthreads=1, dashboard_address=None) for _ in range(workers)]
        for start in range(0, workers, 50):
            await asyncio.gather(*crowd[start : start + 50])
        async with Client(scheduler.address, asynchronous=True) as client:
            await client.wait_for_workers(workers)
            await one(client, min(shards, 1000))
            seconds = await one(client, shards)
        await asyncio.gather(*(worker.close() for worker in crowd))
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
