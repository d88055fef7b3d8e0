"""The runtime: where threads and the event loop meet the engine and the files.

`kernel` joins engine and storage; `aio` drives it from an asyncio loop, `blocking` from any thread, and the simulator
in `topics.testing` from a single thread with virtual time."""
