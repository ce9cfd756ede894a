"""How a model computes batches: their sizes, threads, linear layers, and shared beginnings of inputs."""
