"""What an infer request passes through: job, admission, queue, stream, timer."""
