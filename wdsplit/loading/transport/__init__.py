"""Batches collated, and sent from worker processes and threads to the training process.

Nothing here knows which samples are in a batch. Begin with `collate`; `shared_segments` carries batches from worker
processes, `thread_workers` from threads.
"""
