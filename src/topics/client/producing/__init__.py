"""Producing: records gathered into batches and sent in the background.

    batching   the batches, without threads and I/O
    producer   Producer, AsyncProducer

Never sends two batches of one topic at a time.
"""
