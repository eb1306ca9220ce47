"""Quantization: recipes as data, llama.cpp's own choice of types and kernels, importance matrices, reports."""
