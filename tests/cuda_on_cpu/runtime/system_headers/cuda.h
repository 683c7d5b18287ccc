// Stands for CUDA's own: cuda_builtins.h, in front of every source, has what it declares.
