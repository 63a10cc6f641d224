"""The life of an infer request: job, admission, queue, stream, timer."""
