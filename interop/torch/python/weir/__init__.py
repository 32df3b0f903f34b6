"""weir: one pool of GPU memory for the libraries of a Python process.

weir.torch   PyTorch on weir: python -m weir.torch train.py ARGS
weir.cupy    CuPy on the same pool
"""
__version__ = "0.1.0"
