"""The modes of torch.compile, which are known without torch."""

CUDA_GRAPHS = "reduce-overhead"
MODES = ("default", CUDA_GRAPHS)
