"""What a pipeline does to samples: decode them, select and rename their fields, draw random numbers.

Nothing here reads shards or knows of ranks and workers. Begin with `decoders` (which field is decoded how), then
`columns` (whole batches at once) and `randomness`.
"""
