"""A chat room on asyncio: everybody appends to one topic and follows it, leaving out what they said themselves.

python examples/async_chat.py http://127.0.0.1:4000
"""

from __future__ import annotations

import argparse
import asyncio

import topics
from topics.client import AsyncClient

PEOPLE = ("ada", "bob", "eve")
LINES = 3


async def talk(client: AsyncClient, name: str) -> None:
    async with client.topic("chat").producer(linger_ms=1) as producer:
        for number in range(LINES):
            await producer.append({"text": f"{name} says {number}"}, node=name)


async def listen(client: AsyncClient, name: str, after: int) -> list[str]:
    """What the others said, until all of it was heard."""
    heard: list[str] = []
    async for item in client.topic("chat").follow(after, exclude_nodes=[name]):
        heard.append(item.value["text"])
        if len(heard) == LINES * (len(PEOPLE) - 1):
            break
    return heard


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:4000")
    given = parser.parse_args()
    async with topics.aconnect(given.url) as client:
        await client.topic("chat").configure(cap_records=1000)
        after = (await client.topic("chat").state()).head_seq
        listeners = [asyncio.create_task(listen(client, name, after)) for name in PEOPLE]
        await asyncio.gather(*(talk(client, name) for name in PEOPLE))
        for name, heard in zip(PEOPLE, await asyncio.gather(*listeners), strict=True):
            print(f"{name} heard {len(heard)} lines, the last: {heard[-1]}")


if __name__ == "__main__":
    asyncio.run(main())
