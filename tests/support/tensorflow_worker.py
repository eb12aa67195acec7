"""One worker of two of a MultiWorkerMirroredStrategy, as TF_CONFIG tells: prints what it was given, as JSON.

tensorflow_worker.py DATASET
"""

import json
import sys

import tensorflow as tf

import wdsplit
from wdsplit.integrations.tensorflow import TensorFlowLoader


def opened(**options):
    return wdsplit.Dataset(sys.argv[1], **options).decode().to_tuple("__position__", "cls", "__pad__")


def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def pipeline(context):
        rank, world_size = context.input_pipeline_id, context.num_input_pipelines
        loader = wdsplit.Loader(opened(rank=rank, world_size=world_size), 8)
        return TensorFlowLoader(loader).dataset(epochs=1)

    @tf.function
    def total(batch):
        def summed(position, row, pad):
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(tf.where(pad, tf.zeros_like(row), row)))

        return strategy.run(summed, args=batch)

    seen, totals = [], []
    for batch in strategy.distribute_datasets_from_function(pipeline):
        seen.append([strategy.experimental_local_results(column)[0].numpy().tolist() for column in batch])
        totals.append(int(total(batch)))
    print(json.dumps({"world": vars(opened().world()), "seen": seen, "totals": totals}))


if __name__ == "__main__":
    main()
