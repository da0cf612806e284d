"""The Blackwell forward: warps of different roles, two query tiles in tensor memory, softmax of one beside products of the other."""
