"""Stands for torch.cuda.graphs."""


class CUDAGraph:
    fails_at_its_end = False

    def capture_begin(self, pool=None, capture_error_mode="global"):
        if not self.fails_at_its_end:
            raise AssertionError("a capture has begun")

    def capture_end(self):
        raise RuntimeError("operation failed due to a previous error during capture")


class graph:
    def __init__(self, cuda_graph):
        self.cuda_graph = cuda_graph

    def __enter__(self):
        self.cuda_graph.capture_begin()

    def __exit__(self, *_):
        pass
